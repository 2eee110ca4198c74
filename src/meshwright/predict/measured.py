"""What a hardware profile says about one job: rates of kernels, and corrections from slices of a real training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.cost.layers import ALONE, Division, LayerTime, LayerWork, layer_time, mean_layer
from meshwright.cost.measured import Column, Correction, Placed, Rates, ends_time, exchange_s, tensor_exchange_s
from meshwright.describe.model import Model
from meshwright.describe.products import adapted_matrices
from meshwright.describe.profile import WAYS, Profile, RankChunk, Slice
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import FEW_BITS, Adapters, Workload
from meshwright.errors import InputError, argument
from meshwright.layout import RECOMPUTE
from meshwright.predict.layer_work import layer_kinds

Kinds = tuple[tuple[float, LayerWork], ...]  # of layers, each with its share


@dataclass(frozen=True, slots=True)
class Frozen:
    """Bytes that a layer with a frozen base moves besides: for the products of its adapters, and to make weights of few bits.

    Products with a side as short as a rank take as long as their other sides take to move. Forward they read the input, and add to the
    output; backward they read the output's gradient twice and the input, and add to the input's gradient.
    """

    token_bytes: tuple[float, float]  # forward and backward
    made_bytes: float  # of a layer, each way: codes read, weights written
    base: str = "bf16"

    @staticmethod
    def of(model: Model, adapters: Adapters, element_bytes: float) -> Frozen:
        """For all products of a layer that have adapters, averaged over the layers. Routed experts and routers have none."""
        adapted, bits = adapted_matrices(model, adapters), FEW_BITS.get(adapters.base)
        forward = backward = elements = 0.0
        for share, work in layer_kinds(model):
            for weight in work.weights:
                if set(weight.holds) & set(adapted):
                    forward += share * (weight.inner + 2 * weight.columns)
                    backward += share * (3 * weight.inner + 2 * weight.columns)
                elements += share * weight.columns * weight.inner * bool(weight.holds)
        made_bytes = elements * (bits / 8 + element_bytes) if bits is not None else 0.0
        return Frozen((forward * element_bytes, backward * element_bytes), made_bytes, adapters.base)

    def seconds(self, tokens: Column, tp: Column, rates: Rates) -> tuple[Column, Column]:
        """Seconds each way on one of `tp` ranks."""
        made_s = self.made_bytes / tp / rates.made_bytes_per_s.get(self.base, rates.elementwise_bytes_per_s)
        forward, backward = (np.asarray(tokens * each / tp / rates.elementwise_bytes_per_s + made_s) for each in self.token_bytes)
        return forward, backward


def composed(kinds: Kinds, frozen: Frozen | None, sequences: Any, seq_len: Any, rates: Rates, on: Division = ALONE) -> LayerTime:
    """Seconds of a layer as its kernels were timed, averaged over the kinds of layers; with adapters where the base is frozen."""
    seen = mean_layer([(share, layer_time(work, sequences, seq_len, rates, on)) for share, work in kinds])
    if frozen is None:
        return seen
    return seen.frozen(*frozen.seconds(np.asarray(sequences) * seq_len, np.asarray(on.tp), rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a hardware profile says about one job: rates of kernels, and how far a step computed from them was off on its slices."""

    profile: Profile
    model: Model
    kinds: Kinds
    rates: Rates
    layer: Correction
    ends: Correction
    tensor: float  # cost of exchanges within a layer in a real step, relative to exchanges with only a product between them
    pipeline: float  # cost of layers, ends and messages when stages share cores, relative to their separate costs
    slices: tuple[Slice, ...]  # of this model; empty: the corrections are those of other models
    block_rows: int  # rows of logits that were timed at once
    element_bytes: float  # of the tensors between operations
    frozen: Frozen | None  # the base, if adapters are trained beside it
    again: Mapping[str, Correction] = field(default_factory=dict)  # of layers by what is computed again, where slices were timed so


