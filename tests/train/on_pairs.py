"""What ranks of tests/train/measure/test_pairs.py run."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from meshwright.train.measure.pairs import Timed, swap, time_pairs


def all_pairs(rounds: list[list[list[int]]], slow: list[int]) -> dict[int, float]:
    """Time rounds of pairs, of which one sleeps in each exchange."""
    rank = dist.get_rank()

    def exchange(sent: Any, received: Any, partner: int) -> None:
        if sorted((rank, partner)) == slow:
            time.sleep(0.05)
        swap(sent, received, partner)

    timed = Timed()
    pairs = [[(first, second) for first, second in one] for one in rounds]
    time_pairs(pairs, rank, torch.device("cpu"), timed, exchange)
    return timed.rates


def waits_in_vain() -> int | None:
    """Whom this rank says it waits for, within its first exchange."""
    timed, seen = Timed(), list[int | None]()
    time_pairs([[(0, 1)]], dist.get_rank(), torch.device("cpu"), timed, lambda sent, received, partner: seen.append(timed.waits_for))
    return seen[0]
