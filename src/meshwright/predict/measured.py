"""What a hardware profile says about one job: rates of kernels, and corrections from slices of a real training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.measured import Correction, Placed, Rates, Shape, ends_time, exchange_s, layer_time, tensor_exchange_s
from meshwright.describe.model import Model
from meshwright.describe.profile import WAYS, Profile, RankChunk, Slice, shape_of
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import FEW_BITS, Adapters, Workload
from meshwright.errors import InputError, argument


@dataclass(frozen=True, slots=True)
class Frozen:
    """Bytes that a layer with a frozen base moves besides: for the products of its adapters, and to make weights of few bits.

    Products with a side as short as a rank take as long as their other sides take to move. Forward they read the input, and add to the
    output; backward they read the output's gradient twice and the input, and add to the input's gradient.
    """

    token_bytes: tuple[float, float]  # forward and backward
    made_bytes: float  # of a layer, each way: codes read, weights written

    @staticmethod
    def of(model: Model, adapters: Adapters, element_bytes: float) -> Frozen:
        """For all products of a layer that have adapters."""
        sides = {
            "qkv": (model.hidden, model.query_dim + 2 * model.kv_dim, "qkv"),
            "o": (model.value_dim, model.hidden, "proj"),
            "into": (model.hidden, (model.mlp_matrices - 1) * model.ffn_hidden, "mlp"),
            "down": (model.ffn_hidden, model.hidden, "mlp"),
        }
        forward = sum(read + 2 * written for read, written, kind in sides.values() if adapters.adapts(kind))
        backward = sum(3 * read + 2 * written for read, written, kind in sides.values() if adapters.adapts(kind))
        elements = sum(read * written for read, written, _ in sides.values())
        bits = FEW_BITS.get(adapters.base)
        return Frozen(
            (forward * element_bytes, backward * element_bytes), elements * (bits / 8 + element_bytes) if bits is not None else 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a hardware profile says about one job: rates of kernels, and how far a step computed from them was off on its slices."""

    profile: Profile
    shape: Shape
    rates: Rates
    layer: Correction
    ends: Correction
    tensor: float  # cost of exchanges within a layer in a real step, relative to exchanges with only a product between them
    pipeline: float  # cost of layers, ends and messages when stages share cores, relative to their separate costs
    slices: tuple[Slice, ...]  # of this model; empty: the corrections are those of other models
    block_rows: int  # rows of logits that were timed at once
    element_bytes: float  # of the tensors between operations
    frozen: Frozen | None  # the base, if adapters are trained beside it


def measured(model: Model, workload: Workload, profile: Profile) -> Measured:
    """What a profile says about one job; raises an error if it contains nothing suitable."""
    if model.experts or model.latent:
        raise InputError(
            f"a hardware profile prices dense models, and {model.name} is not one",
            where=argument("profile"),
            fix="leave the profile out",
        )
    number_format = format_of(workload.precision)
    timed = {(product.number_format, product.way) for product in profile.products}
    formats = sorted({name for name, _ in timed if all((name, way) in timed for way in WAYS)})  # a step needs a product and both gradients
    if number_format not in formats or not profile.attentions:
        raise InputError(
            f"the profile has no products in {number_format}, only in {', '.join(formats) or 'none'}",
            where=argument("profile"),
            fix=f"choose another precision, or measure one: `meshwright measure --model {model.name} --precision {workload.precision}`",
        )
    rates = _rates(profile, number_format, recipe(workload.precision).cast_bytes)
    block_rows = max((p.rows for p in profile.products if p.columns == model.vocab_size), default=max(p.rows for p in profile.products))
    own = profile.slices_of(model, number_format, workload.precision)
    ranks = profile.rank_chunks_of(model, number_format)
    layer, ends = _corrections(own or [s for s in profile.slices if s.number_format == number_format], ranks, rates, profile)
    own_shared = profile.shared_slices_of(model, number_format, workload.precision)
    everyones = [s for s in profile.shared_slices if s.number_format == number_format]
    cut, dealt = ([s for s in own_shared if of(s)] or [s for s in everyones if of(s)] for of in (_is_cut, _is_dealt_out))
    element_bytes = 4.0 if number_format == "fp32" else 2.0
    shape = Shape(**dict(zip(_SIDES, shape_of(model), strict=True)), gated=model.gated)
    return Measured(
        profile=profile,
        shape=shape,
        rates=rates,
        layer=layer,
        ends=ends,
        tensor=_middle([_tensor_factor(s, layer, ends, rates, profile, element_bytes) for s in cut]),
        pipeline=_middle([_pipeline_factor(s, layer, ends, rates, profile, element_bytes) for s in dealt]),
        slices=tuple(own),
        block_rows=block_rows,
        element_bytes=element_bytes,
        frozen=Frozen.of(model, workload.adapters, element_bytes) if workload.adapters else None,
    )


