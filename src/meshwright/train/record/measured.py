"""A measured step, in the parts of a predicted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.layout import Layout
from meshwright.predict.step import PARTS
from meshwright.train.parallel.collectives import all_gather_single
from meshwright.train.parallel.mesh import Mesh

MEASURED = tuple(part for part in PARTS if part not in ("compute", "overhead"))  # timed; compute is what is left


def parts_of(spans: Mapping[str, Sequence[float]], layout: Layout, step_s: float) -> dict[str, float]:
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
    left = step_s - sum(parts.values())
    return {"compute": max(left, 0.0), **parts, "overhead": 0.0}


class Exchange:
    """Everyone's parts of a step. They ride in the next step's sum over all ranks, or are gathered where the table is asked for before.

    All ranks must make it, and all must ask for its table. This rank's parts are asked for when they are sent: on a GPU the step's end may
    lie ahead when the host makes this.
    """

    def __init__(self, parts: Callable[[], Mapping[str, float]], mesh: Mesh) -> None:
        self.mesh = mesh
        self._parts = parts
        self._table: NDArray[np.float64] | None = None

    @cached_property
    def values(self) -> tuple[float, ...]:
        """This rank's parts."""
        parts = self._parts()
        return tuple(parts[part] for part in PARTS)

    def arrive(self, everyones: Tensor) -> None:
        """Take the values of all ranks, [ranks, parts]."""
        self._table = everyones.cpu().numpy()

    def table(self) -> NDArray[np.float64]:
        """The parts, [ranks, parts]."""
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
