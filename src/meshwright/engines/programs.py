"""Programs of an engine (`sbatch`, `kubectl`, `ssh`), called with a time limit; their failures in our words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.errors import InputError, printable

ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The first line that says what is wrong."""
        lines = [line.strip() for line in (*self.err.splitlines(), *self.out.splitlines()) if line.strip()]
        named = [line for line in lines if "error" in line.lower() or "denied" in line.lower()]
        return printable((named or lines or [f"it ended with status {self.code}"])[0])[:300]


def call(words: Sequence[str], engine: str, *, text: str | None = None, timeout_s: float = ANSWER_S) -> Answer:
    """What a program answered; an error if it is not there or does not end in time."""
    try:
        done = subprocess.run(
            words,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            timeout=timeout_s,
            text=True,
            errors="replace",
        )
    except (FileNotFoundError, PermissionError):
        raise InputError(
            f"there is no {engine} here: the command {words[0]} is not found",
            where="PATH",
            fix=f"call launch where {words[0]} works, or choose another engine: --on",
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{engine} did not answer within {timeout_s:g} s",
            where=" ".join(words[:2]),
            fix=f"check that `{words[0]}` answers, and try again",
        ) from None
    return Answer(done.returncode, done.stdout, done.stderr)
