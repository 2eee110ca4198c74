"""Bytes on every pipeline stage: Model x Workload x Layouts (columns) -> parts, peak, and the moment of the peak.

Three stages represent all: the first (embedding, most micro-batches in flight), the second (the fullest of the middle ones) and the last
(loss). `stages` computes every stage of one layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost import memory
from meshwright.cost.memory import BF16_BYTES, FP32_BYTES, Column
from meshwright.cost.pipeline import layers_in_flight, peak_in_flight, smallest_group
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.describe.products import Product, adapted_matrices, attention_products, layer_products, mlp_products, repeated
from meshwright.describe.recipe import Recipe
from meshwright.describe.recipe import recipe as recipe_named
from meshwright.describe.workload import ADAPTED, FEW_BITS, Adapters, Workload
from meshwright.errors import FitError
from meshwright.layout import CP_KINDS, OPS, RECOMPUTE, Layout, Layouts
from meshwright.predict.parameters import BUCKET_PARAMETERS, SMALLEST_BUCKETS
from meshwright.predict.stages import Split, stage_layers
from meshwright.units import GB, gib

# Memory outside PyTorch's allocator: CUDA context, NCCL channels, buffers of overlapped collectives, fragmentation.
# An assumption, not a fit.
RESERVE_BYTES = 4 * GB
PROCESS_BYTES = 0.5 * GB  # the same for a process on a CPU: the interpreter and PyTorch


def reserve_for(accelerator: Accelerator) -> float:
    """Bytes of an accelerator's memory that a plan must leave free."""
    return PROCESS_BYTES if accelerator.architecture == "cpu" else RESERVE_BYTES


JOINED = (("attention", ("q", "k", "v")), ("mlp", ("gate", "up")), ("mlp.shared", ("gate", "up")))  # one product each
OFFLOADED_SHARE = 0.5  # of the layers, those whose activations `offload` moves to the host's memory
SPLIT_INPUTS, WHOLE = ("o", "down"), ("q_down", "kv_down")  # matrices that tensor ranks split along their input, or not at all
GATHERED = ("q", "gate", "up")  # the first of the matrices that multiply hidden states which tensor ranks have gathered
NUM_GATHERED_LAYERS = 2  # ZeRO 3: the present layer and the one that is fetched ahead

PARTS = ("weights", "gradients", "optimizer", "activations", "loss", "buffers")
MOMENTS = ("first backward, warm-up over", "loss", "backward of the embedding")


ADVICE = {  # by the part that takes the most room
    "weights": "split the weights: raise tp or pp, or use zero=3",
    "gradients": "split the gradients: raise tp or pp, or use zero=2",
    "optimizer": "share the optimizer out: raise dp with zero=1, or tp or pp",
    "activations": "save fewer activations: raise tp or cp, lower mbs, or recompute=full",
    "loss": "split the logits: raise tp or cp, or lower mbs",
    "buffers": "raise tp",
}


def recipe_for(precision: str, accelerator: Accelerator | None = None) -> Recipe:
    """The recipe called `precision`, as it is on an accelerator."""
    return recipe_named(precision).on(accelerator.dense_flops_per_s if accelerator else {})


