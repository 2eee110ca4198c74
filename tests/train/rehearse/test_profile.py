"""The profile with a rehearsed rank: later plans of the same cut compute what the rank did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.describe.profile import load_profile, profile_text, read_profile
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.predict.rehearsed import ChunkTime, RankMemory, Rehearsal, predicted_chunks
from meshwright.train.rehearse.profile import with_rank

CARD = load_profile(Path(__file__).parents[2] / "fixtures" / "profile_of_a_card.json")
MODEL = "llama-3.1-8b"


def rehearsal(seconds: float, layout: Layout, stage: int, layers: int) -> Rehearsal:
    """A rank whose every chunk took so long, both ways."""
    return Rehearsal(
        rank=0,
        stage=stage,
        device="NVIDIA H200",
        device_type="cuda",
        torch="2.11.0",
        date="2026-11-16",
        num_steps=2,
        num_micro_batches=4,
        chunks=tuple(
            ChunkTime(chunk=i, num_layers=layers, forward_s=seconds / 3, backward_s=2 * seconds / 3, weight_s=0.0) for i in range(layout.vp)
        ),
        end_s=1e-3,
        optimizer_s=1e-3,
        step_s=1.0,
        stand_in_s=0.0,
        memory=RankMemory(
            weights_bytes=1, gradients_bytes=1, optimizer_bytes=1, activations_bytes=1, working_bytes=1, peak_bytes=5, peak_at="forward"
        ),
        idle_s=0.0,
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_plan_of_the_same_cut_computes_what_the_rank_did(recompute: str) -> None:
    job = Job(MODEL, "hgx-h200-ndr", "pretrain-1t", gpus=64).changed("workload.precision=bf16-pure").changed("workload.global_batch=64")
    layout = job.layout(f"tp=2,pp=4,vp=2,dp=8,mbs=1,schedule=interleaved,recompute={recompute}")
    seen = rehearsal(0.123, layout, 1, 4)
    profile = with_rank(CARD, job.model, job.workload, layout, seen)
    assert len(profile.rank_chunks) == 2 and not any(one.has_loss for one in profile.rank_chunks)
    again = Job(job.model, job.cluster, job.workload, profile=profile)
    chunks = predicted_chunks(again.forecast(layout, ignore_memory=True), 1)
    host_s = 2 * float(np.ravel(again.software.constants.eager_chunk_s)[0])  # priced beside the layers of a chunk, once each way
    assert [chunk.both_s - host_s for chunk in chunks] == pytest.approx([0.123, 0.123], rel=1e-3)


def test_the_file_is_read_back_and_its_numbers_are_checked() -> None:
    job = Job(MODEL, "hgx-h200-ndr", "pretrain-1t", gpus=64)
    layout = job.layout("tp=2,pp=4,dp=8,mbs=1")
    profile = with_rank(CARD, job.model, job.workload, layout, rehearsal(0.1, layout, 3, 8))
    assert [one.has_loss for one in profile.rank_chunks] == [True]

    written = json.loads(profile_text(profile))
    assert read_profile(written, "file") == profile
    written["rank_chunks"][0]["chunk_s"] = 0.0
    with pytest.raises(InputError, match=r"rank_chunks\[0\].chunk_s is 0.0"):
        read_profile(written, "file")


def test_seconds_in_company_are_those_of_the_profiles_processes() -> None:
    job = Job(MODEL, "hgx-h200-ndr", "pretrain-1t", gpus=64)
    layout = job.layout("tp=2,pp=4,dp=8,mbs=1")
    shared = replace(CARD, device_type="cpu", num_processes=8, num_cores=2)
    seen = replace(rehearsal(0.1, layout, 0, 8), crowd=2.0)
    assert with_rank(shared, job.model, job.workload, layout, seen).rank_chunks[0].chunk_s == pytest.approx(0.1 / 2 * 4)
