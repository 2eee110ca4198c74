"""Deadlines and budgets: judged by the prediction, or where that is a best case by the middle of comparable runs; text in words."""

from dataclasses import replace

import pytest

from meshwright.describe.load import accelerator, load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.plan.objective import Aim, Limit
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Spread
from meshwright.units import DAY

CLUSTER = load_cluster("dgx-h100-superpod").resized(64)
MODEL = load_model("llama-3.1-8b")
WORKLOAD = replace(load_workload("pretrain-1t"), global_batch=256, num_tokens=1e10)


def planned(chip: str) -> Forecast:
    cluster = replace(CLUSTER, accelerator=accelerator(chip))
    return Job(MODEL, cluster, WORKLOAD).forecast("tp=2,dp=32")


def lopsided(forecast: Forecast) -> Forecast:
    """The forecast as if its like had all taken longer, half of them 1.2 times as long."""
    raised = Spread(
        forecast.outcome.time_to_train_s.value, forecast.outcome.time_to_train_s.value, 2 * forecast.outcome.time_to_train_s.value
    )
    evidence = replace(forecast.evidence, low=1.0, middle=1.2, high=2.0)
    return replace(forecast, evidence=evidence, outcome=replace(forecast.outcome, time_to_train_s=raised))


@pytest.fixture(scope="module")
def measured() -> Forecast:
    """On a chip whose runs fell on both sides of their predictions."""
    return planned("h100")


@pytest.fixture(scope="module")
def biased() -> Forecast:
    """Compared with runs that all took longer than predicted."""
    return lopsided(planned("mi300x"))


def test_a_two_sided_prediction_is_judged_as_it_stands(measured):
    time_s = measured.outcome.time_to_train_s
    assert time_s.low < time_s.value and measured.evidence.middle == 1.0
    assert Aim(deadline_s=time_s.value).allows(measured) and not Aim(deadline_s=time_s.value * 0.9999).allows(measured)
    budget_usd = measured.outcome.offer.cost_usd.value
    assert Aim(budget_usd=budget_usd).allows(measured) and not Aim(budget_usd=budget_usd * 0.9999).allows(measured)


def test_a_best_case_is_judged_by_what_half_of_its_like_took(biased):
    time_s, middle = biased.outcome.time_to_train_s, biased.evidence.middle
    assert time_s.low == time_s.value and 1 < middle < biased.evidence.high
    assert not Aim(deadline_s=time_s.value * 1.0001).allows(biased)
    assert Aim(deadline_s=time_s.value * middle).allows(biased)
    cost = biased.outcome.offer.cost_usd
    aim = Aim(deadline_s=time_s.value * middle * 2, budget_usd=cost.value * middle * 0.9)
    assert not aim.allows(biased) and aim.missed_by(biased) == pytest.approx(0.1 / 0.9)
    assert "over the budget" in aim.missed(biased) and "past the deadline" not in aim.missed(biased)
    assert f"judged at {middle:.2f} times the prediction: half of the comparable runs took that or more" in aim.missed(biased)


def test_seconds_that_a_search_may_predict_are_those_that_are_allowed(measured, biased):
    for priced in (measured, biased):
        time_s, cost = priced.outcome.time_to_train_s.value, priced.outcome.offer.cost_usd.value
        middle = priced.evidence.middle
        assert Aim().most_s(priced) == float("inf")
        assert Aim(deadline_s=1000.0).most_s(priced) == pytest.approx(1000.0 / middle)
        assert Aim(deadline_s=time_s * 9, budget_usd=cost * 2).most_s(priced) == pytest.approx(time_s * 2 / middle)


def test_words_tell_how_far_a_limit_holds():
    limit = Limit(what="deadline", allowed=9 * DAY, predicted=8.94 * DAY, judged=8.94 * DAY, reaches=16.2 * DAY)
    assert limit.words == "9 d holds at 8.94 d; the interval reaches 16.2 d" and not limit.is_sure
    assert replace(limit, reaches=8.99 * DAY).words == "9 d holds at 8.94 d; even at the far end of the interval, 8.99 d"
    bound = replace(limit, reaches=float("inf"))  # of a run whose samples to the target nobody knows
    assert "9 d holds at 8.94 d, and has no upper end" in bound.words and not bound.is_sure
    assert replace(limit, judged=12 * DAY).words == "3 d past the deadline"
    budget = Limit(what="budget", allowed=530_000, predicted=525_110, judged=525_110, reaches=949_834)
    assert budget.words == "$530,000 holds at $525,110; the interval reaches $949,834"
    assert replace(budget, judged=600_000).words == "$70,000 over the budget"
