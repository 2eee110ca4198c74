"""The forecast for one layout of a job, as plain numbers: step time with its interval and parts, memory by stage, and the whole run.

All commands, pages and notebooks show a `Forecast`. Its step time is that of the exact schedule; the closed form only ranks
layouts in a search. Every share of a step is a share of `step_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from meshwright.arguments import check_type, typed
from meshwright.describe.cluster import beyond_note
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, nearest
from meshwright.frames import data_frame
from meshwright.frozen import FrozenDict
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.exact import exact_prediction
from meshwright.predict.footprint import StageMemory, check_fits, footprint, recipe_for, reserve_for, stage_rows, stages
from meshwright.predict.outcome import Outcome, Spread, Terms, interruptions_note, outcome, samples_note
from meshwright.predict.placement import overlap_note, tiers_of
from meshwright.predict.prediction import Prediction, predict
from meshwright.predict.recompute import fits
from meshwright.predict.step import PARTS, StepParts
from meshwright.predict.uncertainty import Interval
from meshwright.units import gib, seconds, si

if TYPE_CHECKING:
    from pandas import DataFrame


class StepInterval(NamedTuple):
    """The 80 % interval of a step time, in seconds."""

    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for one layout of a job.

    Attributes:
        job: The job.
        layout: The layout.
        step_s: Seconds of a step, by the exact schedule.
        interval: The 80 % interval of the step time, in seconds.
        parts: Seconds of each part of the step; they add up to `step_s`.
        evidence: The measured runs from which the interval comes.
        memory: Bytes by use, one row per pipeline stage.
        tokens_per_s: Tokens per second of all accelerators together.
        mfu: Model FLOPs utilization, from 0 to 1: model FLOP/s divided by the dense peak. Causal attention is counted once.
        hfu: The same with recomputed FLOPs included.
        num_micro_batches: Micro-batches that a replica runs in a step.
        placement: The network tiers that each axis crosses, from the inside out.
        outcome: What the whole run needs: time, money, energy, carbon, water.
        notes: Sentences that a reader should know before trusting the numbers.
    """

    job: Job
    layout: Layout
    step_s: float  # by the exact schedule
    interval: StepInterval  # 80 % of comparable runs lie inside
    parts: Mapping[str, float]  # seconds by `PARTS`; they add up to `step_s`
    evidence: Interval  # the measured runs that the interval comes from
    memory: tuple[StageMemory, ...]  # a row for each pipeline stage
    tokens_per_s: float
    mfu: float  # model FLOP/s over the dense peak of the layers' number format; causal attention counted once
    hfu: float  # the same with what is recomputed
    num_micro_batches: int  # of a replica in a step
    placement: Mapping[str, tuple[str, ...]]  # axis -> the network tiers it crosses, from the inside out
    outcome: Outcome  # the whole run: time, money, energy, carbon, water
    notes: tuple[str, ...]  # what a reader should know before trusting the numbers
    terms: Terms = field(default_factory=Terms)
    prediction: Prediction = field(repr=False, compare=False)  # the same as columns of one row

    def __post_init__(self) -> None:
        for name in ("parts", "placement"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))

    @property
    def detail(self) -> StepParts:
        """The prices from which the step is computed, for explanation, trace and simulation."""
        return self.prediction.detail

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes on the fullest stage at its peak."""
        return max(stage.peak_bytes for stage in self.memory)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second of one accelerator."""
        return self.tokens_per_s / self.job.num_accelerators

    @property
    def time_to_train(self) -> Spread | None:
        """Seconds of the whole run, with interruptions if it takes more than a day; None if the workload states no length."""
        return self.outcome.time_to_train_s

    @property
    def goodput(self) -> float | None:
        """Share of the time in which the run makes progress that is kept, 0 to 1; None for a run of a day or less, and for an ideal one."""
        return self.outcome.goodput

    @property
    def cost(self) -> Spread | None:
        """US dollars of the whole run; None if no price or no length is known."""
        return self.outcome.offer.cost_usd if self.outcome.offer else None

    @property
    def energy(self) -> Spread | None:
        """Joules of the whole run at the wall; None if the power of the accelerator is not stated."""
        return self.outcome.energy_j

    @typed
    def share(self, part: str) -> float:
        """Share of one part in the step time, from 0 to 1."""
        if part not in self.parts:
            raise InputError(f"a step has no part named {part!r}", where="Forecast.share: part", fix=nearest(part, self.parts))
        return self.parts[part] / self.step_s

    def __repr__(self) -> str:
        return f"Forecast({self})"

    def __str__(self) -> str:
        low_s, high_s = self.interval
        return f"{self.job.name}, {self.layout.degrees}: {self.step_s:.4g} s per step, 80 % interval {low_s:.4g} to {high_s:.4g} s"

    def to_json(self) -> dict[str, Any]:
        """The object that `meshwright predict --json` prints."""
        from meshwright.say.forecast import forecast_document

        return forecast_document(self).to_json()

    def _repr_html_(self) -> str:
        from meshwright.say.forecast import forecast_document
        from meshwright.say.html import fragment

        return fragment(forecast_document(self))

    def to_pandas(self) -> DataFrame:
        """The forecast as a DataFrame of one row; `table` has the columns."""
        return table([self])


