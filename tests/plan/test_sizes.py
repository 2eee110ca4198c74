"""How many accelerators: sizes, objectives, limits, and the front of time against cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.describe.load import load_cluster, load_workload
from meshwright.describe.whatif import domain_changes
from meshwright.errors import FitError, InputError
from meshwright.job import Job
from meshwright.plan.objective import OBJECTIVES, Aim, read_duration
from meshwright.plan.sizes import Ask, chosen, ladder, machines_up_to, searched, survey

RECORD = load_cluster("azure-gb200-128")
SMALL = Ask(
    job=Job(
        "llama-3.2-1b",
        load_cluster("dgx-h100-superpod").resized(64),
        replace(load_workload("pretrain-1t"), seq_len=2048, global_batch=32, num_tokens=1e9),
    ),
    keep=1,
)


def best(ask, most):
    return chosen(ask, survey(ask, machines_up_to(ask.job.cluster, most), front=False)).best


def everything(ask, most):
    """Every size searched, whatever its floor."""
    found = []
    for machine in machines_up_to(ask.job.cluster, most):
        try:
            found.append(searched(ask.on(machine)).best)
        except (FitError, InputError):
            continue
    return found


def test_the_ladder_does_not_depend_on_where_it_ends():
    assert ladder(20) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]
    assert all(ladder(n) == [size for size in ladder(1000) if size <= n] for n in (1, 2, 17, 999))


def test_machines_use_a_domain_as_described_or_whole():
    machines = {(m.num_accelerators, m.tiers[0].num_accelerators) for m in machines_up_to(RECORD, 9216)}
    assert {(8192, 64), (9216, 72), (7168, 64), (4608, 72), (32, 32), (1, 1)} <= machines
    assert max(machines) == (9216, 72) and all(size <= 9216 for size, _ in machines)


@pytest.mark.parametrize("size", [576, 4608])
def test_a_given_number_is_spread_the_same_by_plan_sweep_and_predict(size):
    job = Job("llama-3.1-405b", RECORD, "mlperf-llama31-405b")
    layout = "tp=4,cp=2,mbs=1"
    planned = job.plan(gpus=size, keep=1, layout=layout).forecast
    given = Job("llama-3.1-405b", RECORD, "mlperf-llama31-405b", gpus=size)
    assert planned.job.cluster == given.cluster == given.plan(keep=1, layout=layout).forecast.job.cluster
    assert planned.step_s == given.forecast(str(planned.layout)).step_s
    assert job.sweep([size], layout=layout).points[0].best.job.cluster == given.cluster


def test_a_size_that_was_chosen_says_how_many_of_a_domain_it_uses():
    assert RECORD.resized(4608).tiers[0].num_accelerators == 64
    assert {m.tiers[0].num_accelerators for m in machines_up_to(RECORD, 9216) if m.num_accelerators == 4608} == {72}
    for machine in machines_up_to(RECORD, 9216):
        job = Job("llama-3.1-405b", RECORD, "mlperf-llama31-405b", gpus=machine.num_accelerators, changes=domain_changes(RECORD, machine))
        assert [tier.num_accelerators for tier in job.cluster] == [tier.num_accelerators for tier in machine]
    assert domain_changes(RECORD, RECORD) == ()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=2, max_size=2))
def test_more_accelerators_never_give_a_slower_best_plan(limits):
    few, many = sorted(limits)
    assert best(SMALL, many).step_s <= best(SMALL, few).step_s


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_floor_drops_no_better_size(objective):
    ask = replace(SMALL, aim=Aim(objective=objective))
    found = best(ask, 32)
    assert ask.aim.value(found) == pytest.approx(min(ask.aim.value(one) for one in everything(ask, 32)), rel=1e-9)


def test_cost_takes_fewer_accelerators_than_time():
    cheap, fast = best(replace(SMALL, aim=Aim(objective="cost")), 64), best(SMALL, 64)
    assert cheap.job.num_accelerators < fast.job.num_accelerators
    assert cheap.outcome.offer.cost_usd.value < fast.outcome.offer.cost_usd.value


def test_a_deadline_and_a_budget_are_kept_and_the_nearest_miss_is_named():
    free = best(replace(SMALL, aim=Aim(objective="cost")), 64)
    deadline_s = free.outcome.time_to_train_s.value / 4
    kept = best(replace(SMALL, aim=Aim(objective="cost", deadline_s=deadline_s)), 64)
    assert kept.outcome.time_to_train_s.value <= deadline_s
    budget_usd = kept.outcome.offer.cost_usd.value
    fastest = best(replace(SMALL, aim=Aim(budget_usd=budget_usd)), 64)
    assert fastest.outcome.offer.cost_usd.value <= budget_usd
    with pytest.raises(FitError, match=r"no plan meets the limits: the nearest, .* past the deadline"):
        best(replace(SMALL, aim=Aim(deadline_s=0.01)), 64)


def test_no_point_of_the_front_is_beaten_and_none_is_missing():
    front = survey(SMALL, machines_up_to(SMALL.job.cluster, 64), front=True).front()
    points = [(p.best.outcome.time_to_train_s.value, p.best.outcome.offer.cost_usd.value) for p in front]
    assert points == sorted(points) and [cost for _, cost in points] == sorted((cost for _, cost in points), reverse=True)
    for one in everything(SMALL, 64):
        time_s, cost = one.outcome.time_to_train_s.value, one.outcome.offer.cost_usd.value
        assert any(t <= time_s * (1 + 1e-9) and c <= cost * (1 + 1e-9) for t, c in points)


def test_an_objective_that_cannot_be_reckoned_says_why():
    job = replace(SMALL.job, workload=replace(SMALL.job.workload, num_tokens=0.0))
    endless = replace(SMALL, job=job, aim=Aim(objective="cost"))
    with pytest.raises(InputError, match="states neither tokens nor a target") as raised:
        best(endless, 8)
    assert raised.value.fix == "set workload.num_tokens"


@pytest.mark.parametrize("text, seconds", [("7d", 604800), ("36h", 129600), ("90min", 5400), ("1.5 h", 5400), ("20s", 20)])
def test_durations_are_read(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "7x", "d", "-1d", "0s", "nan d", "inf h"])
def test_no_duration_is_guessed(text):
    with pytest.raises(InputError):
        read_duration(text)


def test_a_node_is_not_stretched_to_what_is_allowed():
    workstation = load_cluster("workstation-8x")
    assert [m.num_accelerators for m in machines_up_to(workstation, 512)] == [8, 7, 6, 5, 4, 3, 2, 1]
    with pytest.raises(InputError, match="64 accelerators are more than the 8"):
        workstation.resized(64)


def test_a_plan_beyond_what_is_described_says_so():
    node, fabric = SMALL.job.cluster.tiers
    described = replace(SMALL.job.cluster, tiers=(node, replace(fabric, num_accelerators=8, num_installed=8)))
    ask = replace(SMALL, job=Job(SMALL.job.model, described, SMALL.job.workload))
    within, beyond = (chosen(ask, survey(ask, [described.resized(size)], front=False)).best for size in (8, 16))
    assert not any("described" in note for note in within.notes)
    assert any("16 accelerators are more than the 8 described" in note for note in beyond.notes)
