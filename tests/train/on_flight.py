"""What ranks of tests/train/health/test_recorder.py run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from meshwright.record.flight import trace_path
from meshwright.train.health.recorder import Recorder
from meshwright.train.parallel.marks import Marks

PATIENCE_S = 60.0


def one_late(folder: Path, late: int, writes: bool) -> str:
    """What the traces say while one rank has not entered a collective, which it enters afterwards; it may have left no trace."""
    rank, size = dist.get_rank(), dist.get_world_size()
    is_open = threading.Event()
    is_open.set()
    recorder = Recorder(rank, size, folder, is_open, Marks())
    group = dist.new_group(list(range(size)), group_desc="tp same keys")
    recorder.groups = [group]
    dist.all_reduce(torch.ones(3), group=group)
    tensor = torch.ones(4, 2)
    work = dist.all_reduce(tensor, group=group, async_op=True) if rank != late else None
    if rank != late or writes:
        recorder.write()
    words = recorder.words([other for other in range(size) if other != late or writes], PATIENCE_S)
    Path(folder / f"read-{rank}").touch()
    until_s = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("read-*"))) < size and time.monotonic() < until_s:
        time.sleep(0.01)
    work = work or dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    dist.barrier()
    dist.destroy_process_group(group)
    assert trace_path(folder, rank).exists() == (rank != late or writes)
    return words
