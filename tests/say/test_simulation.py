"""What a simulation says: steps beside their prediction, weeks with where the time goes, and what ended them."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.ledger import Budget, Rate
from meshwright.plan.plan import Plan, plan_of
from meshwright.record.entries import PART_NAMES
from meshwright.say.simulation import simulation_document
from meshwright.say.vocabulary import problems
from meshwright.simulator.outlook import Finish
from meshwright.simulator.simulation import Simulation, simulate
from meshwright.units import DAY, seconds, usd

from .conftest import notes, pairs, sentences, table

RATE = Rate(usd_per_gpu_hour=Decimal(1), provider="us", kind="given", date="2026-11-15", source="a test")


@cache
def plan() -> Plan:
    workload = replace(load_workload("mlperf-llama31-405b"), global_batch=32)
    job = Job(load_model("llama-3.1-405b"), load_cluster("azure-gb200-128").resized(256), workload)
    return plan_of(job.forecast(parse_layout("tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1", job.usual_layout())))


@cache
def of_steps(**options: object) -> Simulation:
    return simulate(plan(), steps=12, **options)  # type: ignore[arg-type]


@cache
def of_days(**options: object) -> Simulation:
    return simulate(plan(), days=20.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [of_steps, of_days])
def test_a_simulation_that_nobody_wrote_has_no_folder(found) -> None:  # type: ignore[no-untyped-def]
    document = simulation_document(found())
    values = document.to_json()
    assert values["folder"] is None and problems(values) == []
    assert (values["energy_kwh"] is None) == (found is of_steps)  # days need no folder: their energy is the mean of all seeds
    assert not any(text.startswith("written: ") for text in sentences(document))
    assert ("energy" in pairs(document)) == (found is of_days)


def test_a_written_one_names_its_folder_and_its_energy(tmp_path: Path) -> None:
    found = simulate(plan(), steps=3, runs=tmp_path, name="first")
    document = simulation_document(found)
    assert document.to_json()["folder"] == str(tmp_path / "first") and f"written: {tmp_path / 'first'}" in sentences(document)
    assert found.ledger is not None and found.ledger.energy_j is not None
    assert document.to_json()["energy_kwh"] == pytest.approx(found.ledger.energy_j / 3.6e6)
    assert pairs(document)["energy of 3 steps"].endswith(" of paid time computes")


def test_the_parts_add_up_to_the_mean_step() -> None:
    document = simulation_document(of_steps())
    run = of_steps().run
    assert run is not None
    rows = {name: (predicted, simulated) for name, predicted, simulated in table(document, "parts of the step").rows}
    assert rows["compute"] == (seconds(plan().parts_s["compute"]), seconds(run.mean_parts_s["compute"]))
    assert rows["mean step"] == (seconds(plan().step_s), seconds(float(np.mean(run.times.steady_s))))
    assert PART_NAMES["exposed_ep"] not in rows  # nobody gives it time
    assert "Simulated parts are means of 11 steps; 1 that follows a start or an evaluation is left out." in sentences(document)


def test_seeds_give_an_interval_and_a_slow_rank_its_price() -> None:
    document = simulation_document(of_steps(seeds=3, slow_rank=("7=1.2",)))
    rows = table(document, "over 3 seeds").rows
    assert rows and all(float(row[2]) <= float(row[1]) <= float(row[3]) for row in rows)
    (slow,) = (block for block in document.blocks if getattr(block, "title", "").startswith("the slow rank costs +"))
    assert [row[0] for row in slow.rows] == ["as it was", "without the slow rank"]  # type: ignore[union-attr]
    assert document.to_json()["without_slow_ranks"]["median_step_s"] < document.to_json()["median_step_s"]
    assert not any("the slow rank" in getattr(block, "title", "") for block in simulation_document(of_steps()).blocks)


def test_what_ended_it_is_said() -> None:
    spent = Budget(usd=Decimal("12.5"), rate=RATE, num_gpus=256)
    cut = simulation_document(replace(of_steps(), is_cut=True, budget=spent))
    assert any(text.startswith("The budget of 12.50 USD ended the simulation") for text in sentences(cut))
    assert not cut.to_json()["complete"] and cut.to_json()["over_budget"]
    broken = simulation_document(replace(of_steps(), interrupted=True))
    assert sentences(broken)[-1].startswith("Interrupted") and not broken.to_json()["complete"]
    assert simulation_document(of_steps()).to_json()["complete"]


def test_a_job_without_an_end_or_a_price_says_so() -> None:
    endless = replace(plan(), workload=replace(plan().workload, convergence=None, num_tokens=0.0))
    found = replace(simulate(endless, steps=3), rate=None)
    document = simulation_document(found)
    said = pairs(document)
    assert said["whole job"] == "has no end: the workload states neither tokens nor a target"
    assert said["cost of 3 steps"] == "no price listed"
    values = document.to_json()
    assert (values["time_to_train_s"], values["workload_steps"], values["cost_usd"]) == (None, None, None) and problems(values) == []


def test_a_batch_that_nobody_trained_with_is_a_note() -> None:
    document = simulation_document(of_steps())
    assert notes(document) == document.to_json()["notes"] and len(notes(document)) == 1
    assert notes(document)[0].startswith("samples to the target of mlperf-llama31-405b were measured at batches")


def test_the_shares_of_weeks_add_up_to_the_whole() -> None:
    found = of_days()
    document = simulation_document(found)
    rows = table(document, "where the time goes").rows
    assert sum(float(share.rstrip("%")) for _, _, share in rows) == pytest.approx(100, abs=0.05)
    spent = document.to_json()["spent_s"]
    assert sum(spent.values()) == pytest.approx(20 * DAY) and set(spent) >= {"work", "waiting_for_a_node"}
    assert found.outlook is not None and found.cost_usd is not None and found.waste_usd is not None
    assert pairs(document)["cost"] == f"{usd(found.cost_usd)}, of which waste {usd(found.waste_usd)}"
    by_cause = table(document, "interruptions by cause").rows
    assert sum(float(number) for _, number in by_cause) == pytest.approx(found.outlook.interruptions.mean, abs=0.1 * len(by_cause))


def test_weeks_without_failures_have_no_cause_and_no_rule_for_checkpoints() -> None:
    document = simulation_document(of_days(failures="none", checkpoint_every="1h", spares=0))
    said = pairs(document)
    assert said["interruptions"] == "0.0" and said["effective time"] != "100.00%"  # checkpoints take their time
    assert said["checkpoint every"] == "60 min of work" and said["spare nodes"] == "0"
    assert "interruptions by cause" not in {getattr(block, "title", "") for block in document.blocks}
    values = document.to_json()
    assert (values["interruptions"], values["checkpoint"]["young_s"], values["checkpoint"]["daly_s"]) == (0.0, None, None)


def test_chances_are_those_of_the_runs_that_finished() -> None:
    finish = Finish(wall_s=np.array([1.0, 2.0, 3.0, 4.0]) * DAY, cost_usd=np.array([10.0, 20.0, 30.0, 40.0]))
    budget = Budget(usd=Decimal(25), rate=RATE, num_gpus=256)
    document = simulation_document(replace(of_days(), finish=finish, finish_by_s=3.5 * DAY, budget=budget))
    shown = sentences(document)
    assert shown[0].startswith("The whole workload takes 60 h")
    assert "Done within 3.5 d: 75.0 % of runs." in shown and "For 25.00 USD or less: 50.0 % of runs." in shown
    values = document.to_json()
    assert (values["chance_by"], values["chance_under"]) == (0.75, 0.5)


def test_the_same_failures_at_other_sizes() -> None:
    document = simulation_document(of_days(sizes=True))
    rows = table(document, "the same failures at other sizes").rows
    sizes = of_days(sizes=True).sizes
    assert [row[0] for row in rows] == [f"{size.num_accelerators:,}" for size in sizes] and len(rows) > 1
    never = replace(sizes[0], between_s=math.inf, young_s=math.inf, daly_s=math.inf, interval_s=math.inf, interruptions_per_day=0.0)
    (row,) = table(simulation_document(replace(of_days(), sizes=(never,))), "the same failures at other sizes").rows
    assert row[1:6] == ("never", "0.0", "-", "-", "-")
