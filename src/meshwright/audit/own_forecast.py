"""meshwright's own forecast of a claimed run, with the layout of the claim, or with the best that the planner finds.

The forecast is shown next to the arithmetic and does not change the verdict, because it rests on assumptions that the claim may not share.
Each assumption is listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count, figure
from meshwright.audit.stated import Stated
from meshwright.audit.submissions import find
from meshwright.audit.work import seq_len_of
from meshwright.describe.cluster import Cluster
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster, load_workload, names
from meshwright.describe.workload import Convergence, Workload
from meshwright.errors import InputError, MeshwrightError
from meshwright.evidence.machine import machine
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.job import Job
from meshwright.predict.forecast import Forecast
from meshwright.predict.software import RELEASES
from meshwright.units import DAY, HOUR, MINUTE, TERA

PLAIN_WORKLOAD = "pretrain-1t"  # sequence length and batch of a run that states neither and is not a benchmark
PER_NODE = 8  # accelerators of a node without a description
UNITS = (("days", DAY), ("h", HOUR), ("min", MINUTE))  # units of a duration: the first of which it is at least three
INSIDE, BETTER, WORSE = "inside", "faster", "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One claimed number and its forecast, in SI units."""

    quantity: str
    unit: str  # that people read it in
    scale: float  # one of that unit
    claimed: Stated
    value: float
    low: float
    high: float
    is_time: bool = True  # less is faster

    @property
    def lies(self) -> str:
        """Whether the claim is inside the interval, or on its faster or slower side."""
        if self.claimed.low <= self.high and self.claimed.high >= self.low:
            return INSIDE
        return BETTER if (self.claimed.value < self.low) == self.is_time else WORSE

    @property
    def beyond(self) -> float:
        """By which factor the claim is faster or slower than the near end of the interval; 1 inside."""
        if self.lies == INSIDE:
            return 1.0
        end = self.low if self.claimed.value < self.low else self.high
        return max(self.claimed.value / end, end / self.claimed.value)

    def shown(self, value: float) -> str:
        """A value of this quantity, formatted for people."""
        return f"{figure(value / self.scale)} {self.unit}".rstrip()

    @property
    def interval(self) -> str:
        """The 80 % interval, formatted for people."""
        if not math.isfinite(self.high):
            return f"{self.shown(self.low)} or more"
        return f"{figure(self.low / self.scale)} to {self.shown(self.high)}"

    @property
    def words(self) -> str:
        """Where the claim is relative to the interval, and by how much."""
        if self.lies == INSIDE:
            return "inside the interval"
        return f"{times(self.beyond)} {self.lies} than the interval's {'fast' if self.lies == BETTER else 'slow'} end"


def times(ratio: float) -> str:
    """A ratio, as a percentage if it is small: 5 %, 1.8 times."""
    return f"{100 * (ratio - 1):.1f} %" if ratio < 1.5 else f"{ratio:.3g} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnForecast:
    """The forecast of a claimed run, or what is missing for one."""

    missing: str = ""
    compared: tuple[Compared, ...] = ()
    forecast: Forecast | None = None
    is_layout_stated: bool = False
    assumed: tuple[str, ...] = ()
    to_ask: tuple[str, ...] = ()  # what the claim should state so that less must be assumed

    @property
    def made_for(self) -> str:
        """What the forecast was made for."""
        assert self.forecast is not None
        job, layout = self.forecast.job, self.forecast.layout.degrees
        machine_words = f"{count(job.num_accelerators)} {job.cluster.accelerator.name}"
        where = machine_words if machine_words == job.cluster.name else f"{machine_words} ({job.cluster.name})"
        origin = "the layout that the claim states" if self.is_layout_stated else "the best layout that the planner found"
        return f"{job.model.name} on {where}, {job.workload.precision}, {job.software.name}; {layout}, {origin}"

    @property
    def sentence(self) -> str:
        """The first comparison in one sentence."""
        one = self.compared[0]
        own = f"the forecast of meshwright is {one.shown(one.value)} (80 % interval {one.interval})"
        return f"{own}; the claim, {one.shown(one.claimed.value)}, is {one.words}"