def measured(model: Model, workload: Workload, profile: Profile) -> Measured:
    """What a profile says about one job; raises an error if it contains nothing suitable."""
    number_format = format_of(workload.precision)
    _check(model, workload, profile, number_format)
    rates = _rates(profile, number_format, recipe(workload.precision).cast_bytes)
    block_rows = max((p.rows for p in profile.products if p.columns == model.vocab_size), default=max(p.rows for p in profile.products))
    own = profile.slices_of(model, number_format, workload.precision, workload.adapters)
    everyones, everyones_shared = (
        [s for s in some if s.number_format == number_format and (s.experts is None or rates.grouped)]
        for some in (profile.slices, profile.shared_slices)
    )
    ranks = profile.rank_chunks_of(model, number_format)
    same_length = [s for s in own if s.seq_len == workload.seq_len]
    known = same_length or own or everyones
    ends = _ends_correction(known, rates, profile)
    layers = _layer_corrections(known, ranks, ends, rates, profile)
    own_shared = profile.shared_slices_of(model, number_format, workload.precision)
    cut, dealt = ([s for s in own_shared if of(s)] or [s for s in everyones_shared if of(s)] for of in (_is_cut, _is_dealt_out))
    element_bytes = ELEMENT_BYTES.get(number_format, 2.0)
    layer = layers.get("none") or (_mean_factor(list(layers.values())) if layers else Correction())
    return Measured(
        profile=profile,
        model=model,
        kinds=layer_kinds(model),
        rates=rates,
        layer=layer,
        ends=ends,
        tensor=_middle([_tensor_factor(s, layer, ends, rates, profile, element_bytes) for s in cut]),
        pipeline=_middle([_pipeline_factor(s, layer, ends, rates, profile, element_bytes) for s in dealt]),
        slices=tuple(own),
        block_rows=block_rows,
        element_bytes=element_bytes,
        frozen=Frozen.of(model, workload.adapters, element_bytes) if workload.adapters else None,
        again=layers,
    )


def _check(model: Model, workload: Workload, profile: Profile, number_format: str) -> None:
    """Raise an error if kernels of a step in this number format were not timed: every product with both gradients, and attention."""
    for i, one in enumerate(profile.slices):
        if one.recompute not in RECOMPUTE:
            raise InputError(
                f"slices[{i}] of the profile recompute {one.recompute!r}", where=argument("profile"), fix=f"one of {', '.join(RECOMPUTE)}"
            )
    fix = f"choose another precision, or measure one: `meshwright measure --model {model.name} --precision {workload.precision}`"
    wanted = {"products": {(one.number_format, one.way) for one in profile.products}}
    if model.experts:
        wanted["products of experts"] = {(one.number_format, one.way) for one in profile.grouped}
    for what, timed in wanted.items():
        formats = sorted({name for name, _ in timed if all((name, way) in timed for way in WAYS)})
        if number_format not in formats or not profile.attentions:
            raise InputError(
                f"the profile has no {what} in {number_format}, only in {', '.join(formats) or 'none'}", where=argument("profile"), fix=fix
            )


ELEMENT_BYTES = {"fp32": 4.0}  # of a tensor between operations; in other number formats it is in bf16
STEP_SUM_BYTES = 1024.0  # of the single sum over all ranks at the end of a step
GAPS_AGAIN = {"full": 4 / 3}  # how often a layer's fixed seconds are counted where it is computed again: a third of them is the forward's


def format_of(precision: str) -> str:
    """What a recipe multiplies in, as a profile names it."""
    return recipe(precision).profile_format


