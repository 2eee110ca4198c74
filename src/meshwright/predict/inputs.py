"""Model x Cluster x Workload as plain numbers, the form in which a step is priced.

Every field is a number, or a column with one entry per row: so the same arithmetic prices many layouts of one job (the planner) and
many jobs at once (the fit). Shapes of arrays: matrices x rows, tiers x rows, kinds of recomputing x rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.describe.products import attention_products, mlp_products, repeated
from meshwright.describe.recipe import Recipe, recipe
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.predict.footprint import adapter_sides, kept_bytes, recipe_for
from meshwright.predict.software import BF16_PJ_PER_FLOP, CHIP_REFERENCE, generation_of, is_fitted

Value = float | NDArray[np.float64]  # one number, or a column with an entry for each row
Columns = NDArray[np.float64]  # matrices x rows, tiers x rows

# How tensor parallelism splits a matrix of a layer.
BY_COLUMNS, BY_ROWS, WHOLE, EXPERT = range(4)
UP_PROJECTION, DENSE_MLP, SHARED_MLP = 1, 2, 3  # and what it belongs to: parts that may be recomputed, and the shared experts
MAX_TIERS = 4
NUM_MATRICES = 11  # as many as DeepSeek-V3 has: latent attention, dense, routed and shared experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One job as numbers, or many jobs as columns."""

    # the job
    seq_len: Value
    global_batch: Value
    # the model
    num_layers: Value
    prediction_layers: Value  # further layers, each with its own loss, on the last stage
    hidden: Value
    vocab: Value
    query_dim: Value
    kv_dim: Value
    num_kv_heads: Value  # with more tensor ranks than these, ranks hold copies
    ffn_active: Value  # MLP width that a token uses, averaged over layers
    gated: Value
    num_experts: Value
    experts_per_token: Value
    expert_layers: Value  # share of layers with experts
    num_scores: Value  # of one token in one layer, masked ones included
    attention_flops: Value  # forward, one token and layer
    matrix_columns: Columns  # (NUM_MATRICES, rows)
    matrix_inner: Columns
    matrix_cut: Columns  # BY_COLUMNS ... EXPERT
    matrix_copied: Columns  # of the columns, those of keys and values
    matrix_count: Columns  # per layer, averaged over layers
    matrix_repeated: Columns  # share of the product that the backward pass does again where every second product's output is kept
    matrix_part: Columns  # UP_PROJECTION, DENSE_MLP or SHARED_MLP; else 0
    kept_bytes: Columns  # (RECOMPUTE, rows): of a token in one layer until its backward, averaged over layers
    layer_parameters: Value  # of one layer, averaged, without routed experts
    expert_parameters: Value  # routed experts of one layer, averaged
    embedding_parameters: Value
    tied: Value
    adapter_parameters: Value  # of one layer; 0 where everything is trained
    frozen: Value  # 1 where the base is frozen
    # the chip
    peak_flops_per_s: Value
    bf16_flops_per_s: Value
    bf16_pj: Value
    is_blackwell: Value
    is_ultra: Value  # Blackwell Ultra: a die of its own
    is_fp4: Value
    is_bf16: Value
    fp8_attention: Value
    softmax_speedup: Value
    power_cap_w: Value
    memory_bytes_per_s: Value
    host_bytes_per_s: Value  # each way to the host's memory; 0 where nothing is moved there
    cast_bytes: Value
    gather_bytes: Value
    reduce_bytes: Value
    # the machine
    num_accelerators: Value
    tier_size: Columns  # (MAX_TIERS, rows)
    tier_bytes_per_s: Columns
    tier_latency_s: Columns
    tier_is_scale_up: Columns
    tier_is_hashed: Columns
    tier_is_fabric: Columns  # between nodes or scale-up domains
    storage_bytes_per_s: Value
    # the software
    log_factor: Value = 0.0  # ln of the time of all compute relative to the reference release
    log_attention: Value = 0.0  # ln of the further time of attention: kernels of another kind
    log_products: Value = 0.0  # ln of the further time of matrix products: scaled in another way
    score_bytes: Value = 0.0  # moved for each score of attention, forward, where no kernel fuses it
    log_memory: Value = 0.0  # ln of the further time of kernels that move bytes: fewer of them are fused
    log_grouped: Value = 0.0  # ln of the further time of the experts' products
    expert_bytes: Value = 8.0  # moved for an element that goes to an expert and back, each way
    host_s: Value = 0.0  # that the host needs to launch the forward pass of a layer without CUDA graphs
    expert_imbalance: Value = 1.0  # tokens of the busiest rank over the mean, where experts are spread over ranks
    expert_sync_s: Value = 0.0  # for which a layer with experts waits until its host knows how many tokens each expert got, each way
    expert_mlp_bytes: Value = 0.0  # moved for an element of the experts' hidden layer beyond what a fused activation moves, each way
    expert_hidden: Value = 0.0  # share of the experts' all-to-all that is hidden behind compute if it is overlapped
    tp_hidden: Value = np.nan  # share of tensor traffic that is hidden behind products if it is overlapped; NaN: as fitted for all software
    sends_once: Value = 0.0  # 1 if a token is sent only once to a rank or domain with several of its experts
    own_exchange: Value = 0.0  # 1 if tokens go once to each rank, and shared experts are computed meanwhile, as in meshwright's trainer
    update_bytes: Value = np.nan  # all that an update moves for a parameter; NaN: as assumed for all software
    prediction_inner: Value = (
        0.0  # width of what a prediction layer projects; 0: not priced apart, as in the runs that constants are fitted on
    )


