"""Tensor parallelism with sequence parallelism: matrices are split by heads, by the width of the MLP and by the vocabulary.

Between blocks each rank holds a part of the sequence, so that norms and residuals are not computed twice. A block gathers the sequence
before its products and scatters the partial sums after them. For the backward pass it keeps its own part of a gathered input and gathers
the others again, behind the product that gives the gradient of the input. The loss is computed on the split vocabulary: ranks exchange
three numbers per token, and never the logits. (Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels.layer_functions import Made, value_of
from meshwright.train.kernels.linear import Linear
from meshwright.train.model.attention import Attention, GroupedAttention, LatentAttention
from meshwright.train.model.experts import is_routed
from meshwright.train.model.transformer import MLP, Embedding, Head, Transformer, tensors_in
from meshwright.train.parallel.collectives import Axis, Gather, ScatterSum

SEQUENCE = 1  # of hidden states [B, T, H]

# The dimension along which a parameter is split, by the end of its name. A parameter that is not listed is whole on every rank.
CUTS = {
    "embed.weight": 0,
    "head.weight": 0,
    **{f"attention.{name}.{kind}": 0 for name in ("qkv", "q", "k", "v") for kind in ("weight", "bias")},
    **{f"attention.{name}": 0 for name in ("q_up.weight", "kv_up.weight", "sinks")},
    "attention.o.weight": 1,
    **{f"mlp.{name}.{kind}": 0 for name in ("gate_up", "gate", "up") for kind in ("weight", "bias")},
    "mlp.down.weight": 1,
    # Of a pair of low-rank matrices, the one on the side that the weight is split along.
    **{f".{name}.lora_b": 0 for name in ("q", "k", "v", "q_up", "kv_up", "gate", "up")},
    **{f".{name}.lora_a": 1 for name in ("o", "down")},
    **{f"mlp.shared.{name}.{kind}": 0 for name in ("gate_up", "gate", "up") for kind in ("weight", "bias")},
    "mlp.shared.down.weight": 1,
}
TABLES = ("embed.weight", "head.weight")
# Where ranks outnumber key-value heads.
COPIED = (*(f"attention.{name}.{kind}" for name in ("k", "v") for kind in ("weight", "bias")), ".k.lora_b", ".v.lora_b")


def cut_dim(name: str) -> int | None:
    """The dimension along which tensor parallelism cuts the parameter `name`, or None."""
    return next((dim for ending, dim in CUTS.items() if name.endswith(ending)), None)


def copies_of(name: str, key_copies: int) -> int:
    """How many tensor-parallel ranks hold the same part of the split tensor `name`."""
    return key_copies if name.endswith(COPIED) else 1


def split(chunk: Transformer, axis: Axis, *, keeps_inputs: bool = False) -> None:
    """Split the parameters of `chunk` (still without storage) for this rank, and connect the axis to its ports.

    If there are more ranks than key-value heads, several ranks hold the same head, each for its own queries. With `keeps_inputs`, gathered
    inputs of products are kept whole for the backward pass: a layer that is computed again just before it has gathered them again already.
    """
    if axis.size == 1:
        return
    key_copies = chunk.model.key_copies(axis.size)
    for name, parameter in list(chunk.named_parameters(remove_duplicate=True)):
        dim = cut_dim(name)
        if dim is not None:
            shape = list(parameter.shape)
            held = tensors_in(name, chunk.model)
            unit = shape[dim] // sum(share for _, share in held)
            shape[dim] = sum(share * unit * copies_of(tensor, key_copies) // axis.size for tensor, share in held)
            if name.endswith(TABLES):
                shape[dim] = chunk.model.vocab_rows(axis.size)
            parameter.data = parameter.data.new_empty(shape)
    for module in chunk.modules():
        if isinstance(module, Attention):
            for layer in module.gathering():
                layer.multiply = GatheredProduct(axis, keeps=keeps_inputs)
        if isinstance(module, GroupedAttention):
            module.heads_per_key //= key_copies
        elif isinstance(module, LatentAttention):
            module.enter = gathering(axis)
        elif isinstance(module, MLP):
            module.into.multiply = GatheredProduct(axis, keeps=keeps_inputs)
        if isinstance(module, Attention | MLP):
            module.leave = _scatter(axis)
        elif isinstance(module, Embedding):
            module.look_up, module.share = _VocabularyLookUp(axis), _share(axis)
        elif isinstance(module, Head):
            module.enter, module.summed_loss = gathering(axis), _VocabularyLoss(axis, chunk.model.vocab_size)
            module.num_correct = _VocabularyGrade(axis, chunk.model.vocab_size)


class GatheredProduct:
    """A product of the whole sequence, from this rank's part of it."""

    def __init__(self, axis: Axis, *, keeps: bool) -> None:
        self.axis, self.keeps = axis, keeps

    def __call__(self, x: Tensor | Made, layer: Linear) -> Tensor:
        weight = layer.weight.detach() if layer.puts_off else layer.weight
        out: Tensor = _GatheredProduct.apply(value_of(x), weight, layer, self.axis, self.keeps)
        return out


