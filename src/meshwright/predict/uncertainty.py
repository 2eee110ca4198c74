"""80 % intervals of predicted times, from the errors on comparable runs that were not in the fit.

`evidence/residuals.json`, written by `meshwright fit`, has ln(predicted/measured) of every run, predicted by a fit without that run
(`row`), without its whole family (`family_out`), or without its class of software or generation of chips (`unknown`). For a job, the
closest pool with nine or more of these runs is used. The interval is wide enough on either side to contain four of five of their errors;
the prediction is its middle. A job with unknown software or an unknown chip is compared with runs that were predicted in the same way. A
job beyond the sizes of all runs has a wider interval, by as much as errors grew on models smaller than any that was fitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.job import Job
from meshwright.predict.practice import FSDP, MEGATRON, MESHWRIGHT, MLPERF, NEMO, TORCHTITAN, UNKNOWN, UNTUNED, class_of
from meshwright.predict.software import is_fitted
from meshwright.units import parameters, si

RESIDUALS_FILE = Path(__file__).parents[1] / "evidence" / "residuals.json"
COVERAGE = 0.8
LARGE = 50e9  # parameters: above this, a step is long compared with everything that happens once per step
FEWEST = 9  # runs in a pool, at least: with fewer, a tenth on either side is less than one run
FAR_FACTOR = 2.0  # more accelerators than so many times those measured, or a model as much larger or smaller, counts as not measured
UNKNOWN_GROWTH = 0.1  # of errors, in ln, with each doubling beyond that, where no run shows it

Entry = Mapping[str, Any]  # one run of residuals.json


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a predicted time that contain the true time in 80 of 100 cases, and the reason for them."""

    low: float
    high: float
    kin: str  # what the job was compared with
    num_runs: int
    distance: str  # "measured", "near", "far"
    note: str = ""  # how the job is outside its evidence; empty if it is not


@dataclass(frozen=True, slots=True)
class Likeness:
    """What makes two runs comparable."""

    kind: str  # "large", "small", "experts", "adapters"
    software: str  # class of the software; empty for none
    family: tuple[str, str, str]  # accelerator, precision, release


@cache
def residuals(path: Path = RESIDUALS_FILE) -> Mapping[str, Any]:
    """The residuals in the package."""
    return dict(json.loads(path.read_text()))


def interval(job: Job, table: Mapping[str, Any] | None = None) -> Interval:
    """The interval of a job's step time.

    measured: the accelerator, number format and release were run together, at about this size; errors of single runs left out.
    near: the chip's generation and the kind of software were run, but not this; errors of whole families left out.
    far: a chip or software of a kind that no constant was fitted for; errors on those that were measured all the same. Also whatever is
    beyond the sizes of all runs.
    Unknown software may be of any class, so its interval is at least as wide as that of every class that it may be of.
    """
    found = table or residuals()
    asked = _likeness(job, job.software.release)
    own = _sized(job, asked, found)
    if asked.software:
        return own
    classes = {name: _sized(job, _likeness(job, name), found) for name in UNTUNED}
    name, widest = max(classes.items(), key=lambda item: item[1].high / item[1].low)
    if widest.high / widest.low <= own.high / own.low:
        return own
    reason = f"the interval is as wide as that of {name}, which this software may be"
    return replace(own, low=widest.low, high=widest.high, note=f"{own.note}; {reason}" if own.note else reason)


def _likeness(job: Job, release: str) -> Likeness:
    """What a job under a release is compared by."""
    family = (job.cluster.accelerator.name, job.workload.precision, named_release(release))
    return Likeness(kind=kind_of(job.model, job.workload), software=class_of(release), family=family)


def _sized(job: Job, asked: Likeness, table: Mapping[str, Any]) -> Interval:
    """The interval by one likeness, with the size of the job and the routing of its fabric."""
    runs: Sequence[Entry] = table["runs"]
    known = _widened(_compared(job, asked, runs), job.model, job.cluster, runs)
    return _unrouted(known, job.cluster, float(table.get("unstated_routing", 0.0)))


def _compared(job: Job, asked: Likeness, runs: Sequence[Entry]) -> Interval:
    """The interval of the closest pool of runs, for any size of the job."""
    model, cluster, stack = job.model, job.cluster, job.software
    fitted = [run for run in runs if run["fitted"]]
    chip = cluster.accelerator
    if not is_fitted(chip) and chip.architecture not in stack.further and not stack.profile:
        return _far(fitted, f"no constant was fitted for {chip.name} or chips of its generation")
    if not asked.software:
        named = stack.release != UNKNOWN  # otherwise its own note says it
        return _far(fitted, f"no factor was fitted for {stack.release} or software of its kind" if named else "")
    beyond = _beyond(asked, fitted, model.num_parameters, cluster)
    if not stack.known and asked.software == class_of(stack.release):  # its own note says what it was taken as
        if asked.software not in (MLPERF, NEMO):
            return _far(fitted, beyond)
        return _near(asked, fitted, beyond or f"nothing was measured with {stack.name}")
    if not beyond:
        return _measured(asked, fitted)
    if asked.kind == "experts" and not any(run["kind"] == "experts" and _family(run)[2] == asked.family[2] for run in fitted):
        return _far(fitted, f"no mixture of experts was measured with {asked.family[2]}")  # dense runs of it say nothing about experts
    num_own = sum(class_of(run["family"][2]) == asked.software for run in fitted)
    if asked.software not in (MLPERF, NEMO) and num_own < FEWEST:  # runs of other software say little about this one
        return _far(fitted, beyond)
    return _near(asked, fitted, beyond)


