"""The reasons for a plan: what each axis sends over which tier, what hides it, what limits the step, and what one change would gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.errors import MeshwrightError
from meshwright.job import Job
from meshwright.layout import AXES, CP_KINDS, Layout, Layouts
from meshwright.predict import software as sw
from meshwright.predict.exact import exact_prediction
from meshwright.predict.footprint import reserve_for, spare_bytes
from meshwright.predict.forecast import Forecast
from meshwright.predict.placement import is_tp_on_fabric, ranks_of, spanned, tiers_of
from meshwright.predict.prediction import bytes_of, predict
from meshwright.predict.prices import BF16_BYTES
from meshwright.predict.step import StepParts
from meshwright.predict.traffic import Step, flows, is_counted_whole, layer_flows, sent_on
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import per_cent, seconds, si

NOTICEABLE_PCT = 0.05  # a change that gains or costs less is not shown

BEHIND = {
    "tp": "the matrix products of the same layer",
    "cp": "the attention of the round before",
    "pp": "other micro-batches",
    "dp": "the backward (gradients) and the next forward (weights)",
    "ep": "nothing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """What one axis sends in a step, on one accelerator. Gradients and weights of replicas also go over context-parallel ranks: cp x dp."""

    axis: str
    degree: int
    over: Mapping[str, int]  # the axes whose ranks share this traffic, with their degrees
    tiers: tuple[str, ...]
    num_bytes: float
    num_messages: float
    traffic_s: float  # if nothing were hidden
    exposed_s: float
    behind: str

    @property
    def name(self) -> str:
        """The axis, or the axes that it spans: `dp x cp`."""
        return " x ".join(self.over)

    @property
    def ranks(self) -> str:
        """Ranks along each of them: `1 x 4`."""
        return " x ".join(map(str, self.over.values()))

    @property
    def label(self) -> str:
        """Both together: `dp 1 x cp 4`."""
        return " x ".join(f"{axis} {degree}" for axis, degree in self.over.items())

    @property
    def hidden_s(self) -> float:
        """Seconds of traffic that the step does not wait for."""
        return max(self.traffic_s - self.exposed_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change to the plan, and the step it would give."""

    what: str
    step_s: float
    gain_pct: float  # of time per token; negative: slower
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan explained."""

    axes: tuple[AxisTraffic, ...]
    limit: str  # the two parts that take the most time, in a sentence
    mapping: tuple[str, ...]  # how replicas are placed on the network
    carried: tuple[str, ...]  # what every axis sends, and how much of it is hidden
    changes: tuple[Change, ...]  # the most useful first

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason, in sentences."""
        return (*self.mapping, *self.carried)


def explain(forecast: Forecast) -> Explanation:
    """Explain one layout. All shares and changes are relative to the step of the forecast."""
    axes = traffic(forecast)
    return Explanation(
        axes=axes,
        limit=_limit(forecast),
        mapping=(*_mapping(forecast), *_scattered(forecast)),
        carried=tuple(_carried(axes)),
        changes=_changes(forecast),
    )


def traffic(forecast: Forecast) -> tuple[AxisTraffic, ...]:
    """Bytes, messages and seconds of every axis of more than one rank."""
    layout, cluster, crossed, carried = forecast.layout, forecast.job.cluster, forecast.placement, forecast.detail.carried()
    sent = _sent(forecast)
    found = []
    for axis in (*AXES, "ep"):
        over = ranks_of(axis, layout)
        if max(over.values()) == 1:
            continue
        num_bytes, num_messages = sent[axis]
        found.append(
            AxisTraffic(
                axis=axis,
                degree=getattr(layout, axis),
                over=over,
                tiers=spanned(over, cluster, crossed),
                num_bytes=num_bytes,
                num_messages=num_messages,
                traffic_s=float(carried.seconds[axis][0]),
                exposed_s=forecast.parts[f"exposed_{axis}"],
                behind="nothing" if axis == "tp" and is_tp_on_fabric(layout, cluster) else BEHIND[axis],
            )
        )
    return tuple(found)


def _sent(forecast: Forecast) -> dict[str, tuple[float, float]]:
    """Bytes and messages of each axis, on the stage that sends the most, as the trainer sends them."""
    model, workload, layout, priced = forecast.job.model, forecast.job.workload, forecast.layout, forecast.detail
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1})  # all between the ends send alike
    steps = [Step(model, workload, layout, stage) for stage in stages]
    if is_counted_whole(model, workload):
        of_stages = [flows(step) for step in steps]
        return {axis: max(sent_on(axis, found) for found in of_stages) for axis in (*AXES, "ep")}
    within = [layer_flows(step) for step in steps]
    beside = {"dp": _data(priced, layout), "ep": _expert(priced, layout)}
    return {axis: max(sent_on(axis, found) for found in within) for axis in AXES} | beside


