"""Collectives between the processes of this machine: seconds by kind, size and number of ranks, with all groups working at once.

There is work between two exchanges, as in training: processes that share cores wait for those that have not had their turn on a core,
and this wait is the cost of an exchange there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.describe.profile import CollectiveTime
from meshwright.train.measure.clock import Work, now_s
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.timing import HostTimer

GROUP_SIZES = (2, 4, 8)
PAYLOADS = (4_096, 65_536, 524_288, 4_194_304)  # bytes
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "message")
SEQUENCES, WIDTH = (
    4,
    32,
)  # of the hidden states that are exchanged: the smallest payload is one token of each for every rank of the largest group
SIDE = 320  # rows of the product between two exchanges: it takes about as long as the work between two exchanges in a small layer


def collectives_s(num_ranks: int, calls: int, report: Callable[[str], None]) -> list[CollectiveTime]:
    """Times of all kinds of collectives over the processes of the default group; every rank must call it, and all get the same result."""
    found = []
    for size in (size for size in GROUP_SIZES if num_ranks % size == 0 and size <= num_ranks):
        report(f"timing collectives of {size} processes")
        group, partner = _group_of(size, num_ranks)
        idle_s = _mean_over_ranks(_seconds(lambda: None, calls), num_ranks)
        for kind in KINDS if size == 2 else KINDS[:-1]:
            for payload in PAYLOADS:
                work = exchange(kind, payload, group, size, partner)
                each_s = _mean_over_ranks(_seconds(work, calls), num_ranks) - idle_s
                found.append(CollectiveTime(kind=kind, num_ranks=size, payload_bytes=payload, seconds=max(each_s, 1e-6)))
    return found


def _group_of(size: int, num_ranks: int) -> tuple[dist.ProcessGroup, int]:
    """This rank's group of `size` neighbours; and its partner, for messages."""
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, num_ranks, size)]
    rank = dist.get_rank()
    return groups[rank // size], rank ^ 1


def exchange(kind: str, payload_bytes: int, group: dist.ProcessGroup, size: int, partner: int) -> Work:
    """One exchange of so many bytes in total, as the trainer makes it: hidden states of some sequences, divided along their tokens."""
    ranks, device = tuple(dist.get_process_group_ranks(group)), torch.device("cpu")
    axis = Axis(name="tp", ranks=ranks, index=group.rank(), group=group, timer=HostTimer(), marks=Marks(), device=device)
    share = torch.zeros(SEQUENCES, max(payload_bytes // 4 // size // SEQUENCES // WIDTH, 1), WIDTH)
    whole = share.repeat(1, size, 1)
    if kind == "all-gather":
        return lambda: axis.all_gather(share, 1)
    if kind == "reduce-scatter":
        return lambda: axis.reduce_scatter(whole, 1)
    if kind == "all-reduce":
        return lambda: axis.all_reduce(whole)
    return _swap(whole, partner)


def _swap(sent: Tensor, partner: int) -> Work:
    received = torch.zeros_like(sent)

    def swap() -> None:
        works: Sequence[dist.Work | None] = (dist.isend(sent, partner), dist.irecv(received, partner))
        for work in works:
            if work is not None:
                work.wait()

    return swap


def _seconds(work: Work, calls: int) -> float:
    """Mean seconds of a round, which is a product and an exchange."""
    side = torch.ones(SIDE, SIDE)
    dist.barrier()
    work()
    started_s = now_s()
    for _ in range(calls):
        side @ side
        work()
    return (now_s() - started_s) / calls


def _mean_over_ranks(seconds: float, num_ranks: int) -> float:
    total = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / num_ranks
