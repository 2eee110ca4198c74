"""Memory to serve a model: weights, KV cache and working room on `tp` accelerators, and how many sequences fit.

Serving is taken as tensor parallelism over all accelerators: heads, MLP widths and the vocabulary are shared out, key-value heads are
copied where there are fewer than ranks, and a latent KV cache stands whole on every rank. The cache is counted full: `context` tokens for
every sequence, no sharing of prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from meshwright.cost.memory import BF16_BYTES, FP32_BYTES
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.errors import FitError, InputError, argument, nearest
from meshwright.predict.footprint import RESERVE_BYTES
from meshwright.units import gib

# Bytes of a weight of a layer's matrices. Scales: MX one byte a 32 elements, NVFP4 one a 16, int4 two bytes a 128 (GPTQ, AWQ).
# Embedding, output projection, norms and router stay in bf16, as in published low-precision checkpoints (assumption).
WEIGHT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int4": 0.5 + 2 / 128,
}
KV_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}

# A long prompt is read in pieces of this many tokens, so that working room does not grow with the context (vLLM's default budget).
PREFILL_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be served."""

    model: Model
    context: int  # tokens of a sequence, prompt and answer
    concurrency: int = 1  # sequences at once
    precision: str = "bf16"
    kv_precision: str = "bf16"

    def __post_init__(self) -> None:
        for key, table in (("precision", WEIGHT_BYTES), ("kv_precision", KV_BYTES)):
            if getattr(self, key) not in table:
                raise InputError(
                    f"no {argument(key)} named {getattr(self, key)!r} for serving",
                    where=argument(key),
                    fix=nearest(getattr(self, key), table),
                )
        for key in ("context", "concurrency"):
            if getattr(self, key) < 1:
                raise InputError(f"{argument(key)} is {getattr(self, key)}", where=argument(key), fix="give 1 or more")
        if self.model.num_positions and self.context > self.model.num_positions:
            raise InputError(
                f"{self.model.name} has learned {self.model.num_positions} positions, and the context is {self.context}",
                where=argument("context"),
                fix=f"use at most {self.model.num_positions}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What `tp` accelerators hold; bytes are of one accelerator unless the name says total."""

    tp: int
    total_weight_bytes: float
    kv_bytes_per_token: float  # of one sequence's token, over all accelerators, while no window is full
    total_kv_bytes: float  # of all sequences at full context, each key and value once
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    reserve_bytes: float
    memory_bytes: float
    max_concurrency: int  # sequences of full context that fit

    @property
    def used_bytes(self) -> float:
        """All of it."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.reserve_bytes

    @property
    def spare_bytes(self) -> float:
        """What is left; below 0 where it does not fit."""
        return self.memory_bytes - self.used_bytes


def weight_bytes(model: Model, precision: str, tp: int = 1) -> float:
    """Bytes of weights on one of `tp` ranks: the layers' matrices in `precision`, all else in bf16 (or fp32)."""
    wide = FP32_BYTES if precision == "fp32" else BF16_BYTES
    matrices = model.num_layers * _attention_parameters(model, tp) + model.num_dense_layers * model.dense_mlp_parameters / tp
    if model.experts:
        routed = model.experts.num_experts * model.expert_parameters + model.shared_expert_parameters
        matrices += model.num_expert_layers * routed / tp
    ends = (model.embedding_parameters + (0 if model.tied_embeddings else model.head_parameters)) / tp
    small = model.num_layers * model.small_parameters_per_layer + model.num_expert_layers * model.router_parameters
    return WEIGHT_BYTES[precision] * matrices + wide * (ends + small + (2 if model.layer_norm else 1) * model.hidden)


def _attention_parameters(model: Model, tp: int) -> float:
    """Of one layer on one rank: key-value projections are copied where heads are fewer than ranks, latent down projections always."""
    if model.latent:
        down = model.hidden * (model.latent.query_rank + model.latent.key_value_rank + model.latent.rope_dim)
        return down + (model.attention_matrix_parameters - down) / tp
    keys_and_values = 2 * model.hidden * model.kv_dim
    return (model.attention_matrix_parameters - keys_and_values) / tp + keys_and_values * _kv_share(model, tp)


def _kv_share(model: Model, tp: int) -> float:
    """Part of all keys and values that one rank holds."""
    return 1.0 if model.latent else max(1 / tp, 1 / model.num_kv_heads)


def kv_bytes_per_token(model: Model, kv_precision: str) -> float:
    """Bytes that one token adds to the cache in all layers, before any window is full."""
    return model.num_layers * _kv_bytes_per_layer(model, kv_precision)


def _kv_bytes_per_layer(model: Model, kv_precision: str) -> float:
    width = model.latent.key_value_rank + model.latent.rope_dim if model.latent else 2 * model.num_kv_heads * model.head_dim
    return width * KV_BYTES[kv_precision]


def kv_bytes_per_sequence(model: Model, context: int, kv_precision: str) -> float:
    """Bytes of one sequence's cache at full context: a windowed layer keeps its window alone."""
    windowed = model.num_windowed_layers if model.window else 0
    tokens = (model.num_layers - windowed) * context + windowed * min(model.window, context)
    return tokens * _kv_bytes_per_layer(model, kv_precision)


def activation_bytes(model: Model, context: int, tp: int) -> float:
    """Bytes of working room on one rank while a piece of a prompt is read, in bf16.

    Residual and norm whole, queries, keys, values and the MLP's inner widths shared out. Of a mixture of experts each token goes to
    several, with a copy of its own for each.
    """
    tokens = min(context, PREFILL_TOKENS)
    attention = 2 * model.hidden + (model.query_dim + 2 * model.kv_dim + model.value_dim) / tp
    mlp = 2 * model.hidden + model.mlp_matrices * model.ffn_hidden / tp
    if model.experts:
        active = model.experts.num_active
        routed = (2 + active) * model.hidden + model.mlp_matrices * (active + model.experts.num_shared) * model.experts.hidden / tp
        mlp = max(mlp, routed) if model.num_dense_layers else routed
    return BF16_BYTES * tokens * max(attention, mlp)


def logit_bytes_per_sequence(model: Model, tp: int) -> float:
    """Bytes of the logits of one sequence's next token on one rank, in fp32."""
    return FP32_BYTES * model.vocab_size / tp


def legal_degrees(model: Model) -> list[int]:
    """Tensor degrees that divide heads and MLP widths and share key-value heads out or copy them evenly, smallest first."""
    widths = [model.num_heads]
    widths += [model.ffn_hidden] if model.num_dense_layers else []
    widths += [model.experts.hidden] if model.experts else []
    kv = model.num_heads if model.latent else model.num_kv_heads
    degrees = (tp for tp in range(1, model.num_heads + 1) if all(width % tp == 0 for width in widths))
    return [tp for tp in degrees if kv % tp == 0 or tp % kv == 0]


def serve_on(request: Request, accelerator: Accelerator, tp: int) -> Serving:
    """What `tp` accelerators hold, whether it fits or not."""
    model = request.model
    if tp not in legal_degrees(model):
        raise InputError(
            f"tensor degree {tp} does not divide {model.name}: {model.num_heads} heads, {model.num_kv_heads} of keys and values",
            where=argument("tp"),
            fix=f"choose tp from {', '.join(map(str, legal_degrees(model)))}",
        )
    weights = weight_bytes(model, request.precision, tp)
    sequence = kv_bytes_per_sequence(model, request.context, request.kv_precision)
    working, logits = activation_bytes(model, request.context, tp), logit_bytes_per_sequence(model, tp)
    room = accelerator.room_bytes - RESERVE_BYTES - weights - working
    return Serving(
        tp=tp,
        total_weight_bytes=weight_bytes(model, request.precision),
        kv_bytes_per_token=kv_bytes_per_token(model, request.kv_precision),
        total_kv_bytes=request.concurrency * sequence,
        weight_bytes=weights,
        kv_bytes=request.concurrency * sequence * _kv_share(model, tp),
        activation_bytes=working + request.concurrency * logits,
        reserve_bytes=RESERVE_BYTES,
        memory_bytes=accelerator.room_bytes,
        max_concurrency=max(floor(room / (sequence * _kv_share(model, tp) + logits)), 0),
    )


def check_fits(held: Serving, request: Request, accelerator: Accelerator) -> None:
    """Raise a FitError that says by how many bytes it misses, and what would fit."""
    if held.spare_bytes >= 0:
        return
    could = (
        f"{held.max_concurrency} sequences of {request.context} tokens would fit" if held.max_concurrency else "not one sequence would fit"
    )
    raise FitError(
        f"{request.model.name} with {request.concurrency} sequences of {request.context} tokens needs {gib(-held.spare_bytes)} "
        f"({-held.spare_bytes:,.0f} bytes) more on each of {held.tp} {accelerator.name}; {could}",
        where=f"memory of {accelerator.name}: {gib(accelerator.room_bytes)}, of which {gib(held.reserve_bytes)} is reserved",
        fix="use a lower precision or KV precision, a shorter context, more accelerators, or several copies with fewer sequences each",
    )


def fewest(request: Request, accelerator: Accelerator) -> Serving:
    """The smallest number of accelerators that holds the request; an error that names the nearest miss where none does."""
    tried = [serve_on(request, accelerator, tp) for tp in legal_degrees(request.model)]
    nearest_miss = max(tried, key=lambda held: held.spare_bytes)
    held = next((held for held in tried if held.spare_bytes >= 0), nearest_miss)
    check_fits(held, request, accelerator)
    return held