@typed
def table(forecasts: Iterable[Forecast]) -> DataFrame:
    """Forecasts as a pandas DataFrame, one row each: `table(job.search(keep=20))`.

    The columns are the numbers and names of `to_json()`. The layout is one column of text (`layout`) and one for each of its choices (`tp`,
    `cp`, `pp`, ...); each part of the step has a column in seconds (`compute_s`, `exposed_tp_s`, ...). Lists, such as the memory of each
    stage, are left out. An InputError says how to get pandas where it is not installed.
    """
    rows = list(forecasts)
    for forecast in rows:
        check_type("forecasts", forecast, Forecast, "table")
    return data_frame([_row(forecast.to_json()) for forecast in rows])


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """The values that fit into one cell each."""
    choices = dict(values["layout"])
    columns = {
        "layout": {"layout": choices.pop("text"), **choices},
        "parts_s": {f"{part}_s": part_s for part, part_s in values["parts_s"].items()},
    }
    row: dict[str, Any] = {}
    for name, value in values.items():
        if name in columns:
            row |= columns[name]
        elif name != "schema" and not isinstance(value, dict | list):
            row[name] = value
    return row


@typed
def forecast(job: Job, layout: Layout, *, terms: Terms | None = None, ignore_memory: bool = False, ideal: bool = False) -> Forecast:
    """The forecast for one layout of a job.

    A layout that does not divide the job is refused, and so is one that does not fit into memory, unless `ignore_memory` is set.
    `ideal` leaves out interruptions, restarts, checkpoints and spare nodes, like `Terms(ideal=True)`.
    """
    job.check(layout)
    terms = replace(terms or Terms(), ideal=True) if ideal else terms or Terms()
    prediction = exact_prediction(predict(job, Layouts.of([layout])))
    chip = job.cluster.accelerator
    if not ignore_memory:
        check_fits(prediction.memory, chip, reserve_bytes=reserve_for(chip))
    return forecast_from(prediction, layout, terms)


def forecast_from(prediction: Prediction, layout: Layout, terms: Terms) -> Forecast:
    """The forecast of one layout whose step is predicted."""
    job = prediction.job
    whole = outcome(prediction, terms=terms)
    mfu = float(prediction.mfu[0])
    return Forecast(
        job=job,
        layout=layout,
        step_s=float(prediction.step_s[0]),
        interval=StepInterval(float(prediction.low_s[0]), float(prediction.high_s[0])),
        parts={part: float(prediction.parts[part][0]) for part in PARTS},
        evidence=prediction.interval,
        memory=_memory(prediction, layout),
        tokens_per_s=float(prediction.tokens_per_s[0]),
        mfu=mfu,
        hfu=float(prediction.hfu[0]),
        num_micro_batches=int(prediction.detail.num_micro_batches[0]),
        placement=tiers_of(layout, job.cluster),
        outcome=whole,
        notes=_notes(job, layout, prediction, mfu, interruptions_note(whole, job.cluster, terms)),
        terms=terms,
        prediction=prediction,
    )


