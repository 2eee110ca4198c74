from __future__ import annotations

import math

import pytest

from meshwright.audit.claim import claim_of
from meshwright.audit.own_forecast import BETTER, INSIDE, WORSE, Compared, OwnForecast, own_forecast
from meshwright.audit.stated import Stated, exactly
from meshwright.job import Job

RUN = {"model": "llama-3.1-8b", "accelerator": "h100", "gpus": 8, "global_batch": 32, "seq_len": 8192, "precision": "bf16"}
LAYOUT = "tp=2,dp=4,mbs=1"


def made(**facts: object) -> OwnForecast:
    return own_forecast(claim_of({**RUN, "layout": LAYOUT, **facts}, "test"))


def one(claimed: float, *, is_time: bool = True) -> Compared:
    return Compared(quantity="x", unit="s", scale=1.0, claimed=exactly(claimed), value=10.0, low=9.0, high=12.0, is_time=is_time)


@pytest.mark.parametrize(
    "claimed, is_time, lies, beyond, words",
    [
        (10.0, True, INSIDE, 1.0, "inside the interval"),
        (9.0, True, INSIDE, 1.0, "inside the interval"),
        (4.5, True, BETTER, 2.0, "2 times faster than the interval's fast end"),
        (12.6, True, WORSE, 1.05, "5.0 % slower than the interval's slow end"),
        (24.0, False, BETTER, 2.0, "2 times faster than the interval's fast end"),
        (3.0, False, WORSE, 3.0, "3 times slower than the interval's slow end"),
    ],
)
def test_where_a_claim_lies(claimed: float, is_time: bool, lies: str, beyond: float, words: str) -> None:
    found = one(claimed, is_time=is_time)
    assert (found.lies, found.words) == (lies, words) and found.beyond == pytest.approx(beyond)


def test_a_rounded_claim_is_inside_where_it_may_be() -> None:
    rounded = Compared(quantity="x", unit="s", scale=1.0, claimed=Stated(8.9, 8.5, 9.3), value=10.0, low=9.0, high=12.0)
    assert rounded.lies == INSIDE
    assert rounded.interval == "9 to 12 s"
    assert Compared(quantity="x", unit="s", scale=1.0, claimed=exactly(1), value=2.0, low=1.5, high=math.inf).interval == "1.5 s or more"


def test_a_stated_layout_is_forecast_as_predict_does() -> None:
    own = made(step_s=1.0)
    job = Job("llama-3.1-8b", "azure-nd-h100-v5", "pretrain-1t", "v6.0", gpus=8, changes=["workload.global_batch=32"])
    expected = job.forecast(LAYOUT)
    [found] = own.compared
    assert (found.value, found.low, found.high) == (expected.step_s, *expected.interval)
    assert own.is_layout_stated and own.forecast is not None and own.forecast.layout == expected.layout
    assert found.lies == BETTER and found.beyond == pytest.approx(expected.interval.low_s / 1.0)
    assert "the layout that the claim states" in own.made_for
    assert own.assumed[0] == "network as in azure-nd-h100-v5, which the catalogue has with h100"


def test_without_a_layout_the_planners_best_is_taken() -> None:
    stated = made(step_s=1.0)
    own = own_forecast(claim_of({**RUN, "step_s": 100.0}, "test"))
    assert not own.is_layout_stated and own.compared[0].value <= stated.compared[0].value
    assert own.compared[0].lies == WORSE and any("contradicts nothing" in line for line in own.assumed)
    assert any("the layout" in item for item in own.to_ask)


def test_every_number_that_both_give_is_compared() -> None:
    own = made(step_s=2.0, days=3, tokens=1e9, tokens_per_s=1e5, tokens_per_s_per_gpu=1e4, tflops_per_gpu=400, mfu_pct=40)
    names = ["time to train", "time of a step", "tokens per second", "tokens per second and GPU", "TFLOP/s of a GPU", "MFU"]
    assert [one.quantity for one in own.compared] == names
    whole, step, tokens, each, flops, mfu = own.compared
    assert tokens.value == pytest.approx(32 * 8192 / step.value) and each.value == pytest.approx(tokens.value / 8)
    assert flops.value == pytest.approx(mfu.value * 989e12, rel=1e-2)
    assert tokens.low == pytest.approx(32 * 8192 / step.high) and mfu.low / mfu.value == pytest.approx(tokens.low / tokens.value)
    assert whole.value == pytest.approx(math.ceil(1e9 / (32 * 8192)) * step.value, rel=1e-6)
    assert (whole.unit, whole.shown(whole.claimed.value)) == ("days", "3 days")


def test_claimed_samples_end_the_run() -> None:
    facts = {"benchmark": "llama31_8b", "accelerator": "h100", "gpus": 8, "global_batch": 32, "precision": "fp8", "round": "v5.1"}
    few, many = (own_forecast(claim_of({**facts, "layout": LAYOUT, "minutes": 99, "samples": n}, "test")) for n in (160_000, 320_000))
    assert many.compared[0].value == pytest.approx(2 * few.compared[0].value, rel=0.02)
    assert not any("samples" in line for line in few.assumed)


@pytest.mark.parametrize(
    "facts, missing",
    [
        ({"accelerator": "h100", "gpus": 8, "minutes": 3, "parameters": 7e9}, "a benchmark or a model of the catalogue"),
        ({"model": "llama-3.1-8b", "gpus": 8, "minutes": 3, "tokens": 1e9}, "an accelerator"),
        ({"model": "llama-3.1-8b", "accelerator": "h100", "minutes": 3, "tokens": 1e9}, "how many"),
        ({"benchmark": "gpt3", "accelerator": "h100", "gpus": 8}, "a time or a rate"),
        ({**RUN, "minutes": 3, "layout": LAYOUT}, "how long the run is (samples or tokens)"),
        ({**RUN, "step_s": 3, "layout": "tp=3,dp=4"}, "tp=3 x cp=1 x pp=1 x dp=4 = 12 accelerators"),
        (
            {"benchmark": "gpt3", "accelerator": "h100", "gpus": 24, "minutes": 3, "layout": "tp=8,dp=3,mbs=1"},
            "(the batch is assumed: give",
        ),
        ({**RUN, "step_s": 3, "cluster": "azure-gb200-128"}, "cluster azure-gb200-128 has gb200, and the claim says h100"),
        ({**RUN, "step_s": 3, "accelerator": "trainium2"}, "the catalogue has no cluster with trainium2"),
    ],
)
def test_one_line_says_what_is_missing(facts: dict[str, object], missing: str) -> None:
    own = own_forecast(claim_of(facts, "test"))
    assert own.forecast is None and own.compared == ()
    assert missing in own.missing and "\n" not in own.missing