STEP_SUM_BYTES = 1024.0  # of the single sum over all ranks at the end of a step

_SIDES = ("hidden", "ffn_hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


def format_of(precision: str) -> str:
    """What a recipe multiplies in, as a profile names it."""
    return recipe(precision).profile_format


def _rates(profile: Profile, number_format: str, cast_bytes: float) -> Rates:
    products = {}
    for way in WAYS:
        timed = [p for p in profile.products if p.way == way and p.number_format == number_format]
        shapes = np.array([(p.rows, p.columns, p.inner) for p in timed], dtype=np.float64).T
        products[way] = shapes, 2.0 * shapes.prod(axis=0) / [p.seconds for p in timed]
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
    )


def _placed(profile: Profile) -> dict[str, tuple[Placed, ...]]:
    """Collectives between hosts, by kind."""
    found: dict[str, list[Placed]] = {}
    for kind, members in sorted({(c.kind, c.members) for c in profile.between_hosts}):
        same = sorted((c.payload_bytes, c.seconds, c.core_s) for c in profile.between_hosts if (c.kind, c.members) == (kind, members))
        sizes, seconds, core_s = np.array(same, dtype=np.float64).T
        found.setdefault(kind, []).append(Placed(members, sizes, seconds, core_s if core_s.min() > 0 else None))
    return {kind: tuple(each) for kind, each in found.items()}


def _corrections(slices: Sequence[Slice], ranks: Sequence[RankChunk], rates: Rates, profile: Profile) -> tuple[Correction, Correction]:
    """Factors from seconds of kernels to seconds of the trainer's layers and ends, as measured on slices and on rehearsed ranks.

    Rehearsed ranks correct layers alone: they have the sizes of the plan, cut as the plan cuts them.
    """
    plain = [s for s in slices if s.recompute == "none"]
    shapes = [_shape_of(s) for s in plain]
    ends = [float(sum(ends_time(shape, s.rows, _block_rows(s, profile), 1.0, rates))) for shape, s in zip(shapes, plain, strict=True)]
    of_ends = Correction.through(ends, [s.ends_s for s in plain]) if plain else Correction()
    if ranks:
        points = [_rehearsed_layer(one, of_ends, rates, profile) for one in ranks]
    else:
        composed = (layer_time(shape, s.micro_batch, s.seq_len, 1.0, rates).total_s for shape, s in zip(shapes, plain, strict=True))
        points = [(float(composed_s), s.layer_s) for composed_s, s in zip(composed, plain, strict=True)]
    return Correction.through(*zip(*points, strict=True)) if points else Correction(), of_ends


def _rehearsed_layer(one: RankChunk, ends: Correction, rates: Rates, profile: Profile) -> tuple[float, float]:
    """Seconds of a rehearsed layer, composed of kernels and as they were measured; both with what is computed again."""
    shape, sequences = _shape_of(one), one.micro_batch / one.cp
    time = layer_time(shape, sequences, one.seq_len, one.tp, rates)
    again = {"none": 0.0, "selective": float(time.attention[0])}.get(
        one.recompute, float(time.matmul[0] + time.attention[0] + time.memory[0] - time.last_s)
    )
    rows = round(sequences * one.seq_len)
    ends_s = ends.of(sum(ends_time(shape, rows, _block_rows(one, profile), one.tp, rates))) if one.has_loss else 0.0
    return float(time.total_s) + again, max(one.chunk_s - ends_s, one.chunk_s / 10) / one.num_layers


def _shape_of(cut: Slice | RankChunk) -> Shape:
    return Shape(**{side: getattr(cut, side) for side in _SIDES}, gated=cut.gated)


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
    computed_s = [
        layer.of(layer_time(_shape_of(s), s.micro_batch, s.seq_len, s.tp, rates).total_s),
        ends.of(sum(ends_time(_shape_of(s), s.rows, _block_rows(s, profile), s.tp, rates))),
    ]
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
    layer_s = layer.of(layer_time(_shape_of(s), s.micro_batch, s.seq_len, 1.0, rates).total_s)
    ends_s = ends.of(sum(ends_time(_shape_of(s), s.rows, _block_rows(s, profile), 1.0, rates)))
    message_s = float(exchange_s(s.rows * s.hidden * element_bytes, 2.0, *rates.collectives["message"]))
    sum_s = float(exchange_s(STEP_SUM_BYTES, s.pp, *rates.collectives["all-reduce"]))
    work_s = [count * layer_s + ends_s + 2 * s.pp * message_s for count in s.num_layers]
    return max((sum(s.steps_s) - 2 * sum_s) / sum(work_s), 1.0)


def _exchanges(rates: Rates) -> bool:
    """Whether all exchanges between processes were timed."""
    return {"all-gather", "reduce-scatter", "all-reduce", "message"} <= set(rates.collectives)


def _middle(factors: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(factors)))) if factors else 1.0