def kind_of(model: Model, workload: Workload) -> str:
    """The kind of a job with respect to errors: adapters, mixtures of experts, large or small dense models."""
    if workload.adapters:
        return "adapters"
    if model.experts:
        return "experts"
    return "large" if model.num_parameters >= LARGE else "small"


def _measured(asked: Likeness, fitted: Sequence[Entry]) -> Interval:
    alike = _alike(asked)
    pools = {
        f"runs of {' '.join(asked.family)}": lambda run: alike(run) and _family(run) == asked.family,
        f"{_named(asked)}": alike,
    }
    return _closest(fitted, pools, "row", "each left out in turn", "measured")


def _near(asked: Likeness, fitted: Sequence[Entry], note: str) -> Interval:
    pools = {
        f"{_named(asked)}": _alike(asked),
        f"runs of {ORIGIN[asked.software]}": lambda run: class_of(run["family"][2]) == asked.software,
        JOBS[asked.kind]: lambda run: run["kind"] == asked.kind,
        "all fitted runs": lambda run: True,
    }
    if asked.kind == "experts":  # dense runs of the same software say less about experts than experts in other software
        pools = {name: belongs for name, belongs in pools.items() if name != f"runs of {ORIGIN[asked.software]}"}
    return _closest(fitted, pools, "family_out", "whole families left out", "near", note)


def _far(fitted: Sequence[Entry], note: str) -> Interval:
    """The interval from runs of other software and other chips when these were treated as unknown; each such group has the same weight."""
    groups = unknown_groups(fitted)
    low, high = unknown_bounds(groups)
    kin = "runs with other software or on other chips, each software and each chip taken as unknown in turn"
    return Interval(low=low, high=high, kin=kin, num_runs=sum(map(len, groups.values())), distance="far", note=note)


def unknown_groups(runs: Sequence[Entry]) -> dict[str, list[float]]:
    """Errors of runs whose class of software, or generation of chips, was left out, by its name."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        if "unknown" in run:
            kind = class_of(run["family"][2])
            groups.setdefault(run["architecture"] if kind in (MLPERF, NEMO) else kind, []).append(float(run["unknown"]))
    return groups


def unknown_bounds(groups: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Factors on a prediction for something unknown, from errors on groups that were treated as unknown.

    All groups have the same weight.
    """
    errors = np.abs(np.concatenate([np.asarray(group) for group in groups.values()]))
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups.values()])
    order = np.argsort(errors)
    share = np.cumsum(weights[order]) / weights.sum()
    reach = float(errors[order][min(int(np.searchsorted(share, COVERAGE)), len(errors) - 1)])
    return math.exp(-reach), math.exp(reach)


def _closest(
    runs: Sequence[Entry], pools: Mapping[str, Callable[[Entry], bool]], column: str, how: str, distance: str, note: str = ""
) -> Interval:
    """The interval of the first pool with enough runs; of the last pool if none has enough."""
    named = [(name, [float(run[column]) for run in runs if belongs(run)]) for name, belongs in pools.items()]
    name, errors = next((pool for pool in named if len(pool[1]) >= FEWEST), named[-1])
    low, high = bounds(errors)
    return Interval(low=low, high=high, kin=f"{name}, {how}", num_runs=len(errors), distance=distance, note=note)


def bounds(errors: Sequence[float]) -> tuple[float, float]:
    """Factors on a prediction from ln(predicted/measured) of comparable runs.

    Four of five are between them, with the prediction in the middle. The k-th of n errors in order of size stands for the share k/(n+1)
    (Weibull), so that the next run is inside in 80 of 100 cases, for any number of runs.
    """
    reach = float(np.quantile(np.abs(errors), COVERAGE, method="weibull"))
    return math.exp(-reach), math.exp(reach)


def _alike(asked: Likeness) -> Callable[[Entry], bool]:
    return lambda run: run["kind"] == asked.kind and class_of(run["family"][2]) == asked.software


def _family(run: Entry) -> tuple[str, ...]:
    accelerator, precision, release = run["family"]
    return accelerator, precision, named_release(release)


def named_release(release: str) -> str:
    """The release, or the class if its releases have no separate factors."""
    kind = class_of(release)
    return release if kind in (MLPERF, NEMO, "") else kind


JOBS = {"large": "large dense models", "small": "small dense models", "experts": "mixtures of experts", "adapters": "adapters"}
ORIGIN = {
    MLPERF: "MLPerf rounds",
    NEMO: "published container tables",
    MEGATRON: "Megatron as others ran it",
    TORCHTITAN: "torchtitan",
    FSDP: "ordinary FSDP",
    MESHWRIGHT: "meshwright's trainer",
    "": "other tables",
}