def _rates(profile: Profile, number_format: str, cast_bytes: float) -> Rates:
    products = {}
    for way in WAYS:
        timed = [p for p in profile.products if p.way == way and p.number_format == number_format]
        shapes = np.array([(p.rows, p.columns, p.inner) for p in timed], dtype=np.float64).T
        products[way] = shapes, 2.0 * shapes.prod(axis=0) / [p.seconds for p in timed]
    grouped = {}
    for way in WAYS if profile.grouped else ():
        experts = [p for p in profile.grouped if p.way == way and p.number_format == number_format]
        if experts:
            sides = np.array([(p.num_groups, p.rows, p.columns, p.inner) for p in experts], dtype=np.float64).T
            grouped[way] = sides, 2.0 * sides[1:].prod(axis=0) / [p.seconds for p in experts]
    each = profile.attentions
    shapes = np.array([(a.batch * a.num_heads, a.seq_len, a.head_dim) for a in each], dtype=np.float64).T
    flops = 2.0 * shapes[0] * shapes[1] ** 2 * shapes[2]
    attention = (shapes, flops / [a.forward_s for a in each]), (shapes, 2.5 * flops / [a.backward_s for a in each])
    collectives = {}
    for kind in sorted({c.kind for c in profile.on_one_machine}):
        same = [c for c in profile.on_one_machine if c.kind == kind]
        collectives[kind] = (
            np.array([(c.num_ranks, c.payload_bytes) for c in same], dtype=np.float64).T,
            np.array([c.seconds for c in same]),
        )
    return Rates(
        products=products,
        attention=attention,
        elementwise_bytes_per_s=2 / (1 / profile.norm_bytes_per_s + 1 / profile.activation_bytes_per_s),
        loss_bytes_per_s=profile.loss_bytes_per_s,
        cast_bytes=cast_bytes,
        collectives=collectives,
        placed=_placed(profile),
        grouped=grouped,
        made_bytes_per_s=_made(profile, number_format),
    )


def _made(profile: Profile, number_format: str) -> dict[str, float]:
    """Bytes per second in which weights of few bits are made, by base."""
    found, element_bytes = {}, ELEMENT_BYTES.get(number_format, 2.0)
    for base in {one.base for one in profile.made if one.number_format == number_format}:
        same = [one for one in profile.made if (one.base, one.number_format) == (base, number_format)]
        moved = sum(one.rows * one.columns for one in same) * (FEW_BITS[base] / 8 + element_bytes)
        found[base] = moved / sum(one.seconds for one in same)
    return found


def _placed(profile: Profile) -> dict[str, tuple[Placed, ...]]:
    """Collectives between hosts, by kind."""
    found: dict[str, list[Placed]] = {}
    for kind, members in sorted({(c.kind, c.members) for c in profile.between_hosts}):
        same = sorted((c.payload_bytes, c.seconds, c.core_s) for c in profile.between_hosts if (c.kind, c.members) == (kind, members))
        sizes, seconds, core_s = np.array(same, dtype=np.float64).T
        found.setdefault(kind, []).append(Placed(members, sizes, seconds, core_s if core_s.min() > 0 else None))
    return {kind: tuple(each) for kind, each in found.items()}


def _ends_correction(slices: Sequence[Slice], rates: Rates, profile: Profile) -> Correction:
    """From seconds of kernels to those of the trainer's ends, as measured on slices."""
    points = [(_ends_s(s, rates, profile), s.ends_s) for s in slices]
    return Correction.through(*zip(*points, strict=True)) if points else Correction()


def _layer_corrections(
    slices: Sequence[Slice], ranks: Sequence[RankChunk], ends: Correction, rates: Rates, profile: Profile
) -> dict[str, Correction]:
    """From seconds of kernels to those of the trainer's layers, by what is computed again; as measured on slices or on rehearsed ranks.

    Rehearsed ranks have the sizes of the plan, cut as the plan cuts them.
    """
    if ranks:
        points = [_rehearsed_layer(one, ends, rates, profile) for one in ranks]
        return {"none": Correction.through(*zip(*points, strict=True))}
    found = {}
    for kind in dict.fromkeys(s.recompute for s in slices):
        same = [s for s in slices if s.recompute == kind]
        line = Correction.through([_slice_layer_s(s, rates, profile) for s in same], [s.layer_s for s in same])
        found[kind] = Correction(factor=line.factor, fixed_s=line.fixed_s / GAPS_AGAIN.get(kind, 1.0))
    return found


def _mean_factor(corrections: Sequence[Correction]) -> Correction:
    return Correction(factor=float(np.exp(np.mean(np.log([one.factor for one in corrections])))))


def _slice_layer_s(s: Slice, rates: Rates, profile: Profile, tp: float = 1.0) -> float:
    """Seconds of a slice's layer, composed of kernels, with what is computed again."""
    frozen = Frozen.of(s.like, s.adapters, ELEMENT_BYTES.get(s.number_format, 2.0)) if s.adapters else None
    time = composed(layer_kinds(s.like), frozen, s.micro_batch, s.seq_len, rates, Division(tp=tp))
    return float(time.total_s + time.again_s(s.recompute, stops_early=profile.shares_cores or tp > 1 or frozen is not None))


