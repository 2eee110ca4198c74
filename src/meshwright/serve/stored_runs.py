"""Runs in object storage for the live page: their records are copied to a folder of this machine again and again, and shown from there.

A run that is being trained is asked for in every round. One that has ended is asked for once a minute, in case it is continued.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from meshwright.errors import InputError, MeshwrightError
from meshwright.record.header import RUNNING, check_name, read_header
from meshwright.record.stored import INDEX, pull
from meshwright.serve.files import RUN_FILES
from meshwright.storage import Missing, Remote

ROUND_S = 2.0  # between two rounds
MOST_SHARE = 0.2  # of the time that rounds may take
ENDED_S = 60.0  # between two looks at a run that has ended
ROUND_PATIENCE_S = 10.0  # with a server that does not answer


class StoredRuns:
    """The runs at a URL, as a folder of this machine."""

    def __init__(self, place: Remote, folder: Path, notify: Callable[[str], None]) -> None:
        self.place, self.folder = place.waiting(ROUND_PATIENCE_S), folder
        self._notify = notify
        self._seen: dict[str, tuple[bytes, float]] = {}  # by run: its list of files as it was copied, and when that was asked for
        self._trouble = ""
        self._closed = Event()
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Copy in the background until the page is closed."""
        Thread(target=self._run, name="stored-runs", daemon=True).start()

    def close(self) -> None:
        """Begin no further round."""
        self._closed.set()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            began_s = time.monotonic()
            self.round()
            pause_s = max(ROUND_S, (time.monotonic() - began_s) / MOST_SHARE)

    def round(self) -> None:
        """Copy what has changed; report when that begins to fail, and when it works again."""
        trouble = ""
        try:
            for name in self.place.folders():
                trouble = self._copied(name) or trouble
        except MeshwrightError as error:
            trouble = error.what
        if trouble and trouble != self._trouble:
            self._notify(f"runs cannot be read from {self.place}: {trouble}")
        elif self._trouble and not trouble:
            self._notify(f"{self.place} can be read again")
        self._trouble = trouble

    def _copied(self, name: str) -> str:
        """Copy the records of one run if they have changed; return why they could not be copied."""
        with suppress(InputError):
            check_name(name)
            before, asked_s = self._seen.get(name, (b"", 0.0))
            if before and time.monotonic() - asked_s < ENDED_S and self._has_ended(name):
                return ""
            try:
                index = (self.place / name / INDEX).read()
                if index != before:
                    pull(self.place / name, self.folder / name)
                    if not before:
                        self._date(name)
                self._seen[name] = index, time.monotonic()
            except Missing:
                return ""  # no run, or one that has just been removed
            except MeshwrightError as error:
                return f"{name}: {error.what}"
        return ""

    def _has_ended(self, name: str) -> bool:
        try:
            return read_header(self.folder / name).status != RUNNING
        except MeshwrightError:
            return False

    def _date(self, name: str) -> None:
        """Give records that are copied for the first time the date that they have at the URL: the page tells by it who still writes."""
        written_s = (self.place / name / INDEX).written_s()
        for file in RUN_FILES:
            with suppress(OSError):
                os.utime(self.folder / name / file, (written_s, written_s))
