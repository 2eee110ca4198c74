"""How far a predicted time may be off: 80 % intervals from what the predictor got wrong on comparable runs it had not seen.

`evidence/residuals.json`, written by `meshwright fit`, holds ln(predicted/measured) of every run, predicted by a fit that left out that
run (`row`) or its whole family (`family_out`). A question takes the closest pool of those runs that has nine or more, and its interval
leaves out a tenth of them on either side: so it is wide where past predictions were off, and lopsided where they were off one way.
A question like no run that was fitted is compared with runs on other chips or software, which were predicted without any. A question
beyond the sizes of those has a wider interval, by as much as errors grew on models smaller than any that was fitted.
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
from meshwright.predict.practice import FSDP, MEGATRON, MESHWRIGHT, MLPERF, NEMO, TORCHTITAN, class_of
from meshwright.predict.software import GENERATIONS, is_fitted
from meshwright.units import parameters, si

RESIDUALS_FILE = Path(__file__).parents[1] / "evidence" / "residuals.json"
COVERAGE = 0.8
LARGE = 50e9  # parameters: above, a step is long compared with everything that happens once a step
ONE_SIDED = 0.999  # a low end this close to the prediction: no more than a tenth of the runs took less
FEWEST = 9  # runs that make a pool: of fewer, a tenth on either side is less than one run
FAR_FACTOR = 2.0  # more accelerators than so many times those measured, or a model as much larger or smaller, counts as not measured
UNKNOWN_GROWTH = 0.1  # of errors, in ln, with each doubling beyond that, where no run shows it

Entry = Mapping[str, Any]  # one run of residuals.json


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a predicted time that enclose the true one in 80 of 100 cases, and why they are what they are."""

    low: float
    high: float
    kin: str  # what the question was compared with
    num_runs: int
    distance: str  # "measured", "near", "far"
    note: str = ""  # in what the question lies outside its evidence; empty where it does not
    middle: float = 1.0  # what half of the comparable runs took, where nearly all took longer than predicted; else the prediction itself


@dataclass(frozen=True, slots=True)
class Likeness:
    """What makes two runs comparable."""

    kind: str  # "large", "small", "experts", "adapters"
    software: str  # class of the software; empty for none
    family: tuple[str, str, str]  # accelerator, precision, release


@cache
def residuals(path: Path = RESIDUALS_FILE) -> Mapping[str, Any]:
    """The residuals that the package carries."""
    return dict(json.loads(path.read_text()))


def interval(job: Job, table: Mapping[str, Any] | None = None) -> Interval:
    """The interval of a job's step time.

    measured: the accelerator, number format and release were run together, at about this size; errors of single runs left out.
    near: the chip's generation and the kind of software were run, but not this; errors of whole families left out.
    far: a chip or software of a kind that no constant was fitted for; errors on those that were measured all the same. Also whatever is
    beyond the sizes of all runs.
    """
    runs: Sequence[Entry] = (table or residuals())["runs"]
    return _widened(_compared(job, runs), job.model, job.cluster, runs)


def _compared(job: Job, runs: Sequence[Entry]) -> Interval:
    """The interval of the closest pool of runs, whatever the size of the job."""
    model, cluster, workload, stack = job.model, job.cluster, job.workload, job.software
    asked = Likeness(
        kind=kind_of(model, workload),
        software=class_of(stack.release),
        family=(cluster.accelerator.name, workload.precision, named_release(stack.release)),
    )
    fitted = [run for run in runs if run["fitted"]]
    chip = cluster.accelerator
    if not is_fitted(chip) and chip.architecture not in stack.chips and not stack.profile:
        return _far(fitted, f"no constant was fitted for {chip.name} or chips of its generation")
    if not asked.software:
        return _far(fitted, f"no factor was fitted for {stack.release} or software of its kind")
    beyond = _beyond(asked, fitted, model.num_parameters, cluster)
    if not stack.known:  # its own note says what it was taken as
        return _near(asked, fitted, beyond or f"nothing was measured with {stack.name}")
    return _near(asked, fitted, beyond) if beyond else _measured(asked, fitted)


