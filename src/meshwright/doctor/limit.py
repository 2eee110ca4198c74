"""Work with a time limit: a driver, a disk or a network that hangs must not stop the examination."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

NAME = "meshwright-doctor"

Result = TypeVar("Result")


def within(limit_s: float, work: Callable[[], Result]) -> Result:
    """What `work` returns or raises; TimeoutError where that takes longer than `limit_s`.

    The work runs in a thread of its own. One that hangs cannot be ended: it is left behind, and ends with the process.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again below, where somebody waits for it
            errors.append(error)

    thread = threading.Thread(target=run, name=NAME, daemon=True)
    thread.start()
    thread.join(max(limit_s, 0.0))
    if errors:
        raise errors[0]
    if results:
        return results[0]
    raise TimeoutError(f"it took longer than {limit_s:.0f} s")


def is_hung() -> bool:
    """Whether work that took too long still runs: such a process is best ended without waiting for anything."""
    return any(thread.name == NAME and thread.is_alive() for thread in threading.enumerate())
