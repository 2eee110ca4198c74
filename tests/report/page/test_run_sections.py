"""Parts of a run's page: who was slow, where time and money went, what was not recorded."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Elements, words

from meshwright.plan.plan import Plan
from meshwright.record.entries import STEP_FIELDS
from meshwright.report.facts import RunFacts, facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.report.page.run_sections import (
    MAX_LISTED,
    beyond_chance,
    events_part,
    exposed_part,
    hours,
    memory_part,
    money_part,
    parts_part,
    ranks_part,
    run_tiles,
    time_part,
)


def test_the_slowest_replica_is_named_where_it_is_no_chance(simulated: Path) -> None:
    assert "replica 5" in run_page(facts_of_runs([simulated]))
    assert beyond_chance(100, 100, 8) and beyond_chance(60, 324, 128)
    assert not beyond_chance(3, 65, 128) and not beyond_chance(12, 100, 8)


def facts(folder: Path) -> RunFacts:
    (found,) = facts_of_runs([folder])
    return found


def rewritten(folder: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Path:
    """The run with each of its steps changed."""
    lines = (folder / "steps.jsonl").read_text().splitlines()
    (folder / "steps.jsonl").write_text("".join(json.dumps(change(n, json.loads(line))) + "\n" for n, line in enumerate(lines)))
    return folder


def tiles(facts_: RunFacts) -> dict[str, tuple[str, str]]:
    """Value and remark of every tile, by its label."""
    found = re.findall(r'<p class="label">(.*?)</p><p class="value">(.*?)</p><p class="remark">(.*?)</p>', "".join(run_tiles(facts_)))
    return {label: (html.unescape(value), html.unescape(remark)) for label, value, remark in found}


def test_a_run_in_tiles_worked_by_hand(make_run, record: Plan) -> None:
    # 40 steps of 0.5 s, a fifth of it exposed or bubble; sequences of 8,192 tokens, 16 a step.
    found = tiles(facts(make_run(plan=record, batch=16)))
    assert found["Median step"] == ("500 ms", "spread 0 %, p99/p50 1.000")
    assert found["Exposed communication"] == ("15.0 %", "of the steps' time; 75 ms per step on average")
    tokens = 16 * record.workload.seq_len / 0.5
    assert found["Tokens per second"][1] == f"{tokens / 8192:,.0f} per rank, steady steps"
    assert found["Cost"][0].startswith("$") and found["Loss"] == (f"{8 / 40**0.2:.4f}", "no target")


def test_tiles_of_a_run_of_which_little_is_known(make_run) -> None:
    found = tiles(facts(make_run(kind="simulated")))
    assert found["Loss"] == ("none", "simulated steps have no loss") and found["Cost"] == ("unknown", "no price is listed")
    assert found["Energy at the wall"][0] == found["Carbon"][0] == "unknown"


@pytest.mark.parametrize(
    "loss, target, goal", [(4.0, 4.5, "target 4.5, reached"), (5.0, 4.5, "target 4.5, not reached"), (5.0, None, "no target")]
)
def test_the_loss_is_that_of_the_last_evaluation(make_run, loss: float, target: float | None, goal: str) -> None:
    events = [("evaluation", 20, 11.0, {"loss": 9.0, "seconds": 1.0}), ("evaluation", 40, 22.0, {"loss": loss, "seconds": 1.0})]
    assert tiles(facts(make_run(events=events, target=target)))["Evaluation loss"] == (f"{loss:.4f}", goal)


def test_where_the_time_went_is_a_sum(make_run) -> None:
    text = words(time_part(facts(make_run(events=[("start", 0, 5.0, {})]))))
    assert text.startswith("640 samples x 31.25 ms + 5 s = 25 s") and "total 25 s 100.00 %" in text and "20.00 %" in text


def test_parts_stand_beside_their_prediction_with_how_far_off_they_are(make_run, workstation: Plan) -> None:
    drawn = parts_part(facts(make_run(plan=workstation)), None)
    off = 100 * (0.35 - workstation.parts_s["compute"]) / workstation.step_s
    assert re.search(rf">compute</span>.*?{re.escape(f'{off:+.1f}')}</td>", drawn)
    assert "Off: measured less predicted." in drawn and "Simulated:" not in drawn
    beside = facts(make_run("<sim>", plan=workstation, kind="simulated"))
    assert "Simulated: &lt;sim&gt;." in parts_part(facts(make_run("again", plan=workstation)), beside)


def test_a_run_without_parts_says_so(make_run) -> None:
    found = facts(rewritten(make_run(), lambda _, entry: {key: value for key, value in entry.items() if key in STEP_FIELDS}))
    assert "Neither the plan nor the run has parts" in parts_part(found, None)
    assert "No communication is exposed, or none was measured." in exposed_part(found, None)
    assert tiles(found)["Exposed communication"] == ("unknown", "no part was measured")


def test_exposed_communication_by_axis_and_source(make_run, workstation: Plan) -> None:
    drawn = words(exposed_part(facts(make_run(plan=workstation)), None))
    assert "measured 50 ms 10.00" in drawn and "measured 25 ms 5.00" in drawn
    assert "dp 8" in drawn


@pytest.mark.parametrize(
    "recorded, text", [({"memory_bytes": 3 * 2.0**30}, "3.0 GiB"), ({"memory_bytes": 2.0**20}, "1.0 MiB"), ({}, "not recorded")]
)
def test_memory_against_what_there_is(make_run, workstation: Plan, recorded: dict[str, float], text: str) -> None:
    assert text in words(memory_part(facts(make_run(plan=workstation, extra=recorded))))


def test_memory_without_a_plan(make_run) -> None:
    assert "Neither predicted nor recorded." in memory_part(facts(make_run()))
    assert "At most 3.0 GiB in a step." in memory_part(facts(make_run("b", extra={"memory_bytes": 3 * 2.0**30})))


def test_slow_ranks_are_listed_up_to_a_number_and_escaped(make_run) -> None:
    events = [("slow_rank", n, float(n), {"message": f"<b>rank {n}"}) for n in range(1, MAX_LISTED + 4)]
    drawn = ranks_part(facts(make_run(events=events)))
    assert drawn.count("<li>") == MAX_LISTED + 1 and "and 3 more" in drawn and "&lt;b&gt;rank 1" in drawn
    assert "No rank and no link was reported as slow." in ranks_part(facts(make_run("none")))


def test_no_replica_stands_out_by_chance(make_run, workstation: Plan) -> None:
    folder = rewritten(make_run(plan=workstation), lambda number, entry: entry | {"slowest_replica": number % 8})
    assert "Of 8 replicas none was the slowest more often than by chance" in ranks_part(facts(folder))


@given(st.integers(1, 500), st.integers(2, 200))
def test_always_the_slowest_is_no_chance_and_an_equal_share_is(num_steps: int, num_replicas: int) -> None:
    chance = num_replicas * num_replicas**-num_steps
    assert beyond_chance(num_steps, num_steps, num_replicas) == (chance < 0.01) or math.isclose(chance, 0.01)
    assert not beyond_chance(num_steps // num_replicas, num_steps, num_replicas)


@pytest.mark.parametrize(
    "detail, text",
    [
        ({"message": "a <word>"}, "a <word>"),
        ({"cause": "switch_or_cable"}, "cause switch or cable"),
        ({"work_s": 90.0, "lost_s": 2.0}, "work since the last stop 90 s, lost of it 2 s"),
        ({"ratio": 1.23456789, "is_it": True}, "ratio 1.23457, is it True"),
        ({"price": {"usd_per_gpu_hour": "x"}}, "price {'usd_per_gpu_hour': 'x'}"),
        ({"long": "y" * 5000}, f"long {'y' * 200}"),
        ({}, ""),
    ],
)
def test_events_in_words(make_run, detail: dict[str, Any], text: str) -> None:
    drawn = events_part(facts(make_run(events=[("fault", 3, 20.0, detail)])))
    cells = Elements(drawn.split("<tbody>")[1].split("</tbody>")[0]).text
    assert cells[2:] == ["fault", *([text] if text else [])] and cells[:2] == ["20 s", "3"]


def test_of_many_events_the_first_are_listed_and_routine_ones_are_not(make_run) -> None:
    events = [("fault", n, float(n), {}) for n in range(1, MAX_LISTED + 6)] + [("checkpoint", 1, 1.0, {})]
    drawn = events_part(facts(make_run(events=events)))
    assert f"The first {MAX_LISTED} of {MAX_LISTED + 5}; events.jsonl has them all" in drawn
    assert "No event is recorded." in events_part(facts(make_run("none")))
    assert "<tbody>" not in events_part(facts(make_run("quiet", events=[("start", 0, 1.0, {})])))


def test_money_by_state_needs_a_dollar_to_be_shared_out(make_run, record: Plan) -> None:
    drawn = money_part(facts(make_run(plan=record)))
    assert ">cost</th>" in drawn and "compute" in words(drawn)
    unpriced = money_part(facts(make_run("unpriced")))
    assert ">cost</th>" not in unpriced and "unknown" in words(unpriced)
    assert "No price is listed for the machine, and none was given" in words(unpriced)


@pytest.mark.parametrize("gpu_seconds, text", [(3600.0, "1"), (1.0, "0.0002778"), (3600.0 * 12345, "12,345")])
def test_accelerator_hours(gpu_seconds: float, text: str) -> None:
    assert hours(gpu_seconds) == text
