"""A forecast: its numbers fit together, and it says what a reader should know before trusting them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.predict.exact import exact_prediction
from meshwright.predict.outcome import Terms
from meshwright.predict.prediction import predict
from meshwright.units import HOUR

JOB = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
RECORD = JOB.forecast("tp=4,cp=2,pp=8,vp=8,mbs=1")
UNEVEN = "tp=4,cp=2,pp=8,vp=8,schedule=zero-bubble"  # its exact schedule takes 0.8 % longer than the closed form
LAYOUTS = ["tp=4,cp=2,pp=8,vp=8,mbs=1", "tp=8,pp=8,vp=1,mbs=2", "tp=8,pp=16,schedule=zero-bubble", "tp=8,cp=2,pp=1,zero=3", UNEVEN]


@pytest.mark.parametrize("text", LAYOUTS)
def test_the_numbers_of_a_forecast_follow_from_its_step(text: str) -> None:
    forecast = JOB.forecast(text, ignore_memory=True)
    step_s, tokens = forecast.step_s, JOB.workload.tokens_per_step
    assert sum(forecast.parts.values()) == pytest.approx(step_s, rel=1e-12)
    assert forecast.interval == pytest.approx((step_s * forecast.evidence.low, step_s * forecast.evidence.high))
    assert forecast.tokens_per_s == pytest.approx(tokens / step_s)
    assert forecast.tokens_per_s_per_gpu == pytest.approx(tokens / step_s / 8192)
    closed = predict(JOB, Layouts.of([forecast.layout]))
    assert forecast.mfu * step_s == pytest.approx(float(closed.mfu[0] * closed.step_s[0]))
    assert forecast.hfu >= forecast.mfu
    whole = forecast.outcome
    assert forecast.time_to_train is not None and forecast.cost is not None and whole.offer is not None
    time_s = whole.num_steps * step_s + whole.num_evaluations * whole.evaluation_s
    assert forecast.time_to_train.value == pytest.approx(time_s)
    assert forecast.cost.value == pytest.approx(8192 * time_s / HOUR * whole.offer.price.usd_per_accelerator_hour)


@pytest.mark.parametrize("text", LAYOUTS)
def test_the_step_is_that_of_the_exact_schedule(text: str) -> None:
    forecast = JOB.forecast(text, ignore_memory=True)
    closed = predict(JOB, Layouts.of([forecast.layout]))
    assert forecast.step_s == float(exact_prediction(closed).step_s[0])
    assert (forecast.step_s / float(closed.step_s[0]) > 1.005) == (text == UNEVEN)
    assert {part: seconds for part, seconds in forecast.parts.items() if part != "bubble"} == pytest.approx(
        {part: float(column[0]) for part, column in closed.parts.items() if part != "bubble"}
    )


def test_memory_has_a_row_for_each_stage_and_its_parts_add_up() -> None:
    assert [stage.stage for stage in RECORD.memory] == list(range(8))
    assert sum(stage.layers for stage in RECORD.memory) == 126
    for stage in RECORD.memory:
        assert sum(stage.parts.values()) == pytest.approx(stage.peak_bytes)
    assert RECORD.peak_memory_bytes == max(stage.peak_bytes for stage in RECORD.memory)


def test_terms_change_the_price_and_the_grid_and_not_the_step() -> None:
    other = JOB.forecast(RECORD.layout, terms=Terms(provider="coreweave", price_kind="reserved", region="france"))
    assert other.step_s == RECORD.step_s and other.terms.provider == "coreweave"
    assert other.outcome.region.name == "france" and other.outcome.offer is not None
    assert (other.outcome.offer.price.provider, other.outcome.offer.price.kind) == ("coreweave", "reserved")


def test_a_workload_without_an_end_has_a_step_and_no_time_to_train() -> None:
    endless = replace(load_workload("mlperf-llama31-405b"), convergence=None, evaluation=None)
    forecast = replace(JOB, workload=endless).forecast(RECORD.layout)
    assert forecast.step_s == RECORD.step_s
    assert (forecast.time_to_train, forecast.cost, forecast.energy) == (None, None, None)
    assert "states neither tokens nor a target" in forecast.outcome.unknown["time_to_train"]


def test_a_model_other_than_the_workloads_is_noted() -> None:
    forecast = Job("llama-3.1-70b", "azure-gb200-128", "mlperf-llama31-405b").forecast("tp=4,pp=4", ignore_memory=True)
    assert any("is defined for llama-3.1-405b" in note for note in forecast.notes)
    assert not any("is defined for" in note for note in RECORD.notes)


def test_unknown_terms_are_refused() -> None:
    with pytest.raises(InputError, match="no region named 'mars'"):
        JOB.forecast(RECORD.layout, terms=Terms(region="mars"))


def test_a_forecast_is_reported_in_a_line() -> None:
    assert str(RECORD).startswith("llama-3.1-405b on azure-gb200-128, tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1: 1.255 s per step, 80 % interval ")
