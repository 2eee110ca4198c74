"""Saving: every rank writes its shard, rank 0 writes the manifest, and one step completes the checkpoint.

Ranks wait for each other through files in a folder that belongs to this save alone. So a background thread never uses a process group of
training, and a dead rank causes a timeout that names it, not a hang. Failure and success are also sent as a notice, so that a rank whose
disk fails can still inform the others, and they do not wait for a file that cannot be written. What the files are is the business of
`on_disk` and `on_storage`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError, MeshwrightError
from meshwright.storage import Location, Remote
from meshwright.train.checkpoint.attempt import Attempt, Content, SaveFiles, polls
from meshwright.train.checkpoint.durable import JSON, CheckpointError, canonical, may_pass
from meshwright.train.checkpoint.folder import Keep
from meshwright.train.checkpoint.manifest import SavedFile, ShardReport, combine, shard_name, tensor_table
from meshwright.train.checkpoint.on_disk import DiskFiles
from meshwright.train.checkpoint.on_storage import StoredFiles
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.shard import bytes_of, lay_out

TIMEOUT_S = 600.0
READ_ERRORS_S = 5.0  # a disk that answers again within this time does not make the save fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A complete checkpoint: where it is, this rank's bytes, and the seconds to write them and to wait for all others."""

    path: Location
    num_bytes: int
    write_s: float
    commit_s: float
    notes: tuple[str, ...]  # leftovers removed, checkpoints pruned, and what of that failed


def save(
    folder: Location,
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
    files = _files(attempt)
    notes = _tidied(files) if attempt.rank == 0 else []
    start_s = time.perf_counter()
    with _failures_are_reported(attempt, files, [attempt.rank]):
        files.begin()
        num_bytes = _write_shard(attempt, files, content)
    written_s = time.perf_counter()
    path = _commit(attempt, files, content.scalars) if attempt.rank == 0 else _await_commit(attempt, files)
    committed_s = time.perf_counter()
    if attempt.rank == 0 and keep:
        notes += _pruned(files, keep, path)
    return Saved(path=path, num_bytes=num_bytes, write_s=written_s - start_s, commit_s=committed_s - written_s, notes=tuple(notes))


def _files(attempt: Attempt) -> SaveFiles:
    folder = attempt.folder
    return StoredFiles(attempt, folder) if isinstance(folder, Remote) else DiskFiles(attempt, folder)


def give_up(attempt: Attempt, ranks: Iterable[int], why: str) -> None:
    """Remove the shards of `ranks`, and send the reason to the other ranks, as far as disk or object storage allow."""
    _give_up(attempt, _files(attempt), ranks, why)


def _give_up(attempt: Attempt, files: SaveFiles, ranks: Iterable[int], why: str) -> None:
    attempt.post_failure(why)
    files.give_up(ranks, why)


@contextmanager
def _failures_are_reported(attempt: Attempt, files: SaveFiles, ranks: Iterable[int]) -> Iterator[None]:
    """Report any error in the block to the other ranks before it is raised; the shards of `ranks` are removed."""
    try:
        yield
    except MeshwrightError as error:
        _give_up(attempt, files, ranks, error.what)
        raise
    except Exception as error:
        failure = CheckpointError(f"the save of step {attempt.step} failed: {error!r}", where=files.where)
        _give_up(attempt, files, ranks, failure.what)
        raise failure from error


def _tidied(files: SaveFiles) -> list[str]:
    """Notes on the leftovers of earlier saves. A failure to remove one does not stop the save."""
    try:
        return [f"removed {name}, the rest of a save that was cut off" for name in files.tidy()]
    except (MeshwrightError, OSError) as error:
        return [error.what if isinstance(error, MeshwrightError) else str(error)]


def _pruned(files: SaveFiles, keep: Keep, path: Location) -> list[str]:
    """Notes on the checkpoints that were pruned. The new one is already complete, so a failure here does not matter."""
    try:
        return [f"pruned {name}" for name in files.prune(keep, path)]
    except (MeshwrightError, OSError) as error:
        return [error.what if isinstance(error, MeshwrightError) else str(error)]


def _write_shard(attempt: Attempt, files: SaveFiles, content: Content) -> int:
    """Write this rank's shard, then the report that it is there; return the bytes of the shard."""
    written = files.write_shard(content.layout, content.data)
    name = shard_name(attempt.rank, attempt.num_ranks)
    report = ShardReport(
        attempt=attempt.name,
        step=attempt.step,
        rank=attempt.rank,
        num_ranks=attempt.num_ranks,
        file=SavedFile(name=name, size_bytes=written.size_bytes, blocks=written.blocks),
        tensors=dict(content.tensors),
    )
    files.write_report(report)
    return written.size_bytes


def _commit(attempt: Attempt, files: SaveFiles, scalars: Mapping[str, JSON]) -> Location:
    """Wait for all shards, and complete the checkpoint; on failure notify the other ranks and remove the shards."""
    with _failures_are_reported(attempt, files, range(attempt.num_ranks)):
        manifest = combine(attempt.step, attempt.name, scalars, _gathered(attempt, files))
        attempt.check()
        path = files.finish(manifest)
    attempt.notices.post(attempt.saved, str(path))
    return path


def _gathered(attempt: Attempt, files: SaveFiles) -> list[ShardReport]:
    """The reports of all ranks, once they are there. The error names a rank that failed or is missing."""
    reports: dict[int, ShardReport] = {}
    errors = _ReadErrors()
    for _ in polls(attempt.timeout_s, files.poll_s):
        with errors.forgiven():
            why = attempt.notices.read(attempt.failed)
            if why is not None:
                raise CheckpointError(why, where=files.where)
            files.gather(reports)
        if len(reports) == attempt.num_ranks:
            return [reports[rank] for rank in sorted(reports)]
    missing = [rank for rank in range(attempt.num_ranks) if rank not in reports]
    raise CheckpointError(
        f"no shard of step {attempt.step} from {_ranks(missing)} within {attempt.timeout_s:g} s",
        where=files.where,
        fix="check that they still run, and that all ranks share this folder",
    )


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


def _await_commit(attempt: Attempt, files: SaveFiles) -> Location:
    """The path of the checkpoint once rank 0 has completed it."""
    errors = _ReadErrors()
    # Rank 0 may wait its whole time for another rank before it reports this.
    for _ in polls(2 * attempt.timeout_s, files.poll_s):
        with errors.forgiven():
            path = _committed(attempt, files)
            if path:
                return path
    raise CheckpointError(
        f"rank 0 did not finish step {attempt.step} within {2 * attempt.timeout_s:g} s", where=files.where, fix="check that it still runs"
    )


def _committed(attempt: Attempt, files: SaveFiles) -> Location | None:
    """The path of the checkpoint, if it is complete now; an error if the save failed."""
    saved, why = attempt.notices.read(attempt.saved), attempt.notices.read(attempt.failed)
    if saved is not None:
        return Remote.at(saved) if isinstance(attempt.folder, Remote) else Path(saved)
    if why is not None:
        raise CheckpointError(why, where=files.where)
    return files.committed()
