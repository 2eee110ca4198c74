"""Saving: every rank writes its shard, rank 0 writes the manifest, and one rename completes the checkpoint.

Ranks wait for each other through files in a folder that belongs to this save alone. So a background thread never uses a process group of
training, and a dead rank causes a timeout that names it, not a hang. Failure and success are also sent as a notice, so that a rank whose
disk fails can still inform the others, and they do not wait for a file that cannot be written.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.checkpoint.durable import JSON, CheckpointError, canonical, explained, may_pass, read_json, sync_folder, write_json
from meshwright.train.checkpoint.folder import STEP, Keep, clean, names_in, partial_path, prune, step_path
from meshwright.train.checkpoint.manifest import (
    REPORT,
    Manifest,
    SavedFile,
    SavedTensor,
    ShardReport,
    combine,
    shard_name,
    tensor_table,
    validated,
    write_manifest,
)
from meshwright.train.checkpoint.notices import NoNotices, Notices
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.shard import ShardLayout, bytes_of, lay_out, write_shard

TIMEOUT_S = 600.0
FIRST_POLL_S, LAST_POLL_S = 0.002, 0.25
READ_ERRORS_S = 5.0  # a disk that answers again within this time does not make the save fail
RENAME_SEEN_S = 5.0  # how long a new name may take to appear on a shared disk after a folder was renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One save as one of its ranks sees it. `token` belongs to the run, and `number` counts its saves; together they identify this save."""

    folder: Path
    step: int
    rank: int
    num_ranks: int
    token: str
    number: int
    timeout_s: float
    notices: Notices = field(default_factory=NoNotices)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks or self.step < 0:
            raise InputError(f"rank {self.rank} of {self.num_ranks} cannot save step {self.step}", where="checkpoint", fix="count from 0")

    @property
    def name(self) -> str:
        return f"{self.token}-{self.number}"

    @property
    def partial(self) -> Path:
        return partial_path(self.folder, self.step, self.token, self.number)

    def shard(self, rank: int) -> Path:
        return self.partial / shard_name(rank, self.num_ranks)

    def report(self, rank: int) -> Path:
        return self.shard(rank).with_suffix(".json")

    def failure(self, rank: int) -> Path:
        return self.partial / f"failed-{rank:05d}.json"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A complete checkpoint: where it is, this rank's bytes, and the seconds to write them and to wait for all others."""

    path: Path
    num_bytes: int
    write_s: float
    commit_s: float
    notes: tuple[str, ...]  # leftovers removed, checkpoints pruned, and what of that failed


def save(
    folder: Path,
    step: int,
    pieces: Iterable[Piece],
    scalars: Mapping[str, JSON],
    *,
    rank: int = 0,
    num_ranks: int = 1,
    token: str = "",
    number: int = 0,
    keep: Keep | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Saved:
    """Write a checkpoint, and return on every rank once it is complete; `folder` must exist. Nothing is pruned unless `keep` is given.

    Every rank passes the same `token` (`shared_token` makes one) and a `number` that no other save of this run has.
    """
    if not token and num_ranks > 1:
        raise InputError("a save by several ranks needs a token that they share", where="checkpoint", fix="pass token=shared_token(group)")
    attempt = Attempt(
        folder=folder, step=step, rank=rank, num_ranks=num_ranks, token=token or new_token(), number=number, timeout_s=timeout_s
    )
    held = list(pieces)
    layout = lay_out(held)
    data = (bytes_of(piece.tensor) for piece in layout.pieces)
    return write(attempt, Content(layout=layout, data=data, tensors=tensor_table(held, rank), scalars=checked_scalars(scalars)), keep)


def new_token() -> str:
    """A word that is unique to this run."""
    return secrets.token_hex(8)


def checked_scalars(scalars: Mapping[str, JSON]) -> dict[str, JSON]:
    """A copy of the scalars, as JSON holds them."""
    try:
        copied: dict[str, JSON] = json.loads(canonical(dict(scalars)))
        return copied
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the scalars cannot be saved: {error}", where="checkpoint", fix="use finite numbers, text, lists and tables"
        ) from error


def write(attempt: Attempt, content: Content, keep: Keep | None) -> Saved:
    """Do this rank's part of a save. An error leaves older checkpoints unchanged, and is reported to every other rank."""
    notes = _tidied(attempt) if attempt.rank == 0 else []
    start_s = time.perf_counter()
    with _failures_are_reported(attempt, [attempt.rank]):
        # Read before this rank reports: after that, rank 0 may rename the folder at any moment.
        inode = _begin(attempt)
        num_bytes = _write_shard(attempt, content)
    written_s = time.perf_counter()
    path = _commit(attempt, content.scalars) if attempt.rank == 0 else _await_commit(attempt, inode)
    committed_s = time.perf_counter()
    if attempt.rank == 0 and keep:
        notes += _pruned(attempt, keep, path)
    return Saved(path=path, num_bytes=num_bytes, write_s=written_s - start_s, commit_s=committed_s - written_s, notes=tuple(notes))


