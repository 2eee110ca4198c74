"""The plan for the nodes that a job got, where these are not the nodes that it wanted: planned again, with what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.engines.seating import Seating, by_rack, seat
from meshwright.engines.shape import Shape, rack_tier
from meshwright.errors import InputError, MeshwrightError
from meshwright.job import Job
from meshwright.plan.best import best_forecasts
from meshwright.plan.plan import Plan, plan_of, stack_of
from meshwright.units import seconds

MOST_SEARCHES = 4  # each takes about a second, while all nodes wait
STACK = "meshwright"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A plan, the nodes of its ranks, and what was changed, in words."""

    plan: Plan
    seating: Seating
    change: str = ""  # "" where the plan is the one that was wanted


def placed(plan: Plan, allocated: Sequence[str], racks: Mapping[str, str], bad: Sequence[str] = ()) -> Placed:
    """The plan on the allocated nodes; another plan for them where it does not fit them."""
    shape = Shape.of(plan)
    seating = seat(shape, allocated, racks, bad)
    if seating is not None:
        return Placed(plan=plan, seating=seating)
    is_bad = set(bad)
    good = [host for host in allocated if host not in is_bad]
    counts = [len(hosts) for hosts in by_rack(good, racks).values()]
    if len(good) >= shape.num_nodes and rack_tier(plan.cluster) is None:
        return _split_replicas(plan, shape, good, racks, counts)
    return _planned_again(plan, shape, good, racks, counts, num_bad=len(allocated) - len(good))


def _split_replicas(plan: Plan, shape: Shape, good: Sequence[str], racks: Mapping[str, str], counts: Sequence[int]) -> Placed:
    """The same plan with replicas across racks: its cluster describes no racks, so it cannot be priced otherwise."""
    ordered = [host for hosts in by_rack(good, racks).values() for host in hosts]
    seating = seat(shape, ordered, {})
    assert seating is not None  # there are enough nodes, and racks do not count
    known = replace(seating, racks=tuple(racks.get(host, "") for host in seating.hosts))
    why = f"the racks have {_listed(counts)} nodes, and a replica has {shape.group_nodes}: some replicas are in two racks"
    return Placed(plan=plan, seating=known, change=f"{why}; the plan's cluster describes no racks, so what this costs is not known")


def _planned_again(
    plan: Plan, shape: Shape, good: Sequence[str], racks: Mapping[str, str], counts: Sequence[int], *, num_bad: int
) -> Placed:
    """The best plan for the nodes, over the sizes of groups into which the racks can be cut."""
    found: list[Plan] = []
    for group_nodes, num_nodes in cuts(counts, shape)[:MOST_SEARCHES]:
        try:
            cluster = cut_cluster(plan.cluster, shape, group_nodes, num_nodes)
            job = Job(plan.model, cluster, plan.workload, stack_of(plan))
            found.append(plan_of(best_forecasts(job, keep=1, stack=STACK)[0], plan.name))
        except MeshwrightError:  # no layout fits so few nodes
            continue
    if not found:
        raise InputError(
            f"{shape.words}; {len(good)} good nodes were allocated, in racks of {_listed(counts)}, and no layout runs on these",
            where=f"plan {plan.name}",
            fix="ask for more nodes (--spares), or plan again for fewer accelerators",
        )
    best = min(found, key=lambda one: one.step_s)
    new = Shape.of(best)
    ordered = [host for hosts in sorted(by_rack(good, racks).values(), key=len, reverse=True) for host in hosts]
    seating = seat(new, ordered, racks) or seat(new, ordered, {})
    assert seating is not None
    known = replace(seating, racks=tuple(racks.get(host, "") for host in seating.hosts))
    bad = f", {num_bad} bad node{'s' if num_bad > 1 else ''} left out" if num_bad else ""
    got = f"{len(good)} nodes were allocated in racks of {_listed(counts)}{bad}"
    change = (
        f"planned again, because {got}, and the plan wants {shape.words}: now "
        f"{best.layout.degrees} ({new.words}), {seconds(best.step_s)} a step instead of {seconds(plan.step_s)} as predicted, "
        f"{100 * (best.step_s / plan.step_s - 1):+.0f} %"
    )
    return Placed(plan=best, seating=known, change=change)


def _listed(counts: Sequence[int]) -> str:
    shown = sorted(counts, reverse=True)
    return ", ".join(map(str, shown[:8])) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def cuts(counts: Sequence[int], shape: Shape) -> list[tuple[int, int]]:
    """Nodes of a group, and nodes in all, for each way to cut racks into equal groups; the most nodes first, then the largest groups."""
    found: dict[int, int] = {}
    for group_nodes in range(min(shape.group_nodes, max(counts, default=0)), 0, -1):
        usable = sum(count // group_nodes for count in counts) * group_nodes
        total = min(usable, shape.num_nodes // group_nodes * group_nodes)
        found.setdefault(total, group_nodes)  # of the same number of nodes, the largest groups
    return [(group_nodes, total) for total, group_nodes in sorted(found.items(), reverse=True) if total]


def cut_cluster(cluster: Cluster, shape: Shape, group_nodes: int, num_nodes: int) -> Cluster:
    """The cluster with so many nodes in use, and racks of so many nodes."""
    per_node, tier = shape.ranks_per_node, rack_tier(cluster)
    tiers = list(cluster.tiers)
    if tier is not None:
        size = group_nodes * per_node
        inner = [one for one in tiers[:tier] if one.num_accelerators < size or tier == 0]
        tiers = [*inner, replace(tiers[tier], num_accelerators=size, num_installed=max(size, per_node)), *tiers[tier + 1 :]]
    outer = tiers[-1]
    total = num_nodes * per_node
    tiers[-1] = replace(outer, num_accelerators=total, num_installed=max(total, tiers[-2].num_accelerators if len(tiers) > 1 else total))
    middle = [one for one in tiers[:-1] if one.num_accelerators <= total and total % one.num_accelerators == 0]
    return replace(cluster, tiers=(*middle, tiers[-1]))
