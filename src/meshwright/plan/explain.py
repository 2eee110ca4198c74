"""Why a plan is what it is: what each axis carries over which tier, what hides it, what limits the step, and what one change would buy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import MeshwrightError
from meshwright.layout import AXES, CP_KINDS, Layout, Layouts
from meshwright.predict import software as sw
from meshwright.predict.footprint import reserve_for, spare_bytes
from meshwright.predict.placement import is_tp_on_fabric, ranks_of, spanned, tiers_of
from meshwright.predict.prediction import bytes_of, check, parts
from meshwright.predict.prices import BF16_BYTES
from meshwright.predict.software import Software, software
from meshwright.predict.step import StepParts
from meshwright.predict.traffic import Step, flows, is_counted_whole, layer_flows, sent_on
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import seconds, si

NOTICEABLE_PCT = 0.05  # a change that buys or costs less is not worth a line

BEHIND = {
    "tp": "the matrix products of the same layer",
    "cp": "the attention of the round before",
    "pp": "other micro-batches",
    "dp": "the backward (gradients) and the next forward (weights)",
    "ep": "nothing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """What one axis carries in a step, on one accelerator. Gradients and weights of replicas go over context ranks too: cp x dp."""

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
    step_time_s: float
    gain_pct: float  # of time per token; negative: slower
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan explained."""

    axes: tuple[AxisTraffic, ...]
    limit: str  # what takes the most time beside compute, in a sentence
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]  # the most useful first


def explain(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software | None = None) -> Explanation:
    """Explain one layout."""
    stack = stack or software()
    priced = parts(model, cluster, workload, Layouts.of([layout]), stack)
    axes = traffic(model, cluster, workload, layout, priced)
    return Explanation(
        axes=axes,
        limit=_limit(priced),
        reasons=(*_mapping(cluster, layout), *_scattered(model, cluster, workload, layout, stack), *_carried(axes)),
        changes=_changes(model, cluster, workload, layout, stack, float(priced.step_time_s[0])),
    )


# -- what the axes carry --------------------------------------------------------------------------------


def traffic(model: Model, cluster: Cluster, workload: Workload, layout: Layout, priced: StepParts) -> tuple[AxisTraffic, ...]:
    """Bytes, messages and seconds of every axis of more than one rank."""
    crossed, carried = tiers_of(layout, cluster), priced.carried()
    sent = _sent(model, workload, layout, priced)
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
                exposed_s=float(priced.seconds[f"exposed_{axis}"][0]),
                behind="nothing" if axis == "tp" and is_tp_on_fabric(layout, cluster) else BEHIND[axis],
            )
        )
    return tuple(found)


def _sent(model: Model, workload: Workload, layout: Layout, priced: StepParts) -> dict[str, tuple[float, float]]:
    """Bytes and messages of each axis, on the stage that sends the most of it: those that the trainer sends."""
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1})  # all between the ends send alike
    steps = [Step(model, workload, layout, stage) for stage in stages]
    if is_counted_whole(model, workload):
        of_stages = [flows(step) for step in steps]
        return {axis: max(sent_on(axis, found) for found in of_stages) for axis in AXES} | {"ep": (0.0, 0.0)}
    within = [layer_flows(step) for step in steps]
    beside = {"dp": _data(priced, layout), "ep": _expert(priced, layout)}
    return {axis: max(sent_on(axis, found) for found in within) for axis in AXES} | beside


def _data(priced: StepParts, layout: Layout) -> tuple[float, float]:
    """Bytes and messages between replicas of a model whose parameters the trainer does not hold, from the predictor's count of them."""
    pricer = priced.pricer
    shared, experts = (float(column[0]) for column in pricer.parameters(priced.split))
    ranks, m = layout.dp * layout.cp, int(priced.num_micro_batches[0])
    # Reductions and gathers of all parameters in a step, by ZeRO stage. An all-reduce is two reductions' worth of bytes.
    reduces, gathers = {0: (2, 0), 1: (1, 1), 2: (m, 1), 3: (m, 2 * m)}[layout.zero_stage]
    per_parameter = reduces * float(pricer.q.reduce_bytes) + gathers * float(pricer.q.gather_bytes)
    buckets = max((shared + experts) / sw.BUCKET_PARAMETERS, 1.0)
    return (shared + experts) * per_parameter * (ranks - 1) / ranks, buckets * (reduces + gathers)


def _expert(priced: StepParts, layout: Layout) -> tuple[float, float]:
    """Bytes and messages of tokens on their way to experts and back."""
    q = priced.pricer.q
    each = float(priced.pricer.tokens[0]) / layout.tp * float(q.experts_per_token) * float(q.hidden) * BF16_BYTES * float(q.expert_layers)
    passes = float(priced.num_micro_batches[0] * priced.busiest_layers[0])  # of layers of the busiest stage, in a step
    return 4 * each * (layout.ep - 1) / layout.ep * passes, 4 * passes


# -- why ------------------------------------------------------------------------------------------------


def _limit(priced: StepParts) -> str:
    step_s = float(priced.step_time_s[0])
    shares = sorted(((float(priced.seconds[part][0]) / step_s, part) for part in PARTS), reverse=True)
    (first, part), (second, other) = shares[0], shares[1]
    return f"{PART_NAMES[part]} takes {first:.1%} of the step; next is {PART_NAMES[other]} with {second:.1%}"