@contextmanager
def _failures_are_reported(attempt: Attempt, ranks: Iterable[int]) -> Iterator[None]:
    """Report any error in the block to the other ranks before it is raised; the shards of `ranks` are removed."""
    try:
        yield
    except MeshwrightError as error:
        give_up(attempt, ranks, error.what)
        raise
    except Exception as error:
        failure = CheckpointError(f"the save of step {attempt.step} failed: {error!r}", where=str(attempt.partial))
        give_up(attempt, ranks, failure.what)
        raise failure from error


def _tidied(attempt: Attempt) -> list[str]:
    """Notes on the leftovers of earlier saves. A failure to remove one does not stop the save."""
    try:
        return [f"removed {name}, the rest of a save that was cut off" for name in clean(attempt.folder, attempt.token, attempt.number)]
    except (CheckpointError, OSError) as error:
        return [error.what if isinstance(error, CheckpointError) else str(error)]


def _pruned(attempt: Attempt, keep: Keep, path: Path) -> list[str]:
    """Notes on the checkpoints that were pruned. The new one is already complete, so a failure here does not matter."""
    try:
        return [f"pruned {name}" for name in prune(attempt.folder, keep, path)]
    except (CheckpointError, OSError) as error:
        return [error.what if isinstance(error, CheckpointError) else str(error)]


def _begin(attempt: Attempt) -> tuple[int, int]:
    """Make the folder of this save, unless another rank has; return what stays the same when it is renamed."""
    with explained(f"cannot begin the checkpoint of step {attempt.step}", attempt.partial):
        with suppress(FileExistsError):
            os.mkdir(attempt.partial)
        return _inode(attempt.partial)


