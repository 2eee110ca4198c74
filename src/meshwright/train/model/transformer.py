"""The transformer: blocks of attention and MLP on whole tensors, without any code for parallelism.

Parallelism is added through ports. `Linear.multiply` is a matrix product and `leave` is called after the second product of each half of a
block (tensor parallelism gathers and scatters there), and `attend` is the attention itself (context parallelism replaces it). A
`Transformer` may hold any range of layers, with the embedding, the head, both or neither (a pipeline stage).

Shape letters: B sequences, T tokens of a sequence, H hidden, N heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from meshwright.describe.model import Model
from meshwright.train.kernels.fused_loss import num_correct, summed_loss
from meshwright.train.kernels.layer_functions import Made, gated, value_of
from meshwright.train.kernels.linear import Linear
from meshwright.train.model.attention import Context, Heads, attention_of, same
from meshwright.train.model.experts import ExpertLayer, expert_tensors, is_routed
from meshwright.train.model.norms import norm_of
from meshwright.train.model.rotary import Rotary, Rotation
from meshwright.train.model.router import Scored

ADAPTER = ".adapter."  # in the names of parameters that adapters add: `layers.0.attention.qkv.adapter.q.lora_a`


class MLP(nn.Module):
    """The feed-forward half of a block: SwiGLU (Llama) or GELU (GPT-3)."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        self.gate_up = Linear(model.hidden, 2 * width, bias=model.biases) if model.gated else None
        self.up = Linear(model.hidden, width, bias=model.biases) if not model.gated else None
        self.down = Linear(width, model.hidden, bias=model.biases)
        self.remakes = False
        self.leave: Callable[[Tensor], Tensor] = same

    @property
    def into(self) -> Linear:
        """The product upward."""
        found = self.up if self.gate_up is None else self.gate_up
        assert found is not None, "an MLP without a gate has one product upward"
        return found

    def forward(self, x: Tensor | Made) -> Tensor:
        return self.finished(self.products(x))

    def products(self, x: Tensor | Made) -> Tensor:
        """The product upward and the one back, of which each tensor-parallel rank has a part."""
        return self.narrowed(self.into(x))

    def finished(self, narrow: Tensor) -> Tensor:
        """The output, from that of the products: ranks add up their parts, and the bias is added once."""
        return self.down.add_bias(self.leave(narrow))

    def narrowed(self, wide: Tensor) -> Tensor:
        """The product back to hidden states, without bias, from the one upward."""
        return self.down.product(self.active(wide))

    def active(self, wide: Tensor) -> Tensor | Made:
        """The activation function of the product upward."""
        if self.gate_up is None:
            return F.gelu(wide, approximate="tanh")
        return Made(gated(wide), "gate", (wide.detach(),)) if self.remakes else gated(wide)


def feed_forward(model: Model, layer: int) -> MLP | ExpertLayer:
    """The feed-forward half of the block number `layer`: experts, or the dense MLP."""
    experts = model.experts
    if experts is None or layer < experts.num_dense_layers:
        return MLP(model, model.ffn_hidden)
    return ExpertLayer(model, MLP(model, experts.num_shared * experts.hidden) if experts.num_shared else None)


