"""Bytes that training holds on one accelerator: what is kept, for how long, and how much at once.

Every argument may be a number or an array; they broadcast, so one call prices all candidate layouts. What is saved
for the backward pass follows Megatron-LM with Transformer Engine layers and flash attention: a matrix
multiplication keeps its input, an activation function its input, a norm its input, attention its queries, keys,
values, output and one fp32 statistic per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.describe.recipe import Recipe

Column = NDArray[np.float64]
Quantity = float | Column

BF16_BYTES = 2.0
FP32_BYTES = 4.0
INT64_BYTES = 8.0

# One cuBLAS workspace is 32 MiB on Hopper and Blackwell. PyTorch keeps one for the forward and one for the backward
# thread, Transformer Engine one of its own, and four more for the streams of grouped multiplications.
CUBLAS_WORKSPACE_BYTES = GIB / 32
NUM_WORKSPACES = 3
NUM_GROUPED_WORKSPACES = 4
NUM_TRAINER_WORKSPACES = 2  # of meshwright's trainer: for the forward and for the backward thread

LOSS_BLOCK_BYTES = 2.0 * GIB  # of logits at a time in meshwright's trainer (train.kernels.fused_loss)
CUT_LOGIT_BYTES = 12.0  # of a logit there on tensor ranks: saved exponentials and a gradient in fp32, and twice two bytes around them


def gathered_bytes(parameters: Quantity, working_parameters: Quantity, bytes_per_weight: float, num_shards: Quantity) -> Column:
    """Bytes of weights that `num_shards` ranks split (1: whole) and gather `working_parameters` at a time.

    Gathering never needs more than keeping them whole.
    """
    return np.asarray(np.minimum(parameters, parameters / num_shards + working_parameters) * bytes_per_weight)


def workspace_bytes(grouped: bool) -> float:
    """Bytes of cuBLAS workspaces in PyTorch's allocator; `grouped` where experts run as grouped multiplications."""
    return (NUM_WORKSPACES + (NUM_GROUPED_WORKSPACES if grouped else 0)) * CUBLAS_WORKSPACE_BYTES


def attention_saved_bytes(hidden: int, kv_dim: int, query_dim: int, value_dim: int, num_heads: int, kept: Recipe) -> float:
    """Bytes per token that one attention block saves: norm input and output, Q, K, V, output, statistics.

    The output projection's input comes on top (`projection_input_bytes`).
    """
    norm = (kept.tensor_bytes + kept.input_bytes) * hidden
    return norm + kept.tensor_bytes * (query_dim + 2 * kv_dim + value_dim) + FP32_BYTES * num_heads


def latent_saved_bytes(
    hidden: int, query_rank: int, kv_rank: int, rope_dim: int, query_dim: int, value_dim: int, num_heads: int, kept: Recipe
) -> float:
    """Bytes per token that one latent attention block saves: the low-rank vectors and their norms, then all heads' Q, K, V.

    The output projection's input comes on top (`projection_input_bytes`).
    """
    norm = (kept.tensor_bytes + kept.input_bytes) * hidden
    low_rank = kept.tensor_bytes * (query_rank + kv_rank + rope_dim) + kept.input_bytes * (query_rank + kv_rank)
    return norm + low_rank + kept.tensor_bytes * 2 * (query_dim + value_dim) + FP32_BYTES * num_heads


def projection_input_bytes(value_dim: int, kept: Recipe) -> float:
    """Bytes per token of the output projection's input, unless it is the same tensor that attention saved."""
    return 0.0 if kept.input_bytes == kept.tensor_bytes else kept.input_bytes * value_dim


def mlp_saved_bytes(hidden: int, ffn_hidden: int, num_inner: int, kept: Recipe) -> float:
    """Bytes per token that one dense MLP saves: norm input and output, `num_inner` pre-activations, what they become."""
    norm = (kept.tensor_bytes + kept.input_bytes) * hidden
    return norm + (num_inner * kept.preactivation_bytes + kept.input_bytes) * ffn_hidden


def experts_saved_bytes(
    hidden: int, num_experts: int, num_active: int, expert_hidden: int, shared_hidden: int, num_inner: int, kept: Recipe
) -> float:
    """Bytes per token that one mixture of experts saves, tokens spread evenly over the experts.

    The norm's output stays as it is for the router; each token goes to `num_active` experts as a copy of its own.
    Assumption: the router keeps logits, scores and probabilities of all experts in fp32.
    """
    norm = 2 * kept.tensor_bytes * hidden + 3 * FP32_BYTES * num_experts
    shared = (num_inner * kept.preactivation_bytes + kept.input_bytes) * shared_hidden
    if shared_hidden and kept.input_bytes != kept.tensor_bytes:
        shared += kept.input_bytes * hidden
    return norm + shared + routed_saved_bytes(hidden, num_active, expert_hidden, num_inner, kept)


