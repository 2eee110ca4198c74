"""Text for people who watch a run, printed by a thread: a reader that stops reading must not stop the training."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from io import UnsupportedOperation
from typing import TextIO

MOST_TEXTS = 1000  # texts that wait for a slow reader; then the oldest are dropped
END_S = 1.0  # time for the reader to read the last of them


class Screen:
    """Writes texts in order, from a thread if they go to a file descriptor. Of several live texts in a row only the last one waits."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._waiting: deque[tuple[str, bool]] = deque(maxlen=MOST_TEXTS)
        self._changed = threading.Condition()
        self._is_writing = False
        self._thread: threading.Thread | None = None
        try:
            self._fd = out.fileno()
        except (UnsupportedOperation, AttributeError, ValueError):
            self._fd = -1

    def write(self, text: str, *, is_live: bool = False) -> None:
        """Show `text` soon. A live text is replaced by the next one if the reader is slow."""
        if self._fd < 0:
            with suppress(OSError, ValueError):
                self._out.write(text)
                self._out.flush()
            return
        with self._changed:
            if is_live and self._waiting and self._waiting[-1][1]:
                self._waiting.pop()
            self._waiting.append((text, is_live))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="meshwright-screen", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def end(self) -> None:
        """Wait a moment until everything is shown."""
        until_s = time.monotonic() + END_S
        with self._changed:
            while (self._waiting or self._is_writing) and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._waiting:
                    self._changed.wait()
                text, _ = self._waiting.popleft()
                self._is_writing = True
            self._show(text.encode(errors="replace"))

    def _show(self, data: bytes) -> None:
        """Write all of it to the file descriptor without a lock, so that the process can end while this waits."""
        with suppress(OSError):  # the reader has ended
            while data:
                data = data[os.write(self._fd, data) :]
