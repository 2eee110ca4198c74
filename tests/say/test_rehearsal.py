"""What a rehearsal says: each measured value beside the predicted one, and whether it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.job import Job
from meshwright.predict.forecast import Forecast
from meshwright.predict.rehearsed import ChunkTime, RankMemory, Rehearsal, predicted_chunks
from meshwright.say.rehearsal import off_pct, rehearsal_document, size
from meshwright.say.vocabulary import problems

from .conftest import notes, pairs, table

GIB = 2**30


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    return Job("llama-3.1-70b", "hgx-h200-ndr", "pretrain-1t", gpus=64).forecast("tp=8,pp=4,vp=2,mbs=1,recompute=full")


@pytest.fixture(scope="module")
def found(forecast: Forecast) -> Rehearsal:
    """Chunks of stage 1 that took a quarter longer than predicted."""
    chunks = (replace(one, forward_s=1.25 * one.forward_s, backward_s=1.25 * one.backward_s) for one in predicted_chunks(forecast, 1))
    memory = RankMemory(
        weights_bytes=4 * GIB,
        gradients_bytes=8 * GIB,
        optimizer_bytes=GIB,
        activations_bytes=20 * GIB,
        working_bytes=7 * GIB,
        peak_bytes=40 * GIB,
        peak_at="backward of micro-batch 0, chunk 1",
    )
    return Rehearsal(
        rank=16,
        stage=1,
        device="NVIDIA H200",
        device_type="cuda",
        torch="2.13.0",
        date="2026-11-16",
        num_steps=3,
        num_micro_batches=forecast.num_micro_batches,
        chunks=tuple(chunks),
        end_s=0.004,
        optimizer_s=0.02,
        step_s=9.0,
        stand_in_s=0.5,
        memory=memory,
        idle_s=0.25,
        first_step_s=30.0,
    )


def test_every_value_stands_beside_its_prediction(forecast: Forecast, found: Rehearsal) -> None:
    document = rehearsal_document("a plan", forecast, found)
    rows = table(document, "compute of one micro-batch, without communication").rows
    assert [(row[0], row[1], row[4], row[7]) for row in rows] == [("0", "10", "+25.0 %", "+25.0 %"), ("1", "10", "+25.0 %", "+25.0 %")]
    step = {row[0]: row for row in table(document, "a step of this rank, without communication").rows}
    assert set(step) == {"compute", "end of the step", "optimizer"} and step["compute"][3] == "+25.0 %"
    memory = {row[0]: row[2] for row in table(document, "memory at the peak").rows}
    assert memory["loss and buffers"] == "7.0 GiB" and memory["peak"] == "40.0 GiB" and memory["optimizer states"] == "1.0 GiB"


def test_the_forecast_has_what_was_measured(forecast: Forecast, found: Rehearsal) -> None:
    rows = {row[0].strip(): row for row in table(rehearsal_document("a plan", forecast, found), "forecast of the whole plan").rows}
    assert rows["exposed tp"][3] == "+0.0 %" and rows["step time"][3].startswith("+")
    assert rows["tokens/s"][3].startswith("-") and "time to train" in rows


def test_a_gpu_has_gaps_and_a_first_step_and_a_processor_has_neither(forecast: Forecast, found: Rehearsal) -> None:
    said = pairs(rehearsal_document("a plan", forecast, found))
    assert said["idle between kernels"] == "250 ms" and said["its first step"] == "30 s"
    document = rehearsal_document("a plan", forecast, replace(found, idle_s=None, first_step_s=None, device_type="cpu", device="cores"))
    assert not {"idle between kernels", "its first step"} & set(pairs(document))
    assert any("no kernels to wait between" in note for note in notes(document))


def test_notes_say_what_was_not_measured_and_where_it_holds(forecast: Forecast, found: Rehearsal) -> None:
    said = " ".join(notes(rehearsal_document("a plan", forecast, found)))
    assert "communication is predicted" in said and "mean nothing" in said and "(3)" in said
    assert "times for the latter" not in said and "leaves" in said
    for device in ("NVIDIA B200", "a card that nobody knows"):
        other = " ".join(notes(rehearsal_document("a plan", forecast, replace(found, device=device))))
        assert f"ran on {device}: sizes hold for both, times for the latter only" in other


def test_ranks_that_share_cores_are_named(forecast: Forecast, found: Rehearsal) -> None:
    assert any("count 4 times" in note for note in notes(rehearsal_document("a plan", forecast, replace(found, crowd=4.0))))


def test_a_peak_beyond_the_plans_accelerator_does_not_fit(forecast: Forecast, found: Rehearsal) -> None:
    large = replace(found, memory=replace(found.memory, activations_bytes=180 * GIB, peak_bytes=200 * GIB))
    assert any("does not fit" in note for note in notes(rehearsal_document("a plan", forecast, large)))


def test_the_values_are_in_the_vocabulary(forecast: Forecast, found: Rehearsal) -> None:
    values = rehearsal_document("a plan", forecast, found).to_json()
    assert problems(values) == []
    assert values["rehearsed_rank"] == 16 and values["rehearsed_memory"][-1]["part"] == "peak"
    assert values["rehearsed_chunks"][0]["rehearsed_forward_s"] == found.chunks[0].forward_s
    assert values["rehearsed_forecast"]["step_s"] > values["predicted_step_s"]


def test_nothing_is_off_from_nothing() -> None:
    assert off_pct(0.0, 3.0) is None and off_pct(2.0, 3.0) == pytest.approx(50.0)
    assert size(3 * GIB) == "3.0 GiB" and size(2e6) == "2 MB"
    assert ChunkTime(chunk=0, num_layers=1, forward_s=1.0, backward_s=2.0, weight_s=0.0).both_s == 3.0