@dataclass(frozen=True)
class _Shapes:
    """Numbers of one model under one recipe that do not depend on the layout; bytes are per token."""

    model: Model
    recipe: Recipe
    adapters: Adapters | None
    imbalance: float = 1.0  # tokens of the busiest expert-parallel rank over the mean
    is_own: bool = False  # whether meshwright's trainer runs it

    @staticmethod
    def of(model: Model, workload: Workload, recipe: Recipe | None, is_own: bool = False) -> _Shapes:
        return _Shapes(model, recipe or recipe_for(workload.precision), workload.adapters, workload.expert_imbalance, is_own)

    def routed_more(self, layouts: Layouts) -> Column:
        """How many more tokens than the mean the busiest rank's routed experts get, as a share of the mean.

        One rank is taken as the busiest in all layers. No rank gets more than all tokens.
        """
        return np.asarray(np.minimum(self.imbalance, layouts.ep) - 1.0)

    @property
    def num_inner(self) -> int:
        return self.model.mlp_matrices - 1

    @cached_property
    def replicated_parameters(self) -> float:
        """Parameters of one layer that every tensor rank holds: norms, and the down projections of latent attention."""
        latent = self.model.latent
        low_rank = latent.query_rank + latent.key_value_rank + latent.rope_dim if latent else 0
        return float(2 * self.model.hidden + self.model.hidden * low_rank)

    @cached_property
    def attention_parameters(self) -> float:
        """Parameters of one layer that are split over tensor ranks."""
        return self.model.attention_matrix_parameters + self.model.small_parameters_per_layer - self.replicated_parameters

    @cached_property
    def key_value_parameters(self) -> float:
        """Parameters of one layer that are copied if there are more tensor ranks than key-value heads; 0 with latent attention."""
        model = self.model
        has_bias = model.biases or model.attention_biases or model.qkv_biases
        return 0.0 if model.latent else 2.0 * model.kv_dim * (model.hidden + has_bias)

    def copied(self, layouts: Layouts) -> Column:
        """Copies of each key-value head on tensor ranks, beyond the first."""
        heads = self.model.num_heads if self.model.latent else self.model.num_kv_heads
        return np.maximum(layouts.tp / heads, 1.0) - 1.0

    def copied_saved(self, layouts: Layouts) -> Column:
        """Bytes per token that the keys and values of these copies add to what attention saves."""
        return np.asarray(self.copied(layouts) * self.recipe.tensor_bytes * 2 * self.model.kv_dim)

    @cached_property
    def dense_layer_parameters(self) -> float:
        return self.attention_parameters + self.model.dense_mlp_parameters

    @cached_property
    def expert_layer_parameters(self) -> float:
        """Parameters of one layer with experts that are split over tensor ranks: all but the routed experts."""
        return self.attention_parameters + self.model.shared_expert_parameters

    @cached_property
    def routed_parameters(self) -> float:
        """Parameters of one layer that are split over expert ranks."""
        return float(self.model.experts.num_experts * self.model.expert_parameters) if self.model.experts else 0.0

    @cached_property
    def adapter_parameters(self) -> float:
        """Parameters of the adapters of one layer; 0 if the whole model is trained."""
        if not self.adapters:
            return 0.0
        mlp = 2 * self.model.hidden + (self.num_inner + 1) * self.model.ffn_hidden
        return float(self.adapters.parameters({**adapter_sides(self.model), "mlp": mlp}))

    def own_adapter_parameters(self, layouts: Layouts, cut: _Cut) -> Column:
        """Parameters of adapters on a rank of meshwright's trainer: a pair for each matrix, of which tensor ranks split one half."""
        found = np.zeros(cut.layers.shape)
        if self.adapters is None:
            return found
        for layer, count in ((0, cut.dense), (self.model.num_layers - 1, cut.layers - cut.dense)):
            for one in layer_products(self.model, layer).values():
                if one.name not in adapted_matrices(self.model, self.adapters):
                    continue
                halves = np.array([one.inner, one.columns], dtype=np.float64)[:, None] / np.ones(len(layouts))
                if one.name not in WHOLE:
                    halves[0 if one.name in SPLIT_INPUTS else 1] /= layouts.tp
                found = found + count * self.adapters.rank * halves.sum(axis=0)
        return found

    def kept(self, kind: str) -> Recipe:
        """The recipe for one kind of matrix multiplication.

        An adapter keeps its input after a dropout in bf16, and the mask of the dropout; a frozen weight keeps nothing.
        """
        if not self.adapters:
            return self.recipe
        if self.is_own:
            return replace(self.recipe, input_bytes=self.own_input_bytes(*ADAPTED[kind]))
        return replace(self.recipe, input_bytes=BF16_BYTES + 1 if self.adapters.adapts(kind) else 0.0)

    def own_input_bytes(self, *names: str) -> float:
        """Bytes of an element of an input that meshwright's trainer keeps for the adapters of these matrices, which all read it.

        Without a dropout the input is kept once. With one, each matrix has a dropped copy of its own, and a mask.
        """
        assert self.adapters is not None, "without adapters the recipe says what is kept"
        count = len(set(names) & set(adapted_matrices(self.model, self.adapters)))
        if self.adapters.dropout:
            return count * (self.recipe.tensor_bytes + 1)
        return self.recipe.tensor_bytes if count else 0.0

    def own_pairs_saved(self, layouts: Layouts, tokens: Column, *halves: str) -> Column:
        """Bytes that the adapters of a layer keep besides inputs in meshwright's trainer, in halves of a layer: "attention", "mlp".

        Pairs that multiply the same input are one: A and B side by side are kept, and the input times A, which is whole on every tensor
        rank. The input that tensor ranks have gathered is kept whole, too.
        """
        found = np.zeros(len(layouts))
        if not (self.is_own and self.adapters):
            return found
        adapted, rank, each = adapted_matrices(self.model, self.adapters), self.adapters.rank, self.recipe.tensor_bytes
        for group in self._groups(halves):
            count = sum(one.name in adapted for one in group)
            if not count:
                continue
            tp = layouts.tp.astype(np.float64)
            split_rows, split_inner = (np.where(is_split, tp, 1.0) for is_split in _split_sides(group[0].name))
            rows, inner = sum(one.columns for one in group) / split_rows, group[0].inner / split_inner
            joined = rows + (0.0 if self.adapters.dropout else inner)
            found = found + each * rank * count * (joined + tokens)
            if group[0].name in GATHERED:
                found = found + self.own_input_bytes(*(one.name for one in group)) * group[0].inner * tokens * (1 - 1 / tp)
        return found

    def _groups(self, halves: Sequence[str]) -> list[list[Product]]:
        """The products of a dense layer, those with the same input together."""
        products = [(place, one) for place, one in layer_products(self.model, 0).items() if place.partition(".")[0] in halves]
        groups: dict[str, list[Product]] = {}
        for place, one in products:
            before, name = place.rpartition(".")[::2]
            first = next((names[0] for where, names in JOINED if where == before and name in names), name)
            groups.setdefault(f"{before}.{first}", []).append(one)
        return list(groups.values())

    @cached_property
    def attention_saved(self) -> float:
        model, latent = self.model, self.model.latent
        heads = (model.query_dim, model.value_dim, model.num_heads, self.kept("qkv"))
        if latent:
            saved = memory.latent_saved_bytes(model.hidden, latent.query_rank, latent.key_value_rank, latent.rope_dim, *heads)
        else:
            saved = memory.attention_saved_bytes(model.hidden, model.kv_dim, *heads)
        if model.qk_norm:
            saved += self.recipe.tensor_bytes * (model.query_dim + model.kv_dim)
        return saved + memory.projection_input_bytes(model.value_dim, self.kept("proj"))

    @cached_property
    def recomputable(self) -> float:
        """Bytes that selective recompute drops: attention's statistics, and its output if the projection keeps its own input."""
        own_input = memory.projection_input_bytes(self.model.value_dim, self.kept("proj")) > 0
        return FP32_BYTES * self.model.num_heads + (self.recipe.tensor_bytes * self.model.value_dim if own_input else 0.0)

    @cached_property
    def rebuilt_up(self) -> float:
        """Bytes that recomputing the up projections of latent attention drops: queries, keys and values of all heads."""
        return self.recipe.tensor_bytes * (2 * self.model.query_dim + self.model.value_dim) if self.model.latent else 0.0

    @cached_property
    def norm_outputs(self) -> tuple[float, float]:
        """Bytes of the two norms' outputs that recomputing norms drops: attention's, and the MLP's (which experts keep for the router)."""
        kept = self.kept("qkv").input_bytes, self.recipe.tensor_bytes if self.model.experts else self.kept("mlp").input_bytes
        return kept[0] * self.model.hidden, kept[1] * self.model.hidden

    @cached_property
    def shrunk(self) -> tuple[float, float]:
        """Bytes that are saved by keeping inputs of activation functions in fp8, in a dense layer and in one with experts."""
        each = max(self.recipe.preactivation_bytes - 1.0, 0.0) * self.num_inner
        experts = self.model.experts
        return each * self.model.ffn_hidden, each * (experts.num_active + experts.num_shared) * experts.hidden if experts else 0.0

    @cached_property
    def expert_activations(self) -> float:
        """Bytes that recomputing the experts' activation function drops: the input of the second product."""
        experts = self.model.experts
        return self.kept("mlp").input_bytes * experts.num_active * experts.hidden if experts else 0.0

    @cached_property
    def ops_saved(self) -> tuple[float, float]:
        """Bytes that are kept where every second product's output is, in a dense layer and in one with experts: the layer's input,
        attention's output and statistics, and the outputs of the products that are not computed again; of routed experts' none are kept."""
        model, experts = self.model, self.model.experts
        widths = (model.ffn_hidden, experts.num_shared * experts.hidden if experts else 0)
        kept = [_kept_width((*attention_products(model), *(mlp_products(model, width) if width else ()))) for width in widths]
        dense, routed = (model.hidden + model.value_dim + width for width in kept)
        statistics = FP32_BYTES * model.num_heads
        return self.recipe.tensor_bytes * dense + statistics, self.recipe.tensor_bytes * routed + statistics

    @cached_property
    def dense_saved(self) -> float:
        if self.is_own and self.adapters:
            into, down = self.own_input_bytes("gate", "up"), self.own_input_bytes("down")
            inner = self.num_inner * self.recipe.preactivation_bytes + down
            return (self.recipe.tensor_bytes + into) * self.model.hidden + inner * self.model.ffn_hidden
        return memory.mlp_saved_bytes(self.model.hidden, self.model.ffn_hidden, self.num_inner, self.kept("mlp"))

    @cached_property
    def experts_saved(self) -> float:
        experts = self.model.experts
        if not experts:
            return 0.0
        if self.is_own and self.adapters:
            shared = experts.num_shared * experts.hidden
            return memory.frozen_experts_bytes(
                self.model.hidden, experts.num_experts, experts.num_active, experts.hidden, shared, self.num_inner, self.kept("mlp")
            )
        shapes = (experts.num_experts, experts.num_active, experts.hidden, experts.num_shared * experts.hidden, self.num_inner)
        return memory.experts_saved_bytes(self.model.hidden, *shapes, self.kept("mlp")) + self.own_experts_saved

    @cached_property
    def own_experts_saved(self) -> float:
        """Bytes per token that a mixture of experts saves besides in meshwright's trainer."""
        experts = self.model.experts
        if not (self.is_own and experts):
            return 0.0
        return memory.trainer_experts_bytes(experts.num_active)

    def copies_saved(self, layouts: Layouts) -> Column:
        """Bytes per token that a layer saves because every part of an expert gets the whole row, and its output is as wide."""
        experts = self.model.experts
        if not experts:
            return np.zeros(len(layouts))
        saved = memory.visitor_bytes(self.model.hidden, self.kept("mlp"), is_own=self.is_own)
        return np.asarray((layouts.etp - 1) * experts.num_active * saved)

    def routed_saved(self, layouts: Layouts) -> Column:
        """Bytes per token that routed experts save in a layer, after what is dropped."""
        experts = self.model.experts
        if not experts:
            return np.zeros(len(layouts))
        kept = replace(self.kept("mlp"), input_bytes=0.0) if self.is_own and self.adapters else self.kept("mlp")  # frozen: no inputs
        saved = memory.routed_saved_bytes(self.model.hidden, experts.num_active, experts.hidden, self.num_inner, kept)
        shrunk = max(self.recipe.preactivation_bytes - 1.0, 0.0) * self.num_inner * experts.num_active * experts.hidden
        return np.asarray(saved - layouts.recomputes("act_fp8") * shrunk - layouts.recomputes("moe_act") * self.expert_activations)

    def backward(self, layouts: Layouts) -> Column:
        """Bytes besides the saved ones in the backward pass of the fuller kind of layer."""
        model, experts = self.model, self.model.experts
        dense = memory.mlp_backward_bytes(model.hidden, model.ffn_hidden, self.num_inner, self.recipe) if model.num_dense_layers else 0.0
        if not experts:
            return np.full(len(layouts), dense)
        shape = (model.hidden, experts.num_active, experts.hidden, self.num_inner, self.recipe)
        more = self.routed_more(layouts) * memory.routed_backward_bytes(*shape)
        more = more + (layouts.etp - 1) * 2 * self.recipe.tensor_bytes * experts.num_active * model.hidden
        return np.maximum(dense, memory.experts_backward_bytes(*shape) + more)