def kind_of(model: Model, workload: Workload) -> str:
    """What sort of job it is, as far as its errors go: adapters, mixtures of experts, large or small dense models."""
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
        f"{asked.kind} models": lambda run: run["kind"] == asked.kind,
        "all fitted runs": lambda run: True,
    }
    return _closest(fitted, pools, "family_out", "whole families left out", "near", note)


def _far(fitted: Sequence[Entry], note: str) -> Interval:
    """As far off as runs of other software and on other chips were when nothing of theirs was known."""
    strange = [run for run in fitted if class_of(run["family"][2]) not in (MLPERF, NEMO) or run["architecture"] not in GENERATIONS]
    pools = {"runs with other software or on other chips": lambda run: True}
    return _closest(strange, pools, "family_out", "whole families left out", "far", note)


def _closest(
    runs: Sequence[Entry], pools: Mapping[str, Callable[[Entry], bool]], column: str, how: str, distance: str, note: str = ""
) -> Interval:
    """The interval of the first pool that has enough runs; of the last one where none has."""
    named = [(name, [float(run[column]) for run in runs if belongs(run)]) for name, belongs in pools.items()]
    name, errors = next((pool for pool in named if len(pool[1]) >= FEWEST), named[-1])
    low, high = bounds(errors)
    return Interval(
        low=low, high=high, kin=f"{name}, {how}", num_runs=len(errors), distance=distance, note=note, middle=middle(errors, low)
    )


def bounds(errors: Sequence[float]) -> tuple[float, float]:
    """Factors on a prediction from ln(predicted/measured) of its like: a tenth of the truths lie below, a tenth above.

    The k-th of n errors in order stands for the share k/(n+1) (Weibull), so that the next run falls inside in 80 of 100 cases however
    few there are. The prediction itself always lies inside.
    """
    tail = (1 - COVERAGE) / 2
    least, most = np.quantile(errors, [tail, 1 - tail], method="weibull")
    return float(np.exp(-max(most, 0.0))), float(np.exp(-min(least, 0.0)))


def middle(errors: Sequence[float], low: float) -> float:
    """The factor that half of the runs took, where a prediction is the low end of its own interval: there it is a best case.

    Where runs fell on both sides of their predictions, the prediction is the best guess, and the factor 1.
    """
    return max(float(np.exp(-np.median(errors))), 1.0) if low >= ONE_SIDED else 1.0


def _alike(asked: Likeness) -> Callable[[Entry], bool]:
    return lambda run: run["kind"] == asked.kind and class_of(run["family"][2]) == asked.software


def _family(run: Entry) -> tuple[str, ...]:
    accelerator, precision, release = run["family"]
    return accelerator, precision, named_release(release)


def named_release(release: str) -> str:
    """The release, or the class where its releases have no factors of their own."""
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
    """In what a question lies outside the runs of its family, in words; empty where it does not."""
    alike = _alike(asked)
    own = [run for run in fitted if alike(run) and _family(run) == asked.family]
    if not own:
        return f"no {_named(asked)} measured with {' '.join(asked.family)}"
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
    """The interval of a question beyond the sizes of what was fitted: wider with each doubling, and never inside the evidence.

    Where the question is far from the evidence to begin with, its pool holds runs that nothing was fitted for, and their sizes count.
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


def _doublings(value: float, known: Sequence[float]) -> float:
    """How often what is known must be doubled, or halved, to come within `FAR_FACTOR` of a value."""
    if not known:
        return 0.0
    beyond = max(value / max(known), min(known) / value)
    return max(math.log2(beyond / FAR_FACTOR), 0.0)


def growth(runs: Sequence[Entry]) -> float:
    """How much errors grow with each doubling beyond the fitted sizes, in ln.

    The slope of a line through the errors of dense models that nothing was fitted for: there are many smaller than all that were, of one
    stack on one chip. Of more accelerators than were ever measured nothing is known; they are taken to be like models of other sizes.
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
