"""A claim as facts: what was trained, on what, in what time, and what is claimed about it. Read from TOML, from flags, or from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from meshwright.audit.rules import benchmark_named, round_named
from meshwright.audit.stated import Stated, stated, stated_time
from meshwright.audit.verdict import severity
from meshwright.describe.form import Checked, checked, located
from meshwright.describe.load import accelerator, load_cluster, load_model, read_toml
from meshwright.describe.recipe import recipe
from meshwright.errors import InputError, close_names, nearest
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.units import DAY, HOUR, MINUTE


def _not_tiny(value: float) -> float:
    """The value; an error below what keeps products and quotients of a few finite."""
    from pydantic_core import PydanticCustomError

    if value < 1e-12:
        raise PydanticCustomError("tiny", "input should be at least 1e-12")
    return value


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


Amount = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False), AfterValidator(_not_tiny)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]  # in per cent
Part = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]  # of a total

SECONDS = {"seconds": 1.0, "minutes": MINUTE, "hours": HOUR, "days": DAY}  # of the keys that give a duration
SAME = (tuple(SECONDS), ("speedup", "faster_pct"))  # keys of which a claim gives one
VARIATIONS = ("within-run", "between-runs", "standard-error")
LEAST_EFFICIENCY_PCT, LEAST_MFU_PCT = 2.0, 1.0  # less was meant as a fraction
ALL_KINDS = "all"  # of largest_of
INHERITED = ("benchmark", "model", "parameters", "seq_len", "precision", "accelerator")  # by a baseline that does not say


class RunTable(Checked):
    """What is claimed about one run."""

    benchmark: str = ""
    model: str = ""
    parameters: Amount | None = None
    seq_len: Count | None = None
    global_batch: Count | None = None
    samples: Amount | None = None
    tokens: Amount | None = None
    steps: Count | None = None
    precision: str = ""
    round: str = ""
    submitter: str = ""
    accelerator: str = ""
    gpus: Count | None = None
    seconds: Amount | None = None
    minutes: Amount | None = None
    hours: Amount | None = None
    days: Amount | None = None
    step_s: Amount | None = None
    log: str = ""


class BaselineTable(RunTable):
    """What a run is compared with."""

    record: bool = False


class ClaimTable(RunTable):
    """A claim file."""

    text: str = ""
    source: str = ""
    note: str = ""
    expected: str = ""
    provider: str = ""
    cost_usd: Amount | None = None
    usd_per_gpu_hour: Amount | None = None
    tokens_per_s: Amount | None = None
    tokens_per_s_per_gpu: Amount | None = None
    tflops_per_gpu: Amount | None = None
    mfu_pct: Share | None = None
    efficiency_pct: Share | None = None
    scaling: Literal["", "weak", "strong"] = ""
    speedup: Amount | None = None
    faster_pct: Share | None = None
    speedup_of: Literal["time", "throughput", "step"] = "time"
    exposed_ms: Share | None = None
    exposed_pct: Share | None = None
    traffic_gb: Amount | None = None
    traffic_gb_per_s: Amount | None = None
    cluster: str = ""
    layout: str = ""
    profile: str = ""
    variation_pct: Annotated[list[Amount], BeforeValidator(_listed)] | None = None
    variation_of: Literal["", "within-run", "between-runs", "standard-error"] = ""
    part: Part | None = None
    total: Amount | None = None
    share_pct: Share | None = None
    largest_of: str = ""
    record: bool = False
    baseline: BaselineTable | None = None


KEYS = tuple(ClaimTable.model_fields)
BASELINE_KEYS = tuple(BaselineTable.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as it is claimed; "", 0 and None where nothing is claimed."""

    benchmark: str = ""
    model: str = ""  # as it was given: a catalogue name or a file
    parameters: float = 0.0
    seq_len: int = 0
    global_batch: int = 0
    samples: float = 0.0
    tokens: float = 0.0
    precision: str = ""
    round: str = ""
    submitter: str = ""
    accelerator: str = ""
    gpus: int = 0
    duration_s: Stated | None = None
    step_s: Stated | None = None
    log: str = ""
    record: bool = False  # the fastest of all, or of all before

    @property
    def lookup(self) -> dict[str, Any]:
        """What `submissions.find` may search by."""
        names = ("round", "submitter", "benchmark", "accelerator", "gpus")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What somebody says."""

    run: Run
    where: str  # the file, or the flags
    folder: Path = field(default_factory=Path)  # that relative paths start from
    baseline: Run | None = None
    text: str = ""
    source: str = ""
    expected: str = ""
    provider: str = ""
    cost_usd: float = 0.0
    usd_per_gpu_hour: Stated | None = None
    tokens_per_s: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    tflops_per_gpu: float = 0.0
    mfu_pct: Stated | None = None
    efficiency_pct: Stated | None = None
    scaling: str = ""  # weak if not given
    speedup: Stated | None = None
    faster_pct: Stated | None = None  # for a claim in percent, which may mean that much less time
    speedup_of: str = "time"
    exposed_ms: Stated | None = None
    exposed_pct: Stated | None = None
    traffic_gb: float = 0.0  # of one accelerator and step
    traffic_gb_per_s: float = 0.0
    cluster: str = ""
    layout: str = ""
    profile: str = ""
    variation_pct: tuple[float, float] | None = None  # lowest and highest
    variation_of: str = ""
    part: float | None = None
    total: float = 0.0
    share_pct: Stated | None = None
    largest_of: str = ""


def read_claim(path: str | Path, changes: Mapping[str, Any] | None = None) -> Claim:
    """The claim in a TOML file, with some keys changed."""
    path = Path(path)
    return claim_of(changed(read_toml(path), changes or {}), str(path), path.parent)


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with some keys changed; one way of saying a thing takes the place of another, and a baseline keeps its other keys."""
    kept = {key: value for key, value in table.items() if not any(key in same and set(same) & set(changes) for same in SAME)}
    result = {**kept, **changes}
    if isinstance(table.get("baseline"), Mapping) and isinstance(changes.get("baseline"), Mapping):  # the only table within
        result["baseline"] = changed(table["baseline"], changes["baseline"])
    return result


