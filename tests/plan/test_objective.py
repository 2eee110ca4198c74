"""Deadlines and budgets: judged by the prediction, which is the middle of its interval; text in words."""

from dataclasses import replace

import pytest

from meshwright.describe.load import accelerator, load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.plan.objective import Aim, Limit
from meshwright.predict.forecast import Forecast
from meshwright.units import DAY

CLUSTER = load_cluster("dgx-h100-superpod").resized(64)
MODEL = load_model("llama-3.1-8b")
WORKLOAD = replace(load_workload("pretrain-1t"), global_batch=256, num_tokens=1e10)


def planned(chip: str) -> Forecast:
    cluster = replace(CLUSTER, accelerator=accelerator(chip))
    return Job(MODEL, cluster, WORKLOAD).forecast("tp=2,dp=32")


@pytest.fixture(scope="module")
def measured() -> Forecast:
    return planned("h100")


def test_a_plan_is_judged_by_its_prediction(measured):
    time_s = measured.outcome.time_to_train_s
    assert time_s.low < time_s.value
    assert Aim(deadline_s=time_s.value).allows(measured) and not Aim(deadline_s=time_s.value * 0.9999).allows(measured)
    budget_usd = measured.outcome.offer.cost_usd.value
    assert Aim(budget_usd=budget_usd).allows(measured) and not Aim(budget_usd=budget_usd * 0.9999).allows(measured)


def test_what_is_missed_is_named_with_what_it_was_judged_by(measured):
    time_s, cost = measured.outcome.time_to_train_s, measured.outcome.offer.cost_usd
    aim = Aim(deadline_s=time_s.value * 2, budget_usd=cost.value * 0.9)
    assert not aim.allows(measured) and aim.missed_by(measured) == pytest.approx(0.1 / 0.9)
    assert "over the budget" in aim.missed(measured) and "past the deadline" not in aim.missed(measured)


def test_seconds_that_a_search_may_predict_are_those_that_are_allowed(measured):
    time_s, cost = measured.outcome.time_to_train_s.value, measured.outcome.offer.cost_usd.value
    assert Aim().most_s(measured) == float("inf")
    assert Aim(deadline_s=1000.0).most_s(measured) == pytest.approx(1000.0)
    assert Aim(deadline_s=time_s * 9, budget_usd=cost * 2).most_s(measured) == pytest.approx(time_s * 2)


def test_words_tell_how_far_a_limit_holds():
    limit = Limit(what="deadline", allowed=9 * DAY, predicted=8.94 * DAY, reaches=16.2 * DAY)
    assert limit.words == "9 d holds at 8.94 d; the interval reaches 16.2 d" and not limit.is_sure
    assert replace(limit, reaches=8.99 * DAY).words == "9 d holds at 8.94 d; even at the far end of the interval, 8.99 d"
    bound = replace(limit, reaches=float("inf"))  # of a run whose samples to the target nobody knows
    assert "9 d holds at 8.94 d, and has no upper end" in bound.words and not bound.is_sure
    assert replace(limit, predicted=12 * DAY).words == "3 d past the deadline"
    budget = Limit(what="budget", allowed=530_000, predicted=525_110, reaches=949_834)
    assert budget.words == "$530,000 holds at $525,110; the interval reaches $949,834"
    assert replace(budget, predicted=600_000).words == "$70,000 over the budget"
