"""Model x Cluster x Workload as plain numbers, the form in which a step is priced.

Every field is a number, or a column with one entry per row: so the same arithmetic prices many layouts of one job (the planner) and
many jobs at once (the fit). Shapes of arrays: matrices x rows, tiers x rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.measured import Correction, Rates, Shape, ends_time, exchange_s, layer_time, tensor_exchange_s
from meshwright.describe.cluster import Cluster
from meshwright.describe.hardware import FORMAT_OF_RECIPE, Accelerator
from meshwright.describe.model import Model
from meshwright.describe.profile import WAYS, Profile, Slice, shape_of
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.predict.footprint import recipe_for
from meshwright.predict.software import BF16_PJ_PER_FLOP, CAST_BYTES, CHIP_REFERENCE, GATHER_BYTES, REDUCE_BYTES

# A matrix of a layer: how tensor parallelism cuts it.
BY_COLUMNS, BY_ROWS, WHOLE, EXPERT = range(4)
GENERATION = {"hopper": "hopper", "blackwell": "blackwell", "blackwell-ultra": "blackwell"}
MAX_TIERS = 4
NUM_MATRICES = 11  # as many as DeepSeek-V3 has: latent attention, dense, routed and shared experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, as numbers."""

    # the job
    seq_len: Any
    global_batch: Any
    # the model
    num_layers: Any
    prediction_layers: Any  # beyond those: each with a loss of its own, on the last stage
    hidden: Any
    vocab: Any
    query_dim: Any
    kv_dim: Any
    ffn_active: Any  # MLP width a token passes, averaged over layers
    gated: Any
    num_experts: Any
    experts_per_token: Any
    expert_layers: Any  # share of layers with experts
    attention_flops: Any  # forward, one token and layer
    matrix_columns: Any  # (NUM_MATRICES, rows)
    matrix_inner: Any
    matrix_cut: Any  # BY_COLUMNS ... EXPERT
    matrix_count: Any  # per layer, averaged over layers
    layer_parameters: Any  # of one layer, averaged, without routed experts
    expert_parameters: Any  # routed experts of one layer, averaged
    embedding_parameters: Any
    tied: Any
    adapter_parameters: Any  # of one layer; 0 where everything is trained
    frozen: Any  # 1 where the base is frozen
    # the chip
    peak_flops_per_s: Any
    bf16_flops_per_s: Any
    bf16_pj: Any
    is_blackwell: Any
    is_fp4: Any
    is_bf16: Any
    fp8_attention: Any
    softmax_speedup: Any
    power_cap_w: Any
    memory_bytes_per_s: Any
    cast_bytes: Any
    gather_bytes: Any
    reduce_bytes: Any
    # the machine
    num_accelerators: Any
    tier_size: Any  # (MAX_TIERS, rows)
    tier_bytes_per_s: Any
    tier_latency_s: Any
    tier_is_scale_up: Any
    tier_is_hashed: Any
    tier_is_fabric: Any  # between nodes or scale-up domains
    storage_bytes_per_s: Any
    log_factor: Any = 0.0


def question(model: Model, cluster: Cluster, workload: Workload, log_factor: float = 0.0) -> Question:
    """One job as numbers; arrays keep a last axis of length 1 that broadcasts over layouts."""
    matrices = np.array(_matrices(model)).T
    chip = cluster.accelerator
    return Question(
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        num_layers=model.num_layers,
        prediction_layers=model.num_prediction_layers,
        hidden=model.hidden,
        vocab=model.vocab_size,
        query_dim=model.query_dim,
        kv_dim=model.kv_dim,
        ffn_active=_active_width(model),
        gated=float(model.gated),
        num_experts=model.experts.num_experts if model.experts else 1,
        experts_per_token=model.experts.num_active if model.experts else 0,
        expert_layers=model.num_expert_layers / model.num_layers,
        attention_flops=model.attention_flops_per_token(workload.seq_len),
        matrix_columns=matrices[0][:, None],
        matrix_inner=matrices[1][:, None],
        matrix_cut=matrices[2][:, None],
        matrix_count=matrices[3][:, None],
        **_parameters(model, workload),
        **_chip(chip, workload),
        num_accelerators=cluster.num_accelerators,
        **_tiers(cluster),
        storage_bytes_per_s=cluster.storage_bytes_per_s,
        log_factor=log_factor,
    )


def stacked(questions: Sequence[Question]) -> Question:
    """Many jobs as one: a column of each number."""
    columns: dict[str, Any] = {}
    for f in fields(Question):
        values = [getattr(q, f.name) for q in questions]
        columns[f.name] = np.concatenate(values, axis=1) if f.name.startswith(("matrix_", "tier_")) else np.array(values, dtype=np.float64)
    return Question(**columns)


