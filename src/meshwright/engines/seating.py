"""Allocated nodes -> the plan's order: each group of the plan in one rack, with bad nodes left out.

Racks come from what the engine says (Slurm's topology), from the site file, or are not known; then the order of the nodes counts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.engines.hostlist import folded, opened
from meshwright.engines.shape import Shape
from meshwright.errors import InputError
from meshwright.plan.rankmap import rank_map

UNKNOWN_RACK = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """Hosts in the order of the plan's nodes, and the rack of each; further hosts are spares."""

    hosts: tuple[str, ...]
    racks: tuple[str, ...]
    spares: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # bad ones

    @property
    def words(self) -> str:
        """Where the ranks are, in a sentence."""
        names = list(dict.fromkeys(rack for rack in self.racks if rack))
        racks = f" in {len(names)} rack{'s' if len(names) > 1 else ''} ({', '.join(names[:8])}{', ...' if len(names) > 8 else ''})"
        spares = f"; {len(self.spares)} to spare: {folded(self.spares)}" if self.spares else ""
        bad = f"; left out as bad: {folded(self.left_out)}" if self.left_out else ""
        shown = folded(self.hosts)
        listed = shown if len(shown) < 200 else f"{shown[:200]}..."
        return f"{len(self.hosts)} node{'s' if len(self.hosts) > 1 else ''}{racks if names else ''}: {listed}{spares}{bad}"


def by_rack(hosts: Sequence[str], racks: Mapping[str, str]) -> dict[str, list[str]]:
    """The hosts of each rack, in their order; the racks in the order in which they first appear."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(racks.get(host, UNKNOWN_RACK), []).append(host)
    return found


def seat(shape: Shape, allocated: Sequence[str], racks: Mapping[str, str], bad: Sequence[str] = ()) -> Seating | None:
    """The hosts in the plan's order, with each group in one rack; None if the racks do not allow it.

    Racks with fewer free nodes are filled first, so that larger ones stay whole.
    """
    is_bad = set(bad)
    left_out = tuple(host for host in allocated if host in is_bad)
    good = [host for host in allocated if host not in is_bad]
    if len(good) < shape.num_nodes:
        return None
    groups = by_rack(good, racks)
    if not shape.group or set(groups) == {UNKNOWN_RACK}:
        chosen = good[: shape.num_nodes]
    else:
        order = sorted(groups, key=lambda rack: len(groups[rack]) % shape.group_nodes)  # stable: racks without a remainder first
        wholes = {rack: groups[rack][: len(groups[rack]) // shape.group_nodes * shape.group_nodes] for rack in order}
        chosen = [host for rack in order for host in wholes[rack]][: shape.num_nodes]
        if len(chosen) < shape.num_nodes:
            return None
    is_used = set(chosen)
    spares = tuple(host for host in good if host not in is_used)
    return Seating(hosts=tuple(chosen), racks=tuple(racks.get(host, UNKNOWN_RACK) for host in chosen), spares=spares, left_out=left_out)


def racks_of_site(racks: Mapping[str, str]) -> dict[str, str]:
    """Host -> rack, from the site file."""
    return {host: rack for rack, hosts in racks.items() for host in opened(hosts, f"racks.{rack} of the site file")}


def racks_of_slurm(text: str) -> dict[str, str]:
    """Host -> rack, from `scontrol show topology`: the lowest switch of a node in a tree, or its block."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        keys = dict(re.findall(r"(\w+)=(\S+)", line))
        name = keys.get("SwitchName") if keys.get("Level", "0") == "0" else None
        name = name or keys.get("BlockName")
        if name and keys.get("Nodes"):
            found |= {host: name for host in opened(keys["Nodes"], "scontrol show topology")}
    return found


def hosts_text(shape: Shape, hosts: Sequence[str]) -> str:
    """The host of every rank, a line each, as Slurm's arbitrary distribution reads it."""
    return "\n".join([*(hosts[node] for node in shape.rank_nodes), ""])


def nodes_text(seating: Seating) -> str:
    """Every node that has a supervisor, a line each: those of the plan in its order, and spares."""
    return "\n".join([*seating.hosts, *seating.spares, ""])


def ranks_text(shape: Shape, seating: Seating) -> str:
    """The place of every rank as CSV: its host, rack and slot, and its coordinates in the layout."""
    columns = rank_map(shape.plan.layout, shape.plan.cluster).columns
    axes = [name for name in ("dp", "pp", "cp", "tp") if name in columns]  # outermost first, as people read them
    values = zip(*(columns[name].tolist() for name in ("rank", "gpu", *axes)), strict=True)
    nodes = shape.rank_nodes
    rows = ((rank, seating.hosts[nodes[rank]], seating.racks[nodes[rank]], slot, *rest) for rank, slot, *rest in values)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("rank", "host", "rack", "slot", *axes), *rows])
    return out.getvalue()


def check_count(shape: Shape, hosts: Sequence[str], where: str) -> None:
    """Raise an error if there are fewer hosts than the plan's nodes."""
    if len(hosts) < shape.num_nodes:
        raise InputError(
            f"the plan needs {shape.num_nodes} nodes, and {len(hosts)} are named",
            where=where,
            fix=f"name {shape.num_nodes} hosts, in the order of the machine, or plan again for fewer accelerators",
        )
