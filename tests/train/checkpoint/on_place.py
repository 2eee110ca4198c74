"""What tests of checkpoints in object storage run in processes of their own, where they can be killed."""

from __future__ import annotations

import os
import sys

from meshwright.storage import Remote
from meshwright.train.checkpoint import Keep, save


def save_value(pipe: object, url: str, step: int, value: float, rank: int, num_ranks: int, environment: dict[str, str]) -> None:
    """Save a small state once the other end of `pipe` says so."""
    os.environ.update(environment)
    sys.path.insert(0, os.path.dirname(__file__))
    from states import States

    pipe.recv()
    pieces = States().pieces(value, rank=rank, num_ranks=num_ranks)
    ranks = {"rank": rank, "num_ranks": num_ranks, "token": "ab", "number": 7, "timeout_s": 5.0}
    try:
        save(Remote.at(url, 3.0), step, pieces, {"value": value}, keep=Keep(last=1), **ranks)
    except Exception as error:
        pipe.send(str(error))
        os._exit(1)
    pipe.send("")
    os._exit(0)