def _data(priced: StepParts, layout: Layout) -> tuple[float, float]:
    """Bytes and messages between replicas of a model that the trainer does not support, from the predictor's count of parameters."""
    pricer = priced.pricer
    shared, experts = (float(column[0]) for column in pricer.parameters(priced.split))
    ranks, m = layout.dp * layout.cp, int(priced.num_micro_batches[0])
    # Reductions and gathers of all parameters in a step, by ZeRO stage. An all-reduce is two reductions' worth of bytes.
    reduces, gathers = {0: (2, 0), 1: (1, 1), 2: (m, 1), 3: (m, 2 * m)}[layout.zero_stage]
    per_parameter = reduces * float(pricer.q.reduce_bytes) + gathers * float(pricer.q.gather_bytes)
    buckets = max((shared + experts) / sw.BUCKET_PARAMETERS, 1.0)
    return (shared + experts) * per_parameter * (ranks - 1) / ranks, buckets * (reduces + gathers)


def _expert(priced: StepParts, layout: Layout) -> tuple[float, float]:
    """Bytes and messages of tokens that are sent to experts and back."""
    q = priced.pricer.q
    each = float(priced.pricer.tokens[0]) / layout.tp * float(q.experts_per_token) * float(q.hidden) * BF16_BYTES * float(q.expert_layers)
    passes = float(priced.num_micro_batches[0] * priced.busiest_layers[0])  # of layers of the busiest stage, in a step
    return 4 * each * layout.etp * (layout.expert_ranks - 1) / layout.expert_ranks * passes, 4 * passes


def _limit(forecast: Forecast) -> str:
    first, second = sorted(PARTS, key=lambda part: -forecast.parts[part])[:2]
    most, next_most = (per_cent(forecast.share(part)) for part in (first, second))
    return f"{PART_NAMES[first]} takes {most} of the step; next is {PART_NAMES[second]} with {next_most}"


def _carried(axes: tuple[AxisTraffic, ...]) -> Iterator[str]:
    """A sentence for every axis: what it sends, over which tiers, and how much of it is hidden."""
    for axis in axes:
        if axis.tiers and axis.traffic_s > 0:
            share = axis.hidden_s / axis.traffic_s
            hidden = f"of which {per_cent(share, '.0f')} hides behind {axis.behind}" if share >= 0.005 else "none of it hidden"
            yield (
                f"{axis.name} moves {si(axis.num_bytes, 'B', 3)} in {axis.num_messages:,.0f} messages over {' and '.join(axis.tiers)}: "
                f"{seconds(axis.traffic_s)}, {hidden}."
            )


def _scattered(forecast: Forecast) -> Iterator[str]:
    """If a replica would fit into one domain but is spread over several: what would keep it together."""
    layout, cluster = forecast.layout, forecast.job.cluster
    inner, replica, together = cluster.tiers[0], layout.tp * layout.cp * layout.pp, replace(layout, order=AXES)
    if len(cluster.tiers) == 1 or replica != inner.num_accelerators or tiers_of(layout, cluster) == tiers_of(together, cluster):
        return
    change = step_s_of(forecast.job, together) / forecast.step_s - 1
    beyond = "data and expert traffic" if cluster.tiers[-1].name in tiers_of(together, cluster).get("ep", ()) else "data parallelism"
    yield (
        f"A replica is as large as a {inner.name}, and would be one with order={'-'.join(AXES)}: pipeline traffic would stay on "
        f"{inner.link} and only {beyond} cross the {cluster.tiers[-1].name}; the step is then {per_cent(abs(change))} "
        f"{'longer' if change > 0 else 'shorter'}."
    )


