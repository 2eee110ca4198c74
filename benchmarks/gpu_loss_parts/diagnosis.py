"""What can be said about a run that does not do what it should: its last words, where its ranks are, and what the GPU and MPS report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NUM_LINES = 35
STACK_LINES = 100  # of one rank
MOST_FRAMES = 16  # of one thread
STARTS = (" in _bootstrap", " in _bootstrap_inner", 'threading.py", line 982 in run')
WAIT_S = 1.0
CATCHES = 1 << (int(signal.SIGUSR2) - 1)  # in SigCgt of /proc/PID/status


def diagnosis(out: str, err: str, run: Path, ranks: Sequence[int], mps: Path | None) -> str:
    """Everything, as text with headings."""
    parts = [
        ("the command's output", last(out)),
        ("its errors, lines of meshwright", last("\n".join(line for line in err.splitlines() if line.startswith("meshwright")), 15)),
        ("its errors, the last of all", last(err)),
        ("events of the run", last(text_of(run / "events.jsonl"), 12)),
        ("steps of the run", last(text_of(run / "steps.jsonl"), 2)),
        *((f"stacks kept: {path.name}", last(trimmed(text_of(path)), STACK_LINES)) for path in sorted((run / "stacks").glob("*.txt"))[-4:]),
        *((f"process {pid}: {state_of(pid)}", last(trimmed(stacks_of(pid)), STACK_LINES)) for pid in ranks),
        ("the GPU", said(["nvidia-smi"], 40)),
        ("messages of the driver", xids()),
    ]
    for log in ("control.log", "server.log") if mps else ():
        assert mps is not None
        parts.append((f"MPS, {log}", last(text_of(mps / log), 12)))
    return "\n".join(f"--- {name}\n{text}" for name, text in parts if text.strip())


def last(text: str, number: int = NUM_LINES) -> str:
    """The last lines."""
    return "\n".join(line[:400] for line in text.splitlines()[-number:])


def trimmed(stacks: str) -> str:
    """Stacks without what is the same in every thread: how it was started. The innermost calls of each are left."""
    found, depth = [], 0
    for line in stacks.splitlines():
        depth = depth + 1 if line.lstrip().startswith("File") else 0
        if depth <= MOST_FRAMES and not line.endswith(STARTS):
            found.append(line)
    return "\n".join(line for line in found if line.strip())


def text_of(path: Path) -> str:
    """A file's text; empty if there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """State and kernel function of a process, and how many threads it has."""
    fields = dict(line.partition(":")[::2] for line in text_of(Path(f"/proc/{pid}/status")).splitlines())
    waits = text_of(Path(f"/proc/{pid}/wchan"))
    return f"{fields.get('State', 'gone').strip()}, {fields.get('Threads', '?').strip()} threads, in {waits or '?'}"


def stacks_of(pid: int) -> str:
    """The Python stacks of a rank: it writes them on a signal into a file in memory (`train.elastic.pulse.Stacks`)."""
    fields = dict(line.partition(":")[::2] for line in text_of(Path(f"/proc/{pid}/status")).splitlines())
    if not int(fields.get("SigCgt", "0").strip() or "0", 16) & CATCHES:
        return "it writes no stacks"
    before = _written(pid)
    with suppress(OSError):
        os.kill(pid, signal.SIGUSR2)
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        time.sleep(0.1)
        new = [text[len(before.get(name, "")) :] for name, text in _written(pid).items() if len(text) > len(before.get(name, ""))]
        if new:
            return "\n".join(new)
    return "it did not write its stacks"


def _written(pid: int) -> dict[str, str]:
    """What stands in the files for stacks that a process has open: its own, and those of ranks that were forked before it."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "meshwright-stacks" in os.readlink(entry):
                    found[entry.name] = entry.read_text(errors="replace")
    return found


def said(command: Sequence[str], number: int) -> str:
    """The last lines of what a command prints; empty if it is not there or takes too long."""
    if not shutil.which(command[0]):
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        return last(subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=False).stdout, number)
    return ""


def xids() -> str:
    """Errors of the GPU that the kernel has logged."""
    return "\n".join(line for line in said(["dmesg"], 200).splitlines() if "Xid" in line or "NVRM" in line)


def events_of(run: Path, kind: str) -> list[dict[str, object]]:
    """The events of one kind so far; a line that is being written is left out."""
    found = []
    for line in text_of(run / "events.jsonl").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [event for event in found if event.get("kind") == kind]
