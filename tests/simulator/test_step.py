"""One step of all replicas: exact without noise, never faster with more, and the same for the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cost.schedule import Hops, evaluate
from meshwright.errors import MeshwrightError
from meshwright.record.entries import PARTS
from meshwright.simulator.noise import QUIET
from meshwright.simulator.planned_step import planned_step
from meshwright.simulator.step import UNDISTURBED, Setting, Slow, simulate, undisturbed, walk

LAYOUTS = [
    ("tp=1,pp=1,dp=8,recompute=full", 8),
    ("tp=2,pp=1,dp=8,zero=3", 16),
    ("tp=2,pp=2,vp=2,dp=4", 16),
    ("tp=2,pp=4,vp=4,dp=4", 32),
    ("tp=2,pp=4,vp=1,dp=4,zero=0", 32),
    ("tp=2,pp=4,vp=2,dp=4,zero=2", 32),
    ("tp=2,pp=4,vp=2,dp=4,overlap_dp=no", 32),
    ("tp=2,pp=4,vp=1,dp=4,overlap_pp=no", 32),
    ("tp=2,pp=4,vp=2,dp=4,schedule=zero-bubble", 32),
    ("tp=2,cp=2,pp=2,vp=2,dp=4", 32),
]
same_plan = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("layout, gpus", LAYOUTS)
def test_without_noise_a_step_is_the_predicted_one(small, layout, gpus):
    plan = small(layout, gpus)
    steps = simulate(planned_step(plan), 3, seed=7)
    assert steps.step_s == pytest.approx([plan.step_s] * 3, rel=1e-12)
    for part in PARTS:
        assert steps.parts_s[part] == pytest.approx([plan.parts_s[part]] * 3, rel=1e-9, abs=1e-12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp_vp=st.sampled_from([(1, 1), (2, 1), (2, 4), (4, 2), (4, 8), (8, 4)]),
    dp=st.sampled_from([1, 2, 4]),
    rounds=st.integers(1, 12),
    zero=st.integers(0, 3),
    schedule=st.sampled_from(["interleaved", "zero-bubble"]),
    seed=st.integers(0, 2**32),
)
def test_without_noise_any_layout_takes_its_predicted_step(small, tp, pp_vp, dp, rounds, zero, schedule, seed):
    pp, vp = pp_vp
    layout = f"tp={tp},pp={pp},vp={vp},dp={dp},zero={zero},schedule={schedule},recompute=full"
    try:
        plan = small(layout, tp * pp * dp, batch=dp * rounds)
    except MeshwrightError:  # does not fit, or does not divide
        assume(False)
    assert simulate(planned_step(plan), 2, seed).step_s == pytest.approx([plan.step_s] * 2, rel=1e-12)


def test_without_noise_the_record_step_is_the_predicted_one(record):
    assert simulate(planned_step(record), 2, seed=0).step_s == pytest.approx([record.step_s] * 2, rel=1e-12)


def test_what_buckets_leave_exposed_is_what_the_prediction_says_on_the_record_machine(record):
    job = planned_step(record)
    assert undisturbed(job).exposed_dp_s == pytest.approx(job.parts_s["exposed_dp"], rel=1e-9)


@pytest.mark.parametrize("layout, gpus", LAYOUTS)
def test_parts_add_up_to_the_step(small, loud, layout, gpus):
    steps = simulate(planned_step(small(layout, gpus)), 5, 1, Setting(noise=loud))
    assert np.sum([steps.parts_s[part] for part in PARTS], axis=0) == pytest.approx(steps.step_s, rel=1e-12)


@same_plan
@given(low=st.floats(0, 2), more=st.floats(0, 3), seed=st.integers(0, 1000))
def test_more_noise_never_makes_a_step_faster(racks_job, low, more, seed):
    shaken = {"jitter": 0.002, "delay": 0.001, "drift": 0.01, "level_spread": 0.4}
    noise = replace(QUIET, **shaken, first_step_s=0.1, after_evaluation_s=0.1, run_spread=0.003)
    less, louder = (simulate(racks_job, 2, seed, Setting(noise=noise.scaled(by))) for by in (low, low + more))
    assert (louder.step_s >= less.step_s - 1e-12).all()
    assert (less.step_s >= racks_job.step_s - 1e-12).all()


@same_plan
@given(rate=st.floats(0, 5), more=st.floats(0, 5), longer=st.floats(0, 5), seed=st.integers(0, 1000))
def test_more_or_longer_stalls_never_make_a_step_faster(small, rate, more, longer, seed):
    job = planned_step(small("tp=1,pp=1,dp=8,recompute=full", 8))
    few = replace(QUIET, stalls_per_hour=rate, stall_spread=1.0, stall_share=1.0)
    many = replace(few, stalls_per_hour=rate + more, stall_share=1.0 + longer)
    assert (simulate(job, 20, seed, Setting(noise=many)).step_s >= simulate(job, 20, seed, Setting(noise=few)).step_s - 1e-12).all()


def test_the_same_seed_gives_the_same_steps_and_another_one_others(racks_job, loud):
    one, again, other = (simulate(racks_job, 9, seed, Setting(noise=loud)) for seed in (3, 3, 4))
    assert one.step_s.tobytes() == again.step_s.tobytes()
    assert one.step_s.tobytes() != other.step_s.tobytes()


def test_a_slow_rank_slows_its_replica_as_the_schedule_says(small):
    job = planned_step(small("tp=2,pp=4,vp=2,dp=4", 32))
    layout = job.plan.layout
    rank = layout.rank({"tp": 1, "cp": 0, "pp": 2, "dp": 3})
    walked = walk(job, 1, Setting(slow=(Slow(rank=rank, factor=1.3),)), np.random.default_rng(0))
    by_kind = np.zeros((2, layout.pp, layout.vp))
    by_kind[job.schedule.kind, job.schedule.stage, job.schedule.chunk] = job.duration_s
    by_kind[:, 2] *= 1.3
    expected = evaluate(job.schedule, by_kind[0], by_kind[1], hops=Hops(hop_s=float(job.hop_s.max())))
    assert walked.pipeline_s[0] - walked.weights_s[0] == pytest.approx(expected.makespan_s, rel=1e-9)
    assert walked.slowest_replica[0] == 3


def test_gradients_wait_for_the_slowest_replica(racks_job):
    slow = Setting(slow=(Slow(rank=0, factor=1.5),))
    alike, late = (walk(racks_job, 1, setting, np.random.default_rng(0)) for setting in (UNDISTURBED, slow))
    assert late.gradients_s[0] > alike.gradients_s[0]
    assert late.gradients_s[0] >= late.pipeline_s[0]


def test_storage_that_feeds_too_slowly_sets_the_pace(small):
    plan = small("tp=2,pp=2,vp=2,dp=4", 16)
    needs_s = 2 * plan.step_s
    starved = replace(plan.cluster, storage_bytes_per_s=plan.workload.tokens_per_step * 4 / needs_s)
    steps = simulate(planned_step(plan, starved), 2, 0)
    assert steps.step_s == pytest.approx([needs_s] * 2)
    assert steps.parts_s["data"] == pytest.approx([needs_s / 2] * 2, rel=1e-3)


def test_first_steps_and_steps_after_evaluations_take_longer(racks_job):
    noise = replace(QUIET, first_step_s=0.4, after_evaluation_s=0.1)
    steps = simulate(racks_job, 10, 1, Setting(noise=noise), np.array([0, 5]))
    assert np.flatnonzero(steps.step_s > racks_job.step_s + 1e-9).tolist() == [0, 5]
    assert steps.is_first.tolist() == [i in (0, 5) for i in range(10)]


def test_broken_off_it_returns_the_blocks_that_are_done(small):
    job = planned_step(small("tp=1,pp=1,dp=8,recompute=full", 8))

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    steps = simulate(job, 10_000, 0, report=stop)
    assert 0 < len(steps) < 10_000


def test_without_a_pipeline_the_wait_for_the_slowest_replica_is_exposed_dp_and_no_bubble(small):
    job = planned_step(small("tp=2,dp=4", 8))
    rank = job.plan.layout.rank({"tp": 1, "cp": 0, "pp": 0, "dp": 3})
    alike, late = (simulate(job, 1, 0, setting) for setting in (UNDISTURBED, Setting(slow=(Slow(rank=rank, factor=2.0),))))
    lost_s = float(late.step_s[0] - alike.step_s[0])
    assert lost_s == pytest.approx(job.pipeline_s, rel=1e-9)
    assert late.parts_s["bubble"] == alike.parts_s["bubble"] == pytest.approx([0.0], abs=1e-12)
    # As a mean over ranks: one replica of four works longer, three wait for it.
    more = {part: float(late.parts_s[part][0] - alike.parts_s[part][0]) for part in ("compute", "exposed_dp")}
    assert more == pytest.approx({"compute": lost_s / 4, "exposed_dp": 3 * lost_s / 4}, rel=1e-9)


def test_with_a_pipeline_it_is_bubble(small):
    job = planned_step(small("tp=2,pp=2,dp=2", 8))
    slow = Setting(slow=(Slow(rank=0, factor=2.0),))
    alike, late = (simulate(job, 1, 0, setting) for setting in (UNDISTURBED, slow))
    assert late.parts_s["bubble"][0] > alike.parts_s["bubble"][0]
    assert late.parts_s["compute"] == alike.parts_s["compute"]


def test_one_replica_alone_waits_for_nobody(small, loud):
    steps = simulate(planned_step(small("tp=4,dp=1", 4)), 20, 0, Setting(noise=loud))
    assert not steps.parts_s["bubble"].any()
    assert np.ptp(steps.parts_s["exposed_dp"]) == 0.0
    assert sum(steps.parts_s.values()) == pytest.approx(steps.step_s)
