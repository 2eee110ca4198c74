"""Collectives and messages between hosts: wall seconds by kind, size and place of the group, with all groups working at once.

A group is placed as the layouts of a plan place their axes: so many ranks, so many ranks apart. What matters is how many of its members
share a domain of each tier, so each such placement is timed once. All groups of a placement work at the same time, because in training they
do: what they share, such as the uplink of a rack, is then shared here too. The backend is that of the job, with its own algorithms: nothing
is assumed about how many bytes a collective sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.describe.cluster import Cluster
from meshwright.describe.profile import CollectiveTime, Profile, TierTimed
from meshwright.errors import InputError
from meshwright.train.launch import Place
from meshwright.train.measure.clock import Work
from meshwright.train.measure.exchanges import KINDS, SEQUENCES, WIDTH, exchange

PAYLOADS = (4_096, 65_536, 524_288, 4_194_304)  # bytes
ROUNDS, MOST_CALLS = 3, 200
BUDGET_S = 0.3  # of one kind, size and placement
STALLED_S = 120.0  # for a collective, before ranks give up


@dataclass(frozen=True, slots=True)
class Placing:
    """Groups of `size` ranks that are `stride` ranks apart; `members` of a group are in one domain of each tier, from the inside out."""

    size: int
    stride: int
    members: tuple[int, ...]

    def groups(self, num_ranks: int) -> list[list[int]]:
        """All ranks in groups."""
        span = self.size * self.stride
        return [list(range(first + i, first + span, self.stride)) for first in range(0, num_ranks, span) for i in range(self.stride)]


def placings(cluster: Cluster) -> list[Placing]:
    """All placements of groups that layouts of this cluster can have, each once; those inside one domain first."""
    num_ranks = cluster.num_accelerators
    found: dict[tuple[int, ...], Placing] = {}
    for size in _divisors(num_ranks):
        for stride in _divisors(num_ranks // size):
            inside = [min(max(tier.num_accelerators // stride, 1), size) for tier in cluster]
            members = (*inside[:-1], size)
            if size > 1:
                found.setdefault(members, Placing(size, stride, members))
    return sorted(found.values(), key=lambda one: (one.size, one.stride))


def _divisors(number: int) -> Iterator[int]:
    return (i for i in range(1, number + 1) if number % i == 0)


def with_tiers(profile: Profile, cluster: Cluster, place: Place, report: Callable[[str], None], budget_s: float = BUDGET_S) -> Profile:
    """The profile with the tiers of a cluster timed between its hosts; every rank of the cluster calls it."""
    check_ranks(cluster, place.num_ranks)
    timeout = timedelta(seconds=STALLED_S)
    dist.init_process_group("gloo", store=place.store, rank=place.rank, world_size=place.num_ranks, timeout=timeout)
    try:
        return tiered(profile, cluster, budget_s, report if place.rank == 0 else (lambda what: None))
    finally:
        dist.destroy_process_group()


def tiered(profile: Profile, cluster: Cluster, budget_s: float, report: Callable[[str], None]) -> Profile:
    """The same, where the ranks have their process group already."""
    found = tiers_s(cluster, budget_s, report)
    tiers = tuple(TierTimed(name=one.name, num_accelerators=one.num_accelerators, bytes_per_s=one.bytes_per_s) for one in cluster)
    return replace(profile, collectives=(*profile.on_one_machine, *found), tiers=tiers)


def check_ranks(cluster: Cluster, num_ranks: int) -> None:
    """Raise an error if not every accelerator of the cluster has its rank, or if the accelerators are GPUs."""
    if cluster.accelerator.architecture != "cpu":
        what = f"{cluster.name} has {cluster.accelerator.name}, and tiers are timed between processors only, over gloo"
        raise InputError(what, where="--cluster", fix="leave the option out, and use `meshwright doctor` to time pairs of GPUs")
    if num_ranks != cluster.num_accelerators:
        what = f"{cluster.name} has {cluster.num_accelerators} accelerators, and {num_ranks} ranks were started"
        raise InputError(what, where="--cluster", fix=f"start {cluster.num_accelerators} ranks")


def tiers_s(cluster: Cluster, budget_s: float, report: Callable[[str], None]) -> list[CollectiveTime]:
    """Times of all kinds in all placements, about `budget_s` each; every rank calls it, and all get the same result."""
    found = []
    num_ranks = dist.get_world_size()
    for placing in placings(cluster):
        names = [tier.name for tier, below, here in zip(cluster, (1, *placing.members), placing.members, strict=False) if here > below]
        report(f"timing groups of {placing.size} across {' and '.join(names)}")
        groups = [dist.new_group(ranks) for ranks in placing.groups(num_ranks)]
        own = next(i for i, ranks in enumerate(placing.groups(num_ranks)) if dist.get_rank() in ranks)
        ranks = placing.groups(num_ranks)[own]
        partner = ranks[ranks.index(dist.get_rank()) ^ 1] if placing.size == 2 else -1
        for kind in KINDS if placing.size == 2 else KINDS[:-1]:
            for payload in sorted({whole_payload(size_bytes, placing.size) for size_bytes in PAYLOADS}):
                work = exchange(kind, payload, groups[own], placing.size, partner)
                seconds, core_s = _timed(work, budget_s)
                found.append(
                    CollectiveTime(
                        kind=kind,
                        num_ranks=placing.size,
                        payload_bytes=payload,
                        seconds=max(seconds, 1e-6),
                        members=placing.members,
                        core_s=max(core_s, 1e-7),
                    )
                )
        for group in groups:
            dist.destroy_process_group(group)
    return found


def whole_payload(size_bytes: int, num_ranks: int) -> int:
    """The nearest number of bytes that divides into tokens of every rank, so that what is exchanged is what is written down."""
    unit = 4 * num_ranks * SEQUENCES * WIDTH
    return max(round(size_bytes / unit), 1) * unit


def _timed(work: Work, budget_s: float) -> tuple[float, float]:
    """Wall seconds of one exchange until all groups have made it, and seconds of a core's work in each process.

    Groups that share a link do not get equal shares of it, and those that are done leave it to the others: their mean was up to 13 %
    shorter than the link needs for the bytes of all. In training the groups wait for one another, so the last one counts. The middle of
    some rounds is taken, because one of them may have met a pause of the machine.
    """
    work()
    dist.barrier()
    started_s = time.perf_counter()
    work()
    once_s = _mean(time.perf_counter() - started_s)  # the same on all ranks: they must agree on the number of calls
    calls = max(min(int(budget_s / max(once_s, 1e-6)), MOST_CALLS) // ROUNDS, 1)
    rounds_s, core_s = [], 0.0
    for _ in range(ROUNDS):
        dist.barrier()
        started_s, core_started_s = time.perf_counter(), time.process_time()
        for _ in range(calls):
            work()
        rounds_s.append((time.perf_counter() - started_s) / calls)
        core_s += (time.process_time() - core_started_s) / calls / ROUNDS
    last_s = torch.tensor(rounds_s, dtype=torch.float64)
    dist.all_reduce(last_s, op=dist.ReduceOp.MAX)
    return float(last_s.median()), _mean(core_s)


def _mean(value: float) -> float:
    """The mean over all ranks."""
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
