"""A measured step, divided into the same parts as a predicted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.layout import Layout
from meshwright.predict.step import PARTS
from meshwright.train.health.slow_links import TRIP, judged_axes, link_columns
from meshwright.train.parallel.collectives import all_gather_single
from meshwright.train.parallel.mesh import Mesh

MEASURED = tuple(part for part in PARTS if part not in ("compute", "overhead"))  # timed; compute is the rest


def parts_of(spans: Mapping[str, Sequence[float]], layout: Layout, step_s: float) -> dict[str, float]:
    """Seconds of each part on one rank; they add up to the step. `spans` are the times that its timer measured.

    Waiting for a message of a neighbour is bubble, minus the time that a message takes when its sender is ready: the shortest wait, for
    each message. The wait at the end of a step is for the slowest rank: bubble in a pipeline, exposed dp otherwise.
    """
    parts = {part: sum(spans.get(part, ())) for part in MEASURED}
    waits = spans.get("wait_pp", ())
    messages_s = len(waits) * min(waits, default=0.0)
    parts["exposed_pp"] += messages_s
    parts["bubble"] += sum(waits) - messages_s
    parts["bubble" if layout.pp > 1 else "exposed_dp"] += sum(spans.get("wait_end", ()))
    left = step_s - sum(parts.values())
    return {"compute": max(left, 0.0), **parts, "overhead": 0.0}


def links_of(spans: Mapping[str, Sequence[float]], layout: Layout) -> dict[str, float]:
    """What one rank knows about its links after a step, in seconds, by column (`link_columns`); see `health.slow_links`."""
    found: dict[str, float] = {}
    for axis in judged_axes(layout):
        if axis == "pp":
            found |= {f"pp_{name}": sum(spans.get(name, ())) for name in TRIP}
            continue
        waits = sorted(spans.get(f"exposed_{axis}", ()))
        # Replicas meet once a step, so their waits are added up. Others meet again and again, and a rank is the last to come in some of
        # their exchanges: the waits of the lowest quarter are for the exchange and not for another rank.
        found[f"link_{axis}"] = sum(waits) if axis == "dp" else len(waits) * waits[len(waits) // 4] if waits else 0.0
    return found


class Exchange:
    """The parts of a step from all ranks, and what they know about links.

    They are sent with the sum of the next step, or are gathered if the table is needed earlier. All ranks must make this object, and all
    must call `table`. The parts of this rank are computed when they are sent, because on a GPU the step may still run when the host makes
    this object.
    """

    def __init__(self, parts: Callable[[], Mapping[str, float]], mesh: Mesh) -> None:
        self.mesh = mesh
        self._parts = parts
        self._table: NDArray[np.float64] | None = None

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The parts of this rank."""
        parts = self._parts()
        return tuple(parts.get(name, 0.0) for name in (*PARTS, *link_columns(self.mesh.layout)))

    def arrive(self, everyones: Tensor) -> None:
        """Receive the values of all ranks, [ranks, columns]."""
        self._table = everyones.cpu().numpy()

    def table(self) -> NDArray[np.float64]:
        """The parts, and then the columns of links: [ranks, columns]."""
        if self._table is None:
            mine = torch.tensor(self.values, dtype=torch.float64, device=self.mesh.device)
            everyones = mine.new_empty(self.mesh.layout.num_ranks * len(mine))
            self.mesh.marks.enter("exchange of the step's times", "world", range(self.mesh.layout.num_ranks))
            all_gather_single(everyones, mine)
            self.mesh.marks.leave()
            self.arrive(everyones.view(-1, len(mine)))
        assert self._table is not None
        return self._table


def of_busiest_stage(everyones: NDArray[np.float64], layout: Layout) -> dict[str, float]:
    """The parts of the stage that computes most, as the mean over its ranks, because a prediction describes this stage."""
    stages = np.array([layout.coordinate(rank)["pp"] for rank in range(layout.num_ranks)])
    means = np.stack([everyones[stages == stage, : len(PARTS)].mean(axis=0) for stage in range(layout.pp)])
    return dict(zip(PARTS, means[means[:, 0].argmax()].tolist(), strict=True))


def busy_s(everyones: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds in which each rank computed."""
    return everyones[:, PARTS.index("compute")] + everyones[:, PARTS.index("optimizer")]


def groups_of(layout: Layout) -> Sequence[int]:
    """The stage of every rank: ranks of one stage do the same work."""
    return [layout.coordinate(rank)["pp"] for rank in range(layout.num_ranks)]
