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
    """For every axis, how many members of one group share a domain of each tier: arrays of tiers x layouts."""

    members: Mapping[str, Tiers]

    def joint(self, *axes: str) -> Tiers:
        """Members of a group that spans several axes, such as the ranks that share optimizer states (cp and dp)."""
        product = self.members[axes[0]]
        for axis in axes[1:]:
            product = product * self.members[axis]
        return product


def place(layouts: Layouts, tier_sizes: NDArray[np.float64]) -> Placement:
    """The members of every axis in every tier, for `tier_sizes` of tiers x (1 or layouts).

    Neighbours on an axis stand `stride` ranks apart, so a domain of S ranks holds S // stride of a group: at least one, at most all.
    The outermost tier holds everyone.
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
    """Names of the tiers that each axis of more than one rank crosses, from the inside out."""
    placed = place(Layouts.of([layout]), tier_sizes(cluster))
    crossed: dict[str, tuple[str, ...]] = {}
    for axis in AXES:
        counts = [1.0, *placed.members[axis][:, 0]]
        names = [tier.name for tier, below, here in zip(cluster, counts, counts[1:], strict=False) if here > below]
        if names:
            crossed[axis] = tuple(names)
    return crossed
