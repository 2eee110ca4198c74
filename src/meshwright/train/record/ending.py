"""Records how an interrupted run ended.

Rank 0 writes the run folder while it trains. If it is killed or hangs, the process that started the ranks records the end; under another
launcher, one of the remaining ranks does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.record.entries import Event
from meshwright.record.flight import in_words, read_traces
from meshwright.record.header import RUNNING, read_header
from meshwright.record.run import ASIDE
from meshwright.record.writer import append_event, elapsed_s, is_unstarted, set_status
from meshwright.train.health.watch import BEAT_S, STORE_TIMEOUT_S, RankState
from meshwright.train.incidents import Incident
from meshwright.train.launch import OPENED, Failure, Place
from meshwright.train.sealed import Forged, SealedStore

SILENT_S = 3 * BEAT_S  # without a report: then a rank has gone. A rank that only noticed it leaves a note
NOTICED = "ending/noticed"  # in the store: how many ranks lost a connection, and a note of each
TAIL_BYTES = 65536  # of steps.jsonl, enough for its last line


def opened(store: SealedStore) -> None:
    """Note in the store that the run folder now belongs to this run."""
    store.set(OPENED, "1")


def record_failure(folder: Path, failure: Failure, store: SealedStore) -> None:
    """The parent's record of how the ranks ended, if the run folder is theirs."""
    with suppress(RuntimeError, Forged):
        was_refused = failure.reason == "input" and is_unstarted(folder)  # then its folder is removed, and the name can be used again
        if store.check([OPENED]) and store.get(OPENED) == b"1" and not was_refused:
            detail: dict[str, Any] = {"exit_code": failure.exit_code} if failure.exit_code is not None else {}
            if failure.reason not in ("hang", "input", "interrupt") and (words := in_words(read_traces(folder))):
                detail["flight"] = words
                print(flight_line(words).lstrip("\n"), file=sys.stderr)
            record_end(folder, failure.reason, failure.rank, failure.message, **detail)


def flight_line(words: str) -> str:
    """What the flight recorders say as a line below an error; empty if they say nothing."""
    return f"\n  calls: {words}" if words else ""


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


def record_surrender(folder: Path, incident: Incident, why: str, tried: str) -> None:
    """Record that a run which goes on by itself does not any more, and what was tried. Write errors are ignored, as in `record_end`."""
    with suppress(MeshwrightError, OSError):
        detail: dict[str, Any] = {
            "number": incident.number,
            "reason": incident.reason,
            "rank": incident.rank,
            "broke_at_step": incident.step,
        }
        detail |= {"action": "gave up", "tried": tried, "message": f"{incident.message}; not started again: {why}"}
        append_event(folder, Event(time_s=elapsed_s(folder), kind="incident", step=incident.step, detail=detail))


def silent_s(folder: Path, noticed_s: float) -> float:
    """Seconds from the last step on record until a fault was noticed, which is given by the monotonic clock."""
    with suppress(OSError, ValueError):
        written = max(path.stat().st_mtime for name in ("steps.jsonl", ASIDE) if (path := folder / name).is_file())
        return max(time.time() - (time.monotonic() - noticed_s) - written, 0.0)
    return 0.0


def last_step(folder: Path) -> int:
    """The last complete step in a run folder; 0 if there is none."""
    for line in reversed(_last_lines(folder)):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["step"])
    return 0


def last_times_s(folder: Path) -> dict[int, float]:
    """The seconds of the last complete steps in a run folder, by their numbers."""
    found = {}
    for line in _last_lines(folder):
        with suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            found[int(entry["step"])] = float(entry["step_s"])
    return found


def _last_lines(folder: Path) -> list[bytes]:
    """The last whole lines of the steps; the first of them may be cut."""
    with open(folder / "steps.jsonl", "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - TAIL_BYTES, 0))
        return file.read().split(b"\n")[:-1]


def notices_first(store: dist.Store, rank: int) -> bool:
    """Note that this rank has lost a connection, so that it does not count as gone itself; whether it is the first to notice."""
    try:
        store.set(f"{NOTICED}/{rank}", "1")
        return store.add(NOTICED, 1) == 1
    except RuntimeError:  # the process that hosts the store has gone too
        return True


def gone_ranks(place: Place, wait_s: float = SILENT_S) -> list[int]:
    """The ranks that have ended without a word: they no longer report, and have not noticed the end of another rank.

    One rank asks for all, because a store should not have to answer thousands of them at once. If the store does not answer, the rank that
    hosts it has gone.
    """
    try:
        place.store.check([NOTICED])  # a new connection to a process that has gone would be tried for a minute
        reports = place.control.apart("watch", STORE_TIMEOUT_S)
        before = _beats(reports, place.num_ranks)
        time.sleep(wait_s)
        after = _beats(reports, place.num_ranks)
        silent = [rank for rank in range(place.num_ranks) if before[rank] == after[rank]]
        return [rank for rank in silent if not place.store.check([f"{NOTICED}/{rank}"])]
    except RuntimeError:
        return [] if place.host is None else [place.host]


def _beats(reports: SealedStore, num_ranks: int) -> list[int]:
    """The number of each rank's last report; -1: it has never reported, or its report cannot be read."""
    found = [-1] * num_ranks
    for rank in range(num_ranks):
        with suppress(ValueError, Forged):
            if reports.check([f"rank/{rank}"]):
                found[rank] = RankState.from_json(reports.get(f"rank/{rank}")).beat
    return found


def loss_in_words(rank: int, gone: Sequence[int]) -> str:
    """What a rank that has lost a connection reports."""
    if not gone:
        return f"rank {rank} lost the connection to another rank"
    listed = ", ".join(map(str, gone[:8])) + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
    who = f"ranks {listed} have" if len(gone) > 1 else f"rank {listed} has"
    return (
        f"{who} ended without a message; rank {rank} lost the connection, and hears nothing more from {'them' if len(gone) > 1 else 'it'}"
    )
