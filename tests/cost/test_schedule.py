"""Exact schedules: hand-worked cases, Megatron-LM's orders and counts, and laws."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.cost.schedule import (
    BACKWARD,
    FORWARD,
    KIND_NAMES,
    Hops,
    Schedule,
    evaluate,
    interleaved,
    one_f_one_b,
    schedule_named,
    shared_makespan_s,
    zero_bubble,
)
from meshwright.errors import InputError

SHAPES = [(1, 1, 3), (2, 1, 1), (2, 1, 2), (4, 1, 3), (4, 1, 8), (2, 2, 2), (4, 2, 8), (4, 3, 3), (4, 2, 11), (8, 4, 16), (6, 5, 25)]


def order(schedule: Schedule, stage: int) -> str:
    """One stage's operations as text: F0.1 is the forward of micro-batch 0 through chunk 1."""
    mine = schedule.stage == stage
    rows = zip(schedule.kind[mine], schedule.micro_batch[mine], schedule.chunk[mine], strict=True)
    return " ".join(f"{KIND_NAMES[kind]}{micro_batch}.{chunk}" for kind, micro_batch, chunk in rows)


def all_schedules(num_stages: int, num_chunks: int, num_micro_batches: int) -> list[Schedule]:
    """Every kind of schedule that the shape allows."""
    names = ["interleaved", "zero-bubble"] + (["1f1b"] if num_chunks == 1 else [])
    return [schedule_named(name, num_stages, num_chunks, num_micro_batches) for name in names]


def test_1f1b_runs_ahead_by_the_stages_that_follow():
    schedule = one_f_one_b(3, 4)
    assert order(schedule, 0) == "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0"
    assert order(schedule, 2) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0"


def test_interleaved_order_is_megatrons():
    # Two stages, two chunks, groups of two: warm-up is 2 (2 - rank - 1) + (2 - 1) 2, that is 4 and 2 forwards.
    schedule = interleaved(2, 2, 4)
    assert order(schedule, 0) == "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    assert order(schedule, 1) == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"


def test_interleaved_groups_follow_megatrons_table():
    # The example in Megatron-LM's source: PP2 N3 M5 VP2.
    schedule = interleaved(2, 2, 5, group=3)
    forward = (schedule.stage == 0) & (schedule.kind == FORWARD)
    assert schedule.micro_batch[forward].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert schedule.chunk[forward].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_zero_bubble_puts_weight_gradients_off_by_the_rank():
    schedule = zero_bubble(3, 1, 4)
    assert order(schedule, 0) == "F0.0 F1.0 F2.0 B0.0 W0.0 F3.0 B1.0 W1.0 B2.0 W2.0 B3.0 W3.0"
    assert order(schedule, 2) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 W0.0 F3.0 B3.0 W1.0 W2.0 W3.0"


def test_two_stages_two_micro_batches_by_hand():
    # Stage 0: F 0-1, F 1-2, B 4-6, B 7-9. Stage 1: F 1-2, B 2-4, F 4-5, B 5-7.
    timeline = evaluate(one_f_one_b(2, 2), 1.0, 2.0)
    assert timeline.makespan_s == 9.0
    on_first = timeline.schedule.stage == 0
    assert timeline.start_s[on_first].tolist() == [0, 1, 4, 7]
    assert timeline.start_s[~on_first].tolist() == [1, 2, 4, 5]
    assert timeline.busy_s.tolist() == [6, 6]
    assert timeline.idle_s.tolist() == [3, 3]


def test_a_stage_that_waits_leaves_its_cores_to_the_others_by_hand():
    # Alone on all cores a stage is twice as fast. F0 0-0.5 alone; F1 and F0 0.5-1.5; B0 1.5-2.5 alone; both until 4.5; 5 and 6 alone.
    assert shared_makespan_s(one_f_one_b(2, 2), 1.0, 2.0, fastest=2.0) == pytest.approx(6.0)
    # One micro-batch goes up and comes down, each operation alone: 0.5 + 0.5 + 1 + 1 s, and two messages that take what they take.
    assert shared_makespan_s(one_f_one_b(2, 1), 1.0, 2.0, fastest=2.0, hops=Hops(hop_s=0.5)) == pytest.approx(4.0)
    # Each of its ranks has one core at most: here a stage alone is only half as fast again.
    assert shared_makespan_s(one_f_one_b(2, 1), 1.0, 2.0, fastest=1.5) == pytest.approx(4.0)


