"""What a user asks of a run while it trains: a small file in its folder, which the process that started the ranks reads and removes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from meshwright.files import write_whole

REQUEST = "scale.json"
MOST_BYTES = 4096


def ask_for_replicas(folder: Path, dp: int) -> Path:
    """Ask a run for another number of replicas; return the file that asks."""
    path = folder / REQUEST
    write_whole(path, json.dumps({"dp": dp}) + "\n")
    return path


def taken_request(folder: Path) -> int | None:
    """The number of replicas that was asked for since the last call; None if nothing valid was."""
    path = folder / REQUEST
    with suppress(OSError, ValueError, TypeError, KeyError):
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES)
        path.unlink()
        dp = json.loads(text)["dp"]
        return dp if type(dp) is int and dp > 0 else None
    return None
