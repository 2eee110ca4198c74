"""Self-attention of a layer: grouped heads (Llama, Qwen, gpt-oss, GPT-3) or latent vectors (DeepSeek), without code for parallelism.

Options of a model that change attention: norms of queries and keys, biases, a window, sinks, and latent vectors. Ports are `attend`
(context parallelism replaces it), `leave` after the last product, and `enter` before the products of latent vectors (tensor parallelism).

Shape letters: B sequences, T tokens of a sequence, N heads, D width of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from meshwright.describe.model import Model
from meshwright.train.kernels import flash_attention
from meshwright.train.kernels.attention_parts import attended_as, attended_in_runs, attends_in_runs
from meshwright.train.kernels.layer_functions import Made, rotate, rotate_pairs, split_heads, turned_heads
from meshwright.train.kernels.linear import Linear
from meshwright.train.kernels.runs import Runs
from meshwright.train.model.norms import RMSNorm
from meshwright.train.model.rotary import Rotation

# torch's own kernels, the fastest on Hopper first: cuDNN's takes half of the time of torch's flash kernel there.
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

LATENT_EPSILON = 1e-6  # of the norms of latent vectors, whatever the model's other norms have: so it is in DeepSeek's own code

X = TypeVar("X")
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the layers need for a micro-batch besides hidden states: the positions of its tokens, and their documents."""

    positions: Tensor  # [T], in the whole sequence
    documents: Tensor | None = None  # [B, T]; None: a sequence is one document
    everyones_documents: Tensor | None = None  # [B, S] of all context-parallel ranks, rank after rank
    # Where documents are packed: which queries and keys attend to each other. One entry; or one for each block of keys that a rank of
    # context parallelism attends to, None if it sees no key of a block.
    runs: tuple[Runs | None, ...] | None = None
    samples: Tensor | None = None  # [B] numbers of the samples, if dropout depends on them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reach:
    """What the attention of one layer has besides the causal rule: a window of tokens, and a sink for each head."""

    window: int = 0  # tokens that a token sees, itself included; 0: all earlier ones
    sinks: Tensor | None = None  # [N]

    def within(self, num_tokens: int) -> int:
        """The window, or 0 if sequences of so many tokens are not longer than it."""
        return self.window if self.window < num_tokens else 0


ALL = Reach()
Attend = Callable[[Tensor, Tensor, Tensor, Context, Reach], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, context: Context, reach: Reach = ALL) -> Tensor:
    """Causal attention within documents; [B, T, N, D], keys and values with as many heads or a divisor of them."""
    window = reach.within(query.shape[1])
    if window or reach.sinks is not None:
        return attended_as(query, key, value, sinks=reach.sinks, window=window, runs=_whole_runs(context))
    if context.documents is None and flash_attention.supports(query, key):
        return flash_attention.attended(query, key, value)
    if context.runs is not None and attends_in_runs(query, key):
        runs = _whole_runs(context)
        assert runs is not None, "every token attends to itself"
        return attended_in_runs(query, key, value, runs)
    mask = None
    if context.documents is not None:
        mask = visible(context.positions, context.documents, context.positions, context.documents)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with sdpa_kernel(KERNELS, set_priority=True):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


def takes_narrow_values(query: Tensor, key: Tensor, context: Context, reach: Reach = ALL) -> bool:
    """Whether `attend` computes these heads by a kernel whose values may have another width than its keys.

    cuDNN's has, and so has torch's memory-efficient one. On a processor torch would write out all scores instead.
    """
    is_special = reach.within(query.shape[1]) > 0 or reach.sinks is not None or context.documents is not None
    return query.is_cuda and not is_special and not flash_attention.supports(query, key)


def _whole_runs(context: Context) -> Runs | None:
    """The runs of whole sequences; None where a sequence is one document."""
    if context.runs is None:
        assert context.documents is None, "a batch with documents brings their runs"
        return None
    (runs,) = context.runs
    return runs


