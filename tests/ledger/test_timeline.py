"""A run as spans: no paid second is left out and none is counted twice, over kills, resumes, stalls and weeks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from meshwright.describe.failures import failures
from meshwright.ledger import ledger_of, rate_of
from meshwright.ledger.timeline import SPARES, abandoned, spans_of, step_uses_s, unbelievable
from meshwright.record.entries import Event, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import Run
from meshwright.record.writer import RunWriter
from meshwright.simulator.outlook import campaign_of, outlook
from meshwright.simulator.run import Conditions, Paid, run_plan
from meshwright.simulator.weeks_record import write_weeks
from meshwright.units import DAY

from .conftest import DOLLAR_A_SECOND, new, racks, start, step


def test_a_save_behind_the_training_stands_where_it_stalled(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in (1, 2, 3):
            writer.step(step(number))
        writer.event("checkpoint", 3, 30.5, saved_step=1, stall_s=0.5, write_s=9.0, commit_s=2.0)
    ledger = ledger_of(tmp_path / "a")
    (saved,) = (entry for entry in ledger.entries if entry.state == "checkpoint")
    assert (saved.start_s, saved.end_s, ledger.wall_s) == (10.0, 10.5, 30.5)


def test_nothing_is_paid_between_a_kill_and_the_resume_and_abandoned_steps_are(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in range(1, 6):
            writer.step(step(number))
    with RunWriter.resume(tmp_path / "a", 3) as writer:
        cheaper = replace(DOLLAR_A_SECOND, usd_per_gpu_hour=Decimal(1800))
        writer.event("resumed", 3, 1000.0, price=cheaper.to_json(), starting_s=6.0, num_ranks=2)
        writer.step(step(4))
        writer.event("stopped", 4, 1012.0, message="asked to stop by a signal")
        writer.finish("stopped")
    ledger = ledger_of(tmp_path / "a")
    assert ledger.wall_s == 50 + 6 + 12
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(4 * 50 + 2 * 18)
    assert ledger.usd == Decimal("200.00") + Decimal("18.00")
    assert ledger.lost_gpu_seconds == pytest.approx(4 * 20) and ledger.lost_usd == Decimal("80.00")
    assert {(e.first_step, e.last_step) for e in ledger.entries if e.is_lost} == {(4, 5)}
    assert "the price changed between starts: $1800 and $3600 per accelerator-hour" in ledger.notes


def test_every_life_has_its_own_steps_however_far_back_it_went(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in range(1, 15):
            writer.step(step(number, 1.0))
    for at_s, after, last in ((100.0, 10, 20), (200.0, 5, 8), (300.0, 8, 9)):
        with RunWriter.resume(tmp_path / "a", after) as writer:
            writer.event("resumed", after, at_s, price=DOLLAR_A_SECOND.to_json())
            for number in range(after + 1, last + 1):
                writer.step(step(number, 1.0))
    ledger = ledger_of(tmp_path / "a")
    spans = sorted({(e.start_s, e.end_s, e.first_step, e.last_step, e.is_lost) for e in ledger.entries})
    assert spans == [
        (0.0, 5.0, 1, 5, False), (5.0, 14.0, 6, 14, True), (100.0, 110.0, 11, 20, True),
        (200.0, 203.0, 6, 8, False), (300.0, 301.0, 9, 9, False),
    ]  # fmt: skip
    assert ledger.usd == Decimal(4 * (14 + 10 + 3 + 1)).quantize(Decimal("0.01"))


@pytest.mark.parametrize("kind, detail", [("stall", {"message": "rank 1 waits for rank 0"}), ("nan", {"message": "layer 3"})])
def test_what_broke_is_stalled(tmp_path: Path, kind: str, detail: dict[str, str]) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
        writer.event(kind, 1, 45.0, **detail)
    assert ledger_of(tmp_path / "a").gpu_seconds["stalled"] == pytest.approx(4 * 35)


def test_from_a_fault_to_the_restart_the_run_recovers(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
        writer.event("fault", 1, 12.0, cause="a link")
        writer.event("restart", 1, 20.0)
        writer.step(step(2))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.gpu_seconds["recovering"], ledger.wall_s) == (4 * 8.0, 30.0)


def test_a_replica_that_is_lost_and_comes_back_is_booked_second_by_second(tmp_path: Path) -> None:
    with new(tmp_path) as writer:  # 4 ranks: two replicas of two
        start(writer, 0.0)
        writer.event("membership", 0, 0.0, generation=0, dp=2, num_ranks=4, reason="start", from_step=1)
        for number in (1, 2, 3):
            writer.step(step(number, 1.0))
    with RunWriter.resume(tmp_path / "a", 2) as writer:  # step 3 was on record, and is taken again from a copy of step 2
        writer.event("membership", 2, 5.0, generation=1, dp=1, num_ranks=2, reason="lost", from_step=3)
        writer.step(step(3, 1.0))
        writer.event("incident", 3, 6.5, action="went on with 1 of 2 replicas", noticed_after_s=1.5, down_s=1.0, message="killed")
        writer.step(step(4, 1.0))
    with RunWriter.resume(tmp_path / "a", 4) as writer:
        writer.event("membership", 4, 8.0, generation=2, dp=2, num_ranks=4, reason="joined", from_step=5)
        writer.step(step(5, 1.0))
    ledger = ledger_of(tmp_path / "a")
    found = sorted({(e.start_s, e.end_s, e.what, e.first_step, e.is_lost) for e in ledger.entries})
    assert found == [
        (0.0, 2.0, "steps", 1, False), (2.0, 3.0, "steps", 3, True), (3.0, 5.5, "recovery", None, False),
        (3.0, 7.5, "lost replicas", None, False), (5.5, 7.5, "steps", 3, False), (7.5, 8.0, "change of replicas", None, False),
        (8.0, 9.0, "steps", 5, False),
    ]  # fmt: skip
    assert ledger.gpu_seconds["recovering"] == pytest.approx(2 * 2.5 + 2 * 4.5 + 4 * 0.5)
    assert (ledger.num_gpus, ledger.wall_s, ledger.lost_gpu_seconds) == pytest.approx((4, 9.0, 4.0))
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(4 * 9.0), "every second of every accelerator is in one state"


def test_the_ranks_of_a_run_that_starts_them_again_are_paid_for_meanwhile(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in (1, 2):
            writer.step(step(number, 1.0))
    with RunWriter.resume(tmp_path / "a", 1) as writer:
        writer.event("resumed", 1, 7.0, starting_s=1.0, price=DOLLAR_A_SECOND.to_json())
        writer.step(step(2, 1.0))
        writer.event("incident", 2, 9.0, action="restarted from step 1", noticed_after_s=3.0, down_s=3.0, message="rank 0 was killed")
    ledger = ledger_of(tmp_path / "a")
    assert ledger.gpu_seconds["recovering"] == pytest.approx(4 * 6.0)
    assert (ledger.wall_s, ledger.lost_gpu_seconds) == pytest.approx((9.0, 4.0))


def test_steps_without_parts_are_compute_and_parts_beyond_a_step_are_shortened(tmp_path: Path) -> None:
    with new(tmp_path, num_ranks=1) as writer:
        start(writer, 0.0)
        writer.step(StepRecord(step=1, samples=1, loss=None, grad_norm=None, step_s=3.0))
        writer.step(StepRecord(step=2, samples=2, loss=None, grad_norm=None, step_s=4.0, parts_s={"compute": 6.0, "bubble": 2.0}))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.gpu_seconds["compute"], ledger.gpu_seconds["bubble"], ledger.gpu_seconds["idle"]) == pytest.approx((6.0, 1.0, 0.0))
    assert "steps without measured parts count as compute" in ledger.notes


def test_weeks_are_paid_from_start_to_end_with_their_spares(tmp_path: Path) -> None:
    plan = racks()
    plan.write(tmp_path / "racks.json")
    llama = failures("llama3")
    often = replace(llama, causes=tuple(replace(cause, per_accelerator_hour=20 * cause.per_accelerator_hour) for cause in llama.causes))
    seen = outlook(plan, Conditions(), campaign_of(plan, often, None, 1), 4, 2, 54 * DAY)
    sample = run_plan(plan, Conditions(), 20, 4)
    rate = rate_of(plan.cluster)
    ledger = ledger_of(write_weeks(seen, sample, tmp_path, "weeks", tmp_path / "racks.json", Paid(rate=rate)))
    happened, per_node = seen.weeks, plan.cluster.accelerators_per_node
    assert ledger.num_gpus == 256 + per_node and ledger.wall_s == pytest.approx(54 * DAY)
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(ledger.num_gpus * 54 * DAY)
    assert happened.waiting_s[0] > 0 and happened.lost_s[0] > 0
    assert ledger.gpu_seconds["recovering"] == pytest.approx(256 * (happened.down_s[0] + happened.waiting_s[0]), rel=1e-6)
    assert ledger.gpu_seconds["checkpoint"] == pytest.approx(256 * happened.checkpoint_s[0], rel=1e-6)
    assert ledger.lost_gpu_seconds == pytest.approx(256 * happened.lost_s[0], rel=1e-4)
    assert float(ledger.usd) == pytest.approx(float(np.asarray(seen.paid_usd(happened.wall_s))[0]), abs=0.02)
    assert ledger.price == rate


@pytest.mark.parametrize(
    "line",
    [
        {"time_s": "NaN", "kind": "stopped", "step": 3},
        {"time_s": "Infinity", "kind": "evaluation", "step": 3, "seconds": 1.0},
        {"time_s": -5, "kind": "resumed", "step": 1},
        {"time_s": 1e300, "kind": "stall", "step": 3},
        {"time_s": 40.0, "kind": "evaluation", "step": 3, "seconds": "NaN"},
        {"time_s": 40.0, "kind": "checkpoint", "step": 3, "saved_step": "x", "stall_s": None},
        {"time_s": 40.0, "kind": "checkpoint", "step": 3, "saved_step": True, "stall_s": -1e300},
        {"time_s": 40.0, "kind": "stall", "step": 3, "seconds": [1]},
        {"time_s": 40.0, "kind": "nobody knows", "step": -7, "price": []},
    ],
)
def test_events_that_make_no_sense_change_nothing(lived: Path, line: dict[str, object]) -> None:
    with open(lived / "events.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    ledger = ledger_of(lived)
    assert (ledger.wall_s, ledger.usd) == (40.0, Decimal("160.00"))


@pytest.mark.parametrize(
    "detail", [{"price": ["x"]}, {"price": {"usd_per_gpu_hour": "-1"}}, {"num_ranks": 0}, {"num_ranks": "4"}, {"starting_s": "NaN"}]
)
def test_a_start_that_makes_no_sense_is_as_if_it_had_no_content(tmp_path: Path, detail: dict[str, object]) -> None:
    with new(tmp_path) as writer:
        writer.event("start", 0, 0.0, **detail)
        writer.step(step(1))
    ledger = ledger_of(tmp_path / "a")
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(40.0) and ledger.usd is None


def run_of(*records: StepRecord, events: Sequence[Event] = (), kind: str = "trained", num_ranks: int = 4) -> Run:
    header = RunHeader(name="a", kind=kind, seed=0, num_ranks=num_ranks, machine="four")
    return Run(Path("nowhere"), header, records, tuple(events), ())


def at(time_s: float, kind: str, step: int = 0, **detail: object) -> Event:
    return Event(time_s=time_s, kind=kind, step=step, detail=detail)


def test_a_run_of_nothing_has_no_span_and_steps_alone_begin_at_zero() -> None:
    assert spans_of(run_of()) == []
    (only,) = spans_of(run_of(step(1), step(2)))
    assert (only.start_s, only.end_s, only.what, only.first_step, only.last_step, only.rate) == (0.0, 20.0, "steps", 1, 2, None)
    assert sum(only.uses_s.values()) == pytest.approx(20.0) and only.uses_s["unaccounted"] == pytest.approx(1.0)


def test_a_clock_that_is_ahead_of_an_event_is_not_put_back() -> None:
    spans = spans_of(run_of(step(1), step(2), events=[at(0.0, "start"), at(15.0, "evaluation", 2, seconds=3.0)]))
    assert [(one.what, one.start_s, one.end_s) for one in spans] == [("steps", 0.0, 20.0), ("evaluation", 20.0, 23.0)]


def test_steps_with_and_without_a_meter_are_separate_and_zero_is_metered() -> None:
    records = [
        step(1, energy_j=5.0),
        step(2, energy_j=7.0),
        step(3),
        step(4, energy_j=0.0),
        step(5, energy_j=-1.0),
        step(6, energy_j=math.inf),
    ]
    spans = spans_of(run_of(*records))
    assert [(one.first_step, one.last_step, one.metered_j) for one in spans] == [(1, 2, 12.0), (3, 3, None), (4, 4, 0.0), (5, 6, None)]


def test_a_simulated_stall_comes_out_of_the_overhead_it_is_in() -> None:
    record = StepRecord(step=1, samples=1, loss=None, grad_norm=None, step_s=10.0, parts_s={"compute": 6.0, "overhead": 3.0})
    assert step_uses_s(record) == {"compute": 6.0, "overhead": 3.0, "unaccounted": 1.0}
    assert step_uses_s(record, 2.0) == {"compute": 6.0, "overhead": 1.0, "stalled": 2.0, "unaccounted": 1.0}
    assert step_uses_s(record, 50.0) == {"compute": 6.0, "overhead": 0.0, "stalled": 3.0, "unaccounted": 1.0}
    (one,) = spans_of(run_of(record, events=[at(4.0, "stall", 1, seconds=2.0)]))
    assert one.uses_s["stalled"] == pytest.approx(2.0)


def test_a_resume_that_began_before_the_record_of_the_kill_ended_does_not_overlap_it() -> None:
    events = [at(0.0, "start"), at(12.0, "resumed", 2, starting_s=11.0), at(30.0, "stopped", 3)]
    spans = spans_of(run_of(step(1), step(2), step(3), events=events))
    assert all(one.end_s <= two.start_s for one, two in pairwise(spans))
    assert sum(one.end_s - one.start_s for one in spans) == pytest.approx(30.0)


def test_events_before_the_start_are_counted_and_left_out() -> None:
    run = run_of(step(1), events=[at(-5.0, "resumed", 1), at(0.0, "start"), at(10.0, "stopped", 1)])
    assert unbelievable(run) == 1
    assert [(one.what, one.end_s) for one in spans_of(run)] == [("steps", 10.0)]


def test_abandoned_steps_are_read_under_either_name_and_junk_is_passed_over(tmp_path: Path) -> None:
    assert list(abandoned(tmp_path)) == []
    old = {**step(7).to_json()}
    old["step_time_s"] = old.pop("step_s")
    lines = [json.dumps(step(6).to_json()), "", "[1]", '{"step": 1}', "{", '{"step_s": -1}', json.dumps(old)]
    (tmp_path / "abandoned.jsonl").write_text("\n".join(lines))
    assert [(record.step, record.step_s) for record in abandoned(tmp_path)] == [(6, 10.0), (7, 10.0)]


def test_rows_of_abandoned_steps_that_damage_has_torn_still_belong_to_a_life(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in range(1, 6):
            writer.step(step(number))
    with RunWriter.resume(tmp_path / "a", 2) as writer:
        start(writer, 100.0, "resumed", 2)
        writer.step(step(3))
    path = tmp_path / "a" / "abandoned.jsonl"
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if json.loads(line).get("step") != 3]
    path.write_bytes(b"".join(kept))
    ledger = ledger_of(tmp_path / "a")
    assert ledger.lost_gpu_seconds == pytest.approx(4 * 20) and ledger.wall_s == pytest.approx(40 + 10)


def test_weeks_worked_by_hand() -> None:
    # 100 s of work and 10 s of saves, of which 20 s were lost; 30 s to come back, then 40 s of work; four accelerators and one spare.
    events = [
        at(0.0, "start", checkpoint_interval_s=60.0, num_spare_accelerators=1),
        at(130.0, "fault", work_s=100.0, checkpoint_s=10.0, lost_s=20.0),
        at(200.0, "finished", work_s=40.0, checkpoint_s=0.0, lost_s=0.0),
    ]
    spans = spans_of(run_of(step(1, 99.0), step(2), events=events, kind="simulated"))
    assert [(one.what, one.start_s, one.end_s, one.is_lost, one.num_gpus) for one in spans] == [
        ("steps", 0.0, 100.0, False, 4), ("checkpoint", 100.0, 110.0, False, 4), ("steps", 110.0, 130.0, True, 4),
        ("restart", 130.0, 160.0, False, 4), ("steps", 160.0, 200.0, False, 4), (SPARES, 0.0, 200.0, False, 1),
    ]  # fmt: skip
    assert spans[0].uses_s["compute"] == pytest.approx(50.0)  # as in the second step: the first is not a usual one
    assert all(sum(one.uses_s.values()) == pytest.approx(one.end_s - one.start_s) for one in spans)


@pytest.mark.parametrize(
    "stated, expected",
    [
        ({"compute": 6.0, "overhead": 2.0}, {"compute": 75.0, "overhead": 25.0}),
        ({"compute": 6.0, "no part": 2.0}, {"compute": 100.0}),
        ({"compute": -1.0}, {"unmeasured": 100.0}),
        ("damaged", {"unmeasured": 100.0}),
    ],
)
def test_weeks_are_made_of_the_mean_step_that_their_start_states(stated: object, expected: dict[str, float]) -> None:
    events = [at(0.0, "start", checkpoint_interval_s=60.0, mean_parts_s=stated), at(100.0, "finished", work_s=100.0)]
    (span,) = spans_of(run_of(events=events, kind="simulated"))
    assert dict(span.uses_s) == pytest.approx(expected)


def test_weeks_whose_events_do_not_account_for_the_time_are_all_work() -> None:
    events = [at(0.0, "start", checkpoint_interval_s=60.0), at(50.0, "fault"), at(80.0, "stopped")]
    spans = spans_of(run_of(events=events, kind="simulated"))
    assert [(one.what, one.end_s, dict(one.uses_s)) for one in spans] == [
        ("steps", 50.0, {"unmeasured": 50.0}),
        ("steps", 80.0, {"unmeasured": 30.0}),
    ]


def test_weeks_whose_events_account_for_more_than_passed_are_shortened_in_proportion() -> None:
    events = [at(0.0, "start", checkpoint_interval_s=60.0), at(50.0, "finished", work_s=60.0, checkpoint_s=20.0, lost_s=20.0)]
    spans = spans_of(run_of(step(1), events=events, kind="simulated"))
    assert [(one.what, one.end_s - one.start_s) for one in spans] == [("steps", 30.0), ("checkpoint", 10.0), ("steps", 10.0)]
