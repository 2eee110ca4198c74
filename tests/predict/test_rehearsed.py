"""The forecast with measured compute: what was predicted gives the prediction, and what was measured moves it as the schedule says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.job import Job
from meshwright.predict.forecast import Forecast
from meshwright.predict.rehearsed import RankMemory, Rehearsal, predicted_chunks, predicted_memory, rehearsed_forecast
from meshwright.predict.step import PARTS

JOB = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=64)
MEMORY = RankMemory(
    weights_bytes=1, gradients_bytes=2, optimizer_bytes=3, activations_bytes=4, working_bytes=5, peak_bytes=15, peak_at="forward"
)


def as_predicted(forecast: Forecast, stage: int) -> Rehearsal:
    """A rehearsal that found what was predicted."""
    return Rehearsal(
        rank=0,
        stage=stage,
        device="",
        device_type="cuda",
        torch="",
        date="",
        num_steps=1,
        num_micro_batches=forecast.num_micro_batches,
        chunks=predicted_chunks(forecast, stage),
        end_s=float(forecast.detail.end_s.ravel()[0]),
        optimizer_s=forecast.parts["optimizer"],
        step_s=0.0,
        stand_in_s=0.0,
        memory=MEMORY,
        idle_s=None,
    )


def slower(found: Rehearsal, factor: float) -> Rehearsal:
    """The same with chunks that take longer."""
    chunks = (
        replace(chunk, forward_s=factor * chunk.forward_s, backward_s=factor * chunk.backward_s, weight_s=factor * chunk.weight_s)
        for chunk in found.chunks
    )
    return replace(found, chunks=tuple(chunks))


@pytest.mark.parametrize(
    "layout",
    [
        "tp=8,pp=4,vp=2,mbs=1,recompute=full",
        "tp=8,pp=2,mbs=1,recompute=full,schedule=1f1b",
        "tp=8,pp=4,mbs=1,recompute=full,schedule=zero-bubble",
        "tp=8,mbs=1,recompute=full",
        "tp=8,pp=2,vp=4,mbs=1,recompute=full,first_stage_layers=36,last_stage_layers=44",
    ],
)
def test_what_was_predicted_gives_the_prediction(layout: str) -> None:
    forecast = JOB.forecast(layout, ignore_memory=True)
    for stage in range(forecast.layout.pp):
        renewed = rehearsed_forecast(forecast, [as_predicted(forecast, stage)])
        assert renewed.step_s == pytest.approx(forecast.step_s, rel=1e-9)
        assert sum(renewed.parts[part] for part in PARTS) == pytest.approx(renewed.step_s, rel=1e-12)
        assert renewed.time_to_train is not None and forecast.time_to_train is not None
        assert renewed.time_to_train.value == pytest.approx(forecast.time_to_train.value, rel=1e-9)


def test_compute_that_takes_longer_lengthens_compute_and_bubble_alone() -> None:
    forecast = JOB.forecast("tp=8,pp=4,vp=2,mbs=1,recompute=full", ignore_memory=True)
    renewed = rehearsed_forecast(forecast, [slower(as_predicted(forecast, 1), 1.5)])
    host_s = forecast.parts["overhead"] - float(forecast.detail.end_s.ravel()[0])
    assert renewed.parts["compute"] == pytest.approx(1.5 * (forecast.parts["compute"] + host_s), rel=1e-3)
    assert renewed.parts["bubble"] > forecast.parts["bubble"]
    for part in ("exposed_tp", "exposed_pp", "exposed_dp", "optimizer"):
        assert renewed.parts[part] == forecast.parts[part]


def test_one_slow_stage_among_those_that_ran_holds_up_the_others() -> None:
    forecast = JOB.forecast("tp=8,pp=2,mbs=1,recompute=full", ignore_memory=True)
    both = [as_predicted(forecast, 0), slower(as_predicted(forecast, 1), 1.5)]
    renewed = rehearsed_forecast(forecast, both)
    all_slow = rehearsed_forecast(forecast, [slower(one, 1.5) for one in (both[0], as_predicted(forecast, 1))])
    assert forecast.step_s < renewed.step_s <= all_slow.step_s


def test_a_long_step_is_compared_by_some_of_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = JOB.forecast("tp=8,pp=4,vp=2,mbs=1,recompute=full", ignore_memory=True)
    found = slower(as_predicted(forecast, 1), 1.5)
    whole_s = rehearsed_forecast(forecast, [found]).step_s
    monkeypatch.setattr("meshwright.predict.rehearsed.MOST_OPERATIONS", 100)
    assert rehearsed_forecast(forecast, [found]).step_s == pytest.approx(whole_s, rel=0.02)


def test_predicted_chunks_hold_the_layers_of_their_stage_and_no_communication() -> None:
    forecast = JOB.forecast("tp=8,pp=4,vp=2,mbs=1,recompute=full", ignore_memory=True)
    middle, last = predicted_chunks(forecast, 1), predicted_chunks(forecast, 3)
    assert [chunk.num_layers for chunk in (*middle, *last)] == [10] * 4
    assert middle[0] == replace(middle[1], chunk=0) and last[1].both_s > last[0].both_s  # the head
    layer_s = float(forecast.detail.layer.compute_s(0)[0])
    host_s = float(forecast.detail.pricer.operation_s.ravel()[0])
    assert middle[0].forward_s == pytest.approx(10 * layer_s + host_s)


def test_loss_and_buffers_are_what_an_operation_takes_while_it_runs() -> None:
    stage = JOB.forecast("tp=8,pp=2,mbs=1,recompute=full", ignore_memory=True).memory[1]
    parts = predicted_memory(stage)
    assert parts["working"] == stage.loss_bytes + stage.buffers_bytes and sum(parts.values()) == pytest.approx(stage.peak_bytes)


def test_compute_of_a_step_is_that_of_all_its_micro_batches() -> None:
    forecast = JOB.forecast("tp=8,pp=2,mbs=1,recompute=full", ignore_memory=True)
    found = as_predicted(forecast, 0)
    assert found.compute_s == pytest.approx(forecast.num_micro_batches * found.chunks[0].both_s)