def claim_of(table: Mapping[str, Any], where: str, folder: Path | None = None) -> Claim:
    """The claim that a table of keys and values makes; `where` is what errors call it."""
    _check_keys(table, KEYS, where)
    baseline = table.get("baseline", {})
    if not isinstance(baseline, Mapping):
        raise InputError(f"baseline is {baseline!r}, not a table", where=where, fix="write [baseline], and its keys below it")
    _check_keys(baseline, BASELINE_KEYS, f"[baseline] in {where}")
    form = checked(ClaimTable, dict(table), where)
    with located(where):
        return _claim(form, where, folder or Path())


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        near = nearest(unknown[0], known)
        advice = f"{near}\n         known keys: {', '.join(known)}" if close_names(unknown[0], known) else near
        raise InputError(f"unknown key {unknown[0]!r}{more}", where=where, fix=advice)


def _claim(form: ClaimTable, where: str, folder: Path) -> Claim:
    run = _run(form, record=form.record)
    if form.expected:
        severity(form.expected)
    if form.cluster:
        load_cluster(form.cluster)
    return Claim(
        run=run,
        where=where,
        folder=folder,
        baseline=_baseline(form.baseline, run) if form.baseline else None,
        text=form.text,
        source=form.source,
        expected=form.expected,
        provider=form.provider,
        cost_usd=form.cost_usd or 0.0,
        usd_per_gpu_hour=_stated(form.usd_per_gpu_hour),
        tokens_per_s=form.tokens_per_s or 0.0,
        tokens_per_s_per_gpu=form.tokens_per_s_per_gpu or 0.0,
        tflops_per_gpu=form.tflops_per_gpu or 0.0,
        mfu_pct=_in_per_cent("mfu_pct", form.mfu_pct, LEAST_MFU_PCT),
        efficiency_pct=_in_per_cent("efficiency_pct", form.efficiency_pct, LEAST_EFFICIENCY_PCT),
        scaling=form.scaling,
        speedup=_speedup(form),
        faster_pct=_stated(form.faster_pct),
        speedup_of=form.speedup_of,
        exposed_ms=_stated(form.exposed_ms),
        exposed_pct=_stated(form.exposed_pct),
        traffic_gb=form.traffic_gb or 0.0,
        traffic_gb_per_s=form.traffic_gb_per_s or 0.0,
        cluster=form.cluster,
        layout=form.layout,
        profile=form.profile,
        variation_pct=_variation(form.variation_pct),
        variation_of=form.variation_of,
        part=form.part,
        total=form.total or 0.0,
        share_pct=_stated(form.share_pct),
        largest_of=_kind(form.largest_of),
    )


