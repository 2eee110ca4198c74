"""LoRA: pairs of low-rank matrices beside frozen ones (Hu et al. 2021, arXiv:2106.09685).

A product becomes `W x + scale B A dropout(x)`. Under tensor parallelism a pair is split as its matrix is: B where W is split along its
output, A where W is split along its input. The other half is whole on every rank, and each rank has a part of its gradient.

What dropout leaves out is a function of the seed, the sample, the position, the matrix and the column: the same for every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.describe.products import adapted_matrices, layer_products
from meshwright.describe.workload import Adapters
from meshwright.train.data.permutation import key_of
from meshwright.train.kernels.adapted import adapted, added
from meshwright.train.kernels.few_bits import FewBits, Held
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

    @property
    def drops(self) -> bool:
        """Whether something is left out of the micro-batch that is computed now."""
        return self.share > 0 and torch.is_grad_enabled()

    def __call__(self, x: Tensor, key: Tensor, first_column: int, part: tuple[int, int] = (0, 1)) -> Tensor:
        """`x` without the share that is left out, and the rest scaled up.

        `first_column`: of the matrix, where this rank's begin. `part`: which of how many parts of the positions `x` has.
        """
        assert self.keys is not None, "a layer takes its keys before its products"
        index, count = part
        keys = self.keys if count == 1 else self.keys.chunk(count, dim=1)[index]
        columns = torch.arange(first_column, first_column + x.shape[-1], device=x.device)
        words = mixed(keys[:, :, None] + mixed(columns + key)[None, None, :])
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
    """A layer, compiled or not, whose dropout takes its keys from the micro-batch at hand, also when the backward computes it again."""

    def __init__(self, block: Block, dropout: Dropout) -> None:
        self.whole, self.dropout = block.compiled or block.plain, dropout

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        self.dropout.use(context)
        return self.whole(x, context, rotation)


def take_keys(chunk: Transformer, dropout: Dropout) -> None:
    """Make the layers of a chunk, compiled already if they are, tell dropout which samples and positions they compute."""
    for block in chunk.blocks():
        block.compiled = Keyed(block, dropout)


class AdaptedProduct:
    """The product of a frozen matrix, or of several side by side, with the products of their pairs added.

    All layers share one compiled function, so what differs from layer to layer is in tensors: numbers would be compiled in.
    """

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int],
        adapters: Adapters,
        dropout: Dropout,
        gather: Callable[[Tensor], Tensor] | None,
        first_column: int,
        part: tuple[int, int],
        device: torch.device,
    ) -> None:
        self.sizes, self.scale, self.dropout, self.gather = sizes, adapters.scale, dropout, gather
        self.first_column, self.part = first_column, part
        self.is_last = False  # whether the backward pass computes again what is before this product, but not the product
        self.keys = {part: torch.tensor(signed(key_of(dropout.seed, name, part)), device=device) for part in sizes}

    def __call__(self, x: Tensor | Made, layer: Linear) -> Tensor:
        x = value_of(x) if self.gather is None else self.gather(value_of(x))
        held = layer.few_bits.held() if isinstance(layer.few_bits, FewBits) else Held(layer.weight)
        adapter = cast("Adapter | None", layer.adapter)
        pairs = {part: cast(Pair, adapter[part]) for part in self.sizes if part in adapter} if adapter is not None else {}
        if not pairs:
            return added(x, held, None, x.new_empty(sum(self.sizes.values()), 0), self.scale)
        b = self._joined(pairs)
        if self.dropout.drops:
            kept = [self.dropout(x, self.keys[part], self.first_column, self.part) for part in pairs]
            low = [F.linear(rest, pair.lora_a) for rest, pair in zip(kept, pairs.values(), strict=True)]
            return added(x, held, torch.cat(low, dim=-1), b, self.scale)
        a = torch.cat([pair.lora_a for pair in pairs.values()])
        return added(x, held, F.linear(x, a), b, self.scale) if self.is_last else adapted(x, held, a, b, self.scale)

    def _joined(self, pairs: Mapping[str, Pair]) -> Tensor:
        """B of all pairs in one matrix, [out, ranks]: a block for each pair, and zeros elsewhere."""
        ranks = [pair.lora_b.shape[1] for pair in pairs.values()]
        first, blocks = 0, []
        for part, size in self.sizes.items():
            if part in pairs:
                rank = pairs[part].lora_b.shape[1]
                blocks.append(F.pad(pairs[part].lora_b, (first, sum(ranks) - first - rank)))
                first += rank
            else:
                blocks.append(next(iter(pairs.values())).lora_b.new_zeros(size, sum(ranks)))
        return torch.cat(blocks)


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
    chunk.requires_grad_(False)
    adapted = adapted_matrices(chunk.model, adapters)
    for name, (layer, parts) in products_of(chunk).items():
        places = layer_products(chunk.model, int(name.split(".")[1]))
        before = name.split(".", 2)[2].rpartition(".")[0]
        sides = {part: places[f"{before}.{part}"] for part in parts if part in adapted}
        with torch.device("meta"):
            pairs = {part: Pair(one.inner, one.columns, adapters.rank) for part, one in sides.items()}
        if pairs:
            layer.adapter = Adapter(pairs)
