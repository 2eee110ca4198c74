"""The values of a report: in the vocabulary, finite, absent or null where nothing is known, and cut where they would be endless."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.layout import Layout
from meshwright.plan.plan import Plan
from meshwright.record.profile import profile_of
from meshwright.report.documents import profile_document, report_document
from meshwright.report.facts import facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.report.tables import step_rows
from meshwright.report.values import MAX_EVENTS, profile_values, report_values, run_values
from meshwright.say.vocabulary import problems


def of_one(folder: Path) -> dict[str, Any]:
    (facts,) = facts_of_runs([folder])
    return run_values(facts)


def test_a_run_worked_by_hand(make_run, workstation: Plan) -> None:
    events = [("start", 0, 2.0, {}), ("evaluation", 40, 23.0, {"loss": 4.5, "seconds": 1.0, "samples": 640})]
    values = of_one(make_run(plan=workstation, events=events, target=4.6))
    assert (values["num_steps"], values["median_step_s"], values["run_s"]) == (40, 0.5, 23.0)
    assert values["sample_s"] == pytest.approx(0.5 / 16) and values["fixed_s"] == pytest.approx(3.0)
    assert values["mean_parts_s"]["compute"] == pytest.approx(0.35) and values["mean_exposed_s"] == pytest.approx({"tp": 0.05, "dp": 0.025})
    assert values["evaluations"] == [{"step": 40, "num_trained_samples": 640, "validation_loss": 4.5, "evaluation_s": 1.0}]
    assert values["is_target_reached"] and values["target_loss"] == 4.6 and values["event_counts"] == {"start": 1, "evaluation": 1}
    assert values["layout"]["dp"] == 8 and values["predicted_step_s"] == workstation.step_s


def test_the_share_of_hidden_communication_is_that_of_the_last_profile(make_run) -> None:
    first = {"first_step": 5, "num_steps": 3, "num_traced_ranks": 4, "communication_s": 0.2, "hidden_s": 0.1, "overlap_pct": 50.0}
    last = {**first, "first_step": 15, "hidden_s": 0.15, "overlap_pct": 75.0, "message": "75 %"}
    folder = make_run(events=[("profile", 7, 5.0, first), ("profile", 17, 12.0, last), ("profile", 20, 13.0, {"message": "damaged"})])
    values = of_one(folder)
    assert values["overlap"] == {
        **{"first_step": 15, "last_step": 17, "num_traced_ranks": 4, "communication_s": 0.2, "hidden_s": 0.15},
        "overlap_pct": pytest.approx(75.0),
    }
    (facts,) = facts_of_runs([folder])
    (row,) = [row for row in step_rows(facts) if row[0] == "hidden communication"]
    assert row[1:] == ("75.00 %", "of 200 ms a rank in steps 15 to 17, behind compute of the same rank; profile of 4 ranks")
    assert "75.00 %" in run_page([facts])
    assert problems(json.loads(json.dumps(report_document([facts]).to_json()))) == []
    assert "overlap" not in of_one(make_run("other"))


def test_without_a_plan_what_only_it_can_say_is_absent(make_run) -> None:
    values = of_one(make_run())
    assert not {"model", "layout", "predicted_step_s", "predicted_parts_s"} & set(values)
    assert values["simulated_beside"] is None and "simulated_parts_s" not in values and values["target_loss"] == 0.0


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"kind": "simulated"},
        {"times_s": [0.5]},
        {"events": [("evaluation", 40, 21.0, {"loss": math.nan}), ("nan", 40, 22.0, {"message": "x", "value": math.inf})]},
        {"extra": {"memory_bytes": math.inf, "energy_j": math.nan}},
        {"status": "running"},
    ],
)
def test_values_of_any_run_are_json_in_the_vocabulary(make_run, workstation: Plan, made: dict[str, Any]) -> None:
    for number, plan in enumerate((None, workstation)):
        document = report_document(facts_of_runs([make_run(f"run{number}", plan=plan, **made)]))
        assert problems(json.loads(json.dumps(document.to_json(), allow_nan=False))) == []


def test_of_very_many_events_the_first_are_listed_and_all_are_counted(make_run) -> None:
    values = of_one(make_run(events=[("evaluation", 1, float(n), {"loss": 3.0}) for n in range(MAX_EVENTS + 5)]))
    assert len(values["events"]) == MAX_EVENTS and values["event_counts"]["evaluation"] == MAX_EVENTS + 5


def test_several_runs_have_their_differences(make_run, workstation: Plan, steps_around) -> None:
    folders = [make_run(name, plan=workstation, times_s=steps_around(60, step_s)) for name, step_s in (("a", 0.5), ("b", 0.6))]
    values = report_values(facts_of_runs(folders))
    (difference,) = values["differences"]
    assert (difference["base_label"], difference["label"]) == ("a", "b")
    assert difference["step_change_low95_pct"] <= difference["step_change_pct"] <= difference["step_change_high95_pct"]
    assert difference["step_change_pct"] == pytest.approx(20, abs=1) and values["cannot_compare"] == []
    assert "differences" not in report_values(facts_of_runs(folders[:1]))


def test_a_series_of_sizes_is_there_with_its_efficiency(make_run, workstation: Plan, steps_around) -> None:
    folders = []
    for num_ranks, step_s in ((2, 0.5), (4, 0.625)):
        plan = replace(workstation, cluster=workstation.cluster.resized(num_ranks), layout=Layout(dp=num_ranks))
        folders.append(make_run(f"n{num_ranks}", plan=plan, batch=16 * num_ranks, times_s=steps_around(60, step_s, 0.001)))
    (series,) = report_values(facts_of_runs(folders))["scaling"]
    first, second = series["scaling_points"]
    assert series["mode"] == "weak" and (first["num_accelerators"], second["num_accelerators"]) == (2, 4)
    assert first["efficiency"] == 1.0 and second["efficiency"] == pytest.approx(0.8, rel=0.01)


def test_a_profile_worked_by_hand(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length, "args": {"stream": stream}}
        for name, stream, start, length in (("gemm", 7, 0, 10), ("ncclAllReduce", 20, 8, 12), ("gemm", 7, 20, 10))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    profile = profile_of((tmp_path / "trace.json",))
    (process,) = profile_values(profile)["processes"]
    seconds = {name: 1e6 * process[name] for name in ("window_s", "compute_s", "communication_s", "hidden_s", "exposed_s", "idle_s")}
    assert seconds == pytest.approx({"window_s": 30, "compute_s": 20, "communication_s": 12, "hidden_s": 2, "exposed_s": 10, "idle_s": 0})
    assert process["overlap_pct"] == pytest.approx(100 / 6) and process["exposed_pct"] == pytest.approx(100 / 3)
    assert process["collectives"][0]["name"] == "ncclAllReduce" and problems(profile_document(profile).to_json()) == []