def _run(form: RunTable, *, record: bool) -> Run:
    benchmark = benchmark_named(form.benchmark) if form.benchmark else ""
    model = load_model(form.model).name if form.model else ""  # the text itself may be a path
    if model and not benchmark and form.round:  # a round names a benchmark: the one that trains this model
        benchmark = next((name for name, (trained, _) in BENCHMARKS.items() if trained == model), "")
    if benchmark and model and BENCHMARKS[benchmark][0] != model:
        raise InputError(
            f"benchmark {benchmark} trains {BENCHMARKS[benchmark][0]}, not {model}", where="model", fix="leave model or benchmark out"
        )
    if form.precision:
        recipe(form.precision, where="precision")
    return Run(
        benchmark=benchmark,
        model=form.model,
        parameters=form.parameters or 0.0,
        seq_len=form.seq_len or 0,
        global_batch=form.global_batch or 0,
        samples=_samples(form),
        tokens=form.tokens or 0.0,
        precision=form.precision,
        round=round_named(form.round) if form.round else "",
        submitter=form.submitter,
        accelerator=accelerator(form.accelerator).name if form.accelerator else "",
        gpus=form.gpus or 0,
        duration_s=_duration_s(form),
        step_s=None if form.step_s is None else stated_time(form.step_s),
        log=form.log,
        record=record,
    )


def _baseline(form: BaselineTable, run: Run) -> Run:
    """The baseline; what it leaves out and must be the same is the run's."""
    own = _run(form, record=form.record)
    if own.benchmark or own.model or own.parameters:
        taken: tuple[str, ...] = ("seq_len", "precision", "accelerator")
    else:
        taken = INHERITED
    values = {spec.name: getattr(own, spec.name) for spec in fields(Run)}
    return Run(**{name: value or (getattr(run, name) if name in taken else value) for name, value in values.items()})


def _samples(form: RunTable) -> float:
    """Samples as stated, or steps times batch; 0 where neither is."""
    counted = float(form.steps * form.global_batch) if form.steps and form.global_batch else 0.0
    if form.samples and counted and not math.isclose(form.samples, counted, rel_tol=1e-3):
        raise InputError(
            f"samples is {form.samples:,.0f}, but steps x global_batch = {form.steps:,} x {form.global_batch:,} = {counted:,.0f}",
            where="samples",
            fix="leave one of them out, or correct it",
        )
    return form.samples or counted


def _duration_s(form: RunTable) -> Stated | None:
    given = [key for key in SECONDS if getattr(form, key) is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are both given", where=given[1], fix="give the time once")
    return stated_time(getattr(form, given[0])).times(SECONDS[given[0]]) if given else None


def _speedup(form: ClaimTable) -> Stated | None:
    if form.speedup is not None and form.faster_pct is not None:
        raise InputError("speedup and faster_pct are both given", where="faster_pct", fix="give one: 1.28 times is 28 % faster")
    if form.faster_pct is not None:
        share = stated(form.faster_pct)
        return Stated(1 + share.value / 100, 1 + share.low / 100, 1 + share.high / 100)
    return _stated(form.speedup)


def _variation(values: list[float] | None) -> tuple[float, float] | None:
    if values is None:
        return None
    if not 1 <= len(values) <= 2:
        raise InputError(f"variation_pct has {len(values)} values", where="variation_pct", fix="give one, or the lowest and the highest")
    return min(values), max(values)


def _in_per_cent(key: str, value: float | None, least: float) -> Stated | None:
    if value is not None and value <= least:
        raise InputError(f"{key} is {value:g}: it is in per cent", where=key, fix=f"write {100 * value:g}, if you mean that")
    return _stated(value)


def _kind(text: str) -> str:
    return text if text in ("", ALL_KINDS) else accelerator(text).name


def _stated(value: float | None) -> Stated | None:
    return None if value is None else stated(value)