def own_forecast(claim: Claim) -> OwnForecast:
    """The forecast of a claim's run, with every number that both give."""
    missing = ", ".join(_missing(claim))
    if missing:
        return OwnForecast(missing=f"the claim does not give {missing}")
    assumed: list[str] = []
    to_ask: list[str] = []
    try:
        job = _job(claim, assumed, to_ask)
        found = job.forecast(claim.layout) if claim.layout else job.search(keep=1)[0]
    except MeshwrightError as error:
        is_assumed = not claim.run.global_batch and "batch" in str(error).splitlines()[0]
        return OwnForecast(missing=f"{str(error).splitlines()[0]}{' (the batch is assumed: give global_batch)' * is_assumed}")
    if not claim.layout:
        to_ask.append("the layout: tensor, context, pipeline and data degrees, micro-batch")
    compared = tuple(_compared(claim, found))
    if not claim.layout and any(one.lies == WORSE for one in compared):
        assumed.append("the best layout: a run that is slower than its forecast contradicts nothing")
    if not compared:
        return OwnForecast(missing="the claim does not give how long the run is (samples or tokens), or global_batch for its step")
    return OwnForecast(compared=compared, forecast=found, is_layout_stated=bool(claim.layout), assumed=tuple(assumed), to_ask=tuple(to_ask))


def _missing(claim: Claim) -> Iterator[str]:
    """What a forecast needs and the claim does not state."""
    run = claim.run
    if not (run.benchmark or run.model):
        yield "a benchmark or a model of the catalogue"
    if not (run.accelerator or claim.cluster):
        yield "an accelerator"
    if not (run.gpus or claim.cluster):
        yield "how many"
    rates = (claim.tokens_per_s, claim.tokens_per_s_per_gpu, claim.tflops_per_gpu, claim.mfu_pct)
    if not (run.duration_s or run.step_s or any(rates)):
        yield "a time or a rate"


def _job(claim: Claim, assumed: list[str], to_ask: list[str]) -> Job:
    """The claimed run as a job. What the claim leaves open is added to `assumed`, and to the questions."""
    run = claim.run
    cluster = _cluster(claim, assumed, to_ask)
    workload = _workload(run, cluster.accelerator, run.gpus or cluster.num_accelerators, assumed, to_ask)
    release = run.round if run.round in RELEASES else RELEASES[-1]
    if release != run.round:
        assumed.append(f"software as of MLPerf Training {release}, the newest that was fitted")
    model = BENCHMARKS[run.benchmark][0] if run.benchmark else run.model
    return Job(model, cluster, workload, release, gpus=run.gpus or None)


def _cluster(claim: Claim, assumed: list[str], to_ask: list[str]) -> Cluster:
    run = claim.run
    if claim.cluster:
        cluster = load_cluster(claim.cluster)
        if run.accelerator and cluster.accelerator.name != run.accelerator:
            raise InputError(
                f"cluster {cluster.name} has {cluster.accelerator.name}, and the claim says {run.accelerator}",
                where="cluster",
                fix=f"name a cluster of {run.accelerator}",
            )
        return cluster
    described = [load_cluster(name) for name in names("clusters") if name not in (THIS_MACHINE, EMULATED)]
    alike = [one for one in described if one.accelerator.name == run.accelerator]
    to_ask.append("the cluster's network: what connects nodes and racks, and at which rate")
    if alike:
        chosen = max(alike, key=lambda one: (_is_of(one, run), min(one.num_accelerators, run.gpus), -one.num_accelerators))
        assumed.append(f"network as in {chosen.name}, which the catalogue has with {run.accelerator}")
        return chosen
    try:
        built = machine(f"{count(run.gpus)} {run.accelerator}", run.accelerator, run.gpus, min(PER_NODE, run.gpus))
    except InputError:
        known = ", ".join(sorted({one.accelerator.name for one in described}))
        raise InputError(
            f"the catalogue has no cluster with {run.accelerator} (it has {known})",
            where="cluster",
            fix="describe the cluster in a TOML file and give its path as cluster",
        ) from None
    assumed += [f"nodes of {min(PER_NODE, run.gpus)}", *built.assumptions]
    return built.cluster


def _is_of(cluster: Cluster, run: Run) -> bool:
    return bool(run.submitter) and run.submitter.lower() in cluster.name


