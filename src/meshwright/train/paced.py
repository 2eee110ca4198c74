"""Ranks that wait the declared time instead of computing, and exchange for real: `python -m meshwright.train.paced PACE.json`.

For machines whose cores could not compute for all ranks. A step is a wait, the sums of gradients between replicas, as the trainer sends
them, and the small sum over all ranks that ends every step. Rank 0 writes a line of JSON after each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.record.pace import Pace
from meshwright.train.meeting import meet

TIMEOUT_S = 300.0
FLOAT_BYTES = 4


def run(pace: Pace, out: Path) -> None:
    """Run this rank's steps."""
    place = meet(os.environ)
    dist.init_process_group("gloo", store=place.store, rank=place.rank, world_size=place.num_ranks, timeout=timedelta(seconds=TIMEOUT_S))
    try:
        group = _own_group(place.rank, place.num_ranks, pace.replica_ranks)
        sums = [torch.zeros(size // FLOAT_BYTES) for size in pace.payload_bytes[place.rank % pace.replica_ranks]]
        with open(out if place.rank == 0 else os.devnull, "a", buffering=1, encoding="utf-8") as file:
            for step in range(1, pace.num_steps + 1):
                file.write(json.dumps({"step": step, **_step(pace, step, place.rank, sums, group)}) + "\n")
    finally:
        dist.destroy_process_group()


def _own_group(rank: int, num_ranks: int, stride: int) -> dist.ProcessGroup | None:
    """The ranks of the same place in every replica; None where there is one replica."""
    if num_ranks == stride:
        return None
    groups: list[dist.ProcessGroup] = [dist.new_group(list(range(first, num_ranks, stride))) for first in range(stride)]
    return groups[rank % stride]


def _step(pace: Pace, step: int, rank: int, sums: list[torch.Tensor], group: dist.ProcessGroup | None) -> dict[str, float]:
    began_s = time.perf_counter()
    time.sleep(pace.wait_of(rank, step))
    waited_s = time.perf_counter()
    for one in sums if group is not None else ():
        dist.all_reduce(one, group=group)
    exchanged_s = time.perf_counter()
    dist.all_reduce(torch.zeros(1))
    return {"step_s": time.perf_counter() - began_s, "exchange_s": exchanged_s - waited_s}


if __name__ == "__main__":
    run(Pace.read(Path(sys.argv[1])), Path(sys.argv[2]))