def _kept_width(products: tuple[Product, ...]) -> int:
    """Columns of the products whose outputs every-second checkpointing keeps."""
    again = repeated(products)
    return sum(one.columns for one in products if one.name not in again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes by part: one row per stage, one column per layout. The parts add up to the peak of the stage.

    From `footprint` the rows are the first, the second and the last stage (equal if pp is less than 3).
    """

    stage: NDArray[np.int64]  # number of the stage in its pipeline
    layers: NDArray[np.int64]
    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column  # saved for later backward passes
    loss: Column  # logits, output projection and final norm, if the peak is at the loss
    buffers: Column  # workspaces, placeholder gradients, and everything else in memory at the peak
    moment: NDArray[np.int64]  # of the peak: index into MOMENTS
    legal: NDArray[np.bool_]  # by layout: whether the layers divide over the stages

    @property
    def stage_peak_bytes(self) -> Column:
        """Peak of each stage."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.loss + self.buffers

    @property
    def peak_bytes(self) -> Column:
        """Peak of the fullest stage, by layout."""
        return np.asarray(self.stage_peak_bytes.max(axis=0))

    @property
    def worst_stage(self) -> NDArray[np.int64]:
        """Number of the fullest stage, by layout."""
        worst = self.stage_peak_bytes.argmax(axis=0)
        return np.asarray(np.take_along_axis(self.stage, worst[None], axis=0)[0])


def footprint(model: Model, workload: Workload, layouts: Layouts, recipe: Recipe | None = None, *, is_own: bool = False) -> Footprint:
    """Bytes of the first, the second and the last stage of every layout; `is_own` if meshwright's trainer runs it."""
    pp = layouts.pp
    return _price(model, workload, layouts, recipe, np.stack([np.zeros_like(pp), np.minimum(pp - 1, 1), pp - 1]), is_own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one pipeline stage at its peak; the parts add up to the peak."""

    stage: int
    layers: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    loss_bytes: float
    buffers_bytes: float
    peak_bytes: float
    peak_at: str  # the moment of the peak

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by `PARTS`."""
        return {part: getattr(self, f"{part}_bytes") for part in PARTS}


def stages(
    model: Model, workload: Workload, layout: Layout, recipe: Recipe | None = None, *, is_own: bool = False
) -> tuple[StageMemory, ...]:
    """Every stage of one layout; `is_own` if meshwright's trainer runs it."""
    return stage_rows(_price(model, workload, Layouts.of([layout]), recipe, np.arange(layout.pp)[:, None], is_own))


def stage_rows(priced: Footprint, row: int = 0) -> tuple[StageMemory, ...]:
    """The stages of layout number `row` that a footprint holds, each once."""
    peak_bytes = priced.stage_peak_bytes
    found = {}
    for i, number in enumerate(priced.stage[:, row]):
        found[int(number)] = StageMemory(
            stage=int(number),
            layers=int(priced.layers[i, row]),
            **{f"{part}_bytes": float(getattr(priced, part)[i, row]) for part in PARTS},
            peak_bytes=float(peak_bytes[i, row]),
            peak_at=MOMENTS[priced.moment[i, row]],
        )
    return tuple(found[number] for number in sorted(found))


def _price(model: Model, workload: Workload, layouts: Layouts, recipe: Recipe | None, stage: NDArray[np.int64], is_own: bool) -> Footprint:
    shapes = _Shapes.of(model, workload, recipe, is_own)
    split = stage_layers(model.num_layers, layouts.pp, layouts.vp, layouts.first_stage_layers, layouts.last_stage_layers)
    cut = _Cut.of(shapes, layouts, split, stage)
    weights, gradients, optimizer = _static_bytes(shapes, layouts, cut, is_own)
    micro_batches = np.maximum(workload.global_batch // (layouts.dp * layouts.micro_batch), 1)
    chunks = peak_in_flight(micro_batches, layouts.pp, layouts.vp, stage, layouts.is_zero_bubble)
    tokens = layouts.micro_batch * (workload.seq_len / layouts.cp)
    stage_bytes = _saved_bytes(shapes, layouts, cut) * (tokens / layouts.tp) + _pairs_bytes(shapes, layouts, cut, tokens)
    held = layers_in_flight(split.at(stage), chunks, layouts.vp, smallest_group(micro_batches, layouts.pp), cut.is_last & ~cut.is_first)
    chunk_bytes = stage_bytes / layouts.vp
    extra, moment = _extra_bytes(shapes, layouts, cut, tokens, chunk_bytes, is_own)
    at_loss = moment == MOMENTS.index("loss")
    return Footprint(
        stage=stage,
        layers=cut.layers,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=stage_bytes * held / np.maximum(split.at(stage), 1) * _kept_here(layouts),
        loss=np.where(at_loss, extra, 0.0),
        buffers=_standing_bytes(shapes, layouts, cut, is_own) + np.where(at_loss, 0.0, extra),
        moment=moment,
        legal=split.legal,
    )


def _kept_here(layouts: Layouts) -> Column:
    """Of the saved activations, the share that stays in the accelerator's memory."""
    return np.where(layouts.recomputes("offload"), 1.0 - OFFLOADED_SHARE, 1.0)


@cache
def _every_recompute() -> Layouts:
    return Layouts.of([Layout(recompute=kind) for kind in RECOMPUTE])


def kept_bytes(model: Model, workload: Workload, recipe: Recipe | None = None, *, is_own: bool = False) -> Column:
    """Bytes that a layer keeps of a token for its backward, averaged over the layers, by the kind of recomputing (`RECOMPUTE`)."""
    shapes, layouts = _Shapes.of(model, workload, recipe, is_own), _every_recompute()
    split = stage_layers(model.num_layers, layouts.pp, layouts.vp, layouts.first_stage_layers, layouts.last_stage_layers)
    cut = _Cut.of(shapes, layouts, split, np.zeros((1, 1), dtype=np.int64))
    return np.asarray((_saved_bytes(shapes, layouts, cut) / cut.layers)[0])


def backward_bytes(model: Model, workload: Workload, recipe: Recipe | None = None) -> float:
    """Bytes of a token besides those that layers keep, in the backward pass of the fuller kind of layer on one rank."""
    return float(_Shapes.of(model, workload, recipe, is_own=True).backward(Layouts.of([Layout()]))[0])


@dataclass(frozen=True, slots=True)
class _Cut:
    """What each stage holds of the model."""

    layers: NDArray[np.int64]  # with the extra prediction layers of the last stage
    dense: NDArray[np.int64]  # of them, those with a dense MLP
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]

    @staticmethod
    def of(shapes: _Shapes, layouts: Layouts, split: Split, stage: NDArray[np.int64]) -> _Cut:
        is_last = stage == layouts.pp - 1
        layers = split.at(stage)
        dense = split.leading_at(shapes.model.num_dense_layers, layouts.vp, stage) if shapes.model.experts else layers
        extra = shapes.model.num_prediction_layers * is_last
        return _Cut(layers + extra, dense if shapes.model.experts else dense + extra, stage == 0, is_last)


def _static_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut, is_own: bool) -> tuple[Column, Column, Column]:
    """Bytes of weights, gradients and optimizer states. Routed experts are split over ep, and sharded over the remaining ranks.

    meshwright's trainer puts the sum of a rank's shard beside its whole gradients (ZeRO 1). In ZeRO 2 the sum alone stays; what else a
    backward pass has of gradients is `_in_flight_bytes`.
    """
    recipe, ranks, expert_ranks = shapes.recipe, layouts.sharing_ranks, _expert_sharing(layouts)
    common, routed = _parameters(shapes, layouts, cut)
    copied = shapes.copied(layouts) * shapes.key_value_parameters
    per_layer = (shapes.dense_layer_parameters + shapes.model.shared_expert_parameters + copied) / layouts.tp
    shards = np.where(layouts.zero_stage >= 3, ranks, 1), np.where(layouts.zero_stage >= 3, expert_ranks, 1)
    weight_bytes = recipe.frozen_weight_bytes if shapes.adapters and recipe.frozen_weight_bytes else recipe.weight_bytes
    weights = memory.gathered_bytes(common, NUM_GATHERED_LAYERS * per_layer, weight_bytes, shards[0])
    of_layer = shapes.routed_parameters / layouts.expert_ranks
    weights = weights + memory.gathered_bytes(routed, NUM_GATHERED_LAYERS * of_layer, weight_bytes, shards[1])
    weights = weights + np.where(layouts.zero_stage >= 3, weight_bytes * _tables_gathered(shapes, layouts, cut) * (1 - 1 / ranks), 0.0)
    if shapes.adapters:
        weights = weights - _saved_by_few_bits(shapes, layouts, cut, weight_bytes)
        trained = shapes.own_adapter_parameters(layouts, cut) if is_own else cut.layers * shapes.adapter_parameters / layouts.tp
        common, routed = trained, np.zeros_like(routed)
        weights = weights + (recipe.tensor_bytes if is_own else BF16_BYTES) * common
    gradients = recipe.gradient_bytes * _sharded(common, routed, ranks, expert_ranks, layouts.zero_stage >= 2)
    if is_own:
        for held, sharing in ((common, ranks), (routed, expert_ranks)):
            has_sum = (layouts.zero_stage == 1) & (sharing > 1)
            gradients = gradients + np.where(has_sum, recipe.gradient_bytes * held / sharing, 0.0)
    optimizer = recipe.optimizer_bytes * _sharded(common, routed, ranks, expert_ranks, layouts.zero_stage >= 1)
    return weights, gradients, optimizer


def _tables_gathered(shapes: _Shapes, layouts: Layouts, cut: _Cut) -> Column:
    """Parameters of the tables that meshwright's trainer gathers for a whole pass with ZeRO 3: those that predict further tokens."""
    model = shapes.model
    tables = model.head_parameters + (0 if model.tied_embeddings else model.embedding_parameters)
    return np.asarray((shapes.is_own and model.num_prediction_layers > 0) * cut.is_last * tables / layouts.tp)


def _expert_sharing(layouts: Layouts) -> NDArray[np.int64]:
    """Ranks that share the states of a routed expert, of those that hold it alike: as many as share other states, if that divides them."""
    same = np.maximum(layouts.dp * layouts.cp * layouts.tp // layouts.expert_ranks, 1)
    divisor = np.gcd(same, np.maximum(layouts.zero_ranks, 1))
    return np.asarray(np.where((divisor > 1) | (layouts.zero_ranks == 1), divisor, same))


def _in_flight_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut) -> Column:
    """Bytes of whole gradients that meshwright's trainer has in the backward pass of a layer in ZeRO 2, where only sums stay.

    A bucket takes room from its first gradient until the next of its kind leaves: one while a layer is smaller than a bucket, else two.
    Routed experts are a kind of their own; the table of the head is sent by itself.
    """
    model, experts = shapes.model, shapes.model.experts
    common, routed = _parameters(shapes, layouts, cut)
    most = np.minimum(BUCKET_PARAMETERS, (common + routed) / layouts.vp / SMALLEST_BUCKETS)
    of_layer = (shapes.dense_layer_parameters + shapes.copied(layouts) * shapes.key_value_parameters) / layouts.tp
    widest = widest_product(model) * model.hidden / layouts.tp
    found = np.where(layouts.sharing_ranks > 1, _filled_and_sent(of_layer, np.maximum(most, widest), common / layouts.vp), 0.0)
    found = found + np.where((layouts.sharing_ranks > 1) & cut.is_last, model.head_parameters / layouts.tp, 0.0)
    if experts:
        of_layer = shapes.routed_parameters / layouts.expert_ranks
        first = of_layer * (model.mlp_matrices - 1) / model.mlp_matrices
        held = _filled_and_sent(of_layer, np.maximum(most, first), routed / layouts.vp)
        found = found + np.where(_expert_sharing(layouts) > 1, held, 0.0)
    is_kept = (layouts.zero_stage == 2) & (shapes.adapters is None)
    return np.asarray(np.where(is_kept, shapes.recipe.gradient_bytes * found, 0.0))


def _filled_and_sent(of_layer: Column, bucket: Column, of_chunk: Column) -> Column:
    """Parameters in buckets of one kind that are filled or sent while a layer goes backward; no more than a chunk has of them."""
    return np.asarray(np.minimum(np.clip(of_layer, bucket, 2 * bucket), of_chunk))


def _saved_by_few_bits(shapes: _Shapes, layouts: Layouts, cut: _Cut, weight_bytes: float) -> Column:
    """Bytes that a frozen base needs less if the matrices of its layers are kept in few bits: tables and norms are not."""
    assert shapes.adapters is not None, "a base is frozen beside adapters"
    bits = FEW_BITS.get(shapes.adapters.base)
    if bits is None:
        return np.zeros_like(cut.layers, dtype=np.float64)
    model = shapes.model
    per_element = bits / 8 + FP32_BYTES / model.hidden
    split = cut.dense * shapes.dense_layer_parameters + (cut.layers - cut.dense) * shapes.expert_layer_parameters
    kept = (split + cut.layers * shapes.copied(layouts) * shapes.key_value_parameters) / layouts.tp
    kept = kept + cut.layers * (shapes.replicated_parameters - 2 * model.hidden)  # the products down to latent vectors
    return np.asarray(kept * (weight_bytes - per_element))


def _made_weight_bytes(shapes: _Shapes, layouts: Layouts) -> Column:
    """Bytes of the largest weight of a base in few bits, which is made for each product."""
    is_few = shapes.adapters is not None and shapes.adapters.base in FEW_BITS
    return np.asarray(is_few * shapes.recipe.tensor_bytes * largest_frozen(shapes.model) / layouts.tp)


def largest_frozen(model: Model) -> float:
    """Elements of the largest product of a layer that a base in few bits keeps so; matrices with the same input are one product."""
    found = [0.0]
    for layer in (0, model.num_layers - 1):
        products = layer_products(model, layer)
        together = [
            sum(products[f"{before}.{name}"].columns for name in names if f"{before}.{name}" in products) for before, names in JOINED
        ]
        found += [rows * model.hidden for rows in together]
        found += [one.columns * one.inner for one in products.values()]
    return float(max(found))


def widest_product(model: Model) -> float:
    """Rows of the largest product of a layer: queries, keys and values, or gate and up."""
    return float(max(model.query_dim + 2 * model.kv_dim, (model.mlp_matrices - 1) * model.ffn_hidden))


def adapter_sides(model: Model) -> dict[str, float]:
    """Both sides of each matrix that adapters may be beside, added up, without those of a whole MLP."""
    single = {name: model.hidden + model.ffn_hidden for name in ("gate", "up", "down")}
    latent = {one.name: one.columns + one.inner for one in attention_products(model)} if model.latent else {}
    return {
        **dict.fromkeys(ADAPTED["qkv"], 0.0),
        "qkv": model.hidden + model.query_dim + 2 * model.kv_dim,
        "proj": model.value_dim + model.hidden,
        "q": model.hidden + model.query_dim,
        "k": model.hidden + model.kv_dim,
        "v": model.hidden + model.kv_dim,
        "o": model.value_dim + model.hidden,
        **single,
        **latent,
    }


def _sharded(common: Column, routed: Column, ranks: Any, expert_ranks: Any, sharded: NDArray[np.bool_]) -> Column:
    """Parameters of one rank, whole or divided."""
    return np.where(sharded, common / ranks + routed / expert_ranks, common + routed)


def _parameters(shapes: _Shapes, layouts: Layouts, cut: _Cut) -> tuple[Column, Column]:
    """Parameters on one rank of each stage: those split over tp or replicated, and the routed experts'."""
    model = shapes.model
    with_experts = cut.layers - cut.dense
    has_head = cut.is_last & ~(cut.is_first & model.tied_embeddings)
    split = cut.dense * shapes.dense_layer_parameters + with_experts * shapes.expert_layer_parameters
    split = split + cut.layers * (shapes.copied(layouts) * shapes.key_value_parameters)
    split = split + cut.is_first * float(model.embedding_parameters) + has_head * float(model.head_parameters)
    split = split + (cut.is_first + has_head.astype(np.float64)) * _padding_parameters(model, layouts)
    whole = cut.layers * shapes.replicated_parameters + with_experts * float(model.router_parameters)
    ahead = cut.is_last * float(model.num_prediction_layers)
    whole = whole + ahead * float(3 * (2 if model.layer_norm else 1) * model.hidden)
    # meshwright's trainer has the projection whole on every tensor rank, which has a part of the sequence; other stacks split it.
    projections = ahead * float(2 * model.hidden**2)
    split, whole = (split, whole + projections) if shapes.is_own else (split + projections, whole)
    has_copy = cut.is_last & ~cut.is_first & (not model.tied_embeddings) & (model.num_prediction_layers > 0)
    split = split + has_copy * (float(model.embedding_parameters) + _padding_parameters(model, layouts))
    return split / layouts.tp + whole, with_experts * shapes.routed_parameters / layouts.expert_ranks


def _padding_parameters(model: Model, layouts: Layouts) -> Column:
    """Weights that one table has in addition, so that every tensor-parallel rank holds as many entries of the vocabulary as the others."""
    return np.asarray((-model.vocab_size % layouts.tp) * model.hidden, dtype=np.float64)


def _saved_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut) -> Column:
    """Bytes per token that one micro-batch saves on a stage, before the split over tp."""
    drops = layouts.recomputes
    norms = [drops("layernorm") * each for each in shapes.norm_outputs]
    shrunk = [drops("act_fp8") * each for each in shapes.shrunk]
    hidden = shapes.recipe.tensor_bytes * shapes.model.hidden
    dense = np.where(drops("mlp"), hidden, shapes.dense_saved - shrunk[0] - norms[1])
    routed = shapes.experts_saved - shrunk[1] - norms[1] - drops("moe_act") * shapes.expert_activations
    routed = routed + shapes.routed_more(layouts) * shapes.routed_saved(layouts) + shapes.copies_saved(layouts)
    mlp = cut.dense * dense + (cut.layers - cut.dense) * routed
    exchanged = (layouts.cp_kind == CP_KINDS.index("all-to-all")) & (layouts.cp > 1)
    # With all-to-all, attention keeps its output in both orders: by heads for itself, by tokens for the projection.
    attention = shapes.attention_saved + exchanged * (shapes.recipe.tensor_bytes * shapes.model.value_dim)
    attention = attention + shapes.copied_saved(layouts)
    attention = attention - drops("selective") * shapes.recomputable - drops("mla_up_proj") * shapes.rebuilt_up - norms[0]
    by_ops = cut.dense * shapes.ops_saved[0] + (cut.layers - cut.dense) * shapes.ops_saved[1]
    kept = np.where(drops(OPS), by_ops, mlp + cut.layers * attention)
    return np.where(layouts.recomputes_all, cut.layers * hidden, kept) + _entrances_saved(shapes, cut)