def _memory(prediction: Prediction, layout: Layout) -> tuple[StageMemory, ...]:
    """The memory of every stage; on one device with a hardware profile, from what its slices kept in memory."""
    job = prediction.job
    if job.software.profile and layout.num_ranks == 1:
        return stage_rows(prediction.memory)
    recipe = recipe_for(job.workload.precision, job.cluster.accelerator)
    return stages(job.model, job.workload, layout, recipe, is_own=job.software.is_own)


def _notes(job: Job, layout: Layout, prediction: Prediction, mfu: float, left_out: str) -> tuple[str, ...]:
    """All notes about the numbers of this layout; every output shows the same list."""
    notes = (
        job.software.note,
        prediction.interval.note,
        beyond_note(job.described, job.cluster),
        overlap_note(layout, job.cluster),
        _other_model_note(job.model.name, job.workload),
        samples_note(job.workload),
        left_out,
        _mfu_note(mfu, job),
        _recompute_note(job, layout),
        _offload_note(layout, prediction.detail),
        _imbalance_note(job, layout),
    )
    return tuple(note for note in notes if note)


def _recompute_note(job: Job, layout: Layout) -> str:
    """A note that the layout would not fit without recompute; empty if it would."""
    chip, kept = job.cluster.accelerator, replace(layout, recompute="none")
    if layout.recompute == "none" or job.software.profile or fits(job.model, job.cluster, job.workload, kept, is_own=job.software.is_own):
        return ""
    priced = footprint(job.model, job.workload, Layouts.of([kept]), recipe_for(job.workload.precision, chip), is_own=job.software.is_own)
    peak, room = gib(float(priced.peak_bytes[0])), gib(chip.room_bytes - reserve_for(chip))
    return f"recompute={layout.recompute}: without it the layout needs {peak} of the {room} that {chip.name} leaves"


def _offload_note(layout: Layout, step: StepParts) -> str:
    """How long activations move to the host's memory and back; empty where none do."""
    if not layout.has_part("offload"):
        return ""
    moved_s, waited_s = (float(each[0]) for each in step.offload_s)
    return (
        f"offload: activations move to the host's memory and back for {seconds(moved_s)} of a step, assumed to run beside the compute; "
        f"{seconds(waited_s)} that outlast it are in the compute part"
    )


def _imbalance_note(job: Job, layout: Layout) -> str:
    """What is assumed of the tokens that experts get; empty without experts."""
    if job.model.experts is None:
        return ""
    stated = job.workload.expert_imbalance
    if stated == 1:
        return (
            "experts: all ranks are assumed to get equally many tokens; the change workload.expert_imbalance=1.2 gives the busiest rank "
            "1.2 times the mean"
        )
    most = f", of which {layout.ep:g} is all there is with ep={layout.ep}" if stated > layout.ep else ""
    return (
        f"experts: the busiest rank gets {stated:g} times the mean of the tokens, as stated{most}; its products and its share of the "
        "all-to-all take so much longer, and memory is counted for equal shares"
    )


def _other_model_note(model: str, workload: Workload) -> str:
    if not workload.convergence or workload.model in ("", model):
        return ""
    return f"{workload.name} is defined for {workload.model}: its samples to the target are used for {model} too"


def _mfu_note(mfu: float, job: Job) -> str:
    """Why an MFU above 100 % is wrong; empty below."""
    if not mfu > 1:
        return ""
    chip, precision = job.cluster.accelerator, job.workload.precision
    peak = si(chip.peak_flops_per_s(precision), "FLOP/s", 3)
    return (
        f"an MFU of {100 * mfu:.1f} % is impossible: the peak described for {chip.name} ({peak}, {precision}) is too low. "
        "Do not compare this MFU"
    )