def routed_saved_bytes(hidden: int, num_active: int, expert_hidden: int, num_inner: int, kept: Recipe) -> float:
    """Bytes per token that its routed experts save: what each gets, and what it makes of it."""
    return num_active * (kept.input_bytes * hidden + (num_inner * kept.preactivation_bytes + kept.input_bytes) * expert_hidden)


def visitor_bytes(hidden: int, kept: Recipe, *, is_own: bool) -> float:
    """Bytes saved of a token at one expert that are as many in each part of it: its copy, and what our trainer keeps with it."""
    return kept.input_bytes * hidden + (trainer_experts_bytes(1) if is_own else 0.0)


def trainer_experts_bytes(num_active: int) -> float:
    """Bytes per token that meshwright's trainer saves of a mixture of experts besides: for each copy two positions, an expert, a weight."""
    return num_active * (3 * INT64_BYTES + FP32_BYTES)


def frozen_experts_bytes(
    hidden: int, num_experts: int, num_active: int, expert_hidden: int, shared_hidden: int, num_inner: int, kept: Recipe
) -> float:
    """Bytes per token that a frozen mixture of experts saves in meshwright's trainer.

    Routed experts and the router keep no input, because they have no gradients of their own. `kept` is that of an MLP: shared experts keep
    the inputs that their adapters need.
    """
    router = kept.tensor_bytes * hidden + 3 * FP32_BYTES * num_experts
    shared = (num_inner * kept.preactivation_bytes + kept.input_bytes) * shared_hidden + (
        kept.input_bytes * hidden if shared_hidden else 0.0
    )
    routed = num_active * num_inner * kept.preactivation_bytes * expert_hidden
    return router + shared + routed + trainer_experts_bytes(num_active)


def loss_bytes(tokens: Quantity, hidden: int, vocab_size: Quantity, tp: Quantity, kept: Recipe, trained: bool = True) -> Column:
    """Bytes on the last stage at the loss: the larger of the cross-entropy's and the output projection's backward.

    `tokens` are those of one context shard. The final norm's input and output are split over `tp`; with tp > 1 the
    projection's backward gathers the output again, and makes the gradient of it whole and then scattered. The weight
    gradient is added to the accumulated one directly, but autograd is handed a placeholder of the weight's shape.
    """
    shard = kept.tensor_bytes * tokens * hidden / tp
    logits = tokens * vocab_size / tp
    gathered = np.where(np.asarray(tp) > 1, 2 * kept.tensor_bytes * tokens * hidden, 0.0)
    placeholder = kept.tensor_bytes * vocab_size * hidden / tp if trained else 0.0
    projection = kept.tensor_bytes * logits + placeholder + shard + gathered
    return np.asarray(2 * shard + np.maximum(kept.logit_bytes * logits, projection))


def blocked_loss_bytes(tokens: Quantity, hidden: int, vocab_size: Quantity, tp: Quantity, kept: Recipe, trained: bool = True) -> Column:
    """Bytes on the last stage at the loss of meshwright's trainer.

    Without tensor ranks, logits exist for a block of rows at a time, and the gradients of the final norm's output and of the head, if it is
    trained, are computed with them. On tensor ranks a rank has all rows of its part of the vocabulary: logits, their fp32 copy, the saved
    exponentials and the gradient.
    """
    shard = kept.tensor_bytes * tokens * hidden / tp
    table = kept.tensor_bytes * vocab_size * hidden if trained else 0.0
    alone = np.minimum(kept.tensor_bytes * tokens * vocab_size, LOSS_BLOCK_BYTES) + table + shard
    cut = CUT_LOGIT_BYTES * tokens * vocab_size / tp + kept.tensor_bytes * tokens * hidden
    return np.asarray(2 * shard + np.where(np.asarray(tp) > 1, cut, alone))


def mlp_backward_bytes(hidden: int, ffn_hidden: int, num_inner: int, kept: Recipe) -> float:
    """Bytes per token above the saved ones during the backward pass of the activation function: its gradients, and the residual's.

    The memory that the down projection had saved is released by then, and is used for its gradient.
    """
    return kept.tensor_bytes * (num_inner * ffn_hidden + hidden)


def experts_backward_bytes(hidden: int, num_active: int, expert_hidden: int, num_inner: int, kept: Recipe) -> float:
    """Bytes per token above the saved ones as the experts' backward runs: gradients before and after the all-to-all."""
    return kept.tensor_bytes * hidden + routed_backward_bytes(hidden, num_active, expert_hidden, num_inner, kept)


def routed_backward_bytes(hidden: int, num_active: int, expert_hidden: int, num_inner: int, kept: Recipe) -> float:
    """Of these, the bytes of tokens at their routed experts."""
    return kept.tensor_bytes * num_active * (2 * hidden + num_inner * expert_hidden)
