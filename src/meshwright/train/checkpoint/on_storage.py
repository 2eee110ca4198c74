"""The files of a save in object storage, where nothing can be renamed: a checkpoint exists from the moment its manifest does.

    checkpoints/
      step-00000120/manifest.json      made last, only if there is none: this completes the checkpoint
      step-00000120/shard-...          uploaded by the rank that owns it
      step-00000120/.attempt           whose save this is: made only if there is none, so that no other save has this folder
      step-00000120/.report-N.json     from rank N while the save is under way: its shard is there; .failed-N.json: it is not
      .save-TOKEN-7.json               from rank 0 to the others: the folder of this save

The names are those of a disk, so a copy of the folder is a checkpoint on a disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.storage import Location, Missing, Remote
from meshwright.train.checkpoint.attempt import Attempt, belongs, polls
from meshwright.train.checkpoint.durable import CheckpointError, canonical
from meshwright.train.checkpoint.folder import STEP, Keep, prune, step_name
from meshwright.train.checkpoint.manifest import MANIFEST, REPORT, Manifest, ShardReport, manifest_bytes, shard_name, validated
from meshwright.train.checkpoint.shard import BLOCK_BYTES, BlockHashes, ShardLayout, Written, parts_of
from meshwright.train.checkpoint.source import json_at

OWNER = ".attempt"
POINTER = ".save-"
READS_AT_ONCE = 16


class StoredFiles:
    """The objects of one save."""

    poll_s = 1.0  # every look is a request

    def __init__(self, attempt: Attempt, folder: Remote) -> None:
        self._attempt, self._folder = attempt, folder
        self._place: Remote | None = None

    @property
    def where(self) -> str:
        return str(self._place or self._folder)

    @property
    def _pointer(self) -> Remote:
        return self._folder / f"{POINTER}{self._attempt.name}.json"

    @property
    def place(self) -> Remote:
        """The folder of this save, once it has begun."""
        if self._place is None:
            raise CheckpointError(f"the save of step {self._attempt.step} has not begun", where=str(self._folder))
        return self._place

    def tidy(self) -> list[str]:
        """Remove saves that were cut off, and the rest of checkpoints that were pruned; return their names."""
        removed = []
        for name in self._folder.names():
            if name.startswith(POINTER):
                (self._folder / name).remove()
            elif STEP.fullmatch(name) and not (self._folder / name / MANIFEST).exists():
                (self._folder / name).remove_all()
                removed.append(name)
        return removed

    def prune(self, keep: Keep, path: Location) -> list[str]:
        """Remove older checkpoints that `keep` does not keep; return their names."""
        return prune(self._folder, keep, path)

    def begin(self) -> None:
        """Rank 0 takes a folder that no other save has, and tells the other ranks its name."""
        if self._attempt.rank == 0:
            owner = self._attempt.name.encode()
            names = (step_name(self._attempt.step, generation) for generation in count())
            name = next(name for name in names if (self._folder / name / OWNER).create(owner))
            self._place = self._folder / name
            self._pointer.write(canonical({"folder": name}))
        else:
            self._place = self._folder / self._told()

    def _told(self) -> str:
        """The name of the folder that rank 0 has taken."""
        for _ in polls(self._attempt.timeout_s, self.poll_s):
            self._check_notices()
            with suppress(Missing):
                told = json.loads(self._pointer.read())
                if "failed" in told:
                    raise CheckpointError(f"rank 0 gave up the save: {told['failed']}", where=self.where)
                return str(told["folder"])
        raise CheckpointError(
            f"rank 0 did not begin the save of step {self._attempt.step}", where=self.where, fix="check that it still runs"
        )

    def _check_notices(self) -> None:
        why = self._attempt.notices.read(self._attempt.failed)
        if why is not None:
            raise CheckpointError(why, where=self.where)

    def write_shard(self, layout: ShardLayout, data: Iterable[memoryview]) -> Written:
        """Upload this rank's shard, and hash it on the way."""
        hashes = BlockHashes()

        def blocks() -> Iterator[memoryview]:
            for part in parts_of(layout, data):
                for first in range(0, len(part), BLOCK_BYTES):
                    block = part[first : first + BLOCK_BYTES]
                    hashes.add(block)
                    yield block

        (self.place / self._shard(self._attempt.rank)).upload(blocks(), layout.file_bytes)
        return Written(size_bytes=layout.file_bytes, blocks=hashes.finish())

    def write_report(self, report: ShardReport) -> None:
        """Report that this rank's shard is there."""
        (self.place / _report(self._attempt.rank)).write(canonical(REPORT.dump_python(report, mode="json")))

    def gather(self, reports: dict[int, ShardReport]) -> None:
        """Read the reports that are there now, several at once; an error if a rank reports a failure."""
        names = self.place.files()
        ranks = range(self._attempt.num_ranks)
        failed = next((rank for rank in ranks if _failure(rank) in names), None)
        if failed is not None:
            raise CheckpointError(f"rank {failed} could not save: {_reason(self.place / _failure(failed))}", where=self.where)
        new = [rank for rank in ranks if rank not in reports and _report(rank) in names]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            reports.update(zip(new, pool.map(self._read_report, new), strict=True))

    def _read_report(self, rank: int) -> ShardReport:
        place = self.place / _report(rank)
        report = validated(REPORT, json_at(place), place)
        if not belongs(report, self._attempt, rank, self._shard(rank)):
            raise CheckpointError(f"{place.name} belongs to another save: {report.attempt}, step {report.step}", where=str(place))
        return report

    def finish(self, manifest: Manifest) -> Remote:
        """Make the manifest, once all shards have their sizes; return where the checkpoint is."""
        sizes = self.place.files()
        for file in manifest.files:
            if sizes.get(file.name) != file.size_bytes:
                raise CheckpointError(
                    f"{file.name} has {sizes.get(file.name, 0):,} bytes where {file.size_bytes:,} were written", where=self.where
                )
        if not (self.place / MANIFEST).create(manifest_bytes(manifest)):
            raise CheckpointError("another process has completed a checkpoint in the same place", where=self.where)
        with suppress(MeshwrightError):  # the checkpoint is complete, and these are ignored
            for rank in range(self._attempt.num_ranks):
                (self.place / _report(rank)).remove()
            self._pointer.remove()
        return self.place

    def committed(self) -> Remote | None:
        """Where the checkpoint is, if it is complete now."""
        if (self.place / _failure(0)).exists():
            raise CheckpointError(f"rank 0 gave up the save: {_reason(self.place / _failure(0))}", where=self.where)
        return self.place if (self.place / MANIFEST).exists() else None

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """Remove the shards of `ranks`, and leave the reason for the other ranks, as far as the server answers.

        Rank 0 removes nothing once the manifest may be there.
        """
        reason: dict[str, Any] = {"why": why}
        with suppress(MeshwrightError):
            if self._place is None and self._attempt.rank == 0:
                self._pointer.write(canonical({"failed": why}))
            elif self._place is not None:
                (self._place / _failure(self._attempt.rank)).write(canonical(reason))
                if not (self._place / MANIFEST).exists():
                    for rank in ranks:
                        (self._place / self._shard(rank)).remove()

    def _shard(self, rank: int) -> str:
        return shard_name(rank, self._attempt.num_ranks)


def _report(rank: int) -> str:
    return f".report-{rank:05d}.json"


def _failure(rank: int) -> str:
    return f".failed-{rank:05d}.json"


def _reason(place: Remote) -> str:
    try:
        return str(json_at(place)["why"])
    except (MeshwrightError, KeyError, TypeError):
        return "for a reason that it could not record"
