"""A cluster: accelerators, and the network tiers between them from the inside out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from meshwright.describe.hardware import Accelerator
from meshwright.describe.source import Sources
from meshwright.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of the network: the accelerators of a domain reach each other at `bytes_per_s` each way.

    `num_accelerators` of the `num_installed` in a domain are used; the rest are spares.
    """

    name: str
    link: str
    num_accelerators: int
    num_installed: int
    bytes_per_s: float  # each way and accelerator, with all planes up
    latency_s: float
    num_planes: int = 1
    routing: str = "adaptive"  # see hardware.ROUTINGS

    def __post_init__(self) -> None:
        if self.num_accelerators < 1 or self.num_installed < self.num_accelerators:
            raise InputError(
                f"tier {self.name!r} uses {self.num_accelerators} of {self.num_installed} accelerators",
                where=f"tier {self.name}",
                fix="use at least one, and no more than are installed",
            )
        if not self.bytes_per_s > 0 or self.latency_s < 0:
            raise InputError(f"tier {self.name!r} needs a positive bandwidth and a latency of at least 0", where=f"tier {self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A machine: `tiers` from the inside out; the last one spans every accelerator in use."""

    name: str
    accelerator: Accelerator
    tiers: tuple[Tier, ...]
    accelerators_per_node: int
    storage_bytes_per_s: float = math.inf  # what the whole job can read; inf where nobody stated it
    node_overhead_w: float = 0.0  # fans, CPUs, NICs of one node at full load, beside its accelerators
    provider: str = ""
    region: str = ""
    sources: Sources = field(default_factory=dict)

    def __post_init__(self) -> None:
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
    def num_nodes(self) -> int:
        """Nodes in use: host computers, each with its accelerators."""
        return math.ceil(self.num_accelerators / self.accelerators_per_node)

    def __iter__(self) -> Iterator[Tier]:
        return iter(self.tiers)

    def resized(self, num_accelerators: int) -> Cluster:
        """The same kind of machine with another number of accelerators in use.

        Tiers that would be larger than the whole are cut to it; more domains are added by growing the last tier.
        A number that fills no whole domain cuts the domain to the largest part that divides it.
        """
        if num_accelerators < 1:
            raise InputError(f"a cluster needs at least one accelerator, not {num_accelerators}", where="gpus")
        tiers: list[Tier] = []
        for tier in self.tiers[:-1]:
            size = math.gcd(num_accelerators, tier.num_accelerators) if num_accelerators > tier.num_accelerators else num_accelerators
            tiers.append(replace(tier, num_accelerators=size))
        last = self.tiers[-1]
        tiers.append(replace(last, num_accelerators=num_accelerators, num_installed=max(last.num_installed, num_accelerators)))
        return replace(self, tiers=tuple(tiers))
