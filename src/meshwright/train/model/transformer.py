"""The transformer: Llama's and GPT-3's blocks on whole tensors, without any code for parallelism.

Parallelism is added through ports. `Linear.multiply` is a matrix product and `leave` is called after the second product of each half of a
block (tensor parallelism gathers and scatters there), and `attend` is the attention itself (context parallelism replaces it). A
`Transformer` may hold any range of layers, with the embedding, the head, both or neither (a pipeline stage).

Shape letters: B sequences, T tokens of a sequence, H hidden, N heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from meshwright.describe.model import Model, RotaryScaling
from meshwright.train.kernels import flash_attention
from meshwright.train.kernels.attention_parts import attended_in_runs, attends_in_runs
from meshwright.train.kernels.fused_loss import num_correct, summed_loss
from meshwright.train.kernels.layer_functions import Made, gated, past_and_normed, past_and_remade, split_heads, turned_heads, value_of
from meshwright.train.kernels.linear import Linear
from meshwright.train.kernels.runs import Runs

# torch's own kernels, the fastest on Hopper first: cuDNN's takes half of the time of torch's flash kernel there.
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

ADAPTER = ".adapter."  # in the names of parameters that adapters add: `layers.0.attention.qkv.adapter.q.lora_a`
X = TypeVar("X")
Rotation = tuple[Tensor, Tensor]  # cosines and sines of positions


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


def attend(query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
    """Causal attention within documents; [B, T, N, D], keys and values with as many heads or a divisor of them."""
    if context.documents is None and flash_attention.supports(query, key):
        return flash_attention.attended(query, key, value)
    if context.runs is not None and attends_in_runs(query, key):
        (runs,) = context.runs
        assert runs is not None, "every token attends to itself"
        return attended_in_runs(query, key, value, runs)
    mask = None
    if context.documents is not None:
        mask = visible(context.positions, context.documents, context.positions, context.documents)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with sdpa_kernel(KERNELS, set_priority=True):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


def visible(query_positions: Tensor, query_documents: Tensor | None, key_positions: Tensor, key_documents: Tensor | None) -> Tensor:
    """Whether each query may attend to each key: the key is not later and is in the same document; [B or 1, 1, T, S]."""
    seen = (query_positions[:, None] >= key_positions[None, :])[None]
    if query_documents is not None and key_documents is not None:
        seen = seen & (query_documents[:, :, None] == key_documents[:, None, :])
    return seen[:, None]


def same(x: X) -> X:
    """Return the tensor unchanged: the default of a port."""
    return x


def rotary_frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None) -> Tensor:
    """Radians per token of each pair of a head's dimensions, [D / 2], with Llama 3's scaling for longer contexts.

    Wavelengths longer than the original context are stretched by `factor`, short ones are not changed, and those between are interpolated.
    The computation is in fp32 and in the order of the package transformers, because far into a context one bit of a frequency changes an
    angle by 1e-3.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)
    if scaling is None:
        return frequencies
    turns = scaling.original_positions / (2 * math.pi / frequencies)  # full turns over the original context
    kept = (turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    return torch.where(kept <= 0, frequencies / scaling.factor, torch.where(kept >= 1, frequencies, blended))


class Rotary(nn.Module):
    """Cosines and sines of positions, computed once for the longest sequence."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.frequencies = rotary_frequencies(model.head_dim, model.rotary_theta, model.rotary_scaling)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position, [T, 1, D]."""
        self.frequencies = self.frequencies.to(positions.device)  # once, because the host waits for all work before such a copy
        with torch.no_grad():
            angles = positions[:, None].float() * self.frequencies
            both = torch.cat((angles, angles), dim=-1)[:, None, :]
            return both.cos().to(dtype), both.sin().to(dtype)


class LayerNorm(nn.Module):
    """Subtracts the mean and divides by the standard deviation (GPT-3)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`x` itself, for the residual, and `x` normalized."""
        return x, F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """Divides by the root mean square (Llama)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))
        self.remakes = False  # whether products compute this output again in the backward pass instead of keeping it

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | Made]:
        """`x` itself, for the residual, and `x` normalized."""
        return (past_and_remade if self.remakes else past_and_normed)(x, self.weight, self.epsilon)


def norm_of(model: Model) -> LayerNorm | RMSNorm:
    """The model's kind of norm over hidden states."""
    return (LayerNorm if model.layer_norm else RMSNorm)(model.hidden, model.norm_epsilon)


class Attention(nn.Module):
    """Self-attention: projections, rotation, the attention itself, projection back."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        has_bias = model.biases or model.attention_biases
        self.heads_per_key = model.num_heads // model.num_kv_heads
        self.qkv = Linear(model.hidden, model.query_dim + 2 * model.kv_dim, bias=has_bias or model.qkv_biases)
        self.o = Linear(model.query_dim, model.hidden, bias=has_bias)
        self.leave: Callable[[Tensor], Tensor] = same
        self.attend: Callable[[Tensor, Tensor, Tensor, Context], Tensor] = attend
        self.recomputes = False

    def forward(self, x: Tensor | Made, context: Context, rotation: Rotation | None) -> Tensor:
        attended = self.attended(*self.turned(self.qkv(x), rotation), context)
        return self.o.add_bias(self.leave(self.narrowed(attended)))

    def turned(self, projected: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values, from their projection."""
        heads = projected.unflatten(-1, (-1, self.head_dim))
        num_keys = heads.shape[-2] // (self.heads_per_key + 2)
        return turned_heads(heads, num_keys, *rotation) if rotation is not None else split_heads(heads, num_keys)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """Attention itself, which the backward pass may compute again."""
        if self.recomputes and torch.is_grad_enabled():
            made: Tensor = checkpoint(self.attend, query, key, value, context, use_reentrant=False, preserve_rng_state=False)
            return made
        return self.attend(query, key, value, context)

    def narrowed(self, attended: Tensor) -> Tensor:
        """The product back to hidden states, without bias."""
        return self.o.product(attended.flatten(-2))


class MLP(nn.Module):
    """The feed-forward half of a block: SwiGLU (Llama) or GELU (GPT-3)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_up = Linear(model.hidden, 2 * model.ffn_hidden, bias=model.biases) if model.gated else None
        self.up = Linear(model.hidden, model.ffn_hidden, bias=model.biases) if not model.gated else None
        self.down = Linear(model.ffn_hidden, model.hidden, bias=model.biases)
        self.remakes = False
        self.leave: Callable[[Tensor], Tensor] = same

    @property
    def into(self) -> Linear:
        """The product upward."""
        found = self.up if self.gate_up is None else self.gate_up
        assert found is not None, "an MLP without a gate has one product upward"
        return found

    def forward(self, x: Tensor | Made) -> Tensor:
        return self.down.add_bias(self.leave(self.narrowed(self.into(x))))

    def narrowed(self, wide: Tensor) -> Tensor:
        """The product back to hidden states, without bias, from the one upward."""
        if self.gate_up is None:
            return self.down.product(F.gelu(wide, approximate="tanh"))
        return self.down.product(Made(gated(wide), "gate", (wide.detach(),)) if self.remakes else gated(wide))


class Block(nn.Module):
    """One layer: attention, then the MLP, each around a residual."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = norm_of(model)
        self.attention = Attention(model)
        self.mlp_norm = norm_of(model)
        self.mlp = MLP(model)
        self.recomputes = False
        self.compiled: Callable[[Tensor, Context, Rotation | None], Tensor] | None = None

    def forward(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        whole = self.compiled or self.plain
        if self.recomputes and torch.is_grad_enabled():
            # Outside the compiled part: inside it, a compiler keeps the results of functions that have their own backward pass.
            made: Tensor = checkpoint(whole, x, context, rotation, use_reentrant=False, preserve_rng_state=False)
            return made
        return whole(x, context, rotation)

    def plain(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        """The layer without compilation and without recompute."""
        past, normed = self.attention_norm(x)
        past, normed = self.mlp_norm(past + self.attention(normed, context, rotation))
        made: Tensor = past + self.mlp(normed)
        return made

    def before_attention(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of this layer."""
        return self.attention.turned(self.attention.qkv(self.attention_norm(x)[1]), rotation)

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output of this layer, from its input and what attention gave."""
        attention = self.attention
        past, normed = self.mlp_norm(x + attention.o.add_bias(attention.leave(attention.narrowed(attended))))
        made: Tensor = past + self.mlp(normed)
        return made


def tensors_in(name: str, model: Model, key_copies: int = 1) -> tuple[tuple[str, int], ...]:
    """The tensors that the parameter `name` holds, one after another, each with its share of the rows.

    If `key_copies` tensor-parallel ranks hold the same key-value head, each has fewer queries by this factor.
    """
    if ADAPTER in name:
        layer, _, rest = name.partition(ADAPTER)
        return ((f"{layer.rpartition('.')[0]}.{rest}", 1),)
    layer, _, kind = name.rpartition(".")
    joined = {
        "attention.qkv": (("q", model.num_heads // model.num_kv_heads // key_copies), ("k", 1), ("v", 1)),
        "mlp.gate_up": (("gate", 1), ("up", 1)),
    }
    for ending, held in joined.items():
        if layer.endswith(ending):
            before = layer.rpartition(".")[0]
            return tuple((f"{before}.{part}.{kind}", share) for part, share in held)
    return ((name, 1),)


def views_of(name: str, held: Tensor, model: Model, key_copies: int = 1) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the parameter `name`, or a tensor of the same shape, holds, each with its name."""
    tensors = tensors_in(name, model, key_copies)
    unit = held.shape[0] // sum(share for _, share in tensors)
    for (tensor, _), view in zip(tensors, held.split([share * unit for _, share in tensors]), strict=True):
        yield tensor, view


class Embedding(nn.Module):
    """Token vectors, and learned positions if the model has them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.vocab_size, model.hidden))
        self.positions = nn.Parameter(torch.empty(model.num_positions, model.hidden)) if model.num_positions else None
        self.look_up: Callable[[Tensor, Tensor], Tensor] = look_up
        self.share: Callable[[Tensor], Tensor] = same  # this rank's share of the positions

    def forward(self, tokens_BT: Tensor, context: Context) -> Tensor:
        x = self.look_up(tokens_BT, self.weight)
        return x if self.positions is None else x + F.embedding(self.share(context.positions), self.positions)


def look_up(tokens: Tensor, weight: Tensor) -> Tensor:
    """The vectors of tokens."""
    return F.embedding(tokens, weight)


class Head(nn.Module):
    """The last norm, the output projection and the loss. A tied head has no weight of its own if the embedding is on the same stage."""

    def __init__(self, model: Model, shared: nn.Parameter | None) -> None:
        super().__init__()
        self.norm = norm_of(model)
        self.weight = shared if shared is not None else nn.Parameter(torch.empty(model.vocab_size, model.hidden))
        self.enter: Callable[[Tensor], Tensor] = same
        self.summed_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = summed_loss
        self.num_correct: Callable[[Tensor, Tensor, Tensor], Tensor] = num_correct

    def forward(self, x: Tensor, labels_BT: Tensor, *, counts_correct: bool = False) -> Tensor:
        hidden = self.enter(value_of(self.norm(x)[1]))
        loss = self.summed_loss(hidden, self.weight, labels_BT)
        return torch.stack((loss, self.num_correct(hidden, self.weight, labels_BT).to(loss.dtype))) if counts_correct else loss

    def logits(self, x: Tensor) -> Tensor:
        """Scores of every next token, [B, T, V]; for a model that is not split."""
        return F.linear(value_of(self.norm(x)[1]), self.weight)


class Transformer(nn.Module):
    """A range of layers, with the embedding before the first and the head after the last.

    Parameters have the names of the whole model (`layers.7.mlp.down.weight`), for any range of layers. Matrices that multiply the same
    input are one parameter, row after row, and one product; `named_tensors` returns each under its own name.
    """

    def __init__(self, model: Model, layers: Iterable[int] | None = None, *, is_first: bool = True, is_last: bool = True) -> None:
        super().__init__()
        numbers = range(model.num_layers) if layers is None else layers
        self.model = model
        self.rotary = None if model.num_positions else Rotary(model)
        self.embed = Embedding(model) if is_first else None
        self.layers = nn.ModuleDict({str(number): Block(model) for number in numbers})
        shared = self.embed.weight if self.embed is not None and model.tied_embeddings else None
        self.head = Head(model, shared) if is_last else None

    def blocks(self) -> list[Block]:
        """The layers of this chunk, in order."""
        return cast("list[Block]", list(self.layers.values()))

    def hidden(self, x: Tensor, context: Context) -> Tensor:
        """Hidden states after the layers of this chunk, from tokens (first stage) or hidden states."""
        if self.embed is not None:
            x = self.embed(x, context)
        rotation = self.rotary(context.positions, x.dtype) if self.rotary is not None else None
        for block in self.blocks():
            x = block(x, context, rotation)
        return x

    def forward(self, x: Tensor, context: Context, labels_BT: Tensor | None = None, *, counts_correct: bool = False) -> Tensor:
        """Hidden states for the next stage, or on the last stage, with labels, the summed loss; with the correct tokens, if counted."""
        x = self.hidden(x, context)
        return x if self.head is None or labels_BT is None else self.head(x, labels_BT, counts_correct=counts_correct)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes: all, or those of adapters beside a frozen model."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of this chunk by its name, as a view of the parameter that holds it; a tied table once."""
        for name, parameter in self.named_parameters():
            yield from views_of(name, parameter.data, self.model)