def _mapping(forecast: Forecast) -> Iterator[str]:
    """How replicas are placed on the innermost domains."""
    layout, cluster, crossed = forecast.layout, forecast.job.cluster, forecast.placement
    inner = cluster.tiers[0]
    replica = layout.tp * layout.cp * layout.pp
    inside = [axis for axis in ("tp", "cp", "pp") if crossed.get(axis, (inner.name,)) == (inner.name,)]
    if len(cluster.tiers) == 1:
        return
    if replica == inner.num_accelerators and len(inside) == 3:
        yield (
            f"A replica is a {inner.name}: tp {layout.tp} x cp {layout.cp} x pp {layout.pp} = {replica} accelerators, so tensor, context "
            f"and pipeline traffic stays on {inner.link}, and {_crossing(cluster, layout)} the {cluster.tiers[-1].name}."
        )
    elif replica < inner.num_accelerators and len(inside) == 3:
        yield f"{inner.num_accelerators // replica} replicas share a {inner.name} ({inner.link})."
    else:
        spans = [f"{axis} stays on {inner.link}" for axis in inside if axis in crossed]
        beyond = [f"{axis} crosses the {crossed[axis][-1]}" for axis in AXES if axis in crossed and axis not in inside]
        if spans or beyond:
            where = ", ".join([*spans, *beyond])
            yield f"A replica takes {replica:,} accelerators, a {inner.name} has {inner.num_accelerators:,}: {where}."
    if experts := crossed.get("ep"):
        where = f"cross the {experts[-1]}" if experts != (inner.name,) else f"stay within a {inner.name} ({inner.link})"
        parts = f", each in {layout.etp} parts" if layout.etp > 1 else ""
        over = f"{layout.expert_ranks:,} ranks of a stage{parts}, those of tp, cp and dp"
        yield f"Experts lie over {over}: tokens on their way to them {where}."


def _crossing(cluster: Cluster, layout: Layout) -> str:
    """What crosses the outermost tier where replicas do not, as a sentence's subject and verb."""
    is_alone = cluster.tiers[-1].name not in tiers_of(layout, cluster).get("ep", ())
    return "only data parallelism crosses" if is_alone else "only data and expert parallelism cross"


def _changes(forecast: Forecast) -> tuple[Change, ...]:
    job, layout = forecast.job, forecast.layout
    found = []
    for what, (other, changed) in _tried(job, layout):
        try:
            other.check(changed)
        except MeshwrightError:
            continue
        if (other, changed) != (job, layout):
            found.append(_change(what, other, changed, forecast))
    return tuple(sorted((change for change in found if abs(change.gain_pct) >= NOTICEABLE_PCT), key=lambda change: -change.gain_pct))


def _tried(job: Job, layout: Layout) -> Iterator[tuple[str, tuple[Job, Layout]]]:
    """Single changes worth trying, each with the job and the layout it gives."""
    cluster, workload = job.cluster, job.workload
    twice = replace(workload, global_batch=2 * workload.global_batch)
    yield "twice the micro-batches (twice the batch)", (replace(job, workload=twice), layout)
    yield "twice the outermost network", (job.on(_faster(cluster, -1, 2.0)), layout)
    yield "twice the innermost network", (job.on(_faster(cluster, 0, 2.0)), layout)
    yield "half the outermost network", (job.on(_faster(cluster, -1, 0.5)), layout)
    yield "twice the micro-batch size", (job, replace(layout, micro_batch=2 * layout.micro_batch))
    yield "tensor traffic overlapped with products", (job, replace(layout, overlap_tp=True))
    yield "pipeline stages outermost", (job, replace(layout, order=("tp", "cp", "dp", "pp")))
    yield "replicas outermost", (job, replace(layout, order=("tp", "cp", "pp", "dp")))
    if layout.pp > 1:
        yield "zero-bubble schedule", (job, replace(layout, schedule="zero-bubble"))
    if layout.cp > 1:
        yield from ((f"context parallelism as {kind}", (job, replace(layout, cp_kind=kind))) for kind in CP_KINDS)


def _faster(cluster: Cluster, index: int, times: float) -> Cluster:
    tiers = list(cluster.tiers)
    tiers[index] = replace(tiers[index], bytes_per_s=times * tiers[index].bytes_per_s)
    return replace(cluster, tiers=tuple(tiers))


def _change(what: str, job: Job, layout: Layout, base: Forecast) -> Change:
    chip, columns = job.cluster.accelerator, Layouts.of([layout])
    step_s = step_s_of(job, layout)
    gain = (1 - step_s / job.workload.tokens_per_step * base.job.workload.tokens_per_step / base.step_s) * 100
    fits = bool(spare_bytes(bytes_of(job, columns), chip, reserve_for(chip))[0] >= 0)
    return Change(what=what, step_s=step_s, gain_pct=gain, fits=fits)


def step_s_of(job: Job, layout: Layout) -> float:
    """Seconds of a step by the exact schedule, as a forecast has it."""
    return float(exact_prediction(predict(job, Layouts.of([layout]))).step_s[0])
