"""Wrong input under torchrun: reported once on each machine, and not tried again.

torchrun starts all ranks again after every exit code except 0, as often as `--max-restarts` allows. The same command would be refused each
time, after it has loaded torch. So the first rank that is refused notes its message in the folder that torchrun keeps for its own logs. The
ranks of later attempts find the note before they load anything, and end at once with the same exit code. The message is printed twice: when
it is found, and in the last attempt, below what torchrun prints meanwhile. This module imports only what Python loads anyway.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ATTEMPT, LAST_ATTEMPT = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # LOGS/attempt_N/LOCAL_RANK/error.json: torchrun prints its message at the end
LARGEST = 100_000  # bytes of a note


def is_retried(environment: Mapping[str, str]) -> bool:
    """Whether torchrun started this process, and keeps a folder in which attempts can leave notes for later ones."""
    return environment.get(ATTEMPT, "").isdigit() and bool(environment.get(ERROR_FILE))


def first_to_refuse(message: str, environment: Mapping[str, str]) -> bool:
    """Note that the input is wrong; whether this rank should print the message, because no other rank on this machine has."""
    if not is_retried(environment):
        return True
    _tell_torchrun(message, environment)
    return _write_new(_note(environment), json.dumps({"attempt": int(environment[ATTEMPT]), "message": message}))


def refused_before(environment: Mapping[str, str]) -> bool:
    """Whether an earlier attempt with as many ranks was refused. In the last attempt the message is printed again."""
    if not is_retried(environment):
        return False
    try:
        found = json.loads(_note(environment).read_bytes()[:LARGEST])
        attempt, message = int(found["attempt"]), str(found["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if attempt >= int(environment[ATTEMPT]):
        return False
    _tell_torchrun(message, environment)
    if environment.get(LAST_ATTEMPT) == environment[ATTEMPT] and environment.get("LOCAL_RANK") == "0":
        print(f"meshwright: {message}\n  (refused in attempt {attempt + 1}; the others were not tried)", file=sys.stderr)
    return True


def _tell_torchrun(message: str, environment: Mapping[str, str]) -> None:
    """Give torchrun the reason for its own report, in its form."""
    told = {"message": {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}}
    _write_new(Path(environment[ERROR_FILE]), json.dumps(told))


def _note(environment: Mapping[str, str]) -> Path:
    """The file of the note. With another number of ranks, because machines came or went, the same command may be right."""
    logs = Path(environment[ERROR_FILE]).parents[2]
    return logs / f"meshwright-refused-{environment.get('WORLD_SIZE', '0')}.json"


def _write_new(path: Path, text: str) -> bool:
    """Write a file that is not there yet; whether it was not. Where it cannot be written, each rank reports for itself."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
