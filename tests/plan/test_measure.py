"""What a search makes small: the run's energy as the outcome computes it, ranked over every layout and not among the fastest."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.workload import Evaluation
from meshwright.errors import MeshwrightError
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.plan.candidates import DEGREES, Fixed, Space, degrees
from meshwright.plan.features import Features
from meshwright.plan.measure import run_energy, run_time
from meshwright.plan.noise import plan_noise
from meshwright.plan.objective import OBJECTIVES, Aim
from meshwright.plan.search import _bounded_space, search, usual_features
from meshwright.plan.sizes import Ask, searched
from meshwright.predict.inputs import inputs_of
from meshwright.predict.outcome import outcome
from meshwright.predict.prediction import predict
from meshwright.predict.software import software
from meshwright.predict.step import price

MODEL = replace(load_model("llama-3.2-1b"), num_layers=4)
WORKLOAD = replace(
    load_workload("pretrain-1t"), seq_len=2048, global_batch=2, num_tokens=1e9, evaluation=Evaluation(num_samples=512, every_samples=50_000)
)
CLUSTER = load_cluster("dgx-h100-superpod").resized(4)
STACK = software("v5.0")  # slower than the reference, so that work and time differ
JOB = Job(MODEL, CLUSTER, WORKLOAD, STACK)


def every_layout():
    features = usual_features(JOB)
    space = Space.of(MODEL, CLUSTER, degrees(MODEL, CLUSTER, WORKLOAD, features, Fixed()), features, Fixed())
    return [batch.row(row) for batch, _ in space.batches(features.zero_stages, features.recompute) for row in range(len(batch))]


@pytest.fixture(scope="module")
def everything():
    """Every legal layout that fits, priced from its exact schedule."""
    found = []
    for layout in every_layout():
        try:
            found.append(JOB.forecast(layout))
        except MeshwrightError:
            continue
    return found


def test_energy_is_what_the_outcome_says_of_every_layout():
    layouts = Layouts.of(every_layout()[::7])
    nodes = CLUSTER.num_accelerators / CLUSTER.accelerators_per_node
    for num_tokens in (1e9, 1.5e10):  # below a day, and some layouts above
        workload = replace(WORKLOAD, num_tokens=num_tokens)
        job = replace(JOB, workload=workload)
        prediction = predict(job, layouts)
        for measure, of in (
            (run_energy(job), lambda whole: whole.energy_j.value / nodes),
            (run_time(job), lambda whole: whole.ideal_s),
        ):
            values = measure.value(measure.times(workload, layouts, prediction.detail))
            assert values == pytest.approx([of(outcome(prediction, row)) for row in range(len(layouts))], rel=1e-12)
    assert len({outcome(prediction, row).interruptions is None for row in range(len(layouts))}) == 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_best_by_every_objective_is_the_best_of_all_layouts(objective, everything):
    aim = Aim(objective=objective)
    ask = Ask(job=JOB, aim=aim, keep=5)
    plans = searched(ask).plans

    def value(priced):
        return priced.step_s if objective == "time" else aim.value(priced)

    distinct: dict[object, float] = {}  # of layouts that differ only in ZeRO stage and recompute the best stands for all
    for priced in everything:
        alike = replace(priced.layout, zero_stage=1, recompute="none")
        distinct[alike] = min(distinct.get(alike, np.inf), value(priced))
    assert [value(priced) for priced in plans] == pytest.approx(sorted(distinct.values())[:5], rel=1e-9)


@pytest.mark.parametrize("name", ["energy", "run time"])
def test_no_layout_stays_under_the_bound_of_its_degrees(name):
    job = replace(JOB, workload=replace(WORKLOAD, global_batch=16))
    measure = run_energy(job) if name == "energy" else run_time(job)
    space, bounds = _bounded_space(job, Features(), Fixed(), measure)
    bound_of = dict(zip(space.rows, bounds, strict=True))
    for batch, _ in space.batches((0, 1, 2, 3), ("none", "selective", "full")):
        values = measure.value(measure.times(job.workload, batch, price(inputs_of(job), batch, STACK.constants)))
        rows = zip(*(getattr(batch, key).tolist() for key in DEGREES), strict=True)
        assert (np.array([bound_of[row] for row in rows]) <= values * (1 + 1e-12)).all()


def test_the_least_energy_need_not_be_the_fastest_and_a_deadline_binds_it():
    job = replace(JOB, cluster=CLUSTER.resized(8), workload=replace(WORKLOAD, global_batch=8))
    ask = Ask(job=job, aim=Aim(objective="energy"), keep=3)
    free, fastest = searched(ask), searched(replace(ask, aim=Aim()))
    assert free.best.outcome.energy_j.value < fastest.best.outcome.energy_j.value
    assert free.best.step_s > fastest.best.step_s
    ranked = search(job, measure=run_energy(job), keep=300, prune=False, noise=plan_noise())
    assert tuple(priced.layout for priced in free.plans) == ranked.layouts[:3]
    times_s = [plan.time_to_train.value for plan in (fastest.best, free.best)]
    aim = Aim(objective="energy", deadline_s=sum(times_s) / 2)
    bound = searched(replace(ask, aim=aim))
    plans = (job.forecast(layout) for layout in ranked.layouts)
    expected = next(priced for priced in plans if aim.allows(priced))
    assert all(aim.allows(priced) for priced in bound.plans)
    assert bound.best.layout == expected.layout
