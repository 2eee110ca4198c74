"""Saving in the background: a copy in host memory, and a thread that writes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.checkpoint.durable import JSON, CheckpointError, explained
from meshwright.train.checkpoint.folder import Keep
from meshwright.train.checkpoint.manifest import tensor_table
from meshwright.train.checkpoint.notices import NoNotices, Notices
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.saving import TIMEOUT_S, Attempt, Content, checked_scalars, give_up, new_token, write
from meshwright.train.checkpoint.shard import ShardLayout, lay_out
from meshwright.train.checkpoint.snapshot import Snapshot

LOOK_S = 0.2  # between two checks whether waiting is still useful


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """The result of one save: how long training waited, and what happened in the background."""

    step: int
    path: Path | None  # None if the save failed; older checkpoints are unchanged
    stall_s: float  # time for which training stood still: waiting for the previous save, and copying
    write_s: float  # time to write this rank's shard to the disk
    commit_s: float  # time until all ranks had written and the checkpoint was complete
    num_bytes: int  # of this rank's shard
    notes: tuple[str, ...]
    failure: MeshwrightError | None

    def raise_if_failed(self) -> Self:
        """The report; raises the error of a failed save."""
        if self.failure:
            raise self.failure
        return self


class AsyncSaver:
    """Saves checkpoints one at a time while training continues.

    All ranks make one with the same `token` and call `save` in the same order. A failed save is a report with `failure` set; with
    `raise_failures`, `finished` and `wait` raise that failure instead.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        token: str = "",
        keep: Keep | None = None,
        timeout_s: float = TIMEOUT_S,
        raise_failures: bool = False,
        notices: Notices | None = None,
        is_cut: Callable[[], bool] = bool,
    ) -> None:
        if not token and num_ranks > 1:
            raise InputError(
                "ranks that save together need a token that they share", where="checkpoint", fix="pass token=shared_token(group)"
            )
        # Created once: if the folder is missing later, a disk was lost, and the folder must not be created again on another disk.
        with explained("cannot make the folder of the checkpoints", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._attempt = Attempt(
            folder=folder,
            step=0,
            rank=rank,
            num_ranks=num_ranks,
            token=token or new_token(),
            number=0,
            timeout_s=timeout_s,
            notices=NoNotices() if notices is None else notices,
        )
        self._is_cut = is_cut  # whether a rank that takes part has gone, so that waiting for a save is useless
        self._keep = keep
        self._raise_failures = raise_failures
        self._snapshot = Snapshot()
        self._reports: SimpleQueue[SaveReport] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stall_s = 0.0  # of the save that is being written
        self._copied = threading.Event()
        self._copied.set()

    def prepare(self, pieces: Iterable[Piece]) -> None:
        """Allocate host memory now, so that the first save does not have to."""
        self._snapshot.reserve(lay_out(pieces))

    def save(
        self, step: int, pieces: Iterable[Piece], scalars: Mapping[str, JSON], *, is_hurried: Callable[[], bool] = lambda: False
    ) -> float:
        """Copy the state and start to write it; return the seconds this took. If an earlier save is still being written, wait for it.

        If the earlier save does not end in time, or `is_hurried` becomes true first, this save is not started, and is reported as failed.
        """
        return self._start(step, list(pieces), checked_scalars(scalars), self._attempt.timeout_s, is_hurried=is_hurried)

    def save_alongside(self, step: int, pieces: Iterable[Piece], scalars: Mapping[str, JSON]) -> float:
        """Like `save`, but the copy is also made in the background, while forward and backward passes run.

        Nothing may change the tensors before `before_update` has returned. If something does, the save fails and says so.
        """
        return self._start(step, list(pieces), checked_scalars(scalars), self._attempt.timeout_s, alongside=True)

    def before_update(self) -> float:
        """Return once the state may be changed, with the seconds this took: the rest of a copy that is still being made."""
        start_s = time.perf_counter()
        self._copied.wait()
        wait_s = time.perf_counter() - start_s
        self._stall_s += wait_s
        return wait_s

    def save_now(self, step: int, pieces: Iterable[Piece], scalars: Mapping[str, JSON], *, timeout_s: float = TIMEOUT_S) -> SaveReport:
        """Save and wait until the checkpoint is complete, for at most `timeout_s`.

        Otherwise the report says that it did not end in time.
        """
        start_s = time.perf_counter()
        self._start(step, list(pieces), checked_scalars(scalars), timeout_s)
        self._joined(max(0.0, timeout_s - (time.perf_counter() - start_s)))
        own = None
        for report in self._drained():
            if report.step == step:
                own = report
            else:
                self._reports.put(report)  # of an earlier save that `finished` has not returned yet
        stall_s = time.perf_counter() - start_s
        late = CheckpointError(f"the save of step {step} did not end within {timeout_s:g} s", where=str(self._attempt.folder))
        return replace(own, stall_s=stall_s) if own else _failed(step, stall_s, late)

    def _start(
        self,
        step: int,
        pieces: list[Piece],
        scalars: Mapping[str, JSON],
        timeout_s: float,
        alongside: bool = False,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> float:
        start_s = time.perf_counter()
        layout, tensors = lay_out(pieces), tensor_table(pieces, self._attempt.rank)
        self._attempt = replace(self._attempt, step=step, number=self._attempt.number + 1)
        if not self._joined(timeout_s, is_hurried):
            stall_s = time.perf_counter() - start_s
            failure = CheckpointError(f"step {step} is not saved: the previous save is still running", where=str(self._attempt.folder))
            self._attempt.post_failure(failure.what)  # other ranks may have begun
            self._reports.put(_failed(step, stall_s, failure))
            return stall_s
        # A copy from CUDA is only queued here, in order with the work of training, so there is nothing to postpone.
        put_off = alongside and not any(piece.tensor.is_cuda for piece in pieces)
        if put_off:
            self._copied.clear()
        else:
            self._snapshot.take(layout)
        content = Content(layout=_without_tensors(layout), data=self._snapshot.data(layout), tensors=tensors, scalars=scalars)
        # A daemon thread: a disk that never answers must not keep the process from ending. It leaves an incomplete save.
        versions = [piece.tensor._version for piece in layout.pieces]
        arguments = (self._attempt, content, (layout, versions) if put_off else None)
        self._thread = threading.Thread(target=self._write, args=arguments, name=f"save-{step}", daemon=True)
        self._stall_s = time.perf_counter() - start_s
        self._thread.start()
        return self._stall_s

    def wait(self, *, timeout_s: float | None = None) -> list[SaveReport]:
        """Wait until no save is running, or until the time is up; return the reports since the last call."""
        # A rank waits for rank 0 up to twice the time of one save, after it has written.
        self._joined(3 * self._attempt.timeout_s if timeout_s is None else timeout_s)
        return self.finished()

    def finished(self) -> list[SaveReport]:
        """The reports of the saves that ended since the last call, oldest first. Does not wait."""
        reports = self._drained()
        if self._raise_failures:
            for report in reports:
                report.raise_if_failed()
        return reports

    def _drained(self) -> list[SaveReport]:
        return [self._reports.get() for _ in range(self._reports.qsize())]  # only this thread takes from the queue

    @property
    def is_busy(self) -> bool:
        """Whether a save is being written."""
        return not self._joined(0.0)

    def abandon(self, why: str) -> None:
        """Let the running save fail on all ranks, and do not wait for it: a rank that takes part in it has gone."""
        if not self._joined(0.0):
            give_up(self._attempt, (), why)

    def close(self, *, timeout_s: float | None = None) -> list[SaveReport]:
        """Wait at most `timeout_s` for the running save, and free the host memory; return the last reports."""
        reports = self.wait(timeout_s=timeout_s)
        if self._joined(0.0):
            self._snapshot.release()
        return reports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _joined(self, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False) -> bool:
        """Whether no save is under way, after at most `timeout_s`, or once `is_hurried` is true."""
        until_s = time.monotonic() + timeout_s
        while self._thread:
            left_s = until_s - time.monotonic()
            self._thread.join(max(0.0, min(left_s, LOOK_S)))
            if not self._thread.is_alive():
                self._thread = None
            elif left_s <= LOOK_S or is_hurried() or self._is_cut():
                return False
        return True

    def _write(self, attempt: Attempt, content: Content, to_copy: tuple[ShardLayout, list[int]] | None) -> None:
        """The thread's body: copy what is yet to be copied, write, and report what came of it."""
        try:
            if to_copy:
                self._copy(*to_copy)
            self._snapshot.wait()
            saved = write(attempt, content, self._keep)
        except MeshwrightError as error:
            attempt.post_failure(error.what)
            self._reports.put(_failed(attempt.step, self._stall_s, error))
        except Exception as error:  # training must learn of any error, and continue
            attempt.post_failure(repr(error))
            self._reports.put(_failed(attempt.step, self._stall_s, CheckpointError(f"the save of step {attempt.step} broke: {error!r}")))
        else:
            self._reports.put(
                SaveReport(
                    step=attempt.step,
                    path=saved.path,
                    stall_s=max(self._stall_s, self._snapshot.copy_s()),
                    write_s=saved.write_s,
                    commit_s=saved.commit_s,
                    num_bytes=saved.num_bytes,
                    notes=saved.notes,
                    failure=None,
                )
            )

    def _copy(self, layout: ShardLayout, versions: list[int]) -> None:
        """Copy while training reads the same tensors; the version counters of the tensors show a change during the copy."""
        try:
            self._snapshot.take(layout)
            changed = [piece.name for piece, seen in zip(layout.pieces, versions, strict=True) if piece.tensor._version != seen]
        finally:
            self._copied.set()
        if changed:
            raise CheckpointError(f"{changed[0]!r} was changed while it was copied", fix="call before_update() before each update")


def _without_tensors(layout: ShardLayout) -> ShardLayout:
    """Only the layout: the tensors of training must not be held or read after they are copied."""
    return replace(layout, pieces=())


def _failed(step: int, stall_s: float, failure: MeshwrightError) -> SaveReport:
    return SaveReport(step=step, path=None, stall_s=stall_s, write_s=0.0, commit_s=0.0, num_bytes=0, notes=(), failure=failure)


def shared_token(group: dist.ProcessGroup | None = None) -> str:
    """A token that all ranks of `group` share and no other run has: rank 0's, sent as plain bytes."""
    if not dist.is_initialized():
        return new_token()
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    token = torch.frombuffer(bytearray(bytes.fromhex(new_token())), dtype=torch.uint8).to(device)
    dist.broadcast(token, group=group, group_src=0)
    return bytes(token.tolist()).hex()