def inputs_of(job: Job) -> Inputs:
    """One job as numbers; arrays keep a last axis of length 1 that broadcasts over layouts."""
    model, cluster, workload = job.model, job.cluster, job.workload
    matrices = np.array(_matrices(model)).T
    chip = cluster.accelerator
    return Inputs(
        seq_len=workload.seq_len,
        global_batch=workload.global_batch,
        num_layers=model.num_layers,
        prediction_layers=model.num_prediction_layers,
        hidden=model.hidden,
        vocab=model.vocab_size,
        query_dim=model.query_dim,
        kv_dim=model.kv_dim,
        num_kv_heads=model.num_heads if model.latent else model.num_kv_heads,
        ffn_active=_active_width(model),
        gated=float(model.gated),
        num_experts=model.experts.num_experts if model.experts else 1,
        experts_per_token=model.experts.num_active if model.experts else 0,
        expert_layers=model.num_expert_layers / model.num_layers,
        num_scores=float(model.num_heads * workload.seq_len),
        attention_flops=model.attention_flops_per_token(workload.seq_len),
        matrix_columns=matrices[0][:, None],
        matrix_inner=matrices[1][:, None],
        matrix_cut=matrices[2][:, None],
        matrix_count=matrices[3][:, None],
        matrix_part=matrices[4][:, None],
        matrix_repeated=matrices[5][:, None],
        matrix_copied=(np.arange(NUM_MATRICES) == 0)[:, None] * (0.0 if model.latent else 2.0 * model.kv_dim),
        kept_bytes=kept_bytes(model, workload, recipe_for(workload.precision, chip))[:, None],
        **_parameters(model, workload),
        **_chip(chip, workload),
        num_accelerators=cluster.num_accelerators,
        **_tiers(cluster),
        storage_bytes_per_s=cluster.storage_bytes_per_s,
        **_software(job),
    )


def _software(job: Job) -> dict[str, Any]:
    """What the software adds to the price: effects of its class and of the generation of the chip, and how it runs experts."""
    effects, model = job.effects, job.model
    found: dict[str, Any] = {
        "log_factor": effects.log_factor,
        "log_attention": effects.log_attention,
        "log_memory": effects.log_memory,
        "log_products": effects.log_products,
        "score_bytes": effects.score_bytes,
        "host_s": effects.host_s,
        "tp_hidden": np.nan if effects.tp_hidden is None else effects.tp_hidden,
    }
    if job.software.is_own:
        found["update_bytes"] = trainer_update_bytes(recipe_for(job.workload.precision, job.cluster.accelerator))
        found["prediction_inner"] = 2.0 * model.hidden
    if model.experts is None:
        return found
    found["expert_imbalance"] = job.workload.expert_imbalance
    return found | job.software.experts.inputs(job.practice, has_biases=model.biases)


def trainer_update_bytes(recipe: Recipe) -> float:
    """Bytes that an update of meshwright's trainer moves for a parameter: nothing is cast, copied or set to zero beside it.

    The gradient is read twice, for its norm and for the update. States are read and written, and so are weights if the optimizer has no
    copy of its own; otherwise they are only written.
    """
    gradient = recipe.reduce_bytes if recipe.trainer_reduce_bytes is None else recipe.trainer_reduce_bytes
    weight = recipe.gather_bytes if recipe.trainer_gather_bytes is None else recipe.trainer_gather_bytes
    has_copy = recipe.optimizer_bytes > 2 * weight  # beside the two moments
    return 2 * gradient + 2 * recipe.optimizer_bytes + (1 if has_copy else 2) * weight


def stacked(questions: Sequence[Inputs]) -> Inputs:
    """Many jobs as one: each number becomes a column."""
    columns: dict[str, Any] = {}
    for f in fields(Inputs):
        values = [getattr(q, f.name) for q in questions]
        is_table = f.name.startswith(("matrix_", "tier_", "kept_"))
        columns[f.name] = np.concatenate(values, axis=1) if is_table else np.array(values, dtype=np.float64)
    return Inputs(**columns)


def _active_width(model: Model) -> float:
    if not model.experts:
        return float(model.ffn_hidden)
    visited = (model.experts.num_active + model.experts.num_shared) * model.experts.hidden
    return (model.num_expert_layers * visited + model.num_dense_layers * model.ffn_hidden) / model.num_layers


Matrix = tuple[float, float, int, float, int, float]  # columns, inner, cut, count a layer, part, share that is repeated


