"""The files of a save on a disk that all ranks share: they are collected in a folder of their own, and one rename completes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from meshwright.storage import Location
from meshwright.train.checkpoint.attempt import Attempt, belongs, polls
from meshwright.train.checkpoint.durable import CheckpointError, explained, read_json, sync_folder, write_json
from meshwright.train.checkpoint.folder import STEP, Keep, clean, names_in, partial_path, prune, step_path
from meshwright.train.checkpoint.manifest import REPORT, Manifest, ShardReport, shard_name, validated, write_manifest
from meshwright.train.checkpoint.shard import ShardLayout, Written, write_shard

RENAME_SEEN_S = 5.0  # how long a new name may take to appear on a shared disk after a folder was renamed


class DiskFiles:
    """The files of one save in a folder."""

    poll_s = 0.25

    def __init__(self, attempt: Attempt, folder: Path) -> None:
        self._attempt, self._folder = attempt, folder
        self._partial = partial_path(folder, attempt.step, attempt.token, attempt.number)
        self._inode = (0, 0)

    @property
    def where(self) -> str:
        return str(self._partial)

    def tidy(self) -> list[str]:
        """Remove what earlier saves left behind; return the names."""
        return clean(self._folder, self._attempt.token, self._attempt.number)

    def prune(self, keep: Keep, path: Location) -> list[str]:
        """Remove older checkpoints that `keep` does not keep; return their names."""
        return prune(self._folder, keep, path)

    def begin(self) -> None:
        """Make the folder of this save, unless another rank has, and note what stays the same when it is renamed.

        It is noted before this rank reports: after that, rank 0 may rename the folder at any moment.
        """
        with explained(f"cannot begin the checkpoint of step {self._attempt.step}", self._partial):
            with suppress(FileExistsError):
                os.mkdir(self._partial)
            self._inode = _inode(self._partial)

    def write_shard(self, layout: ShardLayout, data: Iterable[memoryview]) -> Written:
        """Write this rank's shard to the disk."""
        return write_shard(self._shard(self._attempt.rank), layout, data)

    def write_report(self, report: ShardReport) -> None:
        """Report that this rank's shard is there."""
        path = self._report(self._attempt.rank)
        with explained(f"cannot write {path.name}", path):
            write_json(path, REPORT.dump_python(report, mode="json"))

    def gather(self, reports: dict[int, ShardReport]) -> None:
        """Read the reports that are there now; an error if a rank reports a failure."""
        with explained("cannot see the folder of this save", self._partial):
            names = set(os.listdir(self._partial))
        for rank in range(self._attempt.num_ranks):
            if self._failure(rank).name in names:
                raise CheckpointError(f"rank {rank} could not save: {_reason(self._failure(rank))}", where=self.where)
            if rank not in reports and self._report(rank).name in names:
                reports[rank] = self._read_report(rank)

    def _read_report(self, rank: int) -> ShardReport:
        path = self._report(rank)
        report = validated(REPORT, read_json(path), path)
        if not belongs(report, self._attempt, rank, self._shard(rank).name):
            raise CheckpointError(f"{path.name} belongs to another save: {report.attempt}, step {report.step}", where=str(path))
        return report

    def finish(self, manifest: Manifest) -> Path:
        """Write the manifest last, flush everything to the disk, rename once; return the new path of the checkpoint."""
        with explained(f"cannot finish the checkpoint of step {self._attempt.step}", self._partial):
            for file in manifest.files:
                size_bytes = os.stat(self._partial / file.name).st_size
                if size_bytes != file.size_bytes:
                    raise CheckpointError(f"{file.name} has {size_bytes:,} bytes where {file.size_bytes:,} were written", where=self.where)
            for rank in range(self._attempt.num_ranks):
                os.unlink(self._report(rank))
            write_manifest(self._partial, manifest)
            sync_folder(self._partial)
            path = step_path(self._folder, self._attempt.step)
            os.rename(self._partial, path)
            sync_folder(self._folder)
        return path

    def committed(self) -> Path | None:
        """The path of the checkpoint, if it is complete now."""
        with explained(f"cannot see the state of the checkpoint of step {self._attempt.step}", self._partial):
            if self._failure(0).exists():
                raise CheckpointError(f"rank 0 gave up the save: {_reason(self._failure(0))}", where=self.where)
            return None if self._partial.exists() else self._renamed()

    def _renamed(self) -> Path:
        """The name that the folder of this save has now."""
        for _ in polls(RENAME_SEEN_S, self.poll_s):
            for name in names_in(self._folder):
                matched = STEP.fullmatch(name)
                with suppress(FileNotFoundError):
                    if matched and int(matched[1]) == self._attempt.step and _inode(self._folder / name) == self._inode:
                        return self._folder / name
        raise CheckpointError(f"the folder of step {self._attempt.step} vanished before it was finished", where=self.where)

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """Remove the shards of `ranks` to free their space, and leave the reason for the other ranks, as far as the disk allows.

        A rank that has reported its shard never removes it, because rank 0 may be about to complete the checkpoint.
        """
        for rank in ranks:
            with suppress(OSError):
                os.unlink(self._shard(rank))
        with suppress(OSError):
            os.mkdir(self._partial)  # if this rank failed before the folder existed
        with suppress(OSError):
            write_json(self._failure(self._attempt.rank), {"why": why})

    def _shard(self, rank: int) -> Path:
        return self._partial / shard_name(rank, self._attempt.num_ranks)

    def _report(self, rank: int) -> Path:
        return self._shard(rank).with_suffix(".json")

    def _failure(self, rank: int) -> Path:
        return self._partial / f"failed-{rank:05d}.json"


def _inode(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _reason(path: Path) -> str:
    try:
        return str(read_json(path)["why"])
    except (CheckpointError, KeyError, TypeError):
        return "for a reason that it could not record"
