"""Exposed communication: its share of the step, what bytes and bandwidth allow, and whether a profile is public."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import figure
from meshwright.audit.stated import Stated
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, IMPOSSIBLE, MISLEADING, UNKNOWN, UNSUPPORTED, Statement
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_model, load_workload, names
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.job import Job
from meshwright.layout import Layout, Layouts, parse_layout
from meshwright.predict.forecast import forecast
from meshwright.predict.placement import place, tier_sizes
from meshwright.predict.traffic import Step, is_counted_whole, sent_on
from meshwright.predict.traffic import flows as flows_of
from meshwright.units import GB

ROUNDING = 0.05  # of what cannot hide
OWN = "traffic by its own numbers"
GZIP, LOOKED_AT = b"\x1f\x8b", 2**20  # of a profile: what a packed one begins with, and bytes in which its events must begin
SLOWEST = 2.0  # traffic that takes longer than so many times bytes / bandwidth is not explained by the network


def check(claim: Claim) -> Iterator[Statement]:
    """Statements on claimed exposed communication."""
    if claim.exposed_ms is None and claim.exposed_pct is None:
        return
    yield from _share(claim)
    exposed_s = _exposed_s(claim)
    if claim.cluster and claim.layout and exposed_s is not None:
        yield _wire(claim, exposed_s)
    if claim.traffic_gb and claim.traffic_gb_per_s and exposed_s is not None:
        yield _stated_wire(claim, exposed_s)
    yield _profile(claim)


def _exposed_s(claim: Claim) -> float | None:
    if claim.exposed_ms is not None:
        return claim.exposed_ms.value / 1e3
    step_s = claim.run.step_s
    return claim.exposed_pct.value / 100 * step_s.value if claim.exposed_pct and step_s else None


def _share(claim: Claim) -> Iterator[Statement]:
    """The claimed seconds divided by the claimed step, compared with the claimed share."""
    exposed, share, step_s = claim.exposed_ms, claim.exposed_pct, claim.run.step_s
    if (share is not None and share.value > 100) or (exposed and step_s and exposed.low / 1e3 > step_s.high):
        line = f"exposed {f'{exposed.value:g} ms' if exposed else f'{share.value:g} %' if share else ''} of a step"
        yield Statement(about="exposed share", verdict=IMPOSSIBLE, why="more than the whole step is exposed", arithmetic=(line,))
    elif exposed is not None and share is not None and step_s is not None:
        yield _same_share(exposed, share, step_s)


def _same_share(exposed: Stated, share: Stated, step_s: Stated) -> Statement:
    found = exposed.over(step_s.times(1e3)).times(100)
    line = f"share: {exposed.value:g} ms / {step_s.value * 1e3:g} ms = {found.value:.2f} %; claimed {share.value:g} %"
    if share.agrees(found):
        return Statement(about="exposed share", verdict=CONSISTENT, why=f"{found.value:.2f} % is what its numbers give", arithmetic=(line,))
    why = f"its own numbers give {found.value:.2f} %, not {share.value:g} %"
    return Statement(about="exposed share", verdict=MISLEADING, why=why, arithmetic=(line,))


def _profile(claim: Claim) -> Statement:
    path = Path(claim.profile) if Path(claim.profile).is_absolute() else claim.folder / claim.profile
    if claim.profile and path.is_file():
        return _opened(claim.profile, path)
    if claim.profile and not ("://" in claim.profile or " " in claim.profile):
        fix = "give the path of a Chrome trace next to the claim, or a web address"
        raise InputError(f"no profile at {claim.profile}", where="profile", fix=fix)
    if claim.profile:
        why = "a public profile is named; it was not opened here"
        return Statement(about="profile", verdict=CONSISTENT, why=why, arithmetic=(f"named: {claim.profile}",))
    why = "exposed time is visible only in a profile, and none is public"
    return Statement(about="profile", verdict=UNSUPPORTED, why=why, arithmetic=("profiles named: 0",))


def _beginning(path: Path) -> bytes:
    """The first bytes of a file, unpacked if it is compressed."""
    with open(path, "rb") as file:
        is_packed = file.read(2) == GZIP
    with (gzip.open if is_packed else open)(path, "rb") as file:
        return bytes(file.read(LOOKED_AT))


def _opened(name: str, path: Path) -> Statement:
    """The statement on a local profile: whether it is a trace. `meshwright report` shows its content."""
    try:
        is_trace = path.is_file() and b'"traceEvents"' in _beginning(path)
    except (OSError, EOFError, zlib.error):
        is_trace = False
    if not is_trace:
        why = "the profile that it names is not a Chrome trace of a profiler"
        return Statement(about="profile", verdict=UNSUPPORTED, why=why, arithmetic=(f"named: {name}",))
    why = f"the profile exists; `meshwright report {name}` shows how much of it is exposed"
    return Statement(about="profile", verdict=CONSISTENT, why=why, arithmetic=(f"named: {name}",))


@dataclass(frozen=True, slots=True)
class Wire:
    """What crosses the outermost tier in a step: least and plain seconds, and how they are computed."""

    least_s: float  # replicas in one inner domain are added up there first
    plain_s: float
    lines: tuple[str, ...]


def _stated_wire(claim: Claim, exposed_s: float) -> Statement:
    """The statement on traffic if the claim itself gives bytes and bandwidth."""
    traffic_s = claim.traffic_gb / claim.traffic_gb_per_s
    line = f"{figure(claim.traffic_gb)} GB per GPU and step / {figure(claim.traffic_gb_per_s)} GB/s = {figure(traffic_s)} s"
    wire = Wire(traffic_s, traffic_s, (line,))
    if claim.run.step_s:
        return _hidden(wire, claim.run.step_s.value, exposed_s, OWN)
    lines = (line, f"claimed to be exposed: {figure(exposed_s)} s")
    why = f"the traffic takes {figure(traffic_s)} s; how much of it can hide depends on the step time, which the claim does not give"
    return Statement(about=OWN, verdict=UNKNOWN, why=why, arithmetic=lines)


def _wire(claim: Claim, exposed_s: float) -> Statement:
    model, cluster, workload, layout = _nouns(claim)
    wire = _crossing(model, cluster, workload, layout)
    predicted = forecast(Job(model, cluster, workload), layout, ignore_memory=True)
    step_s = claim.run.step_s.value if claim.run.step_s else predicted.step_s
    ours = f"our model's own figure: {figure(predicted.parts['exposed_dp'])} s exposed between replicas"
    return _hidden(wire, step_s, exposed_s, "bytes over bandwidth", ours)


def _hidden(wire: Wire, step_s: float, exposed_s: float, about: str, *more: str) -> Statement:
    """The statement on hidden traffic: traffic that takes longer than the step allows, or exposed time longer than the traffic takes."""
    least_s = max(wire.least_s - step_s, 0.0)
    lines = (*wire.lines, f"to hide behind a step of {figure(step_s)} s; claimed to be exposed: {figure(exposed_s)} s", *more)
    if exposed_s < least_s * (1 - ROUNDING):
        why = f"{figure(least_s)} s of the traffic cannot hide: it takes longer than the step"
        return Statement(about=about, verdict=IMPOSSIBLE, why=why, arithmetic=lines)
    if wire.plain_s and exposed_s > SLOWEST * wire.plain_s:
        why = f"the traffic takes {figure(wire.plain_s)} s in all; more than that cannot come from it"
        return Statement(about=about, verdict=IMPLAUSIBLE, why=why, arithmetic=lines)
    traffic_s = wire.plain_s if wire.plain_s <= step_s else wire.least_s
    added = "" if traffic_s == wire.plain_s else ", where a domain adds up first,"
    why = f"{figure(traffic_s)} s of traffic{added} can hide behind {figure(step_s)} s"
    if least_s:
        why = f"{figure(least_s)} s of the traffic cannot hide, and the claim says that no less is exposed"
    return Statement(about=about, verdict=CONSISTENT, why=why, arithmetic=lines)


def _nouns(claim: Claim) -> tuple[Model, Cluster, Workload, Layout]:
    run = claim.run
    cluster, layout = load_cluster(claim.cluster), parse_layout(claim.layout)
    model, workload = _job(run)
    if run.gpus and run.gpus != layout.num_ranks:
        raise InputError(
            f"the layout has {layout.num_ranks} ranks, and the claim {run.gpus} gpus",
            where="layout",
            fix="correct one of them: tp x cp x pp x dp = gpus",
        )
    if layout.num_ranks > cluster.num_accelerators:
        raise InputError(
            f"the layout has {layout.num_ranks} ranks, and {claim.cluster} {cluster.num_accelerators} accelerators",
            where="layout",
            fix="use a layout with fewer ranks, or a larger cluster",
        )
    return model, cluster.resized(layout.num_ranks) if layout.num_ranks < cluster.num_accelerators else cluster, workload, layout


def _job(run: Run) -> tuple[Model, Workload]:
    model_name, workload_name = BENCHMARKS.get(run.benchmark, (run.model, ""))
    if workload_name in names("workloads"):
        workload = load_workload(workload_name)
        workload = replace(
            workload,
            global_batch=run.global_batch or workload.global_batch,
            seq_len=run.seq_len or workload.seq_len,
            precision=run.precision or workload.precision,
        )
        return load_model(model_name), workload
    if not (model_name and run.seq_len and run.global_batch):
        raise InputError(
            "cluster and layout are given, but not what is trained",
            where="layout",
            fix="give benchmark, or model, seq_len and global_batch",
        )
    job = Workload(name="claim", model="", seq_len=run.seq_len, global_batch=run.global_batch, precision=run.precision or "bf16")
    return load_model(model_name), job


def _crossing(model: Model, cluster: Cluster, workload: Workload, layout: Layout) -> Wire:
    """Data-parallel bytes of a rank, divided by the bandwidth of the outermost tier."""
    tier = list(cluster)[-1]
    if model.experts or not is_counted_whole(model, workload):
        return Wire(0.0, 0.0, (f"bytes of {model.name} are not counted here (experts or adapters)",))
    placed = place(Layouts.of([layout]), tier_sizes(cluster)).joint("cp", "dp")[:, 0]
    inside, everyone = (float(placed[-2]) if len(placed) > 1 else 1.0), float(placed[-1])
    if inside >= everyone:
        return Wire(0.0, 0.0, (f"no data-parallel traffic leaves the {cluster.tiers[0].name}",))
    sent, _ = sent_on("dp", flows_of(Step(model, workload, layout)))
    plain_s = sent / tier.bytes_per_s
    line = (
        f"{figure(sent / GB)} GB per GPU and step (gradients reduced, weights gathered) / {figure(tier.bytes_per_s / GB)} GB/s "
        f"({tier.name}) = {figure(plain_s)} s"
    )
    least = f"{figure(plain_s / inside)} s where the {inside:.0f} ranks of a domain add up first" if inside > 1 else ""
    return Wire(plain_s / inside, plain_s, tuple(text for text in (line, least) if text))
