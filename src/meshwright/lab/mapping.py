"""The same job mapped to a lab in several ways: the planner's choice, each axis in turn across the racks, and ranks in random places.

Each mapping has a forecast. A layout's own forecast knows ranks in order only. With ranks in random places some groups of each axis cross
the racks and some do not. Exchanges between racks were timed with all groups crossing at once, so the wait for the uplink is in proportion
to the groups that cross: each axis adds its share of what it would add if all of its groups crossed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.lab.description import Lab
from meshwright.lab.ranks import in_order, shuffled
from meshwright.layout import AXES, Layout
from meshwright.predict.forecast import Forecast

AXIS_WORDS = {"tp": "tensor parallelism", "cp": "context parallelism", "pp": "the pipeline", "dp": "data parallelism"}
FREE = 1e6  # times as fast: an uplink whose waits are nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """A layout and the place of each of its ranks, with its forecast."""

    name: str  # for files
    words: str
    layout: Layout
    slots: tuple[int, ...]
    predicted_s: float
    forecast: Forecast
    parts_s: dict[str, float]  # predicted, by part; they add up to the step
    crossing: dict[str, float]  # by axis of more than one rank: the share of its groups that have members in several racks


def mappings(job: Job, layout: Layout, lab: Lab, seed: int, stack: str = "meshwright") -> list[Mapping]:
    """The mappings of a job: the best of all layouts, the given degrees with each axis across the racks, and shuffled ranks."""
    if layout.num_ranks != lab.num_slots:
        what = f"the layout has {layout.num_ranks} ranks, and lab {lab.name!r} has places for {lab.num_slots}"
        raise InputError(what, where="layout", fix=f"choose degrees whose product is {lab.num_slots}")
    if lab.num_racks < 2:
        raise InputError(f"lab {lab.name!r} has one rack, so nothing crosses racks", where="--racks", fix="make a lab of 2 racks or more")
    found = [_in_order("first", "the planner's first choice", job.search(keep=1, stack=stack)[0], lab)]
    across = list(_each_across(job, layout, lab))
    best = min(across, key=lambda one: one.predicted_s)
    return [*found, *across, _shuffled(best, job, lab, seed)]


def _in_order(name: str, words: str, forecast: Forecast, lab: Lab) -> Mapping:
    slots = in_order(forecast.layout.num_ranks)
    crossing = crossing_shares(forecast.layout, slots, lab)
    return Mapping(
        name=name,
        words=words,
        layout=forecast.layout,
        slots=slots,
        predicted_s=forecast.step_s,
        forecast=forecast,
        parts_s=dict(forecast.parts),
        crossing=crossing,
    )


def _each_across(job: Job, layout: Layout, lab: Lab) -> Iterator[Mapping]:
    """For each axis of more than one rank, the order with this axis outermost whose forecast is the shortest."""
    wide = [axis for axis in AXES if getattr(layout, axis) > 1]
    for axis in wide:
        others = [other for other in AXES if other != axis]
        orders = itertools.permutations(others)
        kept = {tuple(one for one in order if one in wide): order for order in orders}  # where an axis of one rank stands is all the same
        forecasts = [job.forecast(replace(layout, order=(*order, axis))) for order in kept.values()]
        yield _in_order(f"{axis}-across", f"{AXIS_WORDS[axis]} across the racks", min(forecasts, key=lambda one: one.step_s), lab)


def _shuffled(base: Mapping, job: Job, lab: Lab, seed: int) -> Mapping:
    slots = shuffled(base.layout.num_ranks, seed)
    shares = crossing_shares(base.layout, slots, lab)
    parts_s = shuffled_parts_s(job, base.layout, shares)
    step_s = sum(parts_s.values())
    return replace(base, name="shuffled", words="ranks in random places", slots=slots, crossing=shares, predicted_s=step_s, parts_s=parts_s)


def shuffled_parts_s(job: Job, layout: Layout, shares: dict[str, float]) -> dict[str, float]:
    """Seconds of a step in which some groups of each axis cross the racks, by part.

    They are those of the step without uplinks, and of what each axis adds if all of its groups cross, the share that does.
    """
    free = job.on(_with_free_spine(job.cluster))
    parts_s = dict(free.forecast(layout).parts)
    for axis, share in shares.items():
        others = tuple(other for other in layout.order if other != axis)
        across = replace(layout, order=(*others, axis))
        with_s, without_s = job.forecast(across).parts, free.forecast(across).parts
        for part in parts_s:
            parts_s[part] += share * (with_s[part] - without_s[part])
    return parts_s


def _with_free_spine(cluster: Cluster) -> Cluster:
    last = cluster.tiers[-1]
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(last, bytes_per_s=last.bytes_per_s * FREE)))


def crossing_shares(layout: Layout, slots: Sequence[int], lab: Lab) -> dict[str, float]:
    """By axis of more than one rank, the share of its groups with members in several racks."""
    racks = [lab.host_at(slot).rack for slot in slots]
    shares = {}
    for axis in (axis for axis in AXES if getattr(layout, axis) > 1):
        groups: dict[tuple[int, ...], set[int]] = {}
        for rank, rack in enumerate(racks):
            at = layout.coordinate(rank)
            groups.setdefault(tuple(at[other] for other in AXES if other != axis), set()).add(rack)
        shares[axis] = sum(len(inside) > 1 for inside in groups.values()) / len(groups)
    return shares


def num_steps_for(predicted_s: float, budget_s: float, least: int = 5, most: int = 20) -> int:
    """Steps of a run of about `budget_s`: the first step is not counted in its median."""
    return min(max(math.ceil(budget_s / predicted_s), least), most) + 1
