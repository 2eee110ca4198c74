"""Process groups of one rank whose others are not there: each collective and message is a local copy of the same shape and bytes.

A copy of what the rank has itself, or random numbers where it has nothing: values are finite and as varied as real ones, because a GPU
multiplies zeros faster than anything else. They mean nothing. What a stand-in does is timed apart, so that it can be taken out again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.predict.traffic import GATHER, MESSAGE, REDUCE, SCATTER, SWITCH
from meshwright.train.parallel.timing import HostTimer, Timer, timer_for

BACKEND = "stand_in"
TOKENS = 1  # place in a step's sums (`train.sums`)
PART = "stand-in"  # the timer's name for what the stand-ins do


class Ledger:
    """What the groups of one rank were asked to exchange, and the timer of what they did instead."""

    def __init__(self, device: torch.device, clock: Callable[[], float] | None = None) -> None:
        # A thread alone is timed by the processor's time that it uses: what else runs on the machine does not count.
        self.clock = clock or (time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
        self.timer: Timer = timer_for(device) if device.type == "cuda" else HostTimer(self.clock)
        self.sent: Counter[tuple[str, str, int]] = Counter()  # group, kind, payload in bytes
        self.num_sums = 0  # of numbers in fp64: loss, tokens and norm, which are no traffic of the model
        self.tokens = 1  # of a whole batch: most ranks learn them from the others

    def part(self, tensor: Tensor) -> AbstractContextManager[None]:
        """Time a stand-in's work, where it runs between the products: on a stream of its own it keeps nobody waiting."""
        if tensor.is_cuda and torch.cuda.current_stream() != torch.cuda.default_stream():
            return nullcontext()
        return self.timer.part(PART)


class Done(dist.Work):
    """Work that is over when it is issued."""

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True


class StandIn(dist.ProcessGroup):
    """A group of which this process is the only member that exists."""

    def __init__(self, index: int, num_ranks: int, ledger: Ledger) -> None:
        super().__init__(index, num_ranks)  # type: ignore[call-arg]  # of a group without backends, which its type does not know
        self.index, self.num_ranks, self.ledger, self.known_as = index, num_ranks, ledger, ""

    def size(self) -> int:
        """Ranks of the group."""
        return self.num_ranks

    def rank(self) -> int:
        """This rank's position in it."""
        return self.index

    def getBackendName(self) -> str:
        """The name of this kind of group."""
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        self.known_as = name

    @property
    def group_name(self) -> str:  # type: ignore[override]  # a property there too
        """The name under which torch knows the group."""
        return self.known_as

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Done:  # type: ignore[override]  # the one form that is called
        """The sum, as if the others had brought nothing; but of a step's sums, the tokens of the whole batch."""
        self._note(REDUCE, tensors)
        if tensors[0].dtype == torch.float64:
            tensors[0][TOKENS] = self.ledger.tokens
        return Done()

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        """Everyone's part: this rank's, as often as there are ranks."""
        self._note(GATHER, [output])
        with self.ledger.part(output), torch.no_grad():
            own = input.detach().reshape(-1)
            if _overlap(output, input):
                own = own.clone()
            output.detach().view(self.num_ranks, -1).copy_(own.expand(self.num_ranks, -1))
        return Done()

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Done:
        """This rank's part of the sum: of its own tensor."""
        self._note(SCATTER, [input])
        with self.ledger.part(output), torch.no_grad():
            output.detach().view(-1).copy_(input.detach().view(self.num_ranks, -1)[self.index])
        return Done()

    def all_to_all_single(self, output: Tensor, input: Tensor, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None) -> Done:
        """What every rank holds for this one: what this one holds for them."""
        self._note(SWITCH, [output])
        with self.ledger.part(output), torch.no_grad():
            output.detach().copy_(input.detach())
        return Done()

    def send(self, tensors: Sequence[Tensor], target: int, tag: int) -> Done:
        """A message that nobody takes."""
        self._note(MESSAGE, tensors)
        return Done()

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Done:
        """A message that nobody sent: random numbers."""
        for tensor in tensors:
            with self.ledger.part(tensor), torch.no_grad():
                tensor.detach().normal_()
        return Done()

    def barrier(self, opts: Any = None) -> Done:
        """Nobody to wait for."""
        return Done()

    # torch 2.11 calls them so; the types have the names of their arguments.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _note(self, kind: str, payload: Sequence[Tensor]) -> None:
        if payload[0].dtype == torch.float64:
            self.ledger.num_sums += 1
            return
        self.ledger.sent[self.group_name, kind, sum(tensor.numel() * tensor.element_size() for tensor in payload)] += 1


def _overlap(output: Tensor, input: Tensor) -> bool:
    return output.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()


@contextmanager
def stand_in_world(rank: int, num_ranks: int, device: torch.device) -> Iterator[Ledger]:
    """Make this process the given rank of a world of `num_ranks`, of which no other exists; every group made inside is a stand-in."""
    ledger = Ledger(device)
    _register()
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=rank, world_size=num_ranks)
    world = dist.group.WORLD
    assert isinstance(world, StandIn)
    world.ledger = ledger
    try:
        yield ledger
    finally:
        dist.destroy_process_group()


def _register() -> None:
    """Let torch know the backend; once in a process."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _make, devices=["cpu", "cuda"])


def _make(store: Any, index: int, num_ranks: int, timeout: Any) -> StandIn:
    """A group for torch; the ledger is that of the world, whose own is set by who makes it."""
    world = dist.group.WORLD
    return StandIn(index, num_ranks, world.ledger if isinstance(world, StandIn) else Ledger(torch.device("cpu")))
