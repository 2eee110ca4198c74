"""A hardware profile with the chunks of a rehearsed rank: later plans are priced by layers of the plan's own sizes."""

from __future__ import annotations

from dataclasses import replace

from meshwright.describe.model import Model
from meshwright.describe.profile import SIDES, Profile, RankChunk
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.predict.rehearsed import Rehearsal


def with_rank(profile: Profile, model: Model, workload: Workload, layout: Layout, seen: Rehearsal) -> Profile:
    """The profile with every chunk of the rank that has layers; seconds are those of the profile's number of processes.

    Chunks of models with experts or latent attention are left out: later plans have the slices of such models.
    """
    if model.experts or model.latent:
        return profile
    company = max(profile.num_processes / profile.num_cores, 1.0) if profile.shares_cores else 1.0
    last = layout.pp - 1, layout.vp - 1
    chunks = tuple(
        RankChunk(
            model=model.name,
            **{side: getattr(model, side) for side in SIDES},
            gated=model.gated,
            precision=workload.precision,
            number_format=recipe(workload.precision).profile_format,
            recompute=layout.recompute,
            tp=layout.tp,
            cp=layout.cp,
            micro_batch=layout.micro_batch,
            seq_len=workload.seq_len,
            num_layers=chunk.num_layers,
            chunk_s=chunk.both_s / seen.crowd * company,
            has_loss=(seen.stage, chunk.chunk) == last,
        )
        for chunk in seen.chunks
        if chunk.num_layers
    )
    return replace(profile, rank_chunks=chunks)
