"""Collects everything that a report shows about one run from its folder: time, steps, parts, loss, memory, ranks, events, money."""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.load import THIS_MACHINE
from meshwright.errors import InputError
from meshwright.ledger import Ledger, evaluation_s, ledger_of_run, own_plan
from meshwright.ledger.timeline import BESIDE, CHANGE, spans_of
from meshwright.plan.plan import Plan
from meshwright.record.entries import ENDS, Event
from meshwright.record.header import RUNNING
from meshwright.record.run import Run, list_runs, read_run
from meshwright.record.summary import Summary, summary_of
from meshwright.report.noise import Noise, noise_of
from meshwright.units import seconds

KINDS = {"trained": "measured", "simulated": "simulated"}  # what a run's own times are called, by its kind
STEPS = ("samples", "steps")  # costs that consist of the time of steps
STOPS = ("restart", "fault", "stall", "a step that failed")  # spans of the ledger's timeline in which something was broken
MEMORY_FIELDS = ("peak_memory_bytes", "memory_bytes")  # the first one that a step has is used
MAX_DAMAGE = 5  # damaged lines that are named
SLOWEST_REPLICA = "slowest_replica"
NOTHING = 1e-6  # share of the whole: less is rounding of the clock, not a cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One part of the time that a run took."""

    key: str
    name: str
    seconds: float
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """The time of a run = samples x seconds per sample + fixed times; they add up to the total, which the ledger pays for."""

    total_s: float
    samples: int
    seconds_per_sample: float  # of a median steady step
    costs: tuple[Cost, ...]

    @property
    def fixed_s(self) -> float:
        """All time besides the samples."""
        return self.total_s - self.samples * self.seconds_per_sample

    @property
    def by_what(self) -> dict[str, float]:
        """The total by activity, with all time of steps together."""
        rest = {cost.name: cost.seconds for cost in self.costs if cost.key not in STEPS}
        return {"steps": sum(cost.seconds for cost in self.costs if cost.key in STEPS), **rest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation."""

    step: int
    samples: int
    loss: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeJob:
    """The time of a whole workload, extrapolated from the part that was simulated: every step is as long as the mean steady step."""

    num_steps: int
    num_evaluations: int
    mean_step_s: float
    seconds: float
    usd: float | None
    energy_j: float | None

    @property
    def words(self) -> str:
        """How the extrapolation is computed."""
        evaluations = f", {self.num_evaluations:,} evaluations" if self.num_evaluations else ""
        return f"by extrapolation: {self.num_steps:,} steps of {seconds(self.mean_step_s)} on average{evaluations}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """How often one replica was the slowest of a simulated step."""

    number: int
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How much communication ran behind compute in the steps that were profiled, as means over the traced ranks."""

    first_step: int
    last_step: int
    num_traced_ranks: int
    communication_s: float
    hidden_s: float

    @property
    def overlap_pct(self) -> float | None:
        """Share of the communication that compute hides, in per cent; None without communication."""
        return 100 * self.hidden_s / self.communication_s if self.communication_s else None


@dataclass(frozen=True, eq=False)
class RunFacts:
    """A run with everything that is derived from it."""

    run: Run
    label: str  # its name, or its folder if two runs have the same name
    plan: Plan | None
    summary: Summary
    noise: Noise | None
    time: TimeSplit
    ledger: Ledger
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The name of the run's own times: measured or simulated."""
        return KINDS[self.run.header.kind]

    @property
    def num_ranks(self) -> int:
        """Accelerators or processes."""
        return self.run.header.num_ranks

    @property
    def ranks_words(self) -> str:
        """The number of ranks in words; empty if the name of the machine already says it."""
        words = f"{self.num_ranks:,} ranks"
        return "" if self.run.header.machine.startswith(f"{words} ") else words

    @property
    def model(self) -> str:
        """The model's name; empty without a plan."""
        return self.plan.model.name if self.plan else ""

    @cached_property
    def batch(self) -> int:
        """Samples of a step."""
        return samples_per_step(self.run, self.plan)

    @property
    def steady_s(self) -> NDArray[np.float64]:
        """Step times of the steady steps; of all steps if none is steady."""
        return steady_s(self.run)

    @property
    def num_steps(self) -> int:
        """Steps that the run took."""
        return _num_steps(self.run)

    @property
    def workload_steps(self) -> int:
        """Steps of the plan's whole workload; 0 if it has no end, or if there is no plan."""
        return self.plan.workload.num_steps() if self.plan else 0

    @cached_property
    def whole_job(self) -> WholeJob | None:
        """The time of the whole workload, if a part of its steps was simulated; None for any other run."""
        is_steps = self.kind == "simulated" and not is_sampled(self.run)
        if self.plan is None or not is_steps or not self.workload_steps or self.num_steps == self.workload_steps:
            return None
        took = [one.seconds for one in self.evaluations if one.seconds is not None]
        each_s = float(np.mean(took)) if took else evaluation_s(self.plan)
        whole_s = self.plan.workload.duration_s(self.summary.mean_step_s, each_s)
        usd, energy_j, scale = self.ledger.usd_unrounded, self.ledger.energy_j, whole_s / self.time.total_s
        return WholeJob(
            num_steps=self.workload_steps,
            num_evaluations=self.plan.workload.num_evaluations(self.workload_steps),
            mean_step_s=self.summary.mean_step_s,
            seconds=whole_s,
            usd=None if usd is None else float(usd) * scale,
            energy_j=None if energy_j is None else energy_j * scale,
        )

    @property
    def time_name(self) -> str:
        """The name of the run's time: only that of a whole workload is called time to train."""
        if self.reached_target:
            return "time to target"
        if self.kind == "measured" or is_sampled(self.run):
            return "time of the run"
        if self.num_steps == self.workload_steps and self.run.header.status == "finished":
            return "time to train"
        return f"time of {self.num_steps:,} simulated step{'' if self.num_steps == 1 else 's'}"

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The run's evaluations in order."""
        events = (event for event in self.run.events if event.kind == "evaluation")
        return tuple(
            Evaluation(
                step=event.step,
                samples=int(event_number(event, "samples") or event.step * self.batch),
                loss=event_number(event, "loss"),
                seconds=event_number(event, "seconds"),
            )
            for event in events
        )

    @property
    def measured_memory_bytes(self) -> float | None:
        """The largest memory that a step recorded; None if none did."""
        for name in MEMORY_FIELDS:
            column = self.run.columns.get(name)
            if column is not None and not np.isnan(column).all():
                return float(np.nanmax(column))
        return None

    @property
    def reached_target(self) -> bool:
        """Whether an evaluation was at the target or below."""
        target = self.run.header.target
        return target is not None and any(e.loss is not None and e.loss <= target for e in self.evaluations)

    @cached_property
    def slowest_replicas(self) -> tuple[Replica, ...]:
        """Replicas by how often they were the slowest; empty if no step records it."""
        column = self.run.columns.get(SLOWEST_REPLICA)
        if column is None:
            return ()
        counts = Counter(int(value) for value in column[~np.isnan(column)].tolist())
        return tuple(
            Replica(number=number, num_steps=count) for number, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        )

    @property
    def overlap(self) -> Overlap | None:
        """What the last profile of the run found; None if none was made."""
        for event in reversed(self.run.events):
            names = ("first_step", "num_traced_ranks", "communication_s", "hidden_s")
            values = [event_number(event, name) for name in names] if event.kind == "profile" else [None]
            if None not in values:
                first, ranks, communication_s, hidden_s = (float(value or 0.0) for value in values)
                return Overlap(
                    first_step=int(first),
                    last_step=event.step,
                    num_traced_ranks=int(ranks),
                    communication_s=communication_s,
                    hidden_s=hidden_s,
                )
        return None

    @property
    def event_counts(self) -> Mapping[str, int]:
        """How often each kind of event occurred, in the order of their first occurrence."""
        return Counter(event.kind for event in self.run.events)


def event_number(event: Event, name: str) -> float | None:
    """A finite number in an event; None if there is none."""
    value = event.detail.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def steady_s(run: Run) -> NDArray[np.float64]:
    """Step times of the steady steps; of all steps if none is steady."""
    mask = run.is_steady
    times: NDArray[np.float64] = run.columns["step_s"]
    return times[mask] if mask.any() else times


def samples_per_step(run: Run, plan: Plan | None) -> int:
    """Samples of a step: as recorded, or as planned if there is only one record."""
    samples, step = run.columns["samples"], run.columns["step"]
    if len(samples) > 1:
        return int(np.median(np.diff(samples) / np.diff(step)))
    return plan.workload.global_batch if plan else int(samples[0] // max(step[0], 1))


FAR = 1.5  # times the upper end of the interval


def is_unpredicted(plan: Plan, kind: str) -> bool:
    """Whether the exposed times of a trained run were not predicted: its processes share cores, and no profile measured them.

    There, an exchange takes as long as the other processes need for their turn on a core; the bandwidth of the loopback does not matter.
    """
    is_here = plan.cluster.accelerator.architecture == "cpu" and plan.cluster.name.startswith(THIS_MACHINE)
    return kind == "measured" and is_here and plan.profile is None and plan.layout.num_ranks > 1


def predicted_parts_s(plan: Plan, kind: str) -> dict[str, float]:
    """Seconds of the parts that the plan predicts for such a run."""
    without = is_unpredicted(plan, kind)
    return {part: value for part, value in plan.parts_s.items() if not (without and part.startswith("exposed_"))}


def unpredicted_note(plan: Plan | None, kind: str) -> str:
    """Why exposed times are not predicted, and what to do; empty if they are."""
    if plan is None or not is_unpredicted(plan, kind):
        return ""
    return (
        f"Exposed times are not predicted: {plan.layout.num_ranks} processes take turns on this machine's cores, and how long they wait "
        "for each other was not measured. Run `meshwright measure`, which takes about a minute, and train again: the plan then uses it."
    )


def busy_note(plan: Plan | None, kind: str, median_step_s: float) -> str:
    """Why steps on shared cores may have taken far longer than predicted; empty if they did not."""
    if plan is None or kind != "measured" or plan.cluster.accelerator.architecture != "cpu" or is_unpredicted(plan, kind):
        return ""
    if not median_step_s > FAR * plan.high_s:
        return ""
    return (
        f"The median step took {median_step_s / plan.step_s:.1f} times as long as predicted, far outside the 80 % interval: other programs "
        "probably used this machine's cores at the same time. Train again on an idle machine, or run `meshwright measure` again."
    )


def facts_of_runs(folders: Sequence[Path]) -> list[RunFacts]:
    """The facts of several runs in their order, each under a label of its own."""
    runs = [_read(folder) for folder in folders]
    resolved = [run.folder.resolve() for run in runs]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise InputError("the same run is given twice", where=str(folders[number]), fix="give each run once")
    names = Counter(run.header.name for run in runs)
    return [facts_of(run, run.header.name if names[run.header.name] == 1 else str(run.folder)) for run in runs]


def facts_of(run: Run, label: str = "") -> RunFacts:
    """The facts of a run that was read; an error if it has no step."""
    if not run.records:
        why = f" ({run.damage[0]})" if run.damage else ""
        what = f"the run has no step yet{why}" if run.header.status == RUNNING else f"the run has no step and is {run.header.status}{why}"
        raise InputError(what, where=str(run.folder), fix="wait for the first step, or leave the run out")
    plan, problem = own_plan(run.folder, run.header)
    summary = summary_of(run)
    if not summary.median_step_s > 0:
        raise InputError("the run's steps take no time", where=str(run.folder / "steps.jsonl"), fix="leave the run out")
    return RunFacts(
        run=run,
        label=label or run.header.name,
        plan=plan,
        summary=summary,
        noise=noise_of(steady_s(run), zlib.crc32(f"{run.header.name} {run.header.seed}".encode())),  # runs draw independently
        time=time_split(run, plan, summary),
        ledger=ledger_of_run(run, plan),
        notes=(
            *_notes(run),
            *filter(None, [unpredicted_note(plan, KINDS[run.header.kind]), busy_note(plan, KINDS[run.header.kind], summary.median_step_s)]),
            *([f"What was predicted is not shown: {problem}."] if problem else []),
        ),
    )


def _read(folder: Path) -> Run:
    if not folder.exists():
        raise InputError("there is no such run", where=str(folder), fix="give a folder that train or simulate wrote, such as runs/NAME")
    if folder.is_dir() and not (folder / "run.json").exists():
        inside = [path.name for path in list_runs(folder)]
        if inside:
            few = " ".join(str(folder / name) for name in inside[:3]) + (" ..." if len(inside) > 3 else "")
            raise InputError(f"this is a folder of {len(inside)} runs, not a run", where=str(folder), fix=f"name them: {few}")
    return read_run(folder)


def _notes(run: Run) -> list[str]:
    notes = [f"Simulated with {', '.join(run.header.conditions)}."] if run.header.conditions else []
    if run.header.status == RUNNING:
        notes.append(f"The run has not ended, or its process was killed: shown up to step {run.records[-1].step:,}{_of_expected(run)}.")
    if run.header.status == "failed":
        notes.append(f"The run failed after step {run.records[-1].step:,}{_of_expected(run)}.")
        notes.extend(words for event in run.events[-1:] if (words := flight_words(event)))
    if run.header.status == "stopped" and run.header.kind == "trained":
        notes.append(f"The run was stopped after step {run.records[-1].step:,}{_of_expected(run)}.")
    if is_sampled(run):
        notes.append(
            f"Of {_last_step(run):,} simulated steps {len(run.records):,} are recorded: step times and parts are those of that sample."
        )
    if run.damage:
        shown = "; ".join(run.damage[:MAX_DAMAGE]) + (f"; and {len(run.damage) - MAX_DAMAGE} more" if len(run.damage) > MAX_DAMAGE else "")
        notes.append(f"Damaged lines are left out: {shown}.")
    lost = [record.step for record in run.records if record.loss is not None and not math.isfinite(record.loss)]
    if lost:
        notes.append(f"The loss is NaN or infinite in {len(lost):,} of the steps, first in step {lost[0]:,}.")
    missing = int(run.records[-1].step - run.records[0].step + 1 - len(run.records))
    if missing:
        notes.append(f"{missing:,} steps between the first and the last have no record.")
    return notes


def flight_words(event: Event) -> str:
    """What the ranks' flight recorders say about a failure, as a sentence; empty if the event has none."""
    words = event.detail.get("flight")
    return f"Calls that had not finished: {words}." if isinstance(words, str) and words else ""


def _of_expected(run: Run) -> str:
    """The text after a step that says how many steps were expected; empty if the run has done more, or if that is unknown."""
    expected = run.header.num_steps
    return f" of {expected:,}" if expected and run.records[-1].step <= expected else ""


def time_split(run: Run, plan: Plan | None, summary: Summary) -> TimeSplit:
    """Where the run's time went, by the ledger's timeline."""
    by_what: defaultdict[str, float] = defaultdict(float)
    lost_s = 0.0
    for span in spans_of(run):
        if span.what in BESIDE:  # at the same time as the others, not after them
            continue
        if span.is_lost:
            lost_s += span.end_s - span.start_s
        else:
            by_what[span.what] += span.end_s - span.start_s
    batch = samples_per_step(run, plan)
    num_steps = _num_steps(run)
    per_sample_s = summary.median_step_s / batch if batch else math.nan
    training_s = num_steps * summary.median_step_s
    costs = (
        Cost(key="samples", name="samples", seconds=training_s, remark=f"{num_steps * batch:,} x {_per_sample(per_sample_s)}"),
        Cost(
            key="steps",
            name="steps that differ from the median",
            seconds=by_what["steps"] - training_s,
            remark="jitter, stalls, first steps after a pause",
        ),
        Cost(key="evaluation", name="evaluations", seconds=by_what["evaluation"], remark=_counted(run, "evaluation")),
        Cost(key="checkpoint", name="checkpoints", seconds=by_what["checkpoint"], remark=_counted(run, "checkpoint")),
        Cost(key="start", name="start", seconds=by_what["start"], remark="before the first step, after each start"),
        Cost(key="stopped", name="stopped", seconds=sum(by_what[what] for what in STOPS), remark=_counted(run, "fault")),
        Cost(key="recovery", name="recovery", seconds=by_what["recovery"], remark=_counted(run, "incident")),
        Cost(key="change", name="changes of replicas", seconds=by_what[CHANGE], remark="replicas that joined or left"),
        Cost(key="lost", name="work done again", seconds=lost_s, remark="steps since the last checkpoint"),
        Cost(key="between", name="between steps", seconds=by_what["between steps"], remark="recording and waiting that no step counts"),
    )
    felt_s = NOTHING * sum(abs(cost.seconds) for cost in costs)
    kept = tuple(cost for cost in costs if abs(cost.seconds) > felt_s or cost.key == "samples")
    return TimeSplit(total_s=sum(cost.seconds for cost in kept), samples=num_steps * batch, seconds_per_sample=per_sample_s, costs=kept)


def _num_steps(run: Run) -> int:
    """Steps that were kept: the recorded ones; for simulated weeks, whose records are a sample, the number in the last event."""
    return _last_step(run) if is_sampled(run) else len(run.records)


def is_sampled(run: Run) -> bool:
    """Whether only a sample of the simulated steps is recorded, because some weeks have millions of steps."""
    return run.header.kind == "simulated" and _last_step(run) > run.records[-1].step


def _last_step(run: Run) -> int:
    return next((event.step for event in reversed(run.events) if event.kind in ENDS), 0)


def _per_sample(value_s: float) -> str:
    return f"{seconds(value_s)} per sample"


def _counted(run: Run, kind: str) -> str:
    count = sum(event.kind == kind for event in run.events)
    return f"{count:,} {kind}{'' if count == 1 else 's'}" if count else ""