# -- a machine that was measured --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a hardware profile says of one job: rates of kernels, and how far a step of them put together was off on slices of it."""

    profile: Profile
    shape: Shape
    rates: Rates
    layer: Correction
    ends: Correction
    tensor: float  # what exchanges within a layer cost there, over what they cost when nothing but a product comes between
    pipeline: float  # what layers, ends and messages cost when stages share them, over what they cost by themselves
    slices: tuple[Slice, ...]  # of this model; none: the corrections are other models'
    block_rows: int  # rows of logits that were timed at once
    element_bytes: float  # of what passes between operations


def measured(model: Model, workload: Workload, profile: Profile) -> Measured:
    """A profile's say on one job; raises where it holds nothing of the kind."""
    if model.experts or model.latent or workload.adapters:
        raise InputError(
            f"a hardware profile prices dense models that are trained whole, and {model.name} is not",
            where="--profile",
            fix="leave the profile out",
        )
    number_format = format_of(workload.precision)
    formats = sorted({product.number_format for product in profile.products})
    if number_format not in formats or not profile.attentions:
        raise InputError(
            f"the profile has no products in {number_format}, only in {', '.join(formats) or 'none'}",
            where="--profile",
            fix=f"choose another precision, or measure one: meshwright measure --model {model.name} --precision {workload.precision}",
        )
    rates = _rates(profile, number_format, CAST_BYTES[workload.precision])
    block_rows = max((p.rows for p in profile.products if p.columns == model.vocab_size), default=max(p.rows for p in profile.products))
    own = profile.slices_of(model, number_format, workload.precision)
    layer, ends = _corrections(own or [s for s in profile.slices if s.number_format == number_format], rates, profile)
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
    )


STEP_SUM_BYTES = 1024.0  # of the one sum over all ranks at a step's end

_SIDES = ("hidden", "ffn_hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


def format_of(precision: str) -> str:
    """What a recipe multiplies in, as a profile names it."""
    number_format = FORMAT_OF_RECIPE[precision]
    return "fp32" if number_format == "tf32" else number_format


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
    kinds = sorted({c.kind for c in profile.collectives})
    collectives = {}
    for kind in kinds:
        same = [c for c in profile.collectives if c.kind == kind]
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
    )


def _corrections(slices: Sequence[Slice], rates: Rates, profile: Profile) -> tuple[Correction, Correction]:
    """What takes seconds of kernels to those of the trainer's layers and ends, as seen on slices; nothing where there are none."""
    plain = [s for s in slices if s.recompute == "none"]
    if not plain:
        return Correction(), Correction()
    shapes = [_shape_of(s) for s in plain]
    layers = [float(layer_time(shape, s.micro_batch, s.seq_len, 1.0, rates).total_s) for shape, s in zip(shapes, plain, strict=True)]
    ends = [float(sum(ends_time(shape, s.rows, _block_rows(s, profile), 1.0, rates))) for shape, s in zip(shapes, plain, strict=True)]
    return Correction.through(layers, [s.layer_s for s in plain]), Correction.through(ends, [s.ends_s for s in plain])


def _shape_of(cut: Slice) -> Shape:
    return Shape(**{side: getattr(cut, side) for side in _SIDES}, gated=cut.gated)


def _block_rows(cut: Slice, profile: Profile) -> int:
    """Rows of logits that were timed at once."""
    return max((p.rows for p in profile.products if p.columns == cut.vocab_size), default=cut.rows)


def _is_cut(cut: Slice) -> bool:
    return cut.tp > 1 and cut.recompute == "none"


def _is_dealt_out(cut: Slice) -> bool:
    return cut.pp > 1 and cut.recompute == "none"


def _tensor_factor(s: Slice, layer: Correction, ends: Correction, rates: Rates, profile: Profile, element_bytes: float) -> float:
    """Of a slice whose layers were cut: what its steps took beyond compute, over their exchanges as timed; 1 or more.

    Both steps together, not their difference: that scatters more than exchanges weigh.
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
    """Of a slice whose layers were dealt out to stages: what a micro-batch took, over its layers, ends and messages; 1 or more.

    Messages as the pricer counts them, two for each stage. Where each process has a core of its own a step has its bubbles in it, and
    says nothing of work: 1.
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


def _active_width(model: Model) -> float:
    if not model.experts:
        return float(model.ffn_hidden)
    visited = (model.experts.num_active + model.experts.num_shared) * model.experts.hidden
    return (model.num_expert_layers * visited + model.num_dense_layers * model.ffn_hidden) / model.num_layers


