"""Records how an interrupted run ended.

Rank 0 writes the run folder while it trains. If it is killed or hangs, the process that started the ranks records the end; under another
launcher, one of the remaining ranks does.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.record.entries import Event
from meshwright.record.header import RUNNING, read_header
from meshwright.record.writer import append_event, elapsed_s, is_unstarted, set_status
from meshwright.train.launch import Failure
from meshwright.train.sealed import Forged, SealedStore

OPENED = "run/opened"  # in the store, once this start of the run writes to its folder: before, the folder may be another run's
TAIL_BYTES = 65536  # of steps.jsonl, enough for its last line


def opened(store: SealedStore) -> None:
    """Note in the store that the run folder now belongs to this run."""
    store.set(OPENED, "1")


def record_failure(folder: Path, failure: Failure, store: SealedStore) -> None:
    """The parent's record of how the ranks ended, if the run folder is theirs."""
    with suppress(RuntimeError, Forged):
        was_refused = failure.reason == "input" and is_unstarted(folder)  # then its folder is removed, and the name can be used again
        if store.check([OPENED]) and store.get(OPENED) == b"1" and not was_refused:
            detail = {"exit_code": failure.exit_code} if failure.exit_code is not None else {}
            record_end(folder, failure.reason, failure.rank, failure.message, **detail)


def record_end(folder: Path, reason: str, rank: int | None, message: str, **detail: Any) -> None:
    """Append an event `failed`, unless a hang has recorded its own event, and set the status to `failed` if the run has no final status.

    Write errors are ignored: this runs after another failure, and that failure must be reported.
    """
    with suppress(MeshwrightError, OSError):
        if reason != "hang":
            who = {} if rank is None else {"rank": rank}
            content = {"reason": reason, **who, **detail, "message": message}
            append_event(folder, Event(time_s=elapsed_s(folder), kind="failed", step=last_step(folder), detail=content))
        if read_header(folder).status == RUNNING:
            set_status(folder, "failed")


def last_step(folder: Path) -> int:
    """The last complete step in a run folder; 0 if there is none."""
    with open(folder / "steps.jsonl", "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL_BYTES, 0))
        whole = file.read().split(b"\n")[:-1]
    for line in reversed(whole):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return 0
