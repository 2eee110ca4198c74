"""Layout x Cluster -> which network tier each axis crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.layout import AXES, Layout, Layouts

Tiers = NDArray[np.float64]  # first axis: tiers, from the inside out


@dataclass(frozen=True, slots=True)
class Placement:
    """For every axis, how many members of one group are in one domain of each tier: arrays of tiers x layouts."""

    members: Mapping[str, Tiers]

    def joint(self, *axes: str) -> Tiers:
        """Members of a group that spans several axes, such as the ranks that share optimizer states (cp and dp)."""
        product = self.members[axes[0]]
        for axis in axes[1:]:
            product = product * self.members[axis]
        return product


def place(layouts: Layouts, tier_sizes: NDArray[np.float64]) -> Placement:
    """The members of every axis in every tier, for `tier_sizes` of tiers x (1 or layouts).

    Neighbours on an axis are `stride` ranks apart, so a domain of S ranks holds S

    stride members of a group: at least one, at most all. The outermost tier holds all ranks.
    """
    members: dict[str, Tiers] = {}
    for axis in AXES:
        degree = getattr(layouts, axis).astype(np.float64)
        inside = np.clip(tier_sizes // layouts.stride(axis), 1.0, degree)
        inside[-1] = degree
        members[axis] = inside
    return Placement(members)


def tier_sizes(cluster: Cluster) -> NDArray[np.float64]:
    """Accelerators in a domain of each tier, as a column that broadcasts over layouts."""
    return np.array([[float(tier.num_accelerators)] for tier in cluster])


def tiers_of(layout: Layout, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Names of the tiers that each axis of more than one rank crosses, from the inside out.

    Experts use the ranks of tp, cp and dp of a stage, the innermost first, as their traffic is priced.
    """
    placed = place(Layouts.of([layout]), tier_sizes(cluster))
    members = {**placed.members, "ep": np.minimum(placed.joint("tp", "cp", "dp"), layout.expert_ranks)}
    crossed: dict[str, tuple[str, ...]] = {}
    for axis, inside in members.items():
        counts = [1.0, *inside[:, 0]]
        names = [tier.name for tier, below, here in zip(cluster, counts, counts[1:], strict=False) if here > below]
        if names:
            crossed[axis] = tuple(names)
    return crossed


def ranks_of(axis: str, layout: Layout) -> dict[str, int]:
    """The axes whose ranks share the traffic of an axis, with their degrees.

    Gradients are reduced over context-parallel ranks and replicas.
    """
    beside = {"cp": layout.cp} if axis == "dp" and layout.cp > 1 else {}
    return {axis: getattr(layout, axis), **beside}


def spanned(over: Mapping[str, int], cluster: Cluster, crossed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Names of the tiers that a group over such axes crosses, from the inside out."""
    names = {name for axis in over for name in crossed.get(axis, ())}
    return tuple(tier.name for tier in cluster if tier.name in names)


def is_tp_on_fabric(layout: Layout, cluster: Cluster) -> bool:
    """Whether tensor groups span a network: their traffic is then not overlapped with products (see `Pricer.hidden_tensor_share`)."""
    crossed = tiers_of(layout, cluster).get("tp", ())
    return any(cluster.is_fabric(tier) for tier in cluster if tier.name in crossed)


def overlaps_tp(layout: Layout, cluster: Cluster) -> bool:
    """Whether tensor traffic is overlapped with products: there is some, it is asked for, and no group leaves its domain."""
    return layout.overlap_tp and layout.tp > 1 and not is_tp_on_fabric(layout, cluster)


def overlap_note(layout: Layout, cluster: Cluster) -> str:
    """A note if the overlap of tensor traffic is on but not possible; otherwise empty."""
    if not layout.overlap_tp or not is_tp_on_fabric(layout, cluster):
        return ""
    return (
        f"tp crosses the {tiers_of(layout, cluster)['tp'][-1]}, where its traffic is not overlapped with products: "
        "that works only within a node or a scale-up domain"
    )