@pytest.mark.parametrize("scale", [1e-9, 1e3, 1e12])
def test_shared_cores_take_times_of_any_size(scale):
    """What is left of an operation by rounding must not keep it from ending."""
    for schedule in (one_f_one_b(4, 23), interleaved(4, 2, 8), zero_bubble(3, 1, 7)):
        times = {"weight_s": 0.3 * scale, "hops": Hops(hop_s=0.1 * scale)}
        small_s = shared_makespan_s(schedule, 0.7, 1.1, fastest=3.0, weight_s=0.3, hops=Hops(hop_s=0.1))
        assert shared_makespan_s(schedule, 0.7 * scale, 1.1 * scale, fastest=3.0, **times) == pytest.approx(scale * small_s)


@pytest.mark.parametrize("shape", SHAPES)
def test_shared_cores_are_between_their_work_and_cores_of_each_stages_own(shape):
    for schedule in all_schedules(*shape):
        for hop_s in (0.0, 0.7, 5.0):
            hops, weight_s = Hops(hop_s=hop_s), 0.75
            own_s = evaluate(schedule, 1.0, 2.0, weight_s=weight_s, hops=hops).makespan_s
            even_s, shared_s = (shared_makespan_s(schedule, 1.0, 2.0, fastest=f, weight_s=weight_s, hops=hops) for f in (1.0, 1e9))
            assert even_s == pytest.approx(own_s)
            assert 3.0 * shape[1] * shape[2] - 1e-9 <= shared_s <= own_s + 1e-9
            if not hop_s:
                assert shared_s == pytest.approx(3.0 * shape[1] * shape[2])  # a core is never idle


def test_an_overlapped_message_delays_the_receiver_and_a_blocking_one_the_sender_too():
    # One micro-batch goes up and comes down: each way one message of 0.5 s.
    one = one_f_one_b(2, 1)
    assert evaluate(one, 1.0, 2.0, hops=Hops(hop_s=0.5)).makespan_s == 7.0
    assert evaluate(one, 1.0, 2.0, hops=Hops(hop_s=0.5)).busy_s.tolist() == [3, 3]
    assert evaluate(one, 1.0, 2.0, hops=Hops(hop_s=0.5, overlapped=False)).busy_s.tolist() == [3.5, 3.5]
    # Two: stage 0 sends twice before it can wait for anything; F 0-1.5, F 1.5-3.
    timeline = evaluate(one_f_one_b(2, 2), 1.0, 2.0, hops=Hops(hop_s=0.5, overlapped=False))
    assert timeline.start_s[timeline.schedule.stage == 0].tolist() == [0, 1.5, 5, 8.5]


def test_the_wrap_is_a_hop_of_its_own():
    # One micro-batch, two stages, two chunks: up over 0-1-0-1 and down again: two hops and one wrap each way.
    timeline = evaluate(interleaved(2, 2, 1), 1.0, 2.0, hops=Hops(hop_s=0.1, wrap_s=10.0))
    assert timeline.makespan_s == pytest.approx(4 * 3 + 4 * 0.1 + 2 * 10)


@pytest.mark.parametrize("pp, vp, m", [(2, 1, 2), (4, 1, 4), (4, 1, 9), (4, 2, 4), (8, 4, 32), (8, 8, 288), (6, 3, 20)])
def test_bubbles_of_even_stages_are_the_published_ones(pp, vp, m):
    f, b, w = 1.0, 2.0, 0.75
    work_s = m * vp * (f + b)
    assert evaluate(interleaved(pp, vp, m), f, b).makespan_s - work_s == pytest.approx((pp - 1) * (f + b))
    # ZB-H1: (p - 1)(F + B - W), with B the input gradient.
    assert evaluate(zero_bubble(pp, vp, m), f, b, weight_s=w).makespan_s - work_s == pytest.approx((pp - 1) * (f + b - 2 * w))


