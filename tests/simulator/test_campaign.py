"""Weeks: the seconds add up, a step-by-step reference agrees, and Llama 3's 54 days come out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost.checkpoints import goodput
from meshwright.describe.failures import Cause, Failures, failures
from meshwright.errors import InputError
from meshwright.predict.goodput import advised_interval_s, advised_spares, interruptions
from meshwright.simulator.campaign import Campaign, weeks
from meshwright.units import DAY, HOUR

LLAMA3 = failures("llama3")


def campaign(known=LLAMA3, size=16384, interval_s=330.0, spares=13, dead=0):
    return Campaign(
        failures=known, num_accelerators=size, accelerators_per_node=8, interval_s=interval_s, num_spares=spares, dead_nodes=dead
    )


def test_llama_3s_54_days_have_419_interruptions_by_the_published_causes():
    seen = weeks(campaign(), seed=0, num_seeds=100, horizon_s=54 * DAY)
    assert seen.interruptions.sum(axis=1).mean() == pytest.approx(419, rel=0.01)
    counts = dict(zip((cause.name for cause in LLAMA3.causes), seen.interruptions.mean(axis=0), strict=True))
    published = {"faulty_gpu": 148, "hbm3_memory": 72, "network": 35, "gpu_sram": 19, "gpu_system_processor": 17}
    for name, count in published.items():
        assert counts[name] == pytest.approx(count, abs=3 * math.sqrt(count / 100))
    assert seen.goodput.mean() > 0.9


def test_the_seconds_of_a_run_add_up():
    for end in ({"horizon_s": 20 * DAY}, {"work_s": 20 * DAY}):
        seen = weeks(campaign(), 1, 50, **end)
        assert seen.work_s + seen.lost_s + seen.checkpoint_s + seen.down_s + seen.waiting_s == pytest.approx(seen.wall_s, rel=1e-9)
        assert seen.waiting_s.max() > 0
    assert seen.finished.all()
    assert seen.work_s == pytest.approx(np.full(50, 20 * DAY))


def test_without_failures_only_checkpoints_take_time():
    seen = weeks(campaign(failures("none"), interval_s=3600.0), 0, 2, horizon_s=10 * (3600 + 5))
    assert seen.work_s.tolist() == [36000.0] * 2
    assert seen.interruptions.sum() == 0
    assert weeks(campaign(failures("none"), interval_s=3600.0), 0, 1, work_s=36000.0).wall_s.tolist() == [36000.0 + 9 * 5]


def test_effective_time_is_what_renewal_theory_says():
    seen = weeks(campaign(spares=60), 0, 60, horizon_s=54 * DAY)
    expected = goodput(330.0, LLAMA3.checkpoint_s, LLAMA3.mean_time_between_s(16384), LLAMA3.detection_s + LLAMA3.restart_s)
    assert seen.goodput.mean() == pytest.approx(float(expected), abs=0.002)


@pytest.mark.parametrize("size", [64, 512, 8192, 16384])
@pytest.mark.parametrize("days", [14, 60])
def test_the_closed_form_has_every_share_of_the_simulation(size, days):
    expected = interruptions(LLAMA3, size, 8)
    assert sum(expected.shares.values()) == pytest.approx(1)
    seen = weeks(campaign(size=size, interval_s=expected.interval_s, spares=expected.num_spares), 0, 1000, days * DAY)
    simulated = (seen.work_s, seen.lost_s, seen.checkpoint_s, seen.down_s, seen.waiting_s)
    for share, seconds in zip(expected.shares.values(), simulated, strict=True):
        drawn = seconds / seen.wall_s
        in_chance = 4 * drawn.std() / math.sqrt(len(drawn))
        assert share == pytest.approx(drawn.mean(), abs=in_chance + 0.02 / days)  # all nodes are there on the first day


def reference(known: Failures, size: int, step_s: float, every: int, horizon_s: float, rng: np.random.Generator) -> float:
    """Effective time of one run, walked step by step: the slow way that the vectorised loop stands for."""
    between_s = known.mean_time_between_s(size)
    now_s, kept, done, fails_s = 0.0, 0, 0, rng.exponential(between_s)
    while now_s < horizon_s:
        now_s += step_s
        done += 1
        if done - kept == every and now_s + known.checkpoint_s < fails_s:
            now_s += known.checkpoint_s
            kept = done
        while fails_s < now_s:
            now_s = fails_s + known.detection_s + known.restart_s
            fails_s, done = fails_s + rng.exponential(between_s), kept
    return done * step_s / now_s


def test_steps_walked_one_by_one_give_the_same_effective_time():
    step_s, every, horizon_s = 6.0, 55, 10 * DAY
    rng = np.random.default_rng(0)
    one_by_one = [reference(LLAMA3, 16384, step_s, every, horizon_s, rng) for _ in range(8)]
    at_once = weeks(campaign(interval_s=every * step_s, spares=60), 0, 100, horizon_s).goodput
    error = math.hypot(np.std(one_by_one) / math.sqrt(8), np.std(at_once) / math.sqrt(100))
    assert np.mean(one_by_one) == pytest.approx(at_once.mean(), abs=3 * error + 6.0 / 11124)  # half a step is lost with each


def test_more_spares_never_hurt_and_the_advised_number_is_about_the_cheapest():
    advised = advised_spares(LLAMA3, 16384, 8)
    net = {}
    for spares in (0, advised - 6, advised - 3, advised, advised + 3, advised + 12):
        seen = weeks(campaign(spares=spares), 0, 30, 54 * DAY)
        net[spares] = seen.goodput.mean() / (1 + spares * 8 / 16384)
    assert net[advised] >= max(net.values()) - 5e-4
    assert net[0] < net[advised - 6] < net[advised - 3] < net[advised]


def test_nodes_that_are_dead_at_the_start_leave_fewer_spares():
    whole, hurt = (weeks(campaign(spares=13, dead=dead), 0, 50, 2 * DAY).goodput.mean() for dead in (0, 13))
    assert hurt < whole


def test_a_run_whose_nodes_are_dead_waits_until_enough_are_mended():
    one = replace(LLAMA3, causes=())
    for dead, waits_h in ((13, 0), (14, 24), (2048, 24)):
        seen = weeks(campaign(one, spares=13, dead=dead), 0, 1, 2 * DAY)
        assert seen.waiting_s[0] == waits_h * HOUR


def test_a_fault_that_loses_no_node_does_not_end_the_wait_for_one():
    causes = (
        Cause(name="node", per_accelerator_hour=1 / 16384 / 24, loses_node=True),
        Cause(name="software", per_accelerator_hour=1 / 16384, loses_node=False),
    )
    seen = weeks(campaign(replace(LLAMA3, causes=causes, repair_s=12 * HOUR), spares=0), 0, 40, 30 * DAY)
    lost = seen.interruptions[:, 0].sum()
    assert seen.waiting_s.sum() > 0.7 * lost * 12 * HOUR  # repairs overlap now and then, and the last may be cut off


def test_broken_off_every_seed_ends_where_it_was():
    def give_up(what, done, total):
        raise KeyboardInterrupt

    seen = weeks(campaign(), 0, 5, 54 * DAY, report=give_up)
    assert not seen.complete and (seen.interruptions.sum(axis=1) == 1).all()
    assert (seen.wall_s > 0).all() and (seen.wall_s < 54 * DAY).all()


def test_what_would_be_interrupted_without_end_is_refused():
    broken = replace(LLAMA3, causes=(Cause(name="all", per_accelerator_hour=1.0, loses_node=True),))
    for end in ({"horizon_s": DAY}, {"work_s": DAY}):
        with pytest.raises(InputError, match="would come more than 100,000 times"):
            weeks(campaign(broken), 0, 1, **end)


def test_free_checkpoints_are_made_often():
    assert advised_interval_s(replace(LLAMA3, checkpoint_s=0.0), 16384) == 60.0


def test_the_advised_interval_grows_with_the_time_between_interruptions():
    assert advised_interval_s(LLAMA3, 1024) == pytest.approx(4 * advised_interval_s(LLAMA3, 16384), rel=0.02)
    assert advised_interval_s(failures("none"), 1024) == HOUR
    assert advised_spares(failures("none"), 1024, 8) == 0


def test_the_same_seed_gives_the_same_weeks():
    one, again = (weeks(campaign(), 3, 5, 5 * DAY) for _ in range(2))
    assert one.wall_s.tobytes() == again.wall_s.tobytes() and one.when_s == again.when_s


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"dead_nodes": 2049}, "failed_nodes is 2049, and the cluster has 2048 nodes"),
        ({"num_spares": -1}, "spares is -1"),
        ({"interval_s": 0.0}, "checkpoint_every is 0 s"),
    ],
)
def test_a_campaign_that_cannot_be_is_refused(changes, what):
    with pytest.raises(InputError, match=what):
        replace(campaign(), **changes)


def test_a_campaign_must_end():
    with pytest.raises(InputError, match="has no end"):
        weeks(campaign(), 0, 1)


def test_a_machine_that_breaks_all_the_time_does_no_work():
    broken = replace(LLAMA3, causes=(Cause(name="all", per_accelerator_hour=1.0, loses_node=False),))
    seen = weeks(campaign(broken, size=16384), 0, 1, horizon_s=60.0)
    assert seen.work_s[0] < 10 and seen.interruptions.sum() > 100
