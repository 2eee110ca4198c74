"""How a job scales: the best plan at several numbers of accelerators, and the scaling efficiency.

In weak scaling the batch grows with the machine; in strong scaling it stays the same. Efficiency is the throughput per accelerator,
divided by that of the smallest machine. Its interval treats the errors of the two predictions as independent, which makes it too wide: an
error at one size mostly occurs at the next size too, in the same direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import InputError, MeshwrightError, argument, nearest
from meshwright.job import Job
from meshwright.plan.candidates import fixed_by
from meshwright.plan.noise import run_noise
from meshwright.plan.sizes import Ask, Progress, chosen, survey
from meshwright.plan.stack_choice import chosen_stack
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Terms
from meshwright.units import per_cent

MODES = ("weak", "strong")


def _quietly(what: str, done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size."""

    num_accelerators: int
    global_batch: int
    best: Forecast
    efficiency: float  # throughput per accelerator, divided by that of the smallest size
    efficiency_low: float  # 80 % interval
    efficiency_high: float

    @property
    def tokens_per_s_each(self) -> float:
        """Tokens per second of one accelerator."""
        return self.best.tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The best plan at each number of accelerators, the smallest first: what `job.sweep(...)` returns."""

    ask: Ask
    mode: str
    points: tuple[Point, ...]
    misses: tuple[tuple[int, MeshwrightError], ...] = ()  # sizes without a plan, and why

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence for each size whose efficiency differs too little from that of the smallest to be measured."""
        first = self.points[0]
        return tuple(sentence for point in self.points[1:] if (sentence := _doubt(first, point)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the plans, each once."""
        return tuple(dict.fromkeys(note for point in self.points for note in point.best.notes))

    def __repr__(self) -> str:
        return f"Sweep({self})"

    def __str__(self) -> str:
        sizes = ", ".join(f"{point.num_accelerators:,} ({per_cent(point.efficiency)})" for point in self.points)
        return f"{self.ask.job.name}, {self.mode} scaling: {sizes}"

    def to_json(self) -> dict[str, Any]:
        """What `meshwright sweep --json` prints."""
        from meshwright.say.sweep import sweep_document

        return sweep_document(self).to_json()

    def _repr_html_(self) -> str:
        from meshwright.say.html import fragment
        from meshwright.say.sweep import sweep_document

        return fragment(sweep_document(self))


def _doubt(first: Point, point: Point) -> str:
    """Why a small difference cannot be measured; empty if the difference is large enough."""
    difference = abs(point.efficiency - 1)
    reach = max(point.efficiency_high / point.efficiency, point.efficiency / point.efficiency_low) - 1
    sizes = f"between {first.num_accelerators:,} and {point.num_accelerators:,} accelerators"
    if difference < run_noise():
        return (
            f"The predicted difference {sizes} is {per_cent(difference)}, "
            f"less than the {per_cent(run_noise())} by which runs of one layout differ: "
            f"a pair of runs cannot show it, and an efficiency of {per_cent(point.efficiency)} says no more than that the two are alike."
        )
    if difference < reach:
        return (
            f"The predicted difference {sizes} is {per_cent(difference)}, within the {per_cent(reach)} that two predictions may be off: "
            "its size is uncertain, and so may be its direction."
        )
    return ""


def sweep(
    ask: Ask, sizes: Sequence[int], mode: str = "weak", base: int | None = None, progress: Progress = lambda what, done, total: None
) -> Sweep:
    """The best plan at every size. In weak scaling, `base` is the size that has the batch of the workload."""
    if mode not in MODES:
        raise InputError(f"no kind of scaling named {mode!r}", where=argument("mode"), fix=nearest(mode, MODES))
    if not sizes:
        raise InputError("no number of accelerators is given", where=argument("gpus"), fix="give one or more, such as 512 and 1024")
    for name, size in [("gpus", size) for size in sizes] + ([("base", base)] if base is not None else []):
        if size < 1:
            raise InputError(
                f"{argument(name)} has {size}, and a cluster needs at least one accelerator", where=argument(name), fix="give 1 or more"
            )
    ordered, workload = sorted(set(sizes)), ask.job.workload
    base = base or (ask.job.num_accelerators if ask.job.num_accelerators in ordered else ordered[0])
    found: list[tuple[int, int, Forecast]] = []
    misses: list[tuple[int, MeshwrightError]] = []
    for size in ordered:
        try:
            batch = _batch(workload.global_batch, size, base, ordered) if mode == "weak" else workload.global_batch
            job = replace(ask.job, workload=replace(workload, global_batch=batch))
            found.append((size, batch, _best(replace(ask, job=job, keep=1), size, progress)))
        except MeshwrightError as error:
            misses.append((size, error))
    if not found:
        raise misses[0][1]
    return Sweep(ask=ask, mode=mode, points=tuple(_point(found[0], one) for one in found), misses=tuple(misses))


def sweep_job(
    job: Job,
    sizes: Sequence[int],
    *,
    mode: str,
    base: int | None,
    layout: str,
    stack: str,
    terms: Terms | None = None,
    progress: Progress = _quietly,
) -> Sweep:
    """The best plan of a job at every size, with some choices fixed and for a stack."""
    fixed = fixed_by(layout)
    job, chosen_for = chosen_stack(job, stack, fixed)
    return sweep(Ask(job=job, stack=chosen_for, fixed=fixed, terms=terms or Terms(), keep=1), sizes, mode, base, progress)


def _batch(batch: int, size: int, base: int, sizes: Sequence[int]) -> int:
    """Sequences per step when the batch grows with the machine."""
    if batch * size % base:
        step = base // math.gcd(batch, base)
        raise InputError(
            f"a batch of {batch} on {base:,} accelerators grows to {batch * size / base:.2f} on {size:,}, which is not a whole number",
            where=argument("gpus", sizes),
            fix=f"choose multiples of {step}, or another {argument('base')}",
        )
    return batch * size // base


def _best(ask: Ask, size: int, progress: Progress) -> Forecast:
    return chosen(ask, survey(ask, [ask.job.cluster.resized(size)], front=False, progress=progress)).best


def _point(first: tuple[int, int, Forecast], one: tuple[int, int, Forecast]) -> Point:
    (size, batch, best), (base_size, _, base) = one, first
    efficiency = best.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu
    slower, faster = _logs(best)
    base_slower, base_faster = _logs(base)
    alone = size == base_size
    down, up = (0.0, 0.0) if alone else (math.hypot(slower, base_faster), math.hypot(faster, base_slower))
    return Point(
        num_accelerators=size,
        global_batch=batch,
        best=best,
        efficiency=efficiency,
        efficiency_low=efficiency * math.exp(-down),
        efficiency_high=efficiency * math.exp(up),
    )


def _logs(plan: Forecast) -> tuple[float, float]:
    """How much slower and faster a step may be than predicted, as logarithms."""
    return math.log(plan.interval.high_s / plan.step_s), math.log(plan.step_s / plan.interval.low_s)
