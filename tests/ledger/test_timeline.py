"""A run as spans: no paid second is left out and none is counted twice, over kills, resumes, stalls and weeks."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from meshwright.ledger import ledger_of, rate_of
from meshwright.record.entries import StepRecord
from meshwright.record.writer import RunWriter
from meshwright.simulator.failures import failures
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


def test_from_a_fault_to_the_restart_is_stalled(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
        writer.event("fault", 1, 12.0, cause="a link")
        writer.event("restart", 1, 20.0)
        writer.step(step(2))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.gpu_seconds["stalled"], ledger.wall_s) == (4 * 8.0, 30.0)


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
    assert ledger.gpu_seconds["stalled"] == pytest.approx(256 * (happened.down_s[0] + happened.waiting_s[0]), rel=1e-6)
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
