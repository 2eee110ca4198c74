"""What `meshwright train` says at the end: one time, its parts, cost and energy; also of runs that went wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.ledger import ledger_of
from meshwright.plan.plan import Plan
from meshwright.record.run import read_run
from meshwright.report.facts import facts_of
from meshwright.report.training import training_document
from meshwright.say.document import Document, Pairs, Table
from meshwright.say.vocabulary import problems
from meshwright.units import seconds

START = ("start", 0, 2.0, {})


def pairs(document: Document) -> dict[str, str]:
    return {name: value for block in document.blocks if isinstance(block, Pairs) for name, value, _ in block.rows}


def ended(folder: Path, plan: Plan) -> Document:
    return training_document(read_run(folder), plan)


def evaluated(make_run, plan: Plan, loss: object, target: float | None = None) -> Document:
    """Of a run whose last evaluation gave this loss."""
    events = [START, ("evaluation", 40, 23.0, {"loss": 4.5, "seconds": 1.0}), ("evaluation", 40, 24.0, {"loss": loss, "seconds": 1.0})]
    return ended(make_run(plan=plan, events=events, target=target), plan)


def test_the_time_is_that_of_the_report_and_of_the_ledger(make_run, workstation: Plan) -> None:
    folder = make_run(plan=workstation, events=[START, ("evaluation", 40, 24.0, {"loss": 4.5, "seconds": 1.0})])
    document = ended(folder, workstation)
    values = document.to_json()
    assert problems(values) == [] and values["run_s"] == facts_of(read_run(folder)).time.total_s == pytest.approx(24.0)
    assert values["run_s"] == pytest.approx(ledger_of(folder).wall_s) == pytest.approx(sum(values["spent_s"].values()))
    assert pairs(document)["time"] == "24 s: steps 20 s, evaluations 1 s, start 2 s, between steps 1 s"
    assert pairs(document)["work"] == "40 steps, 640 samples"


def test_the_last_evaluation_is_the_loss_and_the_target_stands_beside_it(make_run, workstation: Plan) -> None:
    assert pairs(evaluated(make_run, workstation, 4.25, 4.3))["validation loss"] == "4.2500 (target 4.300)"


@pytest.mark.parametrize("loss", [math.nan, math.inf, "NaN", "bad", None, True])
def test_an_evaluation_that_came_to_no_number_is_said_and_null(make_run, workstation: Plan, loss: object) -> None:
    document = evaluated(make_run, workstation, loss)
    assert pairs(document)["validation loss"] == "not a number"
    assert document.to_json()["validation_loss"] is None and problems(document.to_json()) == []


def test_a_run_that_was_not_evaluated_has_no_validation_loss(make_run, workstation: Plan) -> None:
    document = ended(make_run(plan=workstation), workstation)
    assert "validation loss" not in pairs(document) and document.to_json()["validation_loss"] is None


@pytest.mark.parametrize(
    "details, shown",
    [([{"message": "rank 3 is slow"}], "rank 3 is slow"), ([{"rank": 3}], "after step 5"), ([{"message": f"{n}"} for n in "abc"], "c")],
)
def test_slow_ranks_are_named_the_last_ones(make_run, workstation: Plan, details: list[dict[str, Any]], shown: str) -> None:
    events = [START, *(("slow_rank", 5, 5.0, detail) for detail in details)]
    document = ended(make_run(plan=workstation, events=events), workstation)
    (block,) = (block for block in document.blocks if isinstance(block, Pairs))
    named = [value for name, value, _ in block.rows if name == "slow rank"]
    assert len(named) == min(len(details), 2) and named[-1] == shown


def test_slow_links_are_named_too(make_run, workstation: Plan) -> None:
    events = [START, ("slow_link", 5, 5.0, {"message": "the link of host a is slow"})]
    document = ended(make_run(plan=workstation, events=events), workstation)
    (block,) = (block for block in document.blocks if isinstance(block, Pairs))
    assert ("slow link", "the link of host a is slow", "") in block.rows


def test_parts_stand_beside_those_that_were_predicted(make_run, workstation: Plan) -> None:
    document = ended(make_run(plan=workstation), workstation)
    (table,) = (block for block in document.blocks if isinstance(block, Table))
    rows = {name: (predicted, measured) for name, predicted, measured in table.rows}
    assert rows["compute"] == (seconds(workstation.parts_s["compute"]), "350 ms")  # 0.7 of half a second
    assert rows["mean step"] == (seconds(workstation.step_s), "500 ms")
    assert rows["exposed tp"][1] == "50 ms" and "exposed ep" not in rows


def test_cost_and_energy_say_where_they_come_from(make_run, record: Plan) -> None:
    folder = make_run(plan=record)
    said, ledger = pairs(ended(folder, record)), ledger_of(folder)
    assert ledger.price is not None and str(ledger.price) in said["cost"] and "compute 75 %" in said["cost"]
    assert said["energy"].endswith("modelled at the wall")


def test_a_machine_without_a_price_or_a_power_says_so(make_run, workstation: Plan) -> None:
    chip = replace(workstation.cluster.accelerator, name="secret", power_cap_w=math.nan)
    secret = replace(workstation, cluster=replace(workstation.cluster, accelerator=chip))
    document = ended(make_run(plan=secret), secret)
    said = pairs(document)
    assert said["cost"].startswith("no price is listed; ") and said["energy"] == "energy is unknown: no power is stated"
    assert (document.to_json()["cost_usd"], document.to_json()["energy_kwh"]) == (None, None)
