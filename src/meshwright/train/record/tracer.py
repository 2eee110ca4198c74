"""A few steps of a run under PyTorch's profiler: a trace of each rank in the run folder, and how much communication compute hid.

The share is that of `record.profile`, which is HolisticTraceAnalysis's: the time in which communication and compute of the same rank run
together, divided by the time of communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from meshwright.errors import MeshwrightError
from meshwright.record.profile import profile_of
from meshwright.train.parallel.collectives import all_gather_single
from meshwright.train.parallel.mesh import Mesh

TRACES = "traces"  # the folder in a run folder
NUM_STEPS = 3  # one after another, so that the middle one begins and ends among others
MOST_RANKS = 64  # a trace of a large step has 100 MB
NOT_TRACED = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Communication of the traced steps, and the part of it that ran behind compute, by rank."""

    first_step: int
    num_steps: int
    by_rank: Mapping[int, tuple[float, float]]  # seconds of communication, and of the hidden part

    def detail(self) -> dict[str, Any]:
        """The content of the run's event: means over the ranks, the share of all of them, and the rank with the smallest share."""
        num_ranks = len(self.by_rank)
        total_s, hidden_s = (sum(pair[each] for pair in self.by_rank.values()) for each in (0, 1))
        shares = {rank: hidden / communication for rank, (communication, hidden) in self.by_rank.items() if communication}
        found: dict[str, Any] = {
            "first_step": self.first_step,
            "num_steps": self.num_steps,
            "num_traced_ranks": num_ranks,
            "communication_s": total_s / num_ranks,
            "hidden_s": hidden_s / num_ranks,
        }
        if shares:
            least = min(shares, key=lambda rank: shares[rank])
            found |= {"overlap_pct": 100 * hidden_s / total_s, "rank": least, "rank_overlap_pct": 100 * shares[least]}
        return {**found, "message": self.text(found)}

    def text(self, found: dict[str, Any]) -> str:
        """The same in one sentence."""
        steps = f"steps {self.first_step} to {self.first_step + self.num_steps - 1}"
        if "overlap_pct" not in found:
            return f"no communication was recorded in {steps}"
        least = f"least on rank {found['rank']}, {found['rank_overlap_pct']:.1f} %"
        return f"{found['overlap_pct']:.1f} % of the communication in {steps} ran behind compute of the same rank ({least})"


class Tracer:
    """Traces steps from `first_step` on, on this rank if it is one of the first; 0: none."""

    def __init__(self, first_step: int, last_step: int, folder: Path, mesh: Mesh) -> None:
        self.first_step, self.folder, self.mesh = first_step, folder, mesh
        self.last_step = min(first_step + NUM_STEPS - 1, last_step) if first_step else 0
        self._profile: profile | None = None

    def begins_with(self, step: int) -> bool:
        """Whether this is the first of the steps, and this rank traces them."""
        return step == self.first_step and self.mesh.rank < MOST_RANKS

    def begin(self) -> None:
        """Begin, once the device has done all that came earlier."""
        self._synchronize()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.mesh.device.type == "cuda" else [])]
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.start()

    def ends_with(self, step: int) -> bool:
        """Whether this is the last of the steps. A run that begins after the first one traces nothing."""
        return bool(self.first_step) and step == self.last_step

    def finish(self) -> Overlap | None:
        """Write this rank's trace, and return what all ranks found; None if nothing was traced. All ranks must call it."""
        mine = self._written() if self._profile is not None else (NOT_TRACED, NOT_TRACED)
        self._profile = None
        sent = torch.tensor(mine, dtype=torch.float64, device=self.mesh.device)
        everyones = sent.new_empty(dist.get_world_size() * len(sent))
        self.mesh.marks.enter("exchange of what the profiles say", "world", range(dist.get_world_size()))
        all_gather_single(everyones, sent)
        self.mesh.marks.leave()
        found = {rank: (pair[0], pair[1]) for rank, pair in enumerate(everyones.view(-1, 2).tolist()) if pair[0] != NOT_TRACED}
        if not found:
            return None
        return Overlap(first_step=self.first_step, num_steps=self.last_step - self.first_step + 1, by_rank=found)

    def _written(self) -> tuple[float, float]:
        """Communication in the trace of this rank, and the hidden part of it, in seconds; the trace is in the run folder afterwards."""
        assert self._profile is not None
        self._synchronize()
        self._profile.stop()
        path = self.folder / TRACES / f"rank-{self.mesh.rank:05}.json.gz"
        try:
            path.parent.mkdir(exist_ok=True)
            self._profile.export_chrome_trace(str(path))
            processes = profile_of((path,)).processes
        except (MeshwrightError, OSError):  # a full disk, or a trace without an event: the run goes on
            return NOT_TRACED, NOT_TRACED
        return sum(one.communication_s for one in processes), sum(one.hidden_s for one in processes)

    def _synchronize(self) -> None:
        if self.mesh.device.type == "cuda":
            torch.cuda.synchronize(self.mesh.device)