def _carried(axes: tuple[AxisTraffic, ...]) -> Iterator[str]:
    """A sentence for every axis: what it moves, over what, and how much of it hides."""
    for axis in axes:
        if axis.tiers and axis.traffic_s > 0:
            share = axis.hidden_s / axis.traffic_s
            hidden = f"of which {share:.0%} hides behind {axis.behind}" if share >= 0.005 else "none of it hidden"
            yield (
                f"{axis.name} moves {si(axis.num_bytes, 'B', 3)} in {axis.num_messages:,.0f} messages over {' and '.join(axis.tiers)}: "
                f"{seconds(axis.traffic_s)}, {hidden}."
            )


def _scattered(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software) -> Iterator[str]:
    """Where a replica is as large as a domain and yet spread over several: what it would take to keep it together."""
    inner, replica, together = cluster.tiers[0], layout.tp * layout.cp * layout.pp, replace(layout, order=AXES)
    if len(cluster.tiers) == 1 or replica != inner.num_accelerators or tiers_of(layout, cluster) == tiers_of(together, cluster):
        return
    step_s, together_s = parts(model, cluster, workload, Layouts.of([layout, together]), stack).step_time_s.tolist()
    change = together_s / step_s - 1
    beyond = "data and expert traffic" if cluster.tiers[-1].name in tiers_of(together, cluster).get("ep", ()) else "data parallelism"
    yield (
        f"A replica is as large as a {inner.name}, and would be one with order={'-'.join(AXES)}: pipeline traffic would stay on "
        f"{inner.link} and only {beyond} cross the {cluster.tiers[-1].name}; the step is then {abs(change):.1%} "
        f"{'longer' if change > 0 else 'shorter'}."
    )


def _mapping(cluster: Cluster, layout: Layout) -> Iterator[str]:
    """How replicas lie on the innermost domains."""
    inner, crossed = cluster.tiers[0], tiers_of(layout, cluster)
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
        yield f"Experts lie over {layout.ep:,} ranks of a stage, those of tp, cp and dp: tokens on their way to them {where}."


def _crossing(cluster: Cluster, layout: Layout) -> str:
    """What crosses the outermost tier where replicas do not, as a sentence's subject and verb."""
    is_alone = cluster.tiers[-1].name not in tiers_of(layout, cluster).get("ep", ())
    return "data parallelism alone crosses" if is_alone else "data and expert parallelism alone cross"


# -- what if --------------------------------------------------------------------------------------------


def _changes(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software, step_s: float) -> tuple[Change, ...]:
    per_token = step_s / workload.tokens_per_step
    tried: list[tuple[str, Callable[[], tuple[Cluster, Workload, Layout]]]] = [
        ("twice the micro-batches (twice the batch)", lambda: (cluster, replace(workload, global_batch=2 * workload.global_batch), layout)),
        ("twice the outermost network", lambda: (_faster(cluster, -1, 2.0), workload, layout)),
        ("twice the innermost network", lambda: (_faster(cluster, 0, 2.0), workload, layout)),
        ("half the outermost network", lambda: (_faster(cluster, -1, 0.5), workload, layout)),
        ("twice the micro-batch size", lambda: (cluster, workload, replace(layout, micro_batch=2 * layout.micro_batch))),
        ("tensor traffic overlapped with products", lambda: (cluster, workload, replace(layout, overlap_tp=True))),
        ("pipeline stages outermost", lambda: (cluster, workload, replace(layout, order=("tp", "cp", "dp", "pp")))),
        ("replicas outermost", lambda: (cluster, workload, replace(layout, order=("tp", "cp", "pp", "dp")))),
        ("zero-bubble schedule", lambda: (cluster, workload, replace(layout, schedule="zero-bubble"))),
        *((f"context parallelism as {kind}", lambda kind=kind: (cluster, workload, replace(layout, cp_kind=kind))) for kind in CP_KINDS),
    ]
    found = []
    for what, make in tried:
        try:
            changed = make()
            check(model, *changed)
        except MeshwrightError:
            continue
        if (
            changed == (cluster, workload, layout)
            or (what.startswith("context") and layout.cp == 1)
            or (layout.pp == 1 and "bubble" in what)
        ):
            continue
        found.append(_change(what, model, *changed, stack, per_token))
    return tuple(sorted((change for change in found if abs(change.gain_pct) >= NOTICEABLE_PCT), key=lambda change: -change.gain_pct))


def _faster(cluster: Cluster, index: int, times: float) -> Cluster:
    tiers = list(cluster.tiers)
    tiers[index] = replace(tiers[index], bytes_per_s=times * tiers[index].bytes_per_s)
    return replace(cluster, tiers=tuple(tiers))


def _change(what: str, model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software, per_token: float) -> Change:
    columns, chip = Layouts.of([layout]), cluster.accelerator
    step_s = float(parts(model, cluster, workload, columns, stack).step_time_s[0])
    memory = bytes_of(model, cluster, workload, columns, stack)
    gain = (1 - step_s / workload.tokens_per_step / per_token) * 100
    return Change(what=what, step_time_s=step_s, gain_pct=gain, fits=bool(spare_bytes(memory, chip, reserve_for(chip))[0] >= 0))
