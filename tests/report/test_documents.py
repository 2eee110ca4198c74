"""A report is one document: the terminal, Markdown, notebooks, JSON and the tables of the page have the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import words

from meshwright.plan.plan import Plan
from meshwright.record.profile import profile_of
from meshwright.report.documents import MAX_EVALUATIONS, profile_document, report_document
from meshwright.report.facts import facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.report.page.trace_page import trace_page
from meshwright.say.document import Document, Note, Pairs, Table, Text
from meshwright.say.html import fragment
from meshwright.say.markdown import escaped, markdown
from meshwright.units import seconds

EVENTS = (
    ("start", 0, 2.0, {}),
    ("evaluation", 50, 30.0, {"loss": 5.25, "seconds": 1.0, "samples": 800}),
    ("checkpoint", 70, 42.0, {"saved_step": 70, "stall_s": 0.25}),
)


def tables(document: Document) -> dict[str, Table | Pairs]:
    """Tables and pairs by their titles."""
    return {block.title: block for block in document.blocks if isinstance(block, Table | Pairs)}


def cells(document: Document, *titles: str) -> Iterator[str]:
    """Every cell of the tables with these titles; of all without any."""
    for title, table in tables(document).items():
        if not titles or title in titles:
            yield from (cell for row in table.rows for cell in row)


@pytest.fixture
def trained(make_run, workstation: Plan, steps_around: Callable[..., list[float]]) -> Path:
    folder: Path = make_run("trained", plan=workstation, times_s=steps_around(100), events=EVENTS, target=5.0, extra={"memory_bytes": 2e10})
    return folder


@pytest.fixture
def simulated(make_run, workstation: Plan, steps_around: Callable[..., list[float]]) -> Path:
    folder: Path = make_run("simulated", plan=workstation, kind="simulated", times_s=steps_around(100, 0.6))
    return folder


def test_the_page_of_a_run_has_the_cells_of_its_tables(trained: Path) -> None:
    runs = facts_of_runs([trained])
    document = report_document(runs)
    page = words(run_page(runs))
    shared = [cell for cell in cells(document, "where the time went", "step time", "parts of the step") if cell]
    assert len(shared) > 60 and [cell for cell in shared if cell not in page] == []
    text, html = markdown(document), words(fragment(document))
    assert [cell for cell in cells(document) if escaped(cell) not in text or cell not in html] == []


def test_the_values_of_a_run_are_those_of_its_tables(trained: Path) -> None:
    document = report_document(facts_of_runs([trained]))
    values = document.to_json()
    assert (values["schema"], list(values)) == ("meshwright/report/1", ["schema", "runs", "interval_method"])
    run = values["runs"][0]
    by_name = {row[0]: row[1] for row in (*tables(document)["step time"].rows, *tables(document)["run trained: trained, finished"].rows)}
    assert by_name["median step"] == seconds(run["median_step_s"]) and by_name["worst"] == seconds(run["worst_step_s"])
    assert by_name[run["time_name"]] == seconds(run["run_s"]) and by_name["loss"] == f"{run['validation_loss']:.4f}" == "5.2500"
    assert by_name["tokens per second"] == f"{run['tokens_per_s']:,.0f}"
    spent = {row[0]: row[1] for row in tables(document)["where the time went"].rows}
    assert spent["samples"] == seconds(run["num_trained_samples"] * run["sample_s"]) and spent["total"] == seconds(run["run_s"])
    assert {name: seconds(value) for name, value in run["spent_s"].items() if name != "steps"}.items() <= spent.items()
    assert sum(run["spent_s"].values()) == pytest.approx(run["run_s"])
    json.dumps(values, allow_nan=False)


def test_several_runs_stand_side_by_side(trained: Path, simulated: Path, make_run) -> None:
    runs = facts_of_runs([trained, simulated, make_run("other")])
    document = report_document(runs)
    found = tables(document)
    assert list(found) == ["3 runs compared", "where the time went", "parts of the step", "carbon, water and memory"]
    assert [row[0] for row in found["3 runs compared"].rows] == ["trained", "simulated", "other"]
    sources = [row[:2] for row in found["parts of the step"].rows]  # the simulation is beside the run that it simulates
    assert sources == [("trained", "predicted"), ("trained", "simulated"), ("trained", "measured"), ("other", "measured")]
    page = words(run_page(runs))
    assert [cell for cell in cells(document, "3 runs compared") if cell not in page] == []
    texts = [block.text for block in document.blocks if isinstance(block, Text)]
    assert texts[0].startswith("simulated against trained: 20.") and texts[0] in page
    assert any(block.text.startswith("Different models: ") for block in document.blocks if isinstance(block, Note))


def test_of_many_evaluations_the_last_are_shown_and_json_has_all(make_run) -> None:
    events = [("evaluation", step, 0.5 * step, {"loss": 3.0, "seconds": 0.01}) for step in range(1, 41)]
    document = report_document(facts_of_runs([make_run(events=events)]))
    assert len(tables(document)["evaluations"].rows) == MAX_EVALUATIONS < 40
    assert len(document.to_json()["runs"][0]["evaluations"]) == 40
    assert "These are the last 20 of 40 evaluations; --json prints all of them." in markdown(document)


def test_the_page_of_a_profile_has_the_cells_of_its_document(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
        for name, stream, start, length in (("gemm", 7, 0, 10), ("ncclDevKernel_AllReduce(x)", 20, 8, 12), ("gemm", 7, 20, 10))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": events}))
    profile = profile_of((tmp_path / "trace.json",))
    document = profile_document(profile)
    page = words(trace_page(profile))
    assert len(list(cells(document))) == 14 and [cell for cell in cells(document) if cell not in page] == []
    assert document.to_json()["schema"] == "meshwright/profile/1"