def _matrices(model: Model) -> list[tuple[float, float, int, float]]:
    """(columns, inner, cut, count a layer) of a layer's matrices, padded to a fixed number."""
    rows: list[tuple[float, float, int, float]] = []
    if model.latent is None:
        rows.append((model.query_dim + 2 * model.kv_dim, model.hidden, BY_COLUMNS, 1.0))
    else:
        latent = model.latent
        if latent.query_rank:
            rows += [(latent.query_rank, model.hidden, WHOLE, 1.0), (model.query_dim, latent.query_rank, BY_COLUMNS, 1.0)]
        else:
            rows.append((model.query_dim, model.hidden, BY_COLUMNS, 1.0))
        rows.append((latent.key_value_rank + latent.rope_dim, model.hidden, WHOLE, 1.0))
        rows.append((model.num_heads * (latent.nope_dim + latent.value_dim), latent.key_value_rank, BY_COLUMNS, 1.0))
    rows.append((model.hidden, model.value_dim, BY_ROWS, 1.0))
    num_in = model.mlp_matrices - 1
    dense = model.num_dense_layers / model.num_layers
    if dense:
        rows += [(num_in * model.ffn_hidden, model.hidden, BY_COLUMNS, dense), (model.hidden, model.ffn_hidden, BY_ROWS, dense)]
    if model.experts:
        share, width = 1 - dense, model.experts.hidden
        rows += [(num_in * width, model.hidden, EXPERT, share), (model.hidden, width, EXPERT, share)]
        if model.experts.num_shared:
            wide = width * model.experts.num_shared
            rows += [(num_in * wide, model.hidden, BY_COLUMNS, share), (model.hidden, wide, BY_ROWS, share)]
    return rows + [(0.0, 0.0, WHOLE, 0.0)] * (NUM_MATRICES - len(rows))


def _parameters(model: Model, workload: Workload) -> dict[str, float]:
    dense = model.num_dense_layers * model.dense_mlp_parameters
    shared = model.num_expert_layers * (model.shared_expert_parameters + model.router_parameters)
    routed = model.num_expert_layers * model.experts.num_experts * model.expert_parameters if model.experts else 0
    adapters = 0.0
    if workload.adapters:
        sides = {
            "qkv": model.hidden + model.query_dim + 2 * model.kv_dim,
            "proj": model.value_dim + model.hidden,
            "mlp": (model.mlp_matrices) * (model.hidden + model.ffn_hidden),
        }
        adapters = float(workload.adapters.rank * sum(sides[target] for target in workload.adapters.targets))
    return {
        "layer_parameters": model.attention_matrix_parameters + (dense + shared) / model.num_layers,
        "expert_parameters": routed / model.num_layers,
        "embedding_parameters": float(model.head_parameters),
        "tied": float(model.tied_embeddings),
        "adapter_parameters": adapters,
        "frozen": float(workload.adapters is not None),
    }


def _chip(chip: Accelerator, workload: Workload) -> dict[str, float]:
    recipe_for(workload.precision)  # refuses an unknown name
    generation = GENERATION.get(chip.architecture, "hopper")
    bf16 = chip.peak_flops_per_s("bf16")
    fitted = chip.architecture in GENERATION and math.isfinite(chip.power_cap_w)
    number_format = FORMAT_OF_RECIPE[workload.precision]
    watts, flops = CHIP_REFERENCE
    return {
        "peak_flops_per_s": chip.peak_flops_per_s(workload.precision),
        "bf16_flops_per_s": bf16,
        "bf16_pj": BF16_PJ_PER_FLOP[generation],
        "is_blackwell": float(generation == "blackwell"),
        "is_fp4": float(number_format == "fp4"),
        "is_bf16": float(number_format in ("bf16", "tf32")),
        "fp8_attention": float(workload.attention_precision == "fp8" and "fp8" in chip.dense_flops_per_s),
        "softmax_speedup": chip.softmax_speedup,
        # A chip of no fitted generation is taken to reach the same share of its peak as the H100 does.
        "power_cap_w": chip.power_cap_w if fitted else watts * bf16 / flops,
        "memory_bytes_per_s": chip.memory_bytes_per_s,
        "cast_bytes": CAST_BYTES[workload.precision],
        "gather_bytes": GATHER_BYTES[workload.precision],
        "reduce_bytes": REDUCE_BYTES[workload.precision],
    }


def _tiers(cluster: Cluster) -> dict[str, NDArray[np.float64]]:
    """Columns of the tiers, the outermost repeated up to a fixed number."""
    tiers = list(cluster)
    if len(tiers) > MAX_TIERS:
        raise InputError(
            f"cluster {cluster.name!r} has {len(tiers)} tiers; at most {MAX_TIERS} are priced", where=f"cluster {cluster.name}"
        )
    tiers += [tiers[-1]] * (MAX_TIERS - len(tiers))

    def column(values: list[float]) -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)[:, None]

    return {
        "tier_size": column([tier.num_accelerators for tier in tiers]),
        "tier_bytes_per_s": column([tier.bytes_per_s for tier in tiers]),
        "tier_latency_s": column([tier.latency_s for tier in tiers]),
        "tier_is_scale_up": column([float(tier.routing == "scale-up") for tier in tiers]),
        "tier_is_hashed": column([float(tier.routing == "hashed") for tier in tiers]),
        "tier_is_fabric": column([float(cluster.is_fabric(tier)) for tier in tiers]),
    }
