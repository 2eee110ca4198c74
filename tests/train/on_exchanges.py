"""Collectives that are timed, as ranks of a test make them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshwright.train.measure import exchanges
from meshwright.train.measure.exchanges import collectives_s
from meshwright.train.parallel.collectives import Axis


def timed(calls: int) -> tuple[list[tuple[str, int, int, float]], list[str]]:
    """What this rank learns of all kinds, and what it reports."""
    reported: list[str] = []
    found = collectives_s(dist.get_world_size(), calls, reported.append)
    return [(one.kind, one.num_ranks, one.payload_bytes, one.seconds) for one in found], reported


def sent(kind: str, payload_bytes: int, size: int) -> list[int]:
    """Bytes of what this rank hands to its collective and gets from it; messages: sent to the partner."""
    group, partner = exchanges._group_of(size, dist.get_world_size())
    seen: list[int] = []
    plain = {name: getattr(Axis, name) for name in ("all_gather", "reduce_scatter", "all_reduce")}

    def watch(name: str) -> object:
        def call(axis: Axis, tensor: torch.Tensor, *rest: int) -> torch.Tensor:
            made = plain[name](axis, tensor, *rest)
            seen.extend((tensor.nbytes, made.nbytes))
            return made

        return call

    isend = dist.isend
    try:
        for name in plain:
            setattr(Axis, name, watch(name))
        dist.isend = lambda tensor, to: [seen.extend((tensor.nbytes, to)), isend(tensor, to)][1]  # type: ignore[assignment]
        exchanges.exchange(kind, payload_bytes, group, size, partner)()
    finally:
        dist.isend = isend
        for name, function in plain.items():
            setattr(Axis, name, function)
    return seen


def tiers_timed(path: str) -> dict:
    """The profile in a file with the tiers of two hosts of two ranks, timed in the shortest way."""
    import json
    from pathlib import Path

    from meshwright.describe.profile import load_profile, profile_text
    from meshwright.lab.cluster import lab_cluster
    from meshwright.lab.description import Lab
    from meshwright.train.measure.tiers import tiered

    cluster = lab_cluster(Lab(num_hosts=1))
    return json.loads(profile_text(tiered(load_profile(Path(path)), cluster, 0.0, lambda what: None)))
