"""Measurements in processes of their own, so that each begins with empty memory; and the file that results go to as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.files import write_whole

FOLDER = Path(__file__).parents[1]
RESULT = "RESULT "
ROW = "ROW "
NOTE = "NOTE "
LAST_LINES = 25  # of a child that failed


def say(text: str) -> None:
    """Print at once: a call that is cut off leaves what was printed."""
    print(text, flush=True)


def hand_over(result: Mapping[str, Any]) -> None:
    """Give the parent a result, from a child."""
    say(RESULT + json.dumps(result))


def hand_row(row: Mapping[str, Any]) -> None:
    """Give the parent one row of a result that grows: it is kept even where this child is cut off."""
    say(ROW + json.dumps(row))


def note(text: str) -> None:
    """Tell the reader something, from a child."""
    say(NOTE + text)


@dataclass(slots=True)
class Clock:
    """Card time of one call: children start only while there is time left for them."""

    limit_s: float
    num_failed: int = 0  # children that gave no result, or had no time to
    started_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.limit_s - (time.monotonic() - self.started_s)


@dataclass(slots=True)
class Results:
    """Everything measured in this call, written down as it comes."""

    path: Path | None
    content: dict[str, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Keep one result."""
        with self._lock:
            self.content.setdefault(kind, []).append(dict(row))
            self.write()

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Results of a kind so far."""
        return list(self.content.get(kind, ()))

    def write(self) -> None:
        """Write the file anew, whole or not at all."""
        if self.path is None:
            return
        write_whole(self.path, json.dumps(self.content, indent=1) + "\n")


def run(
    module: str,
    options: Sequence[str],
    clock: Clock,
    *,
    site: Path | None = None,
    least_s: float = 20.0,
    keep: Callable[[dict[str, Any]], None] = lambda row: None,
    label: str = "",
    running: list[subprocess.Popen[str]] | None = None,
    package: str = "h200_parts",
) -> dict[str, Any] | None:
    """What `PACKAGE.MODULE` measured in a process of its own, rows kept as they come; None where it failed or no time is left."""
    if clock.left_s < least_s:
        clock.num_failed += 1
        say(f"  not run: {clock.left_s:.0f} s of this call are left, {module} needs {least_s:.0f}")
        return None
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", f"{package}.{module}", *options],
        env=_environment(site),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if running is not None:
        running.append(process)
    killer = threading.Timer(clock.left_s, process.kill)
    killer.start()
    with process:
        try:
            result, last = _listen(process, keep, label)
            status = process.wait()
        finally:
            killer.cancel()
            if process.poll() is None:
                process.kill()
    if result is None:
        clock.num_failed += 1
        say(f"  {module} gave no result: exit status {status} after {time.monotonic() - started_s:.0f} s; its last lines:")
        say("\n".join(f"    {line}" for line in last))
        return None
    return {**result, "child_s": round(time.monotonic() - started_s, 1)}


def run_together(jobs: Sequence[Callable[[list[subprocess.Popen[str]]], None]]) -> None:
    """Several children at once, where it is numbers that are compared and not times; cut off, none of them lives on.

    A job runs its child with the list that it is given as `running`.
    """
    running: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(max_workers=max(len(jobs), 1)) as pool:
        try:
            for done in [pool.submit(job, running) for job in jobs]:
                done.result()
        except BaseException:
            for process in running:
                process.kill()
            raise


def _environment(site: Path | None) -> dict[str, str]:
    """The child's: the parts beside this script first, what the peer needs last, and one allocator for all."""
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")]), *([str(site)] if site else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # its newer name
        "TOKENIZERS_PARALLELISM": "true",
    }


def _listen(process: subprocess.Popen[str], keep: Callable[[dict[str, Any]], None], label: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The child's result, and its last lines; its steps and notes are passed on."""
    assert process.stdout is not None
    result, last = None, deque[str](maxlen=LAST_LINES)
    for line in process.stdout:
        line = line.rstrip("\n")
        if line.startswith(RESULT):
            result = json.loads(line.removeprefix(RESULT))
        elif line.startswith(ROW):
            keep(json.loads(line.removeprefix(ROW)))
        elif line.startswith((NOTE, "step ")):
            say(f"    {label}{line.removeprefix(NOTE)}")
        else:
            last.append(line)
    return result, list(last)