def _pairs_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut, tokens: Column) -> Column:
    """Bytes that one micro-batch keeps on a stage for adapters, besides their inputs; what is computed again keeps none."""
    attention, mlp = (shapes.own_pairs_saved(layouts, tokens, half) for half in ("attention", "mlp"))
    of_mlp = np.where(layouts.recomputes("mlp"), 0.0, mlp) if shapes.model.num_dense_layers else 0.0
    return np.where(layouts.recomputes_all, 0.0, cut.layers * attention + cut.dense * of_mlp)


def _split_sides(name: str) -> tuple[bool, bool]:
    """Whether tensor ranks split a matrix along its output, and along its input."""
    return name not in (*SPLIT_INPUTS, *WHOLE), name in SPLIT_INPUTS


def _entrances_saved(shapes: _Shapes, cut: _Cut) -> Column:
    """Bytes per token that meshwright's trainer saves around the blocks of prediction layers, which recomputing leaves as they are.

    The projection keeps its input, two hidden states wide, and two norms keep theirs: that of the tokens ahead and the last one. The third
    norm and the head read the same hidden states.
    """
    around = 2 * shapes.recipe.input_bytes + 2 * shapes.recipe.tensor_bytes
    return np.asarray(shapes.is_own * shapes.model.num_prediction_layers * cut.is_last * (around * shapes.model.hidden))


