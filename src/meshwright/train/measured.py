"""A measured step, in the parts of a predicted one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.step import PARTS

MEASURED = tuple(part for part in PARTS if part not in ("compute", "overhead"))  # timed; compute is what is left


def parts_of(spans: Mapping[str, Sequence[float]], layout: Layout, step_time_s: float) -> dict[str, float]:
    """Seconds of each part on one rank, which add up to the step; `spans` is what its timer saw.

    Waiting for a neighbour's message is bubble, less what a message takes when its sender was ready: the shortest wait, for each.
    The wait at the end of a step is for the slowest: bubble in a pipeline, the replicas' otherwise.
    """
    parts = {part: sum(spans.get(part, ())) for part in MEASURED}
    waits = spans.get("wait_pp", ())
    messages_s = len(waits) * min(waits, default=0.0)
    parts["exposed_pp"] += messages_s
    parts["bubble"] += sum(waits) - messages_s
    parts["bubble" if layout.pp > 1 else "exposed_dp"] += sum(spans.get("wait_end", ()))
    left = step_time_s - sum(parts.values())
    return {"compute": max(left, 0.0), **parts, "overhead": 0.0}


def gathered(parts: Mapping[str, float], device: torch.device) -> NDArray[np.float64] | None:
    """Everyone's parts, [ranks, parts], on rank 0; None on the others."""
    mine = torch.tensor([parts[part] for part in PARTS], dtype=torch.float64, device=device)
    if dist.get_rank() == 0:
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.gather(mine, everyones, dst=0)
        return torch.stack(everyones).cpu().numpy()
    dist.gather(mine, None, dst=0)
    return None


def of_busiest_stage(everyones: NDArray[np.float64], layout: Layout) -> dict[str, float]:
    """Parts of the stage that computes most, the mean of its ranks: what a prediction prices."""
    stages = np.array([layout.coordinate(rank)["pp"] for rank in range(layout.num_ranks)])
    means = np.stack([everyones[stages == stage].mean(axis=0) for stage in range(layout.pp)])
    return dict(zip(PARTS, means[means[:, 0].argmax()].tolist(), strict=True))


def busy_s(everyones: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds in which each rank computed."""
    return everyones[:, PARTS.index("compute")] + everyones[:, PARTS.index("optimizer")]


def groups_of(layout: Layout) -> Sequence[int]:
    """Of every rank its stage: ranks of one stage do the same work."""
    return [layout.coordinate(rank)["pp"] for rank in range(layout.num_ranks)]