def _named(asked: Likeness) -> str:
    return f"{JOBS[asked.kind]} in {ORIGIN[asked.software]}"


def _beyond(asked: Likeness, fitted: Sequence[Entry], num_parameters: float, cluster: Cluster) -> str:
    """How a job is outside the runs of its family, in words; empty if it is not."""
    alike = _alike(asked)
    own = [run for run in fitted if alike(run) and _family(run) == asked.family]
    if not own:
        kinds = {run["kind"] for run in fitted if class_of(run["family"][2]) == asked.software}
        if asked.kind in kinds:
            return f"{_named(asked)} were measured, but not with {' '.join(asked.family)}"
        others = " and ".join(words for kind, words in JOBS.items() if kind in kinds)
        return f"of {ORIGIN[asked.software]}, only {others} were measured" if others else f"no {_named(asked)} were measured"
    num_accelerators, most = cluster.num_accelerators, max(run["num_accelerators"] for run in own)
    if num_accelerators > FAR_FACTOR * most:
        return f"{num_accelerators:,} accelerators; the most measured with {' '.join(asked.family)} are {most:,}"
    slowest, fabric = min(run["fabric_bytes_per_s"] for run in own), cluster.tiers[-1]
    if cluster.tiers[0].num_accelerators < num_accelerators and fabric.bytes_per_s * FAR_FACTOR < slowest:
        return f"a network of {si(fabric.bytes_per_s, 'B/s')} per accelerator; the slowest measured is {si(slowest, 'B/s')}"
    sizes = [run["num_parameters"] for run in own]
    if not min(sizes) / FAR_FACTOR <= num_parameters <= max(sizes) * FAR_FACTOR:
        return f"{parameters(num_parameters, '.3g')} parameters; models measured with {' '.join(asked.family)} have {_span(sizes)}"
    return ""


def _widened(found: Interval, model: Model, cluster: Cluster, runs: Sequence[Entry]) -> Interval:
    """The interval of a job beyond the fitted sizes: wider with each doubling, and never called inside the evidence.

    If the job is already far from the evidence, its pool contains runs that were not fitted, and their sizes count.
    """
    known = [run for run in runs if run["fitted"] or found.distance == "far"]
    sizes = [run["num_parameters"] for run in known if (run["kind"] == "experts") == bool(model.experts)]
    counts = [run["num_accelerators"] for run in known]
    in_size = _doublings(model.num_parameters, sizes)
    in_count = _doublings(max(cluster.num_accelerators, min(counts, default=0)), counts)  # fewer are no harder
    if not in_size + in_count:
        return found
    more = math.exp(growth(runs) * (in_size + in_count))
    outside = [f"models of {_span(sizes)} parameters"] if in_size else []
    outside += [f"at most {max(counts):,} accelerators"] if in_count else []
    reason = f"predictions rest on {' and '.join(outside)}, so the interval reaches {100 * (more - 1):.0f} % further at either end"
    note = f"{found.note}; {reason}" if found.note else reason
    return replace(found, low=found.low / more, high=found.high * more, distance="far", note=note)


def _unrouted(found: Interval, cluster: Cluster, spread: float) -> Interval:
    """The interval if a fabric is used and its routing is not stated: wider by the effect of routing in the measured runs."""
    fabric = cluster.tiers[-1]
    if not fabric.routing_assumed or cluster.tiers[0].num_accelerators == cluster.num_accelerators or not spread:
        return found
    reach = math.hypot(math.log(found.high), spread)
    reason = f"how {fabric.name} spreads flows over its paths is not stated: taken as {fabric.routing} ({fabric.name}.routing says it)"
    note = f"{found.note}; {reason}" if found.note else reason
    return replace(found, low=math.exp(-reach), high=math.exp(reach), note=note)


def _doublings(value: float, known: Sequence[float]) -> float:
    """Number of doublings, or halvings, of known sizes to come within `FAR_FACTOR` of a value."""
    if not known:
        return 0.0
    beyond = max(value / max(known), min(known) / value)
    return max(math.log2(beyond / FAR_FACTOR), 0.0)


def growth(runs: Sequence[Entry]) -> float:
    """How much errors grow with each doubling beyond the fitted sizes, in ln.

    This is the slope of a line through the errors of dense models that were not fitted: there are many smaller ones, of one stack on one
    chip. Nothing is known about more accelerators than were ever measured; they are assumed to behave like models of other sizes.
    """
    dense = [run for run in runs if run["kind"] in ("large", "small")]
    sizes = [run["num_parameters"] for run in dense if run["fitted"]]
    others = [run for run in dense if not run["fitted"]]
    beyond = np.array([_doublings(run["num_parameters"], sizes) for run in others])
    if min((beyond > 0).sum(), (beyond == 0).sum()) < FEWEST:
        return UNKNOWN_GROWTH
    slope = np.polyfit(beyond, [abs(float(run["row"])) for run in others], 1)[0]
    return max(float(slope), 0.0)


def _span(sizes: Sequence[float]) -> str:
    least, most = parameters(min(sizes), ".3g"), parameters(max(sizes), ".3g")
    return least if least == most else f"{least} to {most}"
