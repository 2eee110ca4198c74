"""Ledgers of runs, computed in a thread: adding up a long run takes seconds, and no request should wait for that."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import MeshwrightError
from meshwright.ledger import Ledger, ledger_of
from meshwright.serve.files import check_plain
from meshwright.serve.live import LiveRun

AGE_S = 10.0  # age at which a ledger is made again, if the run has continued
REST = 50.0  # pause between two ledgers, as a multiple of the time that the last one took: at most 2 % of a core
MOST_BYTES = 64 << 20  # of steps: for more, a ledger would need a gigabyte of memory, so the page uses the steps it has read


@dataclass(slots=True)
class Page:
    """The newest ledger of one run, and the one that is being made."""

    ledger: Ledger | None = None
    made_s: float = 0.0  # by the monotonic clock
    took_s: float = 0.0
    of: float = 0.0  # when the folder had last changed, at the time the ledger was made
    job: Future[tuple[Ledger | None, float]] | None = None


class Books:
    """One ledger per run; a single thread makes them."""

    def __init__(self) -> None:
        self._pages: dict[Path, Page] = {}
        self._clerk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._is_open = True

    def ledger(self, run: LiveRun) -> Ledger | None:
        """The run's newest ledger, or None until the first is made. A call also starts a new one if the last is old."""
        page = self._pages.setdefault(run.folder, Page())
        if page.job is not None and page.job.done() and not page.job.cancelled():
            page.ledger, page.took_s = page.job.result()
            page.job, page.made_s = None, time.monotonic()
        touched = run.touched
        rested = time.monotonic() - page.made_s >= max(AGE_S, REST * page.took_s) or not page.made_s
        is_read = run.header is not None and run.share_read == 1  # reading and adding up at once would compete for one core
        if self._is_open and page.job is None and touched != page.of and rested and is_read:
            page.of = touched
            page.job = self._clerk.submit(_made, run.folder)
        return page.ledger

    def is_settled(self, run: LiveRun) -> bool:
        """Whether the newest ledger has everything that the run has written so far."""
        page = self._pages.get(run.folder)
        return page is not None and page.job is None and page.of == run.touched

    def forget(self, run: LiveRun) -> None:
        """Drop the ledger of a run whose folder is gone."""
        self._pages.pop(run.folder, None)

    def close(self) -> None:
        """Start no more ledgers."""
        self._is_open = False
        self._clerk.shutdown(wait=False, cancel_futures=True)


def _made(folder: Path) -> tuple[Ledger | None, float]:
    """A ledger, and the seconds it took; None if a ledger cannot be made from the folder."""
    start_s = time.monotonic()
    try:
        for name in ("run.json", "plan.json", "steps.jsonl", "events.jsonl", "abandoned.jsonl"):
            _check_size(folder / name)
        return ledger_of(folder), time.monotonic() - start_s
    except Exception:  # a damaged file can raise anything: the list is still shown, with an estimate instead of the ledger
        return None, time.monotonic() - start_s


def _check_size(path: Path) -> None:
    try:
        state = check_plain(path)
    except FileNotFoundError:
        return
    if state.st_size > MOST_BYTES:
        raise MeshwrightError(f"{path.name} is too long to add up for a live page", where=str(path))
