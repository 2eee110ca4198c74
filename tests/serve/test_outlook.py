"""When a run ends and what it costs: worked by hand, at every kind of end, and of runs and plans that make no sense."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from meshwright.ledger import evaluation_s, ledger_of, predicted_s, rate_of
from meshwright.plan.plan import read_plan
from meshwright.serve.live import LiveRun
from meshwright.serve.outlook import NOTHING_KNOWN, Outlook, outlook_of, stated_steps

from .conftest import record


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr("meshwright.serve.live.LOOK_S", 0.0)


@pytest.fixture(scope="session")
def plan(racks_plan):
    return read_plan(racks_plan)


def of(writer, ledger=None) -> Outlook:
    run = LiveRun(writer.folder)
    run.refresh()
    return outlook_of(run, ledger)


def test_a_run_half_way_worked_by_hand(new_run, plan, plan_bytes):
    # 20 of 40 steps of a second on 256 accelerators; no evaluation but that at the end.
    found = of(new_run("half", 20, plan=plan_bytes, num_steps=40, last_step=40))
    rate = rate_of(plan.cluster)
    left_s = 20.0 + evaluation_s(plan)
    assert (found.num_steps, found.ends_by, found.progress) == (40, "steps asked for", 0.5)
    assert found.left_s == pytest.approx(left_s) and found.paced_s == pytest.approx(20 + left_s)
    assert found.predicted_s == pytest.approx(predicted_s(plan, 40).value)
    assert found.usd_per_s == pytest.approx(float(rate.usd_per_gpu_hour) * 256 / 3600)
    assert found.paced_usd == pytest.approx(found.paced_s * found.usd_per_s) and found.price_note == str(rate)
    finish = datetime.fromisoformat(found.finish_at)
    assert abs((finish - datetime.now(UTC)).total_seconds() - left_s) < 60


def test_a_run_without_a_plan_has_a_pace_and_no_price(new_run):
    found = of(new_run("bare", 20, num_steps=40, last_step=40))
    assert found.left_s == pytest.approx(20.0) and found.paced_s == pytest.approx(40.0)
    assert (found.predicted_s, found.predicted_usd, found.paced_usd, found.price_note) == (None, None, None, "no price is listed")
    nothing = of(new_run("nothing"))
    assert (nothing.num_steps, nothing.left_s, nothing.progress, nothing.finish_at) == (None, None, None, None)


@pytest.mark.parametrize("num_done", [0, 1])
def test_a_run_that_has_hardly_begun_is_known_as_far_as_it_can_be(new_run, plan, plan_bytes, num_done):
    found = of(new_run("new", num_done, plan=plan_bytes, num_steps=40, last_step=40))
    assert (found.num_steps, found.progress) == (40, num_done / 40) and found.price_note == str(rate_of(plan.cluster))
    assert found.predicted_s == pytest.approx(predicted_s(plan, 40).value)
    assert found.left_s is None or math.isfinite(found.left_s)


def test_saves_and_evaluations_that_were_seen_count_for_those_to_come(new_run):
    writer = new_run("saving", 20, num_steps=40, last_step=40)
    writer.event("checkpoint", 20, saved_step=20, stall_s=10.0)  # half a second for every step so far
    assert of(writer).left_s == pytest.approx(20 * 1.5)


def test_a_budget_ends_a_run_that_would_pass_it(new_run, plan_bytes):
    writer = new_run("budget", 20, plan=plan_bytes, num_steps=40, last_step=40)
    usd_per_s = of(writer).usd_per_s
    writer.event("resumed", 20, budget_usd=str(25 * usd_per_s))  # 20 s are spent
    found = of(writer)
    assert (found.ends_by, found.num_steps) == ("budget", 25) and found.left_s == pytest.approx(5.0)
    writer.event("resumed", 20, budget_usd=str(1e9))
    assert of(writer).ends_by == "steps asked for"
    writer.event("resumed", 20, budget_usd="1")
    spent = of(writer)
    assert (spent.num_steps, spent.left_s) == (20, 0.0)


def test_the_price_of_the_ledger_goes_before_the_list(new_run, plan_bytes):
    writer = new_run("priced", 20, plan=plan_bytes, num_steps=40, last_step=40)
    price = {"usd_per_gpu_hour": "36", "provider": "us", "kind": "given", "date": "2026-11-16", "source": "a test"}
    writer.event("resumed", 20, price=price)
    writer.step(record(21))
    found = of(writer, ledger_of(writer.folder))
    assert found.usd_per_s == pytest.approx(36 * 256 / 3600) and found.price_note.startswith("$36 per accelerator-hour, us")


@pytest.mark.parametrize("status, progress", [("target_reached", 1.0), ("stopped", 0.5), ("failed", 0.5)])
def test_a_run_that_has_ended_has_nothing_left(new_run, status, progress):
    writer = new_run("ended", 20, num_steps=40, last_step=40)
    writer.finish(status)
    found = of(writer)
    assert (found.left_s, found.finish_at, found.paced_s, found.progress) == (None, None, None, progress)


def test_steps_of_an_older_folder_come_from_its_plan(new_run, plan, plan_bytes):
    run = LiveRun(new_run("older", 1, plan=plan_bytes).folder)
    run.refresh()
    assert stated_steps(run)[0] == plan.workload.num_steps()
    bare = LiveRun(new_run("bare", 1).folder)
    bare.refresh()
    assert stated_steps(bare) == (None, None)


@pytest.mark.parametrize("budget", ["lots", "nan", [], {"a": 1}])
def test_a_budget_that_is_no_number_does_no_harm(new_run, plan_bytes, budget):
    writer = new_run("odd", 20, plan=plan_bytes, num_steps=40, last_step=40)
    writer.event("resumed", 20, budget_usd=budget)
    found = of(writer)
    assert found.ends_by in (None, "steps asked for") and (found.left_s is None or math.isfinite(found.left_s))


@pytest.mark.parametrize("error", [ZeroDivisionError("step_s is 0"), ValueError("nan"), OverflowError("too large")])
def test_a_plan_of_senseless_numbers_leaves_the_run_to_see(new_run, plan_bytes, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("meshwright.serve.outlook.predicted_s", fail)
    writer = new_run("odd", 20, plan=plan_bytes, num_steps=40, last_step=40)
    assert of(writer) == NOTHING_KNOWN and NOTHING_KNOWN.price_note == "the plan's numbers make no sense"
    writer.finish("target_reached")
    assert of(writer) == replace(NOTHING_KNOWN, progress=1.0)


def test_seconds_beyond_all_dates_have_no_date(new_run):
    writer = new_run("slow", 2, num_steps=2**52, last_step=2**52)
    writer.step(record(3, 1e10))
    found = of(writer)
    assert found.finish_at is None and found.left_s > 1e9