def visible(query_positions: Tensor, query_documents: Tensor | None, key_positions: Tensor, key_documents: Tensor | None) -> Tensor:
    """Whether each query may attend to each key: the key is not later and is in the same document; [B or 1, 1, T, S]."""
    seen = (query_positions[:, None] >= key_positions[None, :])[None]
    if query_documents is not None and key_documents is not None:
        seen = seen & (query_documents[:, :, None] == key_documents[:, None, :])
    return seen[:, None]


def same(x: X) -> X:
    """Return the tensor unchanged: the default of a port."""
    return x


class Attention(nn.Module, ABC):
    """What both kinds of attention share: the attention itself, and the projection back. Subclasses make queries, keys and values."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.o: Linear  # subclasses make it last: gradients leave in the opposite order
        self.window = model.window_of(layer)
        self.sinks = nn.Parameter(torch.empty(model.num_heads)) if model.attention_sinks else None
        self.leave: Callable[[Tensor], Tensor] = same
        self.attend: Attend = attend
        self.recomputes = False

    def forward(self, x: Tensor | Made, context: Context, rotation: Rotation | None) -> Tensor:
        attended = self.attended(*self.turned(self.projected(x), rotation), context)
        return self.o.add_bias(self.leave(self.narrowed(attended)))

    @abstractmethod
    def projected(self, x: Tensor | Made) -> tuple[Tensor, ...]:
        """The products of hidden states from which queries, keys and values are made."""

    @abstractmethod
    def turned(self, projected: tuple[Tensor, ...], rotation: Rotation | None) -> Heads:
        """Queries and keys, rotated, and values, from their projection."""

    @abstractmethod
    def gathering(self) -> list[Linear]:
        """Products of hidden states that give whole heads: tensor parallelism gathers the sequence before them."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """Attention itself, which the backward pass may compute again."""
        reach = Reach(window=self.window, sinks=self.sinks)
        if self.recomputes and torch.is_grad_enabled():
            made: Tensor = checkpoint(self.attend, query, key, value, context, reach, use_reentrant=False, preserve_rng_state=False)
            return made
        return self.attend(query, key, value, context, reach)

    def narrowed(self, attended: Tensor) -> Tensor:
        """The product back to hidden states, without bias."""
        return self.o.product(attended.flatten(-2))


class GroupedAttention(Attention):
    """Heads from one projection of hidden states; several query heads may share a key-value head."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__(model, layer)
        self.head_dim = model.head_dim
        self.heads_per_key = model.num_heads // model.num_kv_heads
        has_bias = model.biases or model.attention_biases or model.qkv_biases
        self.qkv = Linear(model.hidden, model.query_dim + 2 * model.kv_dim, bias=has_bias)
        self.q_norm = RMSNorm(model.head_dim, model.norm_epsilon) if model.qk_norm else None
        self.k_norm = RMSNorm(model.head_dim, model.norm_epsilon) if model.qk_norm else None
        self.o = Linear(model.query_dim, model.hidden, bias=model.biases or model.attention_biases)

    def gathering(self) -> list[Linear]:
        return [self.qkv]

    def projected(self, x: Tensor | Made) -> tuple[Tensor, ...]:
        return (self.qkv(x),)

    def turned(self, projected: tuple[Tensor, ...], rotation: Rotation | None) -> Heads:
        heads = projected[0].unflatten(-1, (-1, self.head_dim))
        num_keys = heads.shape[-2] // (self.heads_per_key + 2)
        if self.q_norm is None or self.k_norm is None:
            return turned_heads(heads, num_keys, *rotation) if rotation is not None else split_heads(heads, num_keys)
        query, key, value = split_heads(heads, num_keys)
        query, key = self.q_norm.alone(query), self.k_norm.alone(key)
        return (query, key, value) if rotation is None else (rotate(query, *rotation), rotate(key, *rotation), value)