def _inode(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _write_shard(attempt: Attempt, content: Content) -> int:
    """Write this rank's shard, then the report that it is there; return the bytes of the shard."""
    written = write_shard(attempt.shard(attempt.rank), content.layout, content.data)
    report = ShardReport(
        attempt=attempt.name,
        step=attempt.step,
        rank=attempt.rank,
        num_ranks=attempt.num_ranks,
        file=SavedFile(name=attempt.shard(attempt.rank).name, size_bytes=written.size_bytes, blocks=written.blocks),
        tensors=dict(content.tensors),
    )
    path = attempt.report(attempt.rank)
    with explained(f"cannot write {path.name}", path):
        write_json(path, REPORT.dump_python(report, mode="json"))
    return written.size_bytes


def _commit(attempt: Attempt, scalars: Mapping[str, JSON]) -> Path:
    """Wait for all shards, and complete the checkpoint; on failure notify the other ranks and remove the shards."""
    with _failures_are_reported(attempt, range(attempt.num_ranks)):
        manifest = combine(attempt.step, attempt.name, scalars, _gathered(attempt))
        with explained(f"cannot finish the checkpoint of step {attempt.step}", attempt.partial):
            path = _finish(attempt, manifest)
    attempt.notices.post(attempt.saved, str(path))
    return path


def _finish(attempt: Attempt, manifest: Manifest) -> Path:
    """Write the manifest last, flush everything to the disk, rename once; return the new path of the checkpoint."""
    for file in manifest.files:
        size_bytes = os.stat(attempt.partial / file.name).st_size
        if size_bytes != file.size_bytes:
            raise CheckpointError(
                f"{file.name} has {size_bytes:,} bytes where {file.size_bytes:,} were written", where=str(attempt.partial)
            )
    for rank in range(attempt.num_ranks):
        os.unlink(attempt.report(rank))
    write_manifest(attempt.partial, manifest)
    sync_folder(attempt.partial)
    path = step_path(attempt.folder, attempt.step)
    os.rename(attempt.partial, path)
    sync_folder(attempt.folder)
    return path


def _gathered(attempt: Attempt) -> list[ShardReport]:
    """The reports of all ranks, once they are there. The error names a rank that failed or is missing."""
    reports: dict[int, ShardReport] = {}
    errors = _ReadErrors()
    for _ in _polls(attempt.timeout_s):
        with errors.forgiven():
            _gather(attempt, reports)
        if len(reports) == attempt.num_ranks:
            return list(reports.values())
    missing = [rank for rank in range(attempt.num_ranks) if rank not in reports]
    raise CheckpointError(
        f"no shard of step {attempt.step} from {_ranks(missing)} within {attempt.timeout_s:g} s",
        where=str(attempt.partial),
        fix="check that they still run, and that all ranks share this folder",
    )


def _gather(attempt: Attempt, reports: dict[int, ShardReport]) -> None:
    """Read the reports that are there now; an error if a rank reports a failure."""
    why = attempt.notices.read(attempt.failed)
    if why is not None:
        raise CheckpointError(why, where=str(attempt.partial))
    with explained("cannot see the folder of this save", attempt.partial):
        names = set(os.listdir(attempt.partial))
    for rank in range(attempt.num_ranks):
        if attempt.failure(rank).name in names:
            raise CheckpointError(f"rank {rank} could not save: {_reason(attempt.failure(rank))}", where=str(attempt.partial))
        if rank not in reports and attempt.report(rank).name in names:
            reports[rank] = _read_report(attempt, rank)


class _ReadErrors:
    """Read errors of a disk: one that disappears within a few seconds does not make a save fail."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    @contextmanager
    def forgiven(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            now_s = time.monotonic()
            self._since_s = now_s if self._since_s is None else self._since_s
            if not may_pass(error) or now_s - self._since_s > READ_ERRORS_S:
                raise
        else:
            self._since_s = None


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _read_report(attempt: Attempt, rank: int) -> ShardReport:
    path = attempt.report(rank)
    report = validated(REPORT, read_json(path), path)
    found = (report.attempt, report.step, report.rank, report.num_ranks, report.file.name)
    if found != (attempt.name, attempt.step, rank, attempt.num_ranks, attempt.shard(rank).name):
        raise CheckpointError(f"{path.name} belongs to another save: {found}", where=str(path))
    return report


def _await_commit(attempt: Attempt, inode: tuple[int, int]) -> Path:
    """The path of the checkpoint once rank 0 has completed it."""
    errors = _ReadErrors()
    # Rank 0 may wait its whole time for another rank before it reports this.
    for _ in _polls(2 * attempt.timeout_s):
        with errors.forgiven():
            path = _committed(attempt, inode)
            if path:
                return path
    raise CheckpointError(
        f"rank 0 did not finish step {attempt.step} within {2 * attempt.timeout_s:g} s",
        where=str(attempt.partial),
        fix="check that it still runs",
    )


def _committed(attempt: Attempt, inode: tuple[int, int]) -> Path | None:
    """The path of the checkpoint, if it is complete now; an error if the save failed."""
    saved, why = attempt.notices.read(attempt.saved), attempt.notices.read(attempt.failed)
    if saved is not None:
        return Path(saved)
    if why is not None:
        raise CheckpointError(why, where=str(attempt.partial))
    with explained(f"cannot see the state of the checkpoint of step {attempt.step} fares", attempt.partial):
        if attempt.failure(0).exists():
            raise CheckpointError(f"rank 0 gave up the save: {_reason(attempt.failure(0))}", where=str(attempt.partial))
        return None if attempt.partial.exists() else _renamed(attempt, inode)


def _renamed(attempt: Attempt, inode: tuple[int, int]) -> Path:
    """The name that the folder of this save has now."""
    for _ in _polls(RENAME_SEEN_S):
        for name in names_in(attempt.folder):
            matched = STEP.fullmatch(name)
            with suppress(FileNotFoundError):
                if matched and int(matched[1]) == attempt.step and _inode(attempt.folder / name) == inode:
                    return attempt.folder / name
    raise CheckpointError(f"the folder of step {attempt.step} vanished before it was finished", where=str(attempt.partial))


def _polls(timeout_s: float) -> Iterator[None]:
    """Growing intervals at which to look at the disk, until the time is up; at least one, and one at the end."""
    deadline_s = time.monotonic() + timeout_s
    delay_s = FIRST_POLL_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        yield
        time.sleep(min(delay_s, left_s))
        delay_s = min(2 * delay_s, LAST_POLL_S)
    yield


def _reason(path: Path) -> str:
    try:
        return str(read_json(path)["why"])
    except (CheckpointError, KeyError, TypeError):
        return "for a reason that it could not record"


def give_up(attempt: Attempt, ranks: Iterable[int], why: str) -> None:
    """Remove the shards of `ranks` to free their space, and send the reason to the other ranks, as far as the disk allows.

    A rank that has reported its shard never removes it, because rank 0 may be about to complete the checkpoint.
    """
    attempt.post_failure(why)
    for rank in ranks:
        with suppress(OSError):
            os.unlink(attempt.shard(rank))
    with suppress(OSError):
        os.mkdir(attempt.partial)  # if this rank failed before the folder existed
    with suppress(OSError):
        write_json(attempt.failure(attempt.rank), {"why": why})