def _workload(run: Run, chip: Accelerator, gpus: int, assumed: list[str], to_ask: list[str]) -> Workload:
    named = BENCHMARKS[run.benchmark][1] if run.benchmark else ""
    base = load_workload(named if named in names("workloads") else PLAIN_WORKLOAD)
    if base.name == PLAIN_WORKLOAD:
        base = replace(base, num_tokens=0.0)
    batch = run.global_batch or _batch(run, gpus, base, assumed)
    if not run.global_batch:
        to_ask.append("the global batch: sequences per step")
    seq_len = seq_len_of(run) or base.seq_len
    if not seq_len_of(run):
        assumed.append(f"sequences of {count(seq_len)} tokens, as in {base.name}")
        to_ask.append("the length of a sequence")
    changed = replace(base, global_batch=batch, seq_len=seq_len, precision=_precision(run, chip, base, assumed, to_ask))
    if run.samples:
        return replace(changed, convergence=Convergence(samples_by_batch={batch: run.samples}))
    if run.tokens:
        return replace(changed, num_tokens=run.tokens, convergence=None)
    if run.duration_s and changed.convergence:
        assumed.append("samples to the target as submissions needed at that batch")
    return changed


def _batch(run: Run, gpus: int, base: Workload, assumed: list[str]) -> int:
    """The batch of a submission on that machine, or else the workload's own."""
    rows = find(benchmark=run.benchmark, accelerator=run.accelerator, gpus=gpus) if run.benchmark else []
    batch, like = (rows[0].global_batch, rows[0].name) if rows else (base.global_batch, base.name)
    assumed.append(f"{count(batch)} sequences per step, as in {like}")
    return batch


def _precision(run: Run, chip: Accelerator, base: Workload, assumed: list[str], to_ask: list[str]) -> str:
    if run.precision:
        return run.precision
    to_ask.append("the precision of its matrix multiplications")
    try:
        chip.peak_flops_per_s(base.precision)
        chosen = base.precision
    except InputError:
        chosen = "fp8" if "fp8" in chip.dense_flops_per_s and base.precision != "bf16" else "bf16"
    assumed.append(f"precision {chosen}")
    return chosen


def _compared(claim: Claim, found: Forecast) -> Iterator[Compared]:
    run, (low_s, high_s) = claim.run, found.interval
    whole = found.time_to_train
    if run.duration_s and whole:
        unit, scale = next((unit for unit in UNITS if run.duration_s.value >= 3 * unit[1]), ("s", 1.0))
        yield _time("time to train", unit, scale, run.duration_s, whole.value, whole.low, whole.high)
    has_batch = bool(run.global_batch) or bool(run.benchmark and find(benchmark=run.benchmark, accelerator=run.accelerator, gpus=run.gpus))
    if run.step_s and has_batch:
        yield _time("time of a step", "s", 1.0, run.step_s, found.step_s, low_s, high_s)
    chip, workload = found.job.cluster.accelerator, found.job.workload
    flops = found.mfu * chip.peak_flops_per_s(workload.precision)
    rates = (
        ("tokens per second", "", 1.0, claim.tokens_per_s, found.tokens_per_s),
        ("tokens per second and GPU", "", 1.0, claim.tokens_per_s_per_gpu, found.tokens_per_s_per_gpu),
        ("TFLOP/s of a GPU", "TFLOP/s", TERA, claim.tflops_per_gpu * TERA, flops),
        ("MFU", "%", 0.01, claim.mfu_pct.value / 100 if claim.mfu_pct else 0.0, found.mfu),
    )
    for quantity, unit, scale, claimed, value in rates:
        if claimed:
            low, high = value * found.step_s / high_s, value * found.step_s / low_s
            exact = Stated(claimed, claimed, claimed)
            yield Compared(quantity=quantity, unit=unit, scale=scale, claimed=exact, value=value, low=low, high=high, is_time=False)


def _time(quantity: str, unit: str, scale: float, claimed: Stated, value: float, low: float, high: float) -> Compared:
    return Compared(quantity=quantity, unit=unit, scale=scale, claimed=claimed, value=value, low=low, high=high)