def _matrices(model: Model) -> list[Matrix]:
    """A layer's matrices, padded to a fixed number. Products with one input and one cut are one matrix, as Megatron-LM has them."""
    rows = _attention_matrices(model)
    dense = model.num_dense_layers / model.num_layers
    if dense:
        rows += _mlp_matrices(model, model.ffn_hidden, dense, DENSE_MLP)
    if model.experts:
        share, width, num_in = 1 - dense, model.experts.hidden, model.mlp_matrices - 1
        # Grouped products are none of those that every-second checkpointing keeps.
        rows += [(num_in * width, model.hidden, EXPERT, share, 0, 1.0), (model.hidden, width, EXPERT, share, 0, 1.0)]
        if model.experts.num_shared:
            rows += _mlp_matrices(model, width * model.experts.num_shared, share, SHARED_MLP)
    return rows + [(0.0, 0.0, WHOLE, 0.0, 0, 0.0)] * (NUM_MATRICES - len(rows))


def _attention_matrices(model: Model) -> list[Matrix]:
    products = attention_products(model)
    again = repeated(products)
    if model.latent is None:  # the first: `matrix_copied` counts on it
        width = model.query_dim + 2 * model.kv_dim
        share = sum(one.columns for one in products[:3] if one.name in again) / width
        return [
            (width, model.hidden, BY_COLUMNS, 1.0, 0, share),
            (model.hidden, model.value_dim, BY_ROWS, 1.0, 0, float("o" in again)),
        ]
    cuts = {"q_down": WHOLE, "kv_down": WHOLE, "o": BY_ROWS}
    return [
        (
            one.columns,
            one.inner,
            cuts.get(one.name, BY_COLUMNS),
            1.0,
            UP_PROJECTION if one.name.endswith("_up") else 0,
            float(one.name in again),
        )
        for one in products
    ]


def _mlp_matrices(model: Model, width: int, count: float, part: int) -> list[Matrix]:
    """What goes in as one matrix and what comes out as another, of an MLP that follows attention."""
    products = mlp_products(model, width)
    again = repeated((*attention_products(model), *products))
    share = sum(one.name in again for one in products[:-1]) / len(products[:-1])
    return [
        (len(products[:-1]) * width, model.hidden, BY_COLUMNS, count, part, share),
        (model.hidden, width, BY_ROWS, count, part, float("down" in again)),
    ]


def _parameters(model: Model, workload: Workload) -> dict[str, Any]:
    dense = model.num_dense_layers * model.dense_mlp_parameters
    shared = model.num_expert_layers * (model.shared_expert_parameters + model.router_parameters)
    routed = model.num_expert_layers * model.experts.num_experts * model.expert_parameters if model.experts else 0
    adapters = 0.0
    if workload.adapters:
        mlp = model.mlp_matrices * (model.hidden + model.ffn_hidden)
        adapters = float(workload.adapters.parameters({**adapter_sides(model), "mlp": mlp}))
    return {
        "layer_parameters": model.attention_matrix_parameters + (dense + shared) / model.num_layers,
        "expert_parameters": routed / model.num_layers,
        "embedding_parameters": float(model.head_parameters),
        "tied": float(model.tied_embeddings),
        "adapter_parameters": adapters,
        "frozen": float(workload.adapters is not None),
    }


def _chip(chip: Accelerator, workload: Workload) -> dict[str, Any]:
    wanted = recipe(workload.precision)
    generation = generation_of(chip)
    bf16 = chip.peak_flops_per_s("bf16")
    fitted = is_fitted(chip) and math.isfinite(chip.power_cap_w)
    number_format = wanted.number_format
    watts, flops = CHIP_REFERENCE
    return {
        "peak_flops_per_s": chip.peak_flops_per_s(workload.precision),
        "bf16_flops_per_s": bf16,
        "bf16_pj": BF16_PJ_PER_FLOP[generation],
        "is_blackwell": float(generation == "blackwell"),
        "is_ultra": float(chip.architecture == "blackwell-ultra"),
        "is_fp4": float(number_format == "fp4"),
        "is_bf16": float(number_format in ("bf16", "tf32")),
        "fp8_attention": float(workload.attention_precision == "fp8" and "fp8" in chip.dense_flops_per_s),
        "softmax_speedup": chip.softmax_speedup,
        # A chip of no fitted generation is assumed to reach the same share of its peak as the H100.
        "power_cap_w": chip.power_cap_w if fitted else watts * bf16 / flops,
        "memory_bytes_per_s": chip.memory_bytes_per_s,
        "host_bytes_per_s": chip.host_bytes_per_s,
        "cast_bytes": wanted.cast_bytes,
        "gather_bytes": wanted.gather_bytes,
        "reduce_bytes": wanted.reduce_bytes,
    }


def _tiers(cluster: Cluster) -> dict[str, Any]:
    """Columns of the tiers; the outermost is repeated up to a fixed number."""
    tiers = list(cluster)
    if len(tiers) > MAX_TIERS:
        raise InputError(
            f"cluster {cluster.name!r} has {len(tiers)} tiers; at most {MAX_TIERS} are priced",
            where=f"cluster {cluster.name}",
            fix="describe several tiers of the network as one",
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
