"""SIGTERM (and SIGHUP and Ctrl-C, if a launcher started this rank) as a request to stop. All ranks stop at the same step."""

from __future__ import annotations

import signal
import threading
import time


class StopSignal:
    """Whether this rank was asked to stop, and when."""

    def __init__(self) -> None:
        self.asked_s: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)
            for number in (signal.SIGINT, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored: the parent forwards it as SIGTERM, or nohup is used
                    signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked_s is None:
            self.asked_s = time.monotonic()
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the rank

    @property
    def is_asked(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.asked_s is not None

    def left_s(self, grace_s: float) -> float:
        """Seconds of the grace time that are left."""
        return grace_s if self.asked_s is None else max(grace_s - (time.monotonic() - self.asked_s), 1.0)
