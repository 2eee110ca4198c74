"""Ledgers of runs, computed in a thread: a long run takes seconds to add up, and no request waits for it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import MeshwrightError
from meshwright.ledger import Ledger, ledger_of
from meshwright.serve.files import check_plain
from meshwright.serve.live import LiveRun

AGE_S = 10.0  # of a ledger before it is made again, if the run has continued
REST = 50.0  # times as long as making it took: at most 2 % of a core
MOST_BYTES = 64 << 20  # of steps: beyond, a ledger would take a gigabyte; the page goes by the steps it has read


@dataclass(slots=True)
class Page:
    """The newest ledger of one run, and the one that is being made."""

    ledger: Ledger | None = None
    made_s: float = 0.0  # by the monotonic clock
    took_s: float = 0.0
    of: float = 0.0  # what the folder's last change was
    job: Future[tuple[Ledger | None, float]] | None = None


class Books:
    """One ledger per run; a single thread makes them."""

    def __init__(self) -> None:
        self._pages: dict[Path, Page] = {}
        self._clerk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._is_open = True

    def ledger(self, run: LiveRun) -> Ledger | None:
        """The run's newest ledger, or None until the first is made; asking for it renews it."""
        page = self._pages.setdefault(run.folder, Page())
        if page.job is not None and page.job.done() and not page.job.cancelled():
            page.ledger, page.took_s = page.job.result()
            page.job, page.made_s = None, time.monotonic()
        touched = run.touched
        rested = time.monotonic() - page.made_s >= max(AGE_S, REST * page.took_s) or not page.made_s
        is_read = run.header is not None and run.share_read == 1  # both at once would take turns on one core
        if self._is_open and page.job is None and touched != page.of and rested and is_read:
            page.of = touched
            page.job = self._clerk.submit(_made, run.folder)
        return page.ledger

    def is_settled(self, run: LiveRun) -> bool:
        """Whether the newest ledger has everything that the run has written so far."""
        page = self._pages.get(run.folder)
        return page is not None and page.job is None and page.of == run.touched

    def forget(self, run: LiveRun) -> None:
        """Drop the page of a run that is gone."""
        self._pages.pop(run.folder, None)

    def close(self) -> None:
        """Start no more ledgers."""
        self._is_open = False
        self._clerk.shutdown(wait=False, cancel_futures=True)


def _made(folder: Path) -> tuple[Ledger | None, float]:
    """A ledger, and the seconds it took; None where the folder does not have what it needs."""
    start_s = time.monotonic()
    try:
        for name in ("run.json", "plan.json", "steps.jsonl", "events.jsonl", "abandoned.jsonl"):
            _check_size(folder / name)
        return ledger_of(folder), time.monotonic() - start_s
    except Exception:  # whatever a damaged file brings about: the list must stand, with an estimate in the ledger's place
        return None, time.monotonic() - start_s


def _check_size(path: Path) -> None:
    try:
        state = check_plain(path)
    except FileNotFoundError:
        return
    if state.st_size > MOST_BYTES:
        raise MeshwrightError(f"{path.name} is too long to add up for a live page", where=str(path))
