"""A cluster: accelerators, and the network tiers between them from the inside out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwright.arguments import check_types, typed
from meshwright.describe.bounds import check_numbers
from meshwright.describe.hardware import Accelerator
from meshwright.describe.source import Sources
from meshwright.errors import InputError, argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of the network. Accelerators of one domain send to each other at `bytes_per_s`.

    `num_accelerators` of the `num_installed` accelerators in a domain are used; the rest are spares.
    """

    name: str
    link: str
    num_accelerators: int
    num_installed: int
    bytes_per_s: float  # per accelerator and direction, with all planes
    latency_s: float
    num_planes: int = 1
    routing: str = "adaptive"  # see hardware.ROUTINGS
    routing_assumed: bool = False  # True if no source states the routing

    def __post_init__(self) -> None:
        if self.num_accelerators < 1 or self.num_installed < self.num_accelerators:
            raise InputError(
                f"tier {self.name!r} uses {self.num_accelerators} of {self.num_installed} accelerators",
                where=f"tier {self.name}",
                fix="use at least one, and no more than are installed",
            )
        if not self.bytes_per_s > 0 or self.latency_s < 0:
            raise InputError(
                f"tier {self.name!r} has a bandwidth of {self.bytes_per_s:g} B/s and a latency of {self.latency_s:g} s",
                where=f"tier {self.name}",
                fix="give a bandwidth above 0 and a latency of at least 0",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A machine: its accelerators and its network.

    Args:
        name: Name of the cluster.
        accelerator: The accelerator.
        tiers: The levels of the network, from the inside out. The last one connects all accelerators in use.
        accelerators_per_node: Number of accelerators in a node.
        storage_bytes_per_s: Bytes per second that the whole job can read from storage; infinite if not stated.
        node_overhead_w: Watts of fans, CPUs and NICs of one node at full load, without its accelerators; 0 if not stated.
        provider: Cloud provider, for prices and data centre.
        region: Region, for the carbon intensity of the grid.
        sources: Where the numbers come from.
    """

    name: str
    accelerator: Accelerator
    tiers: tuple[Tier, ...]
    accelerators_per_node: int
    storage_bytes_per_s: float = math.inf  # of the whole job; infinite if not stated
    node_overhead_w: float = 0.0  # fans, CPUs and NICs of one node at full load, without its accelerators
    provider: str = ""
    region: str = ""
    sources: Sources = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_numbers(self, f"cluster {self.name}", unstated=("storage_bytes_per_s", "power_cap_w"))
        if self.accelerators_per_node < 1:
            raise InputError("a node has no accelerator", where=f"cluster {self.name}: accelerators_per_node", fix="give at least 1")
        if not self.tiers:
            raise InputError(f"cluster {self.name!r} has no network tier", where=f"cluster {self.name}", fix="describe at least one")
        for inner, outer in zip(self.tiers, self.tiers[1:], strict=False):
            if outer.num_accelerators % inner.num_accelerators:
                raise InputError(
                    f"tier {outer.name!r} spans {outer.num_accelerators} accelerators, "
                    f"not a multiple of the {inner.num_accelerators} in one {inner.name!r} domain",
                    where=f"cluster {self.name}",
                    fix=f"use a multiple of {inner.num_accelerators}",
                )

    @property
    def num_accelerators(self) -> int:
        """Accelerators in use."""
        return self.tiers[-1].num_accelerators

    @property
    def num_installed(self) -> int:
        """Accelerators that the machine has, spares included."""
        return self.tiers[-1].num_installed

    @property
    def used_per_node(self) -> int:
        """Accelerators in use in a full node: fewer than it has if the tier of the node, or one inside it, has spares."""
        inside = [tier for tier in self.tiers if tier.num_installed <= self.accelerators_per_node]
        if not inside:
            return self.accelerators_per_node
        return self.accelerators_per_node // inside[-1].num_installed * inside[-1].num_accelerators

    @property
    def num_nodes(self) -> int:
        """Nodes (host computers) in use. The last node of a domain may be used only in part."""
        holding = next((tier for tier in self.tiers if tier.num_installed > self.accelerators_per_node), self.tiers[-1])
        return self.num_accelerators // holding.num_accelerators * math.ceil(holding.num_accelerators / self.used_per_node)

    @typed
    def is_fabric(self, tier: Tier) -> bool:
        """Whether a tier is a network between nodes, not one inside a node or a scale-up domain."""
        if tier not in self.tiers:
            raise InputError(f"{self.name} has no such tier as {tier.name}", where="Cluster.is_fabric: tier", fix="give one of its tiers")
        inner = self.tiers[: self.tiers.index(tier)]
        spans_nodes = max(tier.num_installed, *(below.num_installed + 1 for below in inner), 0) > self.accelerators_per_node
        return tier.routing != "scale-up" and spans_nodes

    def __repr__(self) -> str:
        tiers = ", ".join(f"{tier.name} of {tier.num_accelerators:,}" for tier in self.tiers)
        return f"Cluster({self.name!r}, {self.num_accelerators:,} {self.accelerator.name}: {tiers})"

    def __iter__(self) -> Iterator[Tier]:
        return iter(self.tiers)

    @typed
    def resized(self, num_accelerators: int) -> Cluster:
        """The same kind of machine with another number of accelerators in use, spread evenly over its domains.

        Tiers that would be larger than the whole machine are reduced to it. If the number is larger than described, the last tier is
        made larger, if it is a network; a node or a scale-up domain cannot be made larger.
        """
        if num_accelerators < 1:
            raise InputError(
                f"a cluster needs at least one accelerator, not {num_accelerators}", where=argument("gpus"), fix="give 1 or more"
            )
        self._check_growth(num_accelerators)
        sizes = self._spread(num_accelerators)
        if sizes is None:
            raise self._uneven(num_accelerators)
        tiers = [replace(tier, num_accelerators=size) for tier, size in zip(self.tiers[:-1], sizes, strict=True)]
        last = self.tiers[-1]
        tiers.append(replace(last, num_accelerators=num_accelerators, num_installed=max(last.num_installed, num_accelerators)))
        return replace(self, tiers=tuple(tiers))

    @typed
    def can_have(self, num_accelerators: int) -> bool:
        """Whether the machine can be resized to so many accelerators."""
        grows = self.is_fabric(self.tiers[-1]) or num_accelerators <= self.num_installed
        return num_accelerators >= 1 and grows and self._spread(num_accelerators) is not None

    @typed
    def nearest_sizes(self, num_accelerators: int, multiple_of: int = 1) -> list[int]:
        """The nearest numbers of accelerators, below and above, to which the machine can be resized, if there are any."""
        if multiple_of < 1:
            raise InputError(f"multiples of {multiple_of} are no sizes", where="Cluster.nearest_sizes: multiple_of", fix="give 1 or more")
        reach = 2 * max(tier.num_installed for tier in self.tiers[:-1] or self.tiers)  # some whole domain lies within
        first = num_accelerators // multiple_of * multiple_of
        below = range(first, max(num_accelerators - reach * multiple_of, 0), -multiple_of)
        above = range(first + multiple_of, num_accelerators + reach * multiple_of + 1, multiple_of)
        found = (next((size for size in sizes if size != num_accelerators and self.can_have(size)), 0) for sizes in (below, above))
        return [size for size in found if size]

    def _check_growth(self, num_accelerators: int) -> None:
        last = self.tiers[-1]
        if num_accelerators <= last.num_installed or self.is_fabric(last):
            return
        raise InputError(
            f"{num_accelerators:,} accelerators are more than the {last.num_installed:,} of {self.name}, "
            f"and its outermost tier, {last.name} ({last.link}), is no network that more could be joined to",
            where=argument("gpus"),
            fix=f"describe the network between such {last.name}s as a further tier, or use at most {last.num_installed:,}",
        )

    def _uneven(self, num_accelerators: int) -> InputError:
        inner = self.tiers[0]
        has = f", of which {self.name} has {_num_domains(self.tiers[-1], inner):,}" if num_accelerators <= self.num_installed else ""
        sizes = " or ".join(f"{size:,}" for size in self.nearest_sizes(num_accelerators))
        return InputError(
            f"{num_accelerators:,} accelerators do not spread evenly over {inner.name}s of {inner.num_installed:,}{has}",
            where=argument("gpus"),
            fix=f"use {sizes}",
        )

    def _spread(self, num_accelerators: int) -> list[int] | None:
        """Accelerators in use in a domain of every tier but the last, from the inside out; None if they cannot be spread evenly."""
        return _spread(num_accelerators, self.tiers, self.accelerators_per_node)


def beyond_note(described: Cluster, used: Cluster) -> str:
    """A note for a forecast with more accelerators than were described; empty otherwise."""
    if used.num_accelerators <= described.num_installed:
        return ""
    return (
        f"{used.num_accelerators:,} accelerators are more than the {described.num_installed:,} described: "
        f"the {used.tiers[-1].name} is assumed to reach them all at the same bandwidth"
    )


def _spread(total: int, tiers: Sequence[Tier], per_node: int) -> list[int] | None:
    """Sizes of the domains of all tiers but the last, which has `total` accelerators: the first sizes that fit into each other."""
    if len(tiers) == 1:
        return []
    for size in _domain_sizes(total, tiers[-1], tiers[-2], per_node):
        inner = _spread(size, tiers[:-1], per_node)
        if inner is not None:
            return [*inner, size]
    return None


def _domain_sizes(total: int, outer: Tier, tier: Tier, per_node: int) -> Iterator[int]:
    """How many accelerators of a domain may be in use so that whole domains give `total`: as described if possible, else the most first.

    There cannot be more domains than the machine has, and no domain is used by half or less if fewer domains are enough. Domains of several
    nodes are filled with whole nodes. If this is not possible, networks inside networks and links inside a node get a size that divides the
    total; this makes them slower than they are, but does not change the machine.
    """
    described = tier.num_installed if outer.num_accelerators <= tier.num_accelerators else tier.num_accelerators  # one domain, cut before
    if total <= described:
        yield total
        return
    needed = math.ceil(total / described)
    beyond = needed if tier.num_installed <= per_node else total  # nodes that nobody described are full ones
    most = _num_domains(outer, tier) if total <= outer.num_installed else beyond
    wanted = [described, *range(tier.num_installed, 0, -1)]
    for size in (size for size in wanted if total % size == 0):
        fills_nodes = size in (total, described) or tier.num_installed <= per_node or size % per_node == 0
        num_domains = total // size
        if num_domains <= most and (num_domains <= needed or 2 * size > described) and fills_nodes:
            yield size
    if outer.num_installed <= per_node:
        yield math.gcd(total, described)
    elif tier.num_installed > per_node and tier.routing != "scale-up" and total % per_node == 0:
        yield per_node * math.gcd(total // per_node, max(described // per_node, 1))


def _num_domains(outer: Tier, inner: Tier) -> int:
    """Domains of a tier in one of a tier above it."""
    return max(outer.num_installed // inner.num_installed, outer.num_accelerators // inner.num_accelerators)
