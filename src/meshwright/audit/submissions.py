"""The submissions in our table: found by what a claim states, with the best, fastest and largest of them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from meshwright import evidence
from meshwright.audit.rules import round_named, round_order
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import accelerator, load_model, load_workload, names
from meshwright.describe.recipe import recipe
from meshwright.errors import InputError
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.evidence.table import Row, read_table

MEASURED_CSV = Path(evidence.__file__).with_name("measured_runs.csv")
NVIDIA = "NVIDIA"

_FORMATS = re.compile(r"\b(?:bf16|fp16|fp8|fp4)\b")  # in what a row says of its precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One row of the table of measured runs; NaN and 0 if a value is not stated."""

    round: str
    submitter: str
    system: str
    benchmark: str
    vendor: str  # of the accelerator
    accelerator: str  # catalogue name, or the row's own name if the catalogue has no such chip
    gpus: int
    seq_len: int
    global_batch: int
    step_s: float
    minutes: float
    samples: float
    run_spread_pct: float  # between its logs' median steps
    robust_std_pct: float  # of the steps of a run, stalls left out
    std_pct: float
    source: str
    precision: str = ""  # as the row says it: "fp8 (delayed)"

    @property
    def name(self) -> str:
        """Its name in the arithmetic."""
        return f"{self.round} {self.submitter}, {self.gpus:,} {self.accelerator}, {self.benchmark}"

    def is_by(self, submitter: str) -> bool:
        """Whether this is the name of the submitter."""
        return self.submitter.lower() == submitter.lower().strip()

    @property
    def gpu_minutes(self) -> float:
        """Minutes to the target times accelerators; NaN if the row has no time."""
        return self.gpus * self.minutes

    @property
    def chip(self) -> Accelerator | None:
        """The catalogue entry of its accelerator, if there is one."""
        return accelerator(self.accelerator) if self.accelerator in names("accelerators") else None

    @property
    def step_flops_per_s(self) -> float:
        """FLOP/s of one accelerator within a step."""
        return flops_per_sample(self.benchmark, self.seq_len) * self.global_batch / (self.gpus * self.step_s)


@cache
def flops_per_sample(benchmark: str, seq_len: int = 0) -> float:
    """FLOPs of training on one sequence of a benchmark; of its own length where 0 is given."""
    from meshwright.predict.prediction import training_flops_per_token  # imported here, because logs are audited without it

    model, workload = BENCHMARKS[benchmark]
    if workload in names("workloads"):
        job = load_workload(workload)
        job = replace(job, seq_len=seq_len or job.seq_len)
        return training_flops_per_token(load_model(model), job) * job.seq_len
    if not seq_len:
        raise InputError(f"the length of {benchmark}'s sequences is not known here", where="seq_len", fix="state seq_len")
    return load_model(model).flops_per_token(seq_len) * seq_len


@cache
def submissions() -> tuple[Submission, ...]:
    """All rows of the table."""
    return tuple(_submission(row) for row in read_table(MEASURED_CSV).rows)


def _submission(row: Row) -> Submission:
    return Submission(
        round=round_named(row.filled("round")),
        submitter=row.filled("submitter"),
        system=row.filled("system"),
        benchmark=row.filled("benchmark"),
        vendor=row.text("vendor"),
        accelerator=_chip_name(row.filled("accelerator")),
        gpus=row.count("num_accelerators"),
        seq_len=row.count("seq_len"),
        global_batch=row.count("global_batch_size"),
        step_s=row.positive("step_time_s"),
        minutes=row.positive_or("time_to_train_min", math.nan),
        samples=row.positive_or("samples_to_target", math.nan),
        run_spread_pct=row.positive_or("run_spread_pct", math.nan),
        robust_std_pct=row.positive_or("jitter_robust_std_pct", math.nan),
        std_pct=row.positive_or("step_time_std_pct", math.nan),
        source=row.text("source"),
        precision=row.text("precision"),
    )


def _chip_name(text: str) -> str:
    try:
        return accelerator(text).name
    except InputError:
        return text


def find(
    *, round: str = "", submitter: str = "", benchmark: str = "", accelerator: str = "", gpus: int = 0, global_batch: int = 0
) -> list[Submission]:
    """The submissions that match everything that is given. A submitter's name may be part of the other, if no name matches exactly."""
    wanted = {"round": round, "benchmark": benchmark, "accelerator": accelerator, "gpus": gpus, "global_batch": global_batch}
    given = {key: value for key, value in wanted.items() if value}
    found = [row for row in submissions() if all(getattr(row, key) == value for key, value in given.items())]
    return [row for row in found if row.is_by(submitter)] or [row for row in found if _is_like(row.submitter, submitter)]