class Block(nn.Module):
    """One layer: attention, then the MLP or experts, each around a residual."""

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.attention_norm = norm_of(model)
        self.attention = attention_of(model, layer)
        self.mlp_norm = norm_of(model)
        self.mlp = feed_forward(model, layer)
        self.recomputes = False  # the whole layer
        self.recomputes_mlp = False  # its second half alone
        self.compiled: Callable[[Tensor, Context, Rotation | None], Tensor] | None = None

    def forward(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        whole = self.compiled or self.plain
        if self.recomputes and torch.is_grad_enabled():
            # Outside the compiled part: inside it, a compiler keeps the results of functions that have their own backward pass.
            made: Tensor = checkpoint(whole, x, context, rotation, use_reentrant=False, preserve_rng_state=False)
            return made
        return whole(x, context, rotation)

    def plain(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        """The layer without compilation."""
        return self.feed(self.fed, self.attention_half(x, context, rotation))

    def attention_half(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        """The first half of the layer: attention, and the residual around it."""
        past, normed = self.attention_norm(x)
        made: Tensor = past + self.attention(normed, context, rotation)
        return made

    def fed(self, x: Tensor) -> Tensor:
        """The second half of the layer, from the first: the MLP or experts, and the residual around it."""
        past, normed = self.mlp_norm(x)
        made: Tensor = past + self.mlp(normed)
        return made

    def scored(self, x: Tensor) -> tuple[Tensor, Tensor, Scored]:
        """The second half before tokens visit experts: the residual, hidden states, and what the router makes of them."""
        assert isinstance(self.mlp, ExpertLayer), "a dense layer has no router"
        past, normed = self.mlp_norm(x)
        rows = value_of(normed)  # the router keeps them anyway
        # A copy: a compiled piece gives back its own input by a way around it, and then one kernel could not add both gradients.
        return past.clone(), rows, self.mlp.router.scored(rows)

    def feed(self, half: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The second half, however it is computed; the backward pass may compute it again."""
        if self.recomputes_mlp and torch.is_grad_enabled():
            made: Tensor = checkpoint(half, x, use_reentrant=False, preserve_rng_state=False)
            return made
        return half(x)

    def activated(self, x: Tensor) -> Tensor:
        """The second half up to its last product: what that product multiplies."""
        assert isinstance(self.mlp, MLP), "experts have several last products"
        return value_of(self.mlp.active(self.mlp.into(self.mlp_norm(x)[1])))

    def before_attention(self, x: Tensor, rotation: Rotation | None) -> Heads:
        """Queries, keys and values of this layer."""
        return self.attention.turned(self.attention.projected(self.attention_norm(x)[1]), rotation)

    def added(self, x: Tensor, attended: Tensor) -> Tensor:
        """The first half of this layer, from its input and what attention gave."""
        attention = self.attention
        return x + attention.o.add_bias(attention.leave(attention.narrowed(attended)))

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output of this layer, from its input and what attention gave."""
        return self.fed(self.added(x, attended))


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
        "mlp.shared.gate_up": (("gate", 1), ("up", 1)),
    }
    for ending, held in joined.items():
        if layer.endswith(ending):
            before = layer.rpartition(".")[0]
            return tuple((f"{before}.{part}.{kind}", share) for part, share in held)
    return ((name, 1),)


def views_of(name: str, held: Tensor, model: Model, key_copies: int = 1, etp: int = 1) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the parameter `name`, or a tensor of the same shape, holds, each with its name."""
    if is_routed(name):
        yield from expert_tensors(name, held, model, etp)
        return
    tensors = tensors_in(name, model, key_copies)
    unit = held.shape[0] // sum(share for _, share in tensors)
    for (tensor, _), view in zip(tensors, held.split([share * unit for _, share in tensors]), strict=True):
        yield tensor, view


class Embedding(nn.Module):
    """Token vectors, and learned positions if the model has them."""

    def __init__(self, model: Model, shared: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = shared if shared is not None else nn.Parameter(torch.empty(model.vocab_size, model.hidden))
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
        return loss if not counts_correct else torch.stack((loss, self.num_correct(hidden, self.weight, labels_BT).to(loss.dtype)))

    def loss_of(self, normed: Tensor, labels_BT: Tensor) -> Tensor:
        """The summed loss of hidden states that another norm has normalized."""
        return self.summed_loss(self.enter(normed), self.weight, labels_BT)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of every next token, [B, T, V]; for a model that is not split."""
        return F.linear(value_of(self.norm(x)[1]), self.weight)


class PredictionLayer(nn.Module):
    """Multi-token prediction, one token further than what comes before (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).

    The vectors of the tokens ahead and the hidden states are normalized, joined in this order, and projected to hidden states, which one
    more block and a norm turn into what the head of the model reads.
    """

    def __init__(self, model: Model, layer: int) -> None:
        super().__init__()
        self.embedding_norm = norm_of(model)
        self.hidden_norm = norm_of(model)
        self.projection = Linear(2 * model.hidden, model.hidden, bias=False)
        self.block = Block(model, layer)
        self.norm = norm_of(model)

    def forward(self, x: Tensor, ahead: Tensor, context: Context, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Hidden states for the next prediction, and the same normalized for the head."""
        joined = torch.cat((value_of(self.embedding_norm(ahead)[1]), value_of(self.hidden_norm(x)[1])), dim=-1)
        made, normed = self.norm(self.block(self.projection(joined), context, rotation))
        return made, value_of(normed)


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """What one prediction layer reads: for every position the token that comes some positions later, and the label of that one."""

    tokens: Tensor  # [B, T]
    labels: Tensor  # [B, T]


class Transformer(nn.Module):
    """A range of layers, with the embedding before the first and the head after the last.

    Layers of multi-token prediction come with the head, and are numbered after the others. Where the embedding is on another stage, they
    have a copy of it (`next_embed`).

    Parameters have the names of the whole model (`layers.7.mlp.down.weight`), for any range of layers. Matrices that multiply the same
    input are one parameter, row after row, and one product; `named_tensors` returns each under its own name.
    """

    def __init__(self, model: Model, layers: Iterable[int] | None = None, *, is_first: bool = True, is_last: bool = True) -> None:
        super().__init__()
        numbers = range(model.num_layers) if layers is None else layers
        self.model = model
        self.rotary = None if model.num_positions else Rotary(model)
        self.embed = Embedding(model) if is_first else None
        self.layers = nn.ModuleDict({str(number): Block(model, number) for number in numbers})
        shared = self.embed.weight if self.embed is not None and model.tied_embeddings else None
        self.head = Head(model, shared) if is_last else None
        self.next_embed = None
        self.prediction_weight = 0.0  # of the losses of all prediction layers together
        if self.head is not None and model.num_prediction_layers:
            for number in range(model.num_layers, model.num_layers + model.num_prediction_layers):
                self.layers[str(number)] = PredictionLayer(model, number)
            if self.embed is None:
                self.next_embed = Embedding(model, self.head.weight if model.tied_embeddings else None)

    def blocks(self) -> list[Block]:
        """The layers of this chunk, in order, without those of multi-token prediction."""
        return [layer for layer in self.layers.values() if isinstance(layer, Block)]

    def predictions(self) -> list[PredictionLayer]:
        """The layers of multi-token prediction, in order."""
        return [layer for layer in self.layers.values() if isinstance(layer, PredictionLayer)]

    def hidden(self, x: Tensor, context: Context) -> Tensor:
        """Hidden states after the layers of this chunk, from tokens (first stage) or hidden states."""
        if self.embed is not None:
            x = self.embed(x, context)
            if torch.is_grad_enabled() and not x.requires_grad:
                x.requires_grad_()  # a frozen table: with this, the first layer is like all others, and is not compiled for itself
        rotation = self.rotary(context.positions, x.dtype) if self.rotary is not None else None
        for block in self.blocks():
            x = block(x, context, rotation)
        return x

    def forward(
        self,
        x: Tensor,
        context: Context,
        labels_BT: Tensor | None = None,
        ahead: Sequence[Ahead] = (),
        *,
        counts_correct: bool = False,
    ) -> Tensor:
        """Hidden states for the next stage, or on the last stage, with labels, the summed loss; with the correct tokens, if counted.

        While gradients are computed, the loss has the gradients of multi-token prediction too, with their weight. Its value is that of the
        next token alone.
        """
        x = self.hidden(x, context)
        if self.head is None or labels_BT is None:
            return x
        loss: Tensor = self.head(x, labels_BT, counts_correct=counts_correct)
        if not ahead or not torch.is_grad_enabled():
            return loss
        further = self.prediction_weight / len(ahead) * torch.stack(self.prediction_losses(x, context, ahead)).sum()
        return loss + (further - further.detach())

    def prediction_losses(self, x: Tensor, context: Context, ahead: Sequence[Ahead]) -> list[Tensor]:
        """The summed loss of each layer of multi-token prediction, from the hidden states after the last layer."""
        embed = self.embed if self.embed is not None else self.next_embed
        assert embed is not None and self.head is not None, "prediction layers are where the head is, with a table"
        rotation = self.rotary(context.positions, x.dtype) if self.rotary is not None else None
        losses = []
        for layer, further in zip(self.predictions(), ahead, strict=True):
            x, normed = layer(x, embed(further.tokens, context), context, rotation)
            losses.append(self.head.loss_of(normed, further.labels))
        return losses

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that training changes: all, or those of adapters beside a frozen model."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of this chunk by its name, as a view of the parameter that holds it; a tied table once."""
        for name, parameter in self.named_parameters():
            yield from views_of(name, parameter.data, self.model)
        yield from self.named_buffers()  # selection biases of routers, which no gradient trains