def _extra_bytes(
    shapes: _Shapes, layouts: Layouts, cut: _Cut, tokens: Column, chunk_bytes: Column, is_own: bool
) -> tuple[Column, NDArray[np.int64]]:
    """Bytes in memory besides the saved activations at the fullest moment, and which moment that is."""
    model, recipe, trained = shapes.model, shapes.recipe, shapes.adapters is None
    parts = (layouts.recomputes("mlp") | layouts.recomputes(OPS)) * shapes.dense_saved + layouts.recomputes(
        "mla_up_proj"
    ) * shapes.rebuilt_up
    again = np.where(layouts.recomputes_all, _rebuilt_bytes(shapes, layouts, cut), parts)
    backward = (tokens / layouts.tp) * (shapes.backward(layouts) + again) + _made_weight_bytes(shapes, layouts)
    if is_own:
        backward = backward + _in_flight_bytes(shapes, layouts, cut)
    padding, tp = _padding_parameters(model, layouts), layouts.tp.astype(np.float64)
    vocab_size = model.vocab_size + padding / model.hidden
    if is_own:
        loss = memory.blocked_loss_bytes(tokens, model.hidden, vocab_size, tp, recipe, trained)
    else:
        loss = memory.loss_bytes(tokens, model.hidden, vocab_size, tp, recipe, trained)
    loss = np.where(cut.is_last, loss * (1 + model.num_prediction_layers), 0.0)
    # The whole gradient of the embedding exists before it is added; the activations of its micro-batch are released by then.
    gradient = recipe.tensor_bytes * (model.embedding_parameters + padding) * trained / layouts.tp
    embedding = np.where(cut.is_first, gradient - chunk_bytes, 0.0)
    extra = np.maximum(np.maximum(backward, loss), embedding)
    moment = np.where(extra == backward, 0, np.where(extra == loss, 1, 2))
    return extra, moment


