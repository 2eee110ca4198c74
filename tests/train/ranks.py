"""A pool of gloo ranks for tests: processes that start once, meet over a file, and then run one function after another."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

PATIENCE_S = 300.0


class RankPool:
    """`num_ranks` processes of one gloo world."""

    def __init__(self, num_ranks: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.optim", "meshwright.train.replica"])
        self.folder = tempfile.TemporaryDirectory()
        self.ends: list[Connection] = []
        self.processes = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, num_ranks, f"{self.folder.name}/store", theirs), daemon=True)
            process.start()
            self.ends.append(ours)
            self.processes.append(process)

    def run(self, body: Callable[..., Any], *args: Any) -> list[Any]:
        """What `body(*args)` returns on every rank; an error on any rank is raised here, with its traceback."""
        for end in self.ends:
            end.send((body, args))
        results: dict[int, Any] = {}
        while len(results) < len(self.ends):
            ready = wait([end for i, end in enumerate(self.ends) if i not in results], timeout=PATIENCE_S)
            if not ready:
                missing = [i for i in range(len(self.ends)) if i not in results]
                self.close()
                raise TimeoutError(f"ranks {missing} gave no answer within {PATIENCE_S:.0f} s")
            for end in ready:
                rank = self.ends.index(end)
                ok, value = end.recv()
                if not ok:
                    self.close()
                    raise AssertionError(f"rank {rank}:\n{value}")
                results[rank] = value
        return [results[rank] for rank in range(len(self.ends))]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.folder.cleanup()


def _serve(rank: int, num_ranks: int, store: str, end: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=PATIENCE_S))
    while True:
        body, args = end.recv()
        try:
            end.send((True, body(*args)))
        except BaseException:
            end.send((False, traceback.format_exc()))