class LatentAttention(Attention):
    """Heads from low-rank vectors, with a rotary part that all keys share (DeepSeek-V2, arXiv:2405.04434).

    Most kernels need queries, keys and values of one width: the narrower ones are filled up with zeros. Where torch's own kernels for
    whole sequences are used on a GPU, values that are narrower than keys stay as they are (`takes_narrow_values`).
    """

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__(model, layer)
        latent = model.latent
        assert latent is not None, "the model has latent attention"
        self.latent = latent
        self.q_down = Linear(model.hidden, latent.query_rank, bias=False) if latent.query_rank else None
        self.q_down_norm = RMSNorm(latent.query_rank, LATENT_EPSILON) if latent.query_rank else None
        self.q_up = Linear(latent.query_rank, model.query_dim, bias=False) if latent.query_rank else None
        self.q = None if latent.query_rank else Linear(model.hidden, model.query_dim, bias=False)
        self.kv_down = Linear(model.hidden, latent.key_value_rank + latent.rope_dim, bias=False)
        self.kv_down_norm = RMSNorm(latent.key_value_rank, LATENT_EPSILON)
        self.kv_up = Linear(latent.key_value_rank, model.num_heads * (latent.nope_dim + latent.value_dim), bias=False)
        self.o = Linear(model.value_dim, model.hidden, bias=False)
        self.key_dim = latent.nope_dim + latent.rope_dim
        self.width = max(self.key_dim, latent.value_dim)
        scaling = model.rotary_scaling
        self.query_scale = (self.width / self.key_dim) ** 0.5 * (scaling.score_factor if scaling else 1.0)
        self.enter: Callable[[Tensor], Tensor] = same  # tensor parallelism gathers the latent vectors of all tokens

    def gathering(self) -> list[Linear]:
        return [] if self.q is None else [self.q]

    def projected(self, x: Tensor | Made) -> tuple[Tensor, ...]:
        latent = self.latent
        normed = [] if self.q_down is None or self.q_down_norm is None else [self.q_down_norm.alone(self.q_down(x))]
        keys, turning = self.kv_down(x).split([latent.key_value_rank, latent.rope_dim], dim=-1)
        entered = self.enter(torch.cat((*normed, self.kv_down_norm.alone(keys), turning), dim=-1))
        queries, keys, turning = entered.split([latent.query_rank, latent.key_value_rank, latent.rope_dim], dim=-1)
        product = self.q_up(queries) if self.q_up is not None else self._direct(x)
        return product, self.kv_up(keys), turning

    def _direct(self, x: Tensor | Made) -> Tensor:
        assert self.q is not None, "queries are projected directly or through a latent vector"
        made: Tensor = self.q(x)
        return made

    def turned(self, projected: tuple[Tensor, ...], rotation: Rotation | None) -> Heads:
        assert rotation is not None, "latent attention has rotary positions"
        latent, turn = self.latent, rotate_pairs if self.latent.interleaved else rotate
        queries, keys_values, turning = projected
        still, turned = queries.unflatten(-1, (-1, self.key_dim)).split([latent.nope_dim, latent.rope_dim], dim=-1)
        still_keys, values = keys_values.unflatten(-1, (-1, latent.nope_dim + latent.value_dim)).split(
            [latent.nope_dim, latent.value_dim], dim=-1
        )
        shared = turn(turning[:, :, None], *rotation).expand(-1, -1, still_keys.shape[2], -1)
        query = torch.cat((still, turn(turned, *rotation)), dim=-1) * self.query_scale
        return self._wide(query), self._wide(torch.cat((still_keys, shared), dim=-1)), values

    def attended(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        reach = Reach(window=self.window, sinks=self.sinks)
        is_plain = self.attend is attend and takes_narrow_values(query, key, context, reach)
        # A copy in both cases: values are a part of a product, all of which would otherwise be kept for the backward pass.
        return super().attended(query, key, value.contiguous() if is_plain else self._wide(value), context)

    def _wide(self, heads: Tensor) -> Tensor:
        return F.pad(heads, (0, self.width - heads.shape[-1])) if heads.shape[-1] < self.width else heads

    def narrowed(self, attended: Tensor) -> Tensor:
        return super().narrowed(attended[..., : self.latent.value_dim])


def attention_of(model: Model, layer: int) -> Attention:
    """The attention of one layer."""
    return LatentAttention(model, layer) if model.latent else GroupedAttention(model, layer)