def _rebuilt_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut) -> Column:
    """Bytes per token of the fullest layer on a stage, besides its input, when full recompute computes it again."""
    routed = shapes.experts_saved + shapes.routed_more(layouts) * shapes.routed_saved(layouts) + shapes.copies_saved(layouts)
    mlp = np.maximum((cut.dense > 0) * shapes.dense_saved, (cut.layers > cut.dense) * routed)
    beside = shapes.attention_saved + shapes.copied_saved(layouts) - shapes.recipe.tensor_bytes * shapes.model.hidden
    return np.where(cut.layers > 0, mlp + beside, 0.0)


def _standing_bytes(shapes: _Shapes, layouts: Layouts, cut: _Cut, is_own: bool) -> Column:
    """Workspaces, and one placeholder gradient for every shape of weight on the stage; meshwright's trainer has no placeholders.

    Transformer Engine adds weight gradients directly to the accumulated ones, and gives autograd a placeholder of the weight's shape, which
    is made once per shape and kept.
    """
    if is_own:
        return np.full(cut.layers.shape, memory.NUM_TRAINER_WORKSPACES * memory.CUBLAS_WORKSPACE_BYTES)
    model = shapes.model
    workspace_bytes = memory.workspace_bytes(grouped=model.experts is not None)
    if shapes.adapters:
        return np.full(cut.layers.shape, workspace_bytes)
    split = shapes.attention_parameters + (cut.dense > 0) * model.dense_mlp_parameters
    split = split + shapes.copied(layouts) * shapes.key_value_parameters
    with_experts = cut.layers > cut.dense
    split = split + with_experts * float(model.shared_expert_parameters)
    whole = shapes.replicated_parameters + with_experts * float(model.expert_parameters)
    return workspace_bytes + shapes.recipe.tensor_bytes * (split / layouts.tp + whole)


