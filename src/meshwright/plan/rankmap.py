"""The place of every rank: rank -> rack, tray and GPU, and its coordinates in the layout.

Ranks are assigned domain by domain from the inside out, so that they get the placement with which the plan was priced.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError
from meshwright.files import write_whole
from meshwright.layout import AXES, Layout

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankMap:
    """A column per quantity, a row per rank."""

    place: tuple[str, ...]  # names of the columns that say where, from the outside in; the last is the GPU of its node
    columns: dict[str, Ints]  # rank, place, axes

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def rows(self, count: int | None = None) -> list[tuple[int, ...]]:
        """The first rows (or all), in the order of the columns."""
        return list(zip(*(column[:count].tolist() for column in self.columns.values()), strict=True))

    def write(self, path: Path) -> None:
        """Write all ranks as CSV or JSON, as the file's name says."""
        names = list(self.columns)
        if path.suffix == ".json":
            text = json.dumps([dict(zip(names, row, strict=True)) for row in self.rows()]) + "\n"
        elif path.suffix == ".csv":
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerows([names, *self.rows()])
            text = out.getvalue()
        else:
            shown = path.suffix or "without a suffix"
            raise InputError(f"a rank map is written as .csv or .json, not {shown}", where=str(path), fix="name a file such as ranks.csv")
        write_whole(path, text)


def rank_map(layout: Layout, cluster: Cluster) -> RankMap:
    """The place of every rank of the layout on the machine.

    In each domain the first accelerators are used, and the others are spares. A node is `used_per_node` neighbouring accelerators.
    """
    rank = np.arange(cluster.num_accelerators, dtype=np.int64)
    place: dict[str, Ints] = {}
    size, within = cluster.num_accelerators, rank
    for tier in reversed(cluster.tiers[:-1]):
        if tier.num_installed > cluster.accelerators_per_node and tier.num_accelerators < size:
            place[tier.name] = within // tier.num_accelerators
            size, within = tier.num_accelerators, within % tier.num_accelerators
    place["tray" if "rack" in place else "node"] = within // cluster.used_per_node
    place["gpu"] = within % cluster.used_per_node
    axes = {axis: rank // layout.stride(axis) % getattr(layout, axis) for axis in AXES}
    return RankMap(tuple(place), {"rank": rank, **place, **axes})
