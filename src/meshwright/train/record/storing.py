"""The records of a training run in object storage: what is recorded and printed about it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from meshwright.errors import MeshwrightError
from meshwright.record.entries import Event
from meshwright.record.stored import Mirror
from meshwright.record.writer import append_event, elapsed_s
from meshwright.storage import Remote
from meshwright.storage.lease import Lease
from meshwright.train.record.ending import last_step


def mirror_of(folder: Path, place: Remote) -> Mirror:
    """Take the lease of a run's place in object storage, and begin to copy the records there."""
    lease = Lease.take(place, told=lambda text: print(text, file=sys.stderr, flush=True))

    def notify(kind: str, message: str) -> None:
        print(f"meshwright: {message}", file=sys.stderr, flush=True)
        with suppress(MeshwrightError, OSError):  # a run that has not begun has no events yet
            detail = {"message": message, "url": str(place)}
            append_event(folder, Event(time_s=elapsed_s(folder), kind=kind, step=last_step(folder), detail=detail))
        if lease.is_lost:
            os.kill(os.getpid(), signal.SIGTERM)  # another process trains this run now: this one must end

    return Mirror(folder, place, lease, notify)


def say_unstored(folder: Path, place: Remote, mirror: Mirror) -> None:
    """Copy the rest of the records, and print what object storage does not have."""
    missing = mirror.close()
    if missing:
        *names, why = missing
        print(f"meshwright: not stored in {place}: {', '.join(names)}: {why}\n  they are in {folder}", file=sys.stderr, flush=True)
