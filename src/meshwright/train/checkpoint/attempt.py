"""One save as one of its ranks sees it, what the rank saves, and what the disk or the object storage must do for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from meshwright.errors import InputError
from meshwright.storage import Location
from meshwright.train.checkpoint.durable import JSON
from meshwright.train.checkpoint.folder import Keep
from meshwright.train.checkpoint.manifest import Manifest, SavedTensor, ShardReport
from meshwright.train.checkpoint.notices import NoNotices, Notices
from meshwright.train.checkpoint.shard import ShardLayout, Written

FIRST_POLL_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One save as one of its ranks sees it. `token` belongs to the run, and `number` counts its saves; together they identify this save."""

    folder: Location
    step: int
    rank: int
    num_ranks: int
    token: str
    number: int
    timeout_s: float
    notices: Notices = field(default_factory=NoNotices)
    check: Callable[[], None] = lambda: None  # raises an error if this process may not complete checkpoints any more

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks or self.step < 0:
            raise InputError(f"rank {self.rank} of {self.num_ranks} cannot save step {self.step}", where="checkpoint", fix="count from 0")

    @property
    def name(self) -> str:
        return f"{self.token}-{self.number}"

    @property
    def failed(self) -> str:
        """The name of the notice that says why this save failed."""
        return f"{self.name}/failed"

    @property
    def saved(self) -> str:
        """The name of the notice that says where the complete checkpoint is."""
        return f"{self.name}/saved"

    def post_failure(self, why: str) -> None:
        """Tell the other ranks, without the disk, that this rank's part of the save failed."""
        if self.notices.read(self.failed) is None:  # the others should learn the first failure
            self.notices.post(self.failed, f"rank {self.rank} could not save: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What one rank saves: the form of its shard, the bytes in that order, and the run's scalars."""

    layout: ShardLayout
    data: Iterable[memoryview]
    tensors: Mapping[str, SavedTensor]
    scalars: Mapping[str, JSON]


class SaveFiles(Protocol):
    """The files of one save, as one rank writes and sees them. Every method raises a MeshwrightError if it fails."""

    poll_s: float  # the longest pause between two looks at them

    @property
    def where(self) -> str:
        """Where they are, for messages."""

    def tidy(self) -> list[str]:
        """Remove what earlier saves left behind; return the names."""

    def begin(self) -> None:
        """Make the place of this save, unless another rank has."""

    def write_shard(self, layout: ShardLayout, data: Iterable[memoryview]) -> Written:
        """Write this rank's shard, so that no crash can lose it once this returns."""

    def write_report(self, report: ShardReport) -> None:
        """Report that this rank's shard is there."""

    def gather(self, reports: dict[int, ShardReport]) -> None:
        """Add the reports that are there now; an error if a rank reports a failure."""

    def finish(self, manifest: Manifest) -> Location:
        """Complete the checkpoint in one step that happens or does not; return where it is."""

    def committed(self) -> Location | None:
        """Where the complete checkpoint is; None if it is not complete yet. An error if rank 0 gave up."""

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """Remove the shards of `ranks` and leave the reason for the other ranks, as far as that is possible."""

    def prune(self, keep: Keep, path: Location) -> list[str]:
        """Remove older checkpoints that `keep` does not keep; return their names."""


def polls(timeout_s: float, longest_s: float) -> Iterator[None]:
    """Growing intervals at which to look at files, until the time is up; at least one, and one at the end."""
    deadline_s = time.monotonic() + timeout_s
    delay_s = FIRST_POLL_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        yield
        time.sleep(min(delay_s, left_s))
        delay_s = min(2 * delay_s, longest_s)
    yield


def belongs(report: ShardReport, attempt: Attempt, rank: int, file: str) -> bool:
    """Whether a report is that of `rank` in this save."""
    found = (report.attempt, report.step, report.rank, report.num_ranks, report.file.name)
    return found == (attempt.name, attempt.step, rank, attempt.num_ranks, file)
