"""One run -> a software profile: how much slower or faster its software computes than the closest release.

A run gives one number that a data sheet does not have: its step time. It determines one factor, on everything that computes; networks,
memory and the schedule are priced as before. A step never gets shorter when compute takes longer, so the factor at which the predicted step
equals the measured one is found by bisection.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_workload
from meshwright.errors import InputError, argument
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.files import write_whole
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.exact import step_excess_s
from meshwright.predict.prediction import parts
from meshwright.predict.software import RELEASES, Software, as_json, fitted_values, is_release, software
from meshwright.predict.uncertainty import residuals
from meshwright.record.log_steps import step_times
from meshwright.record.mllog import Log, read_log
from meshwright.record.step_times import StepTimes, read_step_times

FASTEST, SLOWEST = math.log(1 / 4), math.log(32)  # compute relative to the reference release; outside, the description is wrong
HALVINGS = 60
UNUSUAL_PCT = 40.0  # above this change of compute time, a wrong layout is more likely than different software

_NODES = re.compile(r"^\s*(\d{1,6})\s*x", re.IGNORECASE)  # the platform as submissions write it: 64xNVIDIA HGX H100


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the files of one run say. Zero or an empty text: they do not say it."""

    files: tuple[str, ...]
    steps: StepTimes
    medians_s: tuple[float, ...]  # of each file
    benchmark: str = ""
    global_batch: int = 0
    num_micro_batches: int = 0
    seq_len: int = 0
    num_nodes: int = 0

    @property
    def step_s(self) -> float:
        """Median seconds of a steady step, over all files."""
        return self.steps.median_s

    @property
    def run_spread_pct(self) -> float:
        """Slowest relative to fastest file, by their medians, in per cent; 0 for a single file."""
        return 100 * (max(self.medians_s) / min(self.medians_s) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """What was run: a job with unknown software, and its layout."""

    job: Job
    layout: Layout

    def step_s(self, stack: Software) -> float:
        """Predicted seconds of a step under a software, by the exact schedule."""
        detail = parts(replace(self.job, software=stack), Layouts.of([self.layout]))
        return float(detail.step_s[0]) + step_excess_s(detail, self.layout)

    def log_factor(self, stack: Software) -> float:
        """ln of the job's compute time relative to the reference, with a software."""
        return replace(self.job, software=stack).log_factor

    def with_log_factor(self, stack: Software, log_factor: float) -> Software:
        """The software with another factor for jobs of this kind; adapters have factors by generation."""
        if self.job.workload.adapters is None:
            return replace(stack, log_factor=log_factor)
        return replace(stack, finetuning={**stack.finetuning, self.job.generation: log_factor})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A software profile and the run that it was made from."""

    observed: Observed
    run: LoggedRun
    release: Software  # where it started
    release_step_s: float
    profile: Software
    profile_step_s: float

    @property
    def change_pct(self) -> float:
        """Compute time relative to the release, in per cent: negative is faster."""
        return 100 * (math.exp(self.run.log_factor(self.profile) - self.run.log_factor(self.release)) - 1)

    @property
    def verdict(self) -> str:
        """The change in words."""
        direction = "slower" if self.change_pct > 0 else "faster"
        return f"computes {abs(self.change_pct):.1f} % {direction} than release {self.release.release}"

    @property
    def is_unusual(self) -> bool:
        """Whether the change is so large that a wrong description is more likely."""
        return abs(self.change_pct) > UNUSUAL_PCT

    def as_json(self) -> dict[str, Any]:
        """The profile with the run that it was made from, as `--out` writes it."""
        return {**as_json(self.profile), "calibrated_on": self._run()}

    def _run(self) -> dict[str, Any]:
        observed, job, layout = self.observed, self.run.job, self.run.layout
        return {
            "files": list(observed.files),
            "benchmark": observed.benchmark,
            "model": job.model.name,
            "cluster": job.cluster.name,
            "accelerator": job.cluster.accelerator.name,
            "num_accelerators": job.cluster.num_accelerators,
            "workload": job.workload.name,
            "precision": job.workload.precision,
            "seq_len": job.workload.seq_len,
            "global_batch": job.workload.global_batch,
            "num_micro_batches": layout.num_micro_batches(job.workload.global_batch),
            "layout": {**asdict(layout), "order": "-".join(layout.order)},
            "step_s": observed.step_s,
            "num_steps": len(observed.steps.steady_s),
            "step_spread_pct": observed.steps.robust_std_pct,
            "run_spread_pct": observed.run_spread_pct,
            "read_from": observed.steps.method,
            "release_step_s": self.release_step_s,
            "profile_step_s": self.profile_step_s,
            "change_pct": self.change_pct,
        }

    def write(self, path: Path) -> None:
        """Write the profile where `--software` can read it."""
        write_whole(path, json.dumps(self.as_json(), indent=1) + "\n")


def observe(files: Sequence[str | Path]) -> Observed:
    """The run in MLPerf logs, or step-time CSVs (`*.csv`), of one job."""
    paths = [str(file) for file in files]
    tables = [path for path in paths if path.lower().endswith(".csv")]
    if not tables:
        return _observed_in_logs([read_log(path) for path in paths])
    if len(tables) < len(paths):
        other = next(path for path in paths if path not in tables)
        raise InputError(f"a CSV ({tables[0]}) together with a log ({other})", where="LOG...", fix="give logs, or step-time CSVs, not both")
    return _observed(paths, [read_step_times(path) for path in paths])


def _observed(files: Sequence[str], steps: Sequence[StepTimes], **job: Any) -> Observed:
    return Observed(files=tuple(files), steps=StepTimes.joined(steps), medians_s=tuple(part.median_s for part in steps), **job)


def _observed_in_logs(logs: Sequence[Log]) -> Observed:
    for log in logs:
        log.required("run_stop")
    job = {
        "benchmark": _agreed(logs, "benchmark", lambda log: log.benchmark),
        "global_batch": _agreed(logs, "global batch", lambda log: log.global_batch_size),
        "num_micro_batches": _agreed(logs, "micro-batches of a step", _num_micro_batches),
        "seq_len": _agreed(logs, "sequence length", lambda log: log.seq_len or 0),
        "num_nodes": _agreed(logs, "nodes", _num_nodes),
    }
    return _observed([log.path for log in logs], [step_times(log) for log in logs], **job)


def _agreed(logs: Sequence[Log], what: str, of: Callable[[Log], Any]) -> Any:
    """What all logs say; an error names the first two that differ."""
    first = of(logs[0])
    for log in logs[1:]:
        if of(log) != first:
            raise InputError(
                f"the logs are of different runs: {what} {first} and {of(log)}",
                where=f"{logs[0].path} and {log.path}",
                fix="give logs of one job only, and calibrate the others separately",
            )
    return first


def _num_micro_batches(log: Log) -> int:
    return log.gradient_accumulation_steps if log.first("gradient_accumulation_steps") else 0


def _num_nodes(log: Log) -> int:
    """Number of nodes from the name of the platform; 0 if the name does not begin with a count."""
    platform = log.first("submission_platform")
    count = _NODES.match(str(platform.value)) if platform else None
    return int(count[1]) if count else 0


def described(
    observed: Observed,
    layout: Layout | str,
    cluster: str,
    *,
    model: str = "",
    workload: str = "",
    num_accelerators: int = 0,
    global_batch: int = 0,
    precision: str = "",
) -> LoggedRun:
    """The job and layout of an observed run: what its files say, or else the caller. If both say it, they must agree."""
    known_model, known_workload = _names(observed, model, workload)
    base = load_workload(known_workload)
    batch = _one_of("global batch", observed.global_batch, global_batch, argument("batch")) or base.global_batch
    trained = replace(base, seq_len=observed.seq_len or base.seq_len, global_batch=batch, precision=precision or base.precision)
    machine = machine_of(observed, cluster, num_accelerators)
    job = Job(known_model or base.model, machine, trained, profile="none")
    run = LoggedRun(job=job, layout=job.layout(layout) if isinstance(layout, str) else layout)
    _check_job(run, observed)
    return run


def machine_of(observed: Observed, cluster: str, num_accelerators: int = 0) -> Cluster:
    """The machine of an observed run, with the size from the caller or the files, or as described."""
    machine = load_cluster(cluster)
    return machine.resized(num_accelerators or observed.num_nodes * machine.accelerators_per_node or machine.num_accelerators)


def _names(observed: Observed, model: str, workload: str) -> tuple[str, str]:
    """Names of the model ("" if the workload determines it) and the workload."""
    if not workload and observed.benchmark not in BENCHMARKS:
        problem = (
            f"benchmark {observed.benchmark!r} is not one of {', '.join(BENCHMARKS)}"
            if observed.benchmark
            else "a CSV does not name the job"
        )
        raise InputError(
            f"which workload was run? {problem}", where=observed.files[0], fix=f"add {argument('workload')} (and {argument('model')})"
        )
    if workload:
        known = model or (BENCHMARKS[observed.benchmark][0] if observed.benchmark in BENCHMARKS else load_workload(workload).model)
        if not known:
            raise InputError(f"workload {workload} is for any model", where=observed.files[0], fix=f"add {argument('model')}")
        return known, workload
    benchmark_model, benchmark_workload = BENCHMARKS[observed.benchmark]
    return model or benchmark_model, benchmark_workload


def _one_of(what: str, logged: int, given: int, option: str) -> int:
    """What the log or the caller says; an error if they contradict each other."""
    if logged and given and logged != given:
        raise InputError(f"{option} says {what} {given}, but the log says {logged}", where=option, fix=f"leave {option} out")
    return logged or given


def _check_job(run: LoggedRun, observed: Observed) -> None:
    """Raise an error if the layout does not divide the job, or does not give the micro-batches in the log."""
    run.job.check(run.layout)
    num_micro_batches = run.layout.num_micro_batches(run.job.workload.global_batch)
    if observed.num_micro_batches and num_micro_batches != observed.num_micro_batches:
        raise InputError(
            f"the layout makes {num_micro_batches} micro-batches of a global batch of {run.job.workload.global_batch} "
            f"(dp={run.layout.dp}, mbs={run.layout.micro_batch}), but the log says {observed.num_micro_batches}",
            where=observed.files[0],
            fix=f"choose dp and mbs whose product is {run.job.workload.global_batch // observed.num_micro_batches}",
        )


def calibrate(observed: Observed, run: LoggedRun, release: str = "", name: str = "") -> Calibration:
    """The profile with which the predicted step equals the observed one, starting from a release, or else from the closest one."""
    if name and is_release(name):
        raise InputError(
            f"a profile cannot be called {name!r}: that is a release",
            where=argument("name"),
            fix="choose a name of its own, such as ours-16x-h100",
        )
    start = _given_release(release) if release else _closest_release(observed, run)
    log_factor = _log_factor(observed, run, start)
    found = run.with_log_factor(start, log_factor)
    profile = replace(found, name=name or _profile_name(observed, run), known=True, note=_note(observed, run))
    return Calibration(
        observed=observed,
        run=run,
        release=start,
        release_step_s=run.step_s(start),
        profile=profile,
        profile_step_s=run.step_s(profile),
    )


def _given_release(name: str) -> Software:
    """The stack to start from by name; an error names the argument it came in."""
    try:
        return software(name)
    except InputError as error:
        raise InputError(error.what, where=argument("release") if error.where == "software" else error.where, fix=error.fix) from None


def _closest_release(observed: Observed, run: LoggedRun) -> Software:
    """The MLPerf release whose predicted step is nearest to the observed one, because a log does not name its own.

    If runs of such jobs on this chip in this precision were measured, only their releases are considered.
    """
    adapted, chip = run.job.workload.adapters is not None, [run.job.cluster.accelerator.name, run.job.workload.precision]
    like = [row for row in residuals()["runs"] if (row["kind"] == "adapters") == adapted and list(row["family"][:2]) == chip]
    measured = {row["family"][2] for row in like} & {*RELEASES}
    stacks = [fitted_values().software(name) for name in RELEASES if name in measured or not measured]
    return min(stacks, key=lambda stack: abs(math.log(run.step_s(stack) / observed.step_s)))


def _log_factor(observed: Observed, run: LoggedRun, start: Software) -> float:
    """ln of the factor on compute at which the predicted step is the observed one."""
    low, high = FASTEST, SLOWEST
    reach_s = [run.step_s(run.with_log_factor(start, factor)) for factor in (low, high)]
    if not reach_s[0] < observed.step_s < reach_s[1]:
        raise _out_of_reach(observed, run, reach_s)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if run.step_s(run.with_log_factor(start, middle)) < observed.step_s:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _out_of_reach(observed: Observed, run: LoggedRun, reach_s: Sequence[float]) -> InputError:
    fast = observed.step_s <= reach_s[0]
    side, factor, bound_s = ("short", FASTEST, reach_s[0]) if fast else ("long", SLOWEST, reach_s[1])
    return InputError(
        f"a step of {observed.step_s:.4g} s is too {side} for this description: with compute {math.exp(factor):g} x as long as "
        f"the reference release's it would take {bound_s:.4g} s",
        where=f"{observed.files[0]} as {run.job.model.name} on {run.job.cluster.num_accelerators} {run.job.cluster.accelerator.name}, "
        f"{run.layout.degrees}",
        fix="check model, batch, precision, layout and cluster against the run",
    )


def _profile_name(observed: Observed, run: LoggedRun) -> str:
    return f"{observed.benchmark or run.job.workload.name}-{run.job.cluster.num_accelerators}x-{run.job.cluster.accelerator.name}"


def _note(observed: Observed, run: LoggedRun) -> str:
    count = f"{len(observed.files)} files" if len(observed.files) > 1 else Path(observed.files[0]).name
    return (
        f"calibrated on {count}: {run.job.model.name} on {run.job.cluster.num_accelerators} {run.job.cluster.accelerator.name} "
        f"({run.layout.degrees}), {observed.step_s:.5g} s per step"
    )