def test_peaks_are_megatrons_warm_up_and_one_more():
    assert one_f_one_b(8, 64).peak_in_flight.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert interleaved(8, 8, 288).peak_in_flight.tolist() == [71, 69, 67, 65, 63, 61, 59, 57]
    assert zero_bubble(8, 1, 64).peak_in_flight.tolist() == [8] * 8
    assert one_f_one_b(8, 3).peak_in_flight.tolist() == [3, 3, 3, 3, 3, 3, 2, 1]


@pytest.mark.parametrize("shape", SHAPES)
def test_operations_wait_for_their_stage_and_their_input(shape):
    rng = np.random.default_rng(sum(shape))
    forward_s, backward_s = rng.uniform(0.5, 2, shape[:2]), rng.uniform(1, 3, shape[:2])
    for schedule in all_schedules(*shape):
        timeline = evaluate(schedule, forward_s, backward_s, weight_s=backward_s * 0.4, hops=Hops(hop_s=0.1, wrap_s=0.3))
        for stage in range(shape[0]):
            mine = schedule.stage == stage
            assert (timeline.start_s[mine][1:] >= timeline.end_s[mine][:-1]).all()
        waits = schedule.waits_for >= 0
        assert (timeline.start_s[waits] >= timeline.end_s[schedule.waits_for[waits]] + 0.1 - 1e-12).all()
        assert (schedule.waits_for < np.arange(len(schedule.stage))).all()
        assert (timeline.makespan_s >= timeline.busy_s).all()
        assert timeline.makespan_s == timeline.end_s.max()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pass_runs_once_and_input_comes_from_the_neighbouring_chunk(shape):
    num_stages, num_chunks, num_micro_batches = shape
    for schedule in all_schedules(*shape):
        place = schedule.chunk * num_stages + schedule.stage
        passes = set(zip(schedule.kind.tolist(), place.tolist(), schedule.micro_batch.tolist(), strict=True))
        num_kinds = int(schedule.kind.max()) + 1
        assert len(passes) == len(schedule.kind) == num_kinds * num_stages * num_chunks * num_micro_batches
        for i in np.flatnonzero(schedule.waits_for >= 0):
            j = schedule.waits_for[i]
            assert schedule.kind[i] == schedule.kind[j] and schedule.micro_batch[i] == schedule.micro_batch[j]
            assert place[i] - place[j] == (1 if schedule.kind[i] == FORWARD else -1)
        free = schedule.waits_for < 0
        assert (place[free & (schedule.kind == FORWARD)] == 0).all()
        assert (place[free & (schedule.kind == BACKWARD)] == num_stages * num_chunks - 1).all()


@pytest.mark.parametrize("pp, vp", [(2, 1), (4, 1), (3, 2), (4, 4)])
def test_more_micro_batches_never_shorten_a_step(pp, vp):
    forward_s = np.full((pp, vp), 1.0)
    forward_s[-1, -1] = 1.4
    for name in ("interleaved", "zero-bubble"):
        steps = [schedule_named(name, pp, vp, m) for m in range(1, 4 * pp)]
        makespans = [evaluate(s, forward_s, 2 * forward_s, weight_s=0.8 * forward_s, hops=Hops(hop_s=0.1)).makespan_s for s in steps]
        assert (np.diff(makespans) > 0).all()


def test_a_schedule_says_what_it_cannot_do():
    with pytest.raises(InputError, match="groups of 4 do not carry 6 micro-batches through 4 stages"):
        interleaved(4, 2, 6, group=4)
    with pytest.raises(InputError, match="1f1b has one chunk"):
        schedule_named("1f1b", 4, 2, 8)
    with pytest.raises(InputError, match="no schedule named 'zerobubble'"):
        schedule_named("zerobubble", 4, 1, 8)
    with pytest.raises(InputError, match="num_micro_batches is 0"):
        one_f_one_b(4, 0)
    with pytest.raises(InputError, match="needs the weight-gradient time"):
        evaluate(zero_bubble(2, 1, 2), 1.0, 2.0)
    with pytest.raises(InputError, match=r"forward_s has shape \(3,\), not \(2, 1\)"):
        evaluate(one_f_one_b(2, 2), [1.0, 1.0, 1.0], 2.0)
    with pytest.raises(InputError, match="no duration"):
        evaluate(one_f_one_b(2, 2), -1.0, 2.0)
