"""What is left of a fabric when planes or links are lost or another job uses it: the share of its NIC that each ring of replicas has.

Shares are computed by flows: a ring is as fast as its slowest member, and the bandwidth of a link is divided evenly among its flows.
Packets are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import ROUTINGS
from meshwright.errors import InputError, argument, nearest
from meshwright.layout import Layout

Floats = NDArray[np.float64]

# Assumptions about a fabric that hashes each flow onto one path.
FLOWS_PER_NIC = 4  # NCCL channels; each is one flow (the setting of the record machine)
NICS_PER_LEAF = 32  # of a leaf switch with as many links up as down
LATENCY_PER_LOST_LINK = 0.7  # per lost share: 10 % of links lost cost 7 % latency (MRC, source of record.md)
SMALLEST_SHARE = 1e-3  # below this share a step would take hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the fabric differs from its description; by default not at all."""

    planes_lost: int = 0  # of every NIC, or of `nics_hit` NICs
    nics_hit: int = 0  # NICs that lost planes; 0: all
    links_lost: float = 0.0  # share of all links between switches
    neighbour: float = 0.0  # share of the links between switches that another job uses
    routing: str = ""  # as if the fabric had this routing

    def __post_init__(self) -> None:
        for name, value in (("links_lost", self.links_lost), ("neighbour", self.neighbour)):
            if not 0.0 <= value < 1.0:
                raise InputError(f"{argument(name)} is {value:g}", where=argument(name), fix="give a share of at least 0 and below 1")
        for name, count in (("planes_lost", self.planes_lost), ("nics_hit", self.nics_hit)):
            if count < 0:
                raise InputError(f"{argument(name)} is {count}", where=argument(name), fix="give 0 or more")
        if self.routing and self.routing not in ROUTINGS[1:]:
            raise InputError(f"no routing named {self.routing!r}", where=argument("routing"), fix=nearest(self.routing, ROUTINGS[1:]))

    @property
    def words(self) -> tuple[str, ...]:
        """The differences in words."""
        hit = f"{self.nics_hit} NICs" if self.nics_hit else "every NIC"
        conditions = {
            f"{self.planes_lost} plane{'s' * (self.planes_lost > 1)} of {hit} lost": self.planes_lost,
            f"{100 * self.links_lost:g} % of the links between switches lost": self.links_lost,
            f"a neighbour wants {100 * self.neighbour:g} % of the links between switches": self.neighbour,
            f"routing {self.routing}": self.routing,
        }
        return tuple(words for words, value in conditions.items() if value)

    def check(self, cluster: Cluster) -> None:
        """Raise an InputError if the machine cannot lose so much."""
        tier = fabric_tier(cluster)
        if tier.routing == "scale-up" and self != Fabric():
            raise InputError(
                f"{cluster.name} has no fabric between nodes, so it has no links to lose",
                where=", ".join(map(argument, ("planes_lost", "links_lost", "neighbour", "routing"))),
                fix="leave these out, or plan for a machine of several nodes",
            )
        if self.planes_lost >= tier.num_planes and self.planes_lost:
            raise InputError(
                f"{tier.name} has {tier.num_planes} plane{'s' * (tier.num_planes > 1)}, so {self.planes_lost} cannot be lost",
                where=argument("planes_lost"),
                fix=f"leave at least one: 0 to {tier.num_planes - 1}",
            )
        if self.nics_hit > cluster.num_accelerators:
            raise InputError(
                f"{argument('nics_hit')} is {self.nics_hit}, and {cluster.name} has {cluster.num_accelerators} NICs",
                where=argument("nics_hit"),
                fix=f"give at most {cluster.num_accelerators}",
            )

    def plane_share(self, cluster: Cluster) -> float:
        """The share of its bandwidth that a NIC with lost planes still has."""
        return 1 - self.planes_lost / fabric_tier(cluster).num_planes

    def common_share(self, cluster: Cluster) -> float:
        """The share of its bandwidth that every NIC still has."""
        # If two jobs together want more than a link has, each gets half; a job that wants less than half gets what it wants.
        neighbour = max(1 - self.neighbour, 0.5)
        planes = 1.0 if self.nics_hit else self.plane_share(cluster)
        return float(np.clip(planes * (1 - self.links_lost) * neighbour, SMALLEST_SHARE, 1.0))

    def degraded(self, cluster: Cluster) -> Cluster:
        """The machine with the fabric as every NIC sees it."""
        tier = fabric_tier(cluster)
        share, latency = self.common_share(cluster), 1 + LATENCY_PER_LOST_LINK * self.links_lost
        # A fabric that is to be hashed has the penalty that was fitted on such fabrics, as `predict` prices it; `stage_shares` draws
        # which stages are hit less than the worst.
        routing = self.routing or tier.routing
        if (share, latency, routing) == (1.0, 1.0, tier.routing):
            return cluster
        changed = replace(tier, bytes_per_s=tier.bytes_per_s * share, latency_s=tier.latency_s * latency, routing=routing)
        return replace(cluster, tiers=(*cluster.tiers[:-1], changed))

    def stage_shares(self, cluster: Cluster, layout: Layout, rng: np.random.Generator) -> Floats:
        """For each pipeline stage, the share of its slowest ring, relative to what `degraded` gives all NICs."""
        shares = np.ones(layout.pp)
        if self.nics_hit and self.planes_lost:
            hit = rng.choice(cluster.num_accelerators, size=self.nics_hit, replace=False)
            stages = hit // layout.stride("pp") % layout.pp
            shares[np.unique(stages)] = self.plane_share(cluster)
        if (self.routing or fabric_tier(cluster).routing) == "hashed":
            drawn = hashed_shares(layout, rng)
            shares *= drawn / drawn.min()
        return np.maximum(shares, SMALLEST_SHARE)


def fabric_tier(cluster: Cluster) -> Tier:
    """The outermost tier, which connects replicas."""
    return cluster.tiers[-1]


def hashed_shares(layout: Layout, rng: np.random.Generator) -> Floats:
    """For each stage, the share of its NIC that its slowest ring has if every flow is hashed onto one link of its leaf switch.

    A link with too many flows is divided evenly. A connection keeps its hash, so one random draw is used for a whole run.
    """
    ranks = np.arange(layout.num_ranks)
    leaf = ranks // NICS_PER_LEAF
    num_links = min(NICS_PER_LEAF, layout.num_ranks)
    link = leaf[:, None] * num_links + rng.integers(num_links, size=(len(ranks), FLOWS_PER_NIC))
    load = np.bincount(link.ravel())[link]  # flows that share the link of each flow
    rank_share = np.minimum(FLOWS_PER_NIC / load, 1.0).min(axis=1)
    stage = ranks // layout.stride("pp") % layout.pp
    shares = np.ones(layout.pp)
    np.minimum.at(shares, stage, rank_share)
    return shares