def _ends_s(cut: Slice, rates: Rates, profile: Profile, tp: float = 1.0) -> float:
    """Seconds of a slice's ends, composed of kernels."""
    trained = cut.adapters is None
    return float(sum(ends_time(cut.hidden, cut.vocab_size, cut.rows, _block_rows(cut, profile), tp, rates, trained=trained)))


def _rehearsed_layer(one: RankChunk, ends: Correction, rates: Rates, profile: Profile) -> tuple[float, float]:
    """Seconds of a rehearsed layer, composed of kernels and as they were measured; both with what is computed again."""
    sequences = one.micro_batch / one.cp
    time = composed(layer_kinds(one.like), None, sequences, one.seq_len, rates, Division(tp=one.tp))
    rows = round(sequences * one.seq_len)
    of_ends = ends_time(one.hidden, one.vocab_size, rows, _block_rows(one, profile), one.tp, rates)
    ends_s = ends.of(sum(of_ends)) if one.has_loss else 0.0
    composed_s = float(time.total_s + time.again_s(one.recompute, stops_early=True))
    return composed_s, max(one.chunk_s - ends_s, one.chunk_s / 10) / one.num_layers


def _block_rows(cut: Slice | RankChunk, profile: Profile) -> int:
    """Rows of logits that were timed at once."""
    return max((p.rows for p in profile.products if p.columns == cut.vocab_size), default=cut.micro_batch * cut.seq_len)


def _is_cut(cut: Slice) -> bool:
    return cut.tp > 1 and cut.recompute == "none"


def _is_dealt_out(cut: Slice) -> bool:
    return cut.pp > 1 and cut.recompute == "none"


def _tensor_factor(s: Slice, layer: Correction, ends: Correction, rates: Rates, profile: Profile, element_bytes: float) -> float:
    """For a slice whose layers were split: its time beyond compute, divided by its timed exchanges; at least 1.

    Both steps are added, because their difference varies more than the exchanges take.
    """
    if not _exchanges(rates):
        return 1.0
    computed_s = [layer.of(_slice_layer_s(s, rates, profile, s.tp)), ends.of(_ends_s(s, rates, profile, s.tp))]
    one_way_s = float(tensor_exchange_s(s.rows * s.hidden * element_bytes, s.tp, rates))
    small_s = [float(exchange_s(size, s.tp, *rates.collectives["all-reduce"])) for size in (4.0 * s.rows, STEP_SUM_BYTES)]
    taken_s = sum(s.steps_s) - sum(s.num_layers) * computed_s[0] - 2 * computed_s[1] - 4 * small_s[0] - 2 * small_s[1]
    return max(taken_s / ((2 * sum(s.num_layers) + 2) * one_way_s), 1.0)


def _pipeline_factor(s: Slice, layer: Correction, ends: Correction, rates: Rates, profile: Profile, element_bytes: float) -> float:
    """For a slice whose layers were divided between stages: the time of a micro-batch divided by its layers, ends and messages; at least 1.

    Messages are counted as the pricer does, two for each stage. If each process has its own core, the step contains bubbles and says
    nothing about work, so the factor is 1.
    """
    if not _exchanges(rates) or profile.num_processes < profile.num_cores:
        return 1.0
    layer_s, ends_s = layer.of(_slice_layer_s(s, rates, profile)), ends.of(_ends_s(s, rates, profile))
    message_s = float(exchange_s(s.rows * s.hidden * element_bytes, 2.0, *rates.collectives["message"]))
    sum_s = float(exchange_s(STEP_SUM_BYTES, s.pp, *rates.collectives["all-reduce"]))
    work_s = [count * layer_s + ends_s + 2 * s.pp * message_s for count in s.num_layers]
    return max((sum(s.steps_s) - 2 * sum_s) / sum(work_s), 1.0)


def _exchanges(rates: Rates) -> bool:
    """Whether all exchanges between processes were timed."""
    return {"all-gather", "reduce-scatter", "all-reduce", "message"} <= set(rates.collectives)


def _middle(factors: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(factors)))) if factors else 1.0