def spare_bytes(priced: Footprint, accelerator: Accelerator, reserve_bytes: float = RESERVE_BYTES) -> Column:
    """Bytes left on the fullest stage of each layout; negative if it does not fit."""
    return accelerator.room_bytes - reserve_bytes - priced.peak_bytes


def check_fits(priced: Footprint, accelerator: Accelerator, row: int = 0, reserve_bytes: float = RESERVE_BYTES) -> None:
    """Raise a FitError if layout number `row` does not fit; it says how many bytes are missing, on which stage and when."""
    spare = float(spare_bytes(priced, accelerator, reserve_bytes)[row])
    if spare >= 0:
        return
    worst = int(priced.stage_peak_bytes[:, row].argmax())
    raise FitError(
        f"the layout needs {-spare:,.0f} bytes ({gib(-spare)}) more memory than {accelerator.name} has, "
        f"on stage {int(priced.stage[worst, row])}: {gib(float(priced.peak_bytes[row]))} at its peak "
        f"({MOMENTS[int(priced.moment[worst, row])]})",
        where=f"memory of {accelerator.name}: {gib(accelerator.room_bytes)}, of which {gib(reserve_bytes)} is reserved",
        fix=_advice(priced, worst, row),
    )


def _advice(priced: Footprint, stage_row: int, row: int) -> str:
    """What to change first: the part that needs the most memory."""
    return ADVICE[max(PARTS, key=lambda part: float(getattr(priced, part)[stage_row, row]))]
