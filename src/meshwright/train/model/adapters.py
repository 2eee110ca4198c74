"""LoRA: pairs of low-rank matrices beside frozen ones (Hu et al. 2021, arXiv:2106.09685).

A product becomes `W x + scale B A dropout(x)`. Under tensor parallelism a pair is split as its matrix is: B where W is split along its
output, A where W is split along its input. The other half is whole on every rank, and each rank has a part of its gradient.

What dropout leaves out is a function of the seed, the sample, the position, the matrix and the column: the same for every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters
from meshwright.train.data.permutation import key_of
from meshwright.train.kernels.few_bits import FewBits
from meshwright.train.kernels.few_bits import product as product_in_few_bits
from meshwright.train.kernels.layer_functions import Made, value_of
from meshwright.train.kernels.linear import Linear
from meshwright.train.model.attention import Context
from meshwright.train.model.rotary import Rotation
from meshwright.train.model.transformer import Block, Transformer, tensors_in

SIGN = 2**63
GOLDEN, FIRST, SECOND = (value - 2 * SIGN for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # as signed numbers


def mixed(words: Tensor) -> Tensor:
    """The 64-bit hash of every word: `data.permutation.mixed` on a device, where words have a sign."""
    words = words + GOLDEN
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, count: int) -> Tensor:
    """Words shifted to the right, with zeros from the left."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def signed(key: int) -> int:
    """A 64-bit key as a signed number."""
    return key - 2 * SIGN if key >= SIGN else key


class Dropout:
    """What the pairs of one chunk leave out of their inputs, for the micro-batch that is computed now."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.seed = share, seed
        self.keys: Tensor | None = None  # [B, T]: of each sample and position

    def use(self, context: Context) -> None:
        """Take the samples and positions of a micro-batch; without training nothing is left out."""
        if not torch.is_grad_enabled():
            return
        assert context.samples is not None, "a batch for adapters with dropout has the numbers of its samples"
        self.keys = mixed(mixed(context.samples + signed(key_of("dropout", self.seed)))[:, None] + context.positions[None, :])

    def __call__(self, x: Tensor, key: int, first_column: int) -> Tensor:
        """`x` without the share that is left out, and the rest scaled up; `first_column`: of the matrix, where this rank's begin."""
        if not self.share or not torch.is_grad_enabled():
            return x
        assert self.keys is not None, "a layer takes its keys before its products"
        columns = torch.arange(first_column, first_column + x.shape[-1], device=x.device)
        words = mixed(self.keys[:, :, None] + mixed(columns + key)[None, None, :])
        kept = _shifted(words, 40) >= round(self.share * 2**24)
        return x * kept * (1.0 / (1.0 - self.share))


class Pair(nn.Module):
    """A and B of one matrix: [rank, in] and [out, rank]."""

    def __init__(self, num_in: int, num_out: int, rank: int) -> None:
        super().__init__()
        self.lora_a = nn.Parameter(torch.empty(rank, num_in))
        self.lora_b = nn.Parameter(torch.empty(num_out, rank))


class Adapter(nn.ModuleDict):
    """The pairs of one product, by the names of its matrices."""


class Keyed:
    """A layer whose dropout takes its keys from the micro-batch at hand, also when the backward pass computes it again."""

    def __init__(self, block: Block, dropout: Dropout) -> None:
        self.block, self.dropout = block, dropout

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        self.dropout.use(context)
        return self.block.plain(x, context, rotation)


class AdaptedProduct:
    """The product of a frozen matrix, or of several side by side, with the products of their pairs added."""

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        adapters: Adapters,
        dropout: Dropout,
        gather: Callable[[Tensor], Tensor] | None,
        first_column: int,
    ) -> None:
        self.sizes, self.scale, self.dropout, self.gather, self.first_column = sizes, adapters.scale, dropout, gather, first_column
        self.keys = {part: signed(key_of(dropout.seed, name, part)) for part in sizes}

    def __call__(self, x: Tensor | Made, layer: Linear) -> Tensor:
        x = value_of(x) if self.gather is None else self.gather(value_of(x))
        base = product_in_few_bits(x, layer.few_bits) if isinstance(layer.few_bits, FewBits) else F.linear(x, layer.weight)
        if layer.adapter is None:
            return base
        assert isinstance(layer.adapter, Adapter), "the adapter of a layer is one of this module"
        outs = base.split(list(self.sizes.values()), dim=-1)
        added = [self._with_pair(out, x, part, layer.adapter) for part, out in zip(self.sizes, outs, strict=True)]
        return torch.cat(added, dim=-1) if len(added) > 1 else added[0]

    def _with_pair(self, out: Tensor, x: Tensor, part: str, adapter: Adapter) -> Tensor:
        if part not in adapter:
            return out
        pair = adapter[part]
        assert isinstance(pair, Pair), "an adapter holds pairs"
        return out + F.linear(F.linear(self.dropout(x, self.keys[part], self.first_column), pair.lora_a), pair.lora_b) * self.scale


def products_of(chunk: Transformer) -> dict[str, tuple[Linear, tuple[str, ...]]]:
    """Every product of the layers by its name, with the names of the matrices that it holds, in order."""
    found = {}
    for name, module in chunk.named_modules():
        if isinstance(module, Linear):
            held = tensors_in(f"{name}.weight", chunk.model)
            found[name] = module, tuple(tensor.split(".")[-2] for tensor, _ in held)
    return found


def add_adapters(chunk: Transformer, adapters: Adapters) -> None:
    """Freeze a chunk (still without storage) and add pairs beside its matrices."""
    model = chunk.model
    chunk.requires_grad_(False)
    for layer, parts in products_of(chunk).values():
        with torch.device("meta"):
            pairs = {part: Pair(*sides_of(model, part), adapters.rank) for part in parts if part in adapters.matrices}
        if pairs:
            layer.adapter = Adapter(pairs)


def sides_of(model: Model, part: str) -> tuple[int, int]:
    """Width of the input and of the output of a matrix of a layer."""
    return {
        "q": (model.hidden, model.query_dim),
        "k": (model.hidden, model.kv_dim),
        "v": (model.hidden, model.kv_dim),
        "o": (model.query_dim, model.hidden),
        "gate": (model.hidden, model.ffn_hidden),
        "up": (model.hidden, model.ffn_hidden),
        "down": (model.ffn_hidden, model.hidden),
    }[part]