def _is_like(submitter: str, wanted: str) -> bool:
    one, other = submitter.lower().strip(), wanted.lower().strip()
    return one in other or other in one


def unlike(claimed: str, recorded: str) -> str:
    """A remark if a claim in one precision is compared with a run in another; empty if they are the same or one is not known."""
    formats = set(_FORMATS.findall(recorded.lower()))
    if not claimed or not formats or recipe(claimed).number_format in formats:
        return ""
    return f"not like with like: on record is {recorded}, the claim is in {claimed}"


def fastest(rows: Iterable[Submission]) -> Submission | None:
    """The row with the fewest minutes; None if no row has a time."""
    return min((row for row in rows if row.minutes > 0), key=lambda row: row.minutes, default=None)


def up_to(round: str, rows: Iterable[Submission]) -> list[Submission]:
    """The rows of that round and earlier ones; all of them without a round."""
    return [row for row in rows if not round or round_order(row.round) <= round_order(round)]


def before(round: str, rows: Iterable[Submission]) -> list[Submission]:
    """The rows of earlier rounds."""
    return [row for row in rows if round_order(row.round) < round_order(round)]


@dataclass(frozen=True, slots=True)
class Best:
    """The highest rate of an accelerator, who reached it, and in which precision."""

    flops_per_s: float
    where: str
    precision: str


@cache
def best_rate(chip: str) -> Best | None:
    """The highest FLOP/s within a step that any run on this accelerator reached; None if none was measured."""
    from meshwright.evidence.refit import PUBLISHED_CSV
    from meshwright.evidence.runs import read_runs
    from meshwright.predict.prediction import training_flops_per_token

    rates = [
        Best(row.step_flops_per_s, row.name, row.precision) for row in submissions() if row.accelerator == chip and _can_be_counted(row)
    ]
    for run in read_runs(PUBLISHED_CSV).rows:
        if run.accelerator == chip:
            flops = training_flops_per_token(run.model, run.workload) * run.workload.tokens_per_step
            rate, whose = flops / (run.measured_s * run.num_accelerators), f"{run.submitter}, {run.num_accelerators:,} {chip}"
            rates.append(Best(rate, whose, run.workload.precision))
    return max(rates, key=lambda best: best.flops_per_s, default=None)


def _can_be_counted(row: Submission) -> bool:
    return row.benchmark in BENCHMARKS


@cache
def most_share_of_peak() -> tuple[float, str]:
    """The highest share of the peak of its fastest format that any submission reached within a step, and which submission."""
    shares = []
    for row in submissions():
        chip = row.chip
        if chip and _can_be_counted(row):
            shares.append((row.step_flops_per_s / max(chip.dense_flops_per_s.values()), row.name))
    return max(shares)


@cache
def most_gain(vendor: str = NVIDIA) -> tuple[float, str]:
    """The largest factor that software alone gained for one submitter on one machine between two rounds, and where.

    For the accelerators of this vendor and of NVIDIA, which have by far the most rows.
    """
    by_machine: dict[tuple[str, str, str, int], dict[str, float]] = defaultdict(dict)
    for row in submissions():
        if row.minutes > 0 and row.vendor in (vendor, NVIDIA):
            times = by_machine[row.submitter, row.benchmark, row.accelerator, row.gpus]
            times[row.round] = min(times.get(row.round, math.inf), row.minutes)
    gains = ((max(t.values()) / min(t.values()), key, t) for key, t in by_machine.items() if len(t) > 1)
    gain, (submitter, benchmark, chip, gpus), times = max(gains, key=lambda found: found[0])
    rounds = sorted(times, key=round_order)
    return gain, f"{submitter}, {benchmark} on {gpus:,} {chip}, {rounds[0]} to {rounds[-1]}"


def typical_run_spread() -> float:
    """The median over submissions of the relative difference between the median steps of their logs."""
    return median(row.run_spread_pct for row in submissions() if row.run_spread_pct > 0) / 100


def noise(rows: Sequence[Submission]) -> float:
    """The largest run-to-run spread of these rows, as a share; the table's median if no row states one."""
    spreads = [row.run_spread_pct / 100 for row in rows if row.run_spread_pct > 0]
    return max(spreads, default=typical_run_spread())
