"""A process that watches over a command of a lab. If the command is killed, it ends what the command has started, and undoes what it began.

The command holds one end of a pipe, which the system closes when the command ends, however it ends. Each process that the command starts,
and each that these start, has a mark of this command in its environment: that is how they are found, also those that were being started at
that moment.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwright.errors import MeshwrightError

MARK = "MESHWRIGHT_GUARD_"  # and a random word: the name of a variable in the environment
READY, RELEASED = b"r", b"d"
LOOK_S, PATIENCE_S = 0.02, 60.0
TRIES = 5  # to undo: a process of the command may have been killed in the middle of the same
PROCESSES = Path("/proc")


@contextmanager
def guarded(*undo: str) -> Iterator[None]:
    """While this is entered, a killed command takes with it what it started. `undo` says what else is done then, see `undoing`."""
    mark = MARK + secrets.token_hex(8)
    guard = subprocess.Popen(
        [sys.executable, "-m", "meshwright.lab.guard", mark, *undo],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # what ends the command's group, such as Ctrl-C, does not end this process
        cwd="/",
    )
    assert guard.stdin is not None and guard.stdout is not None
    with guard:
        if guard.stdout.read(1) != READY:
            raise MeshwrightError("the process that would tidy up after a kill did not start", where="meshwright.lab.guard")
        os.environ[mark] = "1"  # all that is started from here on inherits it
        try:
            yield
        finally:
            del os.environ[mark]
            with suppress(OSError):
                guard.stdin.write(RELEASED)


def marked(mark: str, folder: Path = PROCESSES) -> list[int]:
    """All processes that have the mark."""
    found = []
    for path in folder.glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def end_marked(mark: str, patience_s: float = PATIENCE_S) -> None:
    """Kill all processes that have the mark, until none is left."""
    until_s = time.monotonic() + patience_s
    while (found := marked(mark)) and time.monotonic() < until_s:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def undoing(words: list[str]) -> Callable[[], object]:
    """What is done after a kill, as it is to be done from how things are now.

    `down NAME FOLDER DESCRIPTION` removes a lab that was being made, with its description if there was none before; `links NAME FOLDER`
    gives its links the rates that they have now.
    """
    from meshwright.lab import state

    if not words:
        return lambda: None
    kind, name, folder = words[0], words[1], Path(words[2])
    if kind == "links":
        before = state.read_state(name, folder)
        return lambda: state.restore_links(before, folder)
    description = Path(words[3])
    was_there = description.exists()

    def remove() -> None:
        state.down(name, folder)
        if not was_there:
            description.unlink(missing_ok=True)

    return remove


def main(words: list[str]) -> int:
    """Watch over the command that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the command
    mark, undo = words[0], undoing(words[1:])
    os.write(1, READY)
    if os.read(0, 1) == RELEASED:
        return 0
    end_marked(mark)
    for _ in range(TRIES):
        try:
            undo()
            return 0
        except MeshwrightError:
            time.sleep(LOOK_S)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
