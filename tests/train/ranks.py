"""Ranks for tests: processes that start once, meet over a file, and then run one function after another; over gloo, or on a GPU over NCCL.

Functions and arguments reach a rank by name: what a test sends must stand in a module that this folder's `conftest.py` puts on the path.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PATIENCE_S = 300.0
PRELOADED = ["torch.distributed.fsdp", "torch.utils.checkpoint", "meshwright.train.session", "meshwright.cli.train_run"]


class RankPool:
    """`num_ranks` processes of one world. Over NCCL they share the first GPU."""

    def __init__(self, num_ranks: int, backend: str = "gloo") -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)  # a rank is forked from a process that has torch, and starts at once
        self.folder = tempfile.TemporaryDirectory()
        self.ends: list[Connection] = []
        self.processes: list[Any] = []
        self.is_open = True
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, num_ranks, f"{self.folder.name}/store", theirs, backend), daemon=True)
            process.start()
            theirs.close()  # so that a rank that dies is heard of
            self.ends.append(ours)
            self.processes.append(process)

    def run(self, body: Callable[..., Any], *args: Any) -> list[Any]:
        """What `body(*args)` returns on every rank; an error on any rank is raised here, with its traceback, and ends the pool."""
        try:
            for end in self.ends:
                end.send((body, args))
            return self._answers()
        except BaseException:
            self.close()
            raise

    def _answers(self) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < len(self.ends):
            waiting = [i for i in range(len(self.ends)) if i not in results]
            ready = wait([self.ends[i] for i in waiting], timeout=PATIENCE_S)
            if not ready:
                raise TimeoutError(f"ranks {waiting} gave no answer within {PATIENCE_S:.0f} s")
            for rank in (i for i in waiting if self.ends[i] in ready):
                results[rank] = self._answer(rank)
        return [results[rank] for rank in range(len(self.ends))]

    def _answer(self, rank: int) -> Any:
        try:
            is_result, value = self.ends[rank].recv()
        except EOFError:
            self.processes[rank].join()
            raise AssertionError(f"rank {rank} died with exit code {self.processes[rank].exitcode}") from None
        if not is_result:
            raise AssertionError(f"rank {rank}:\n{value}")
        return value

    def close(self) -> None:
        """End the processes."""
        if not self.is_open:
            return
        self.is_open = False
        for process in self.processes:
            process.kill()
        for process, end in zip(self.processes, self.ends, strict=True):
            process.join()
            end.close()
        self.folder.cleanup()


class Pools:
    """One pool of each size, started when it is first asked for; one that a failure ended is started anew."""

    def __init__(self, backend: str = "gloo") -> None:
        self.backend = backend
        self.by_size: dict[int, RankPool] = {}

    def of(self, num_ranks: int) -> RankPool:
        """The pool of `num_ranks`."""
        found = self.by_size.get(num_ranks)
        if found is None or not found.is_open:
            found = self.by_size[num_ranks] = RankPool(num_ranks, self.backend)
        return found

    def close(self) -> None:
        """End all of them."""
        for pool in self.by_size.values():
            pool.close()


def device_here() -> torch.device:
    """Where a rank of this world computes."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", 0) if dist.get_backend() == "nccl" else torch.device("cpu")


def _serve(rank: int, num_ranks: int, store: str, end: Connection, backend: str) -> None:
    import torch
    import torch.distributed as dist

    faulthandler.enable()  # a rank that crashes says where
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if backend == "nccl" else None
    if device:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=PATIENCE_S),
        device_id=device,
    )
    gc.collect()
    gc.freeze()  # what is here already is not looked through again after every test
    while True:
        try:
            body, args = end.recv()
        except EOFError:  # the tests are gone
            return
        try:
            answer = (True, body(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        end.send(answer)
        gc.collect()  # a replica refers to itself: each of its groups has a thread that wakes 100 times a second
