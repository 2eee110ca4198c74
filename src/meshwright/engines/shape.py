"""The nodes that a plan needs: how many ranks each has, in the order of the ranks, and which nodes belong together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshwright.describe.cluster import Cluster
from meshwright.plan.export.hostfile import Seats
from meshwright.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Nodes in the order of the plan's ranks. Each group of neighbours must be in one rack."""

    plan: Plan
    sizes: tuple[int, ...]  # ranks of each node
    group: str  # what a group is: a tier of the plan's cluster (rack), or a replica; "" where nodes need not be together
    group_nodes: int  # nodes of a group
    spares_per_group: int  # whole nodes of a group that the plan leaves idle

    @classmethod
    def of(cls, plan: Plan) -> Shape:
        """The shape of a plan, from its rank map."""
        sizes = tuple(Seats.of(plan).sizes)
        group, group_nodes, spares = _grouped(plan, len(sizes))
        return cls(plan=plan, sizes=sizes, group=group, group_nodes=group_nodes, spares_per_group=spares)

    @property
    def num_nodes(self) -> int:
        """Nodes that the plan's ranks are on."""
        return len(self.sizes)

    @property
    def num_groups(self) -> int:
        """Groups of nodes."""
        return self.num_nodes // self.group_nodes

    @property
    def num_spares(self) -> int:
        """Nodes that the plan keeps idle in its racks."""
        return self.spares_per_group * self.num_groups

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a full node."""
        return max(self.sizes)

    @property
    def is_even(self) -> bool:
        """Whether every node has the same number of ranks."""
        return len(set(self.sizes)) == 1

    @property
    def needs_gpus(self) -> bool:
        """Whether the ranks run on GPUs."""
        return self.plan.cluster.accelerator.architecture != "cpu"

    @cached_property
    def rank_nodes(self) -> list[int]:
        """The node of every rank."""
        return [node for node, size in enumerate(self.sizes) for _ in range(size)]

    @property
    def words(self) -> str:
        """The shape in a sentence."""
        ranks = f"{sum(self.sizes):,} ranks on {self.num_nodes:,} node{'s' if self.num_nodes > 1 else ''}"
        if not self.group:
            return ranks
        spares = f", and {self.spares_per_group} idle" if self.spares_per_group else ""
        return f"{ranks}: {self.num_groups:,} x {self.group_nodes:,} that share a rack (one {self.group}{spares})"


def _grouped(plan: Plan, num_nodes: int) -> tuple[str, int, int]:
    """Which nodes must share a rack: those of a tier above the node, or of a replica where the cluster describes no such tier."""
    cluster = plan.cluster
    tier = rack_tier(cluster)
    if tier is not None:
        found = cluster.tiers[tier]
        spares = (found.num_installed - found.num_accelerators) // cluster.accelerators_per_node
        return found.name, num_nodes * found.num_accelerators // cluster.num_accelerators, spares
    replica = replica_nodes(plan, num_nodes)
    return ("replica", replica, 0) if replica > 1 else ("", 1, 0)


def rack_tier(cluster: Cluster) -> int | None:
    """The index of the innermost tier that holds several nodes and not all accelerators; None if there is none."""
    for index, tier in enumerate(cluster.tiers[:-1]):
        if tier.num_installed > cluster.accelerators_per_node and tier.num_accelerators > cluster.used_per_node:
            return index
    return None


def replica_nodes(plan: Plan, num_nodes: int) -> int:
    """Nodes of one replica; 1 where a replica's ranks are not neighbours, or fill no whole nodes."""
    layout = plan.layout
    if layout.order[-1] != "dp" and layout.dp > 1:
        return 1
    per_node = layout.num_ranks // num_nodes
    ranks = layout.num_ranks // layout.dp
    return ranks // per_node if ranks % per_node == 0 and layout.num_ranks % num_nodes == 0 else 1