class _GatheredProduct(torch.autograd.Function):
    """All-gather and product. In the backward both collectives run behind a product: the input is gathered again behind that of the input's
    gradient, which is summed and scattered behind that of the weight's."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: Tensor, layer: Linear, axis: Axis, keeps: bool) -> Tensor:
        whole = axis.all_gather(local, SEQUENCE)
        out, kept = layer.arithmetic.forward(whole.flatten(0, -2), weight)
        ctx.save_for_backward(whole if keeps else local, weight, *kept)
        ctx.layer, ctx.axis, ctx.keeps, ctx.shape = layer, axis, keeps, whole.shape
        return torch.unflatten(out, 0, whole.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight, *kept = ctx.saved_tensors
        layer, axis, keeps = ctx.layer, ctx.axis, ctx.keeps

        def coming() -> Callable[[], Tensor]:
            return (lambda: x) if keeps else axis.start_all_gather(x, SEQUENCE)

        arrives = coming() if layer.put_off is None else None
        d_rows, carried = layer.arithmetic.to_input(gradient.flatten(0, -2), weight, tuple(kept))
        leaves = axis.start_reduce_scatter(d_rows.view(ctx.shape), SEQUENCE)

        def to_weight(whole: Tensor) -> Tensor:
            d_weight: Tensor = layer.arithmetic.to_weight(carried, whole.flatten(0, -2), tuple(kept))
            return d_weight

        if arrives is not None:
            d_weight = to_weight(arrives())
            return leaves(), d_weight, None, None, None
        layer.put_off.append(lambda: (layer.weight, to_weight(coming()())))
        return leaves(), None, None, None, None


def gathering(axis: Axis) -> Callable[[Tensor], Tensor]:
    """A function that gathers the sequence from all ranks."""

    def gather(x: Tensor) -> Tensor:
        whole: Tensor = Gather.apply(x, axis, SEQUENCE)
        return whole

    return gather


def _scatter(axis: Axis) -> Callable[[Tensor], Tensor]:
    def scatter(x: Tensor) -> Tensor:
        part: Tensor = ScatterSum.apply(x, axis, SEQUENCE)
        return part

    return scatter


def _share(axis: Axis) -> Callable[[Tensor], Tensor]:
    return lambda positions: positions.chunk(axis.size)[axis.index]


class _VocabularyLookUp:
    """Each rank looks up the tokens of its part of the vocabulary; the sum over ranks, scattered over the sequence, has all of them."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def __call__(self, tokens: Tensor, weight: Tensor) -> Tensor:
        local, is_here = _localised(tokens, weight.shape[0], self.axis)
        vectors = F.embedding(local, weight) * is_here[..., None].to(weight.dtype)
        part: Tensor = ScatterSum.apply(vectors, self.axis, SEQUENCE)
        return part


def _localised(tokens: Tensor, num_local: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Tokens counted from this rank's first entry (0 for entries of other ranks), and whether they are on this rank."""
    local = tokens - axis.index * num_local
    is_here = (local >= 0) & (local < num_local)
    return torch.where(is_here, local, 0), is_here


def num_entries(vocab_size: int, num_local: int, axis: Axis) -> int:
    """How many of a rank's entries are of the vocabulary. The rest is padding, which no token names."""
    return min(max(vocab_size - axis.index * num_local, 0), num_local)


class _VocabularyLoss:
    """Cross-entropy summed over tokens. No rank holds all logits."""

    def __init__(self, axis: Axis, vocab_size: int) -> None:
        self.axis, self.vocab_size = axis, vocab_size

    def __call__(self, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        num_here = num_entries(self.vocab_size, weight.shape[0], self.axis)
        loss: Tensor = _CutCrossEntropy.apply(F.linear(hidden, weight).float(), labels, self.axis, num_here)
        return loss


class _VocabularyGrade:
    """Tokens whose label has the largest score of all ranks; of equal scores, any counts."""

    def __init__(self, axis: Axis, vocab_size: int) -> None:
        self.axis, self.vocab_size = axis, vocab_size

    @torch.no_grad()
    def __call__(self, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        num_here = num_entries(self.vocab_size, weight.shape[0], self.axis)
        scores = F.linear(hidden, weight).float()
        scores[..., num_here:] = -torch.inf
        local, is_here = _localised(labels, weight.shape[0], self.axis)
        chosen = torch.where(is_here, scores.gather(-1, local[..., None])[..., 0], -torch.inf)
        both = self.axis.all_reduce(torch.stack((scores.amax(dim=-1), chosen)), op=dist.ReduceOp.MAX)
        return ((both[0] == both[1]) & (labels != IGNORED_LABEL)).sum()


class _CutCrossEntropy(torch.autograd.Function):
    """Ranks exchange the largest logit, the sum of exponentials and the logit of the label; the gradient needs no further exchange.

    Logits from `num_here` on belong to padding: they count as minus infinity, and so have no share in the sum and no gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, axis: Axis, num_here: int) -> Tensor:
        own = logits[..., :num_here].amax(dim=-1) if num_here else logits.new_full(logits.shape[:-1], -torch.inf)
        largest = axis.all_reduce(own, op=dist.ReduceOp.MAX)
        shifted = logits - largest[..., None]
        shifted[..., num_here:] = -torch.inf
        counts = labels != IGNORED_LABEL
        local, is_here = _localised(labels, logits.shape[-1], axis)
        chosen = torch.where(is_here, shifted.gather(-1, local[..., None])[..., 0], 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(dim=-1), chosen))
        total, of_label = axis.all_reduce(sums).unbind()
        ctx.save_for_backward(exponentials, total, local, is_here, counts)
        return ((total.log() - of_label) * counts).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials, total, local, is_here, counts = ctx.saved_tensors
        scores = exponentials / total[..., None]
        scores.scatter_add_(-1, local[..., None], -is_here[..., None].to(scores.dtype))
        return scores * (counts[..., None] * gradient), None, None, None


def is_partial(name: str) -> bool:
    """Whether each tensor-parallel rank has only its part of the gradient of a parameter that is whole on all of them.

    Norms and biases between blocks see a part of the sequence; the whole half of a low-rank pair sees a part of the matrix beside it.
    Gradients of routed experts are added up over all ranks that hold the same of them, which tensor-parallel ranks are among.
    """
    return cut_dim(name) is None and not is_routed(name)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, not to norms and biases."""
    return parameter.dim() > 1
