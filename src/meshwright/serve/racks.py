"""The rack, tray and slot of each rank, and its state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from meshwright.errors import InputError
from meshwright.layout import AXES
from meshwright.plan.plan import Plan
from meshwright.plan.rankmap import rank_map
from meshwright.serve.live import RECENT, LiveRun

MAX_RANKS = 200_000  # drawn; every cluster of the catalogue has fewer


def racks_of(plan: Plan) -> dict[str, Any]:
    """The place and coordinates of every rank as columns, the outermost level first; and how many slots of a domain stay empty."""
    if plan.layout.num_ranks > MAX_RANKS:
        raise InputError(f"{plan.layout.num_ranks:,} ranks are too many to draw", where="plan.json", fix=f"{MAX_RANKS:,} can be")
    ranks = rank_map(plan.layout, plan.cluster)
    names = [*ranks.place, *(axis for axis in AXES if getattr(plan.layout, axis) > 1 and axis != "ep")]
    inner = plan.cluster.tiers[0]
    return {
        "num_ranks": len(ranks),
        "place": list(ranks.place),
        "domain": inner.name,
        "num_used": min(inner.num_accelerators, len(ranks)),
        "num_installed": inner.num_installed,
        "per_node": plan.cluster.accelerators_per_node,
        "axes": names[len(ranks.place) :],
        "columns": {name: ranks.columns[name].tolist() for name in names},
    }


def health_of(run: LiveRun) -> dict[str, Any]:
    """Which ranks are slow, which were slow before, and what is known about the time of each."""
    slow = run.slow_ranks
    were = {event.detail["rank"] for event in run.events if event.kind == "slow_rank" and isinstance(event.detail.get("rank"), int)}
    return {
        "slow": {str(rank): str(event.detail.get("message", f"slow since step {event.step}"))[:300] for rank, event in slow.items()},
        "recovered": sorted(were - slow.keys()),
        "last": _last_replicas(run),
        "busy": _busy(run),
    }


def _last_replicas(run: LiveRun) -> dict[str, Any] | None:
    """For each replica, how many of the recent steps it was the last to finish; None if no step says."""
    replica = run.steps.column("slowest_replica", -RECENT)
    known = replica[(replica >= 0) & (replica < MAX_RANKS)]  # a damaged file may contain any number
    if not len(known):
        return None
    counts = Counter(known.astype(int).tolist())
    return {"num_steps": len(known), "counts": {str(number): count for number, count in counts.items()}}


def _busy(run: LiveRun) -> dict[str, Any] | None:
    """Busy seconds of every rank, if the run writes them."""
    if run.rank_times is None or run.header is None or len(run.rank_times[2]) != run.header.num_ranks:
        return None
    step, num_steps, busy_s = run.rank_times
    return {"step": step, "num_steps": num_steps, "busy_s": [float(f"{value:.4g}") for value in busy_s]}
