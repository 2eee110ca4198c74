"""What one rank's optimizer updates: flat pieces of parameters, and the position of each in the whole model.

A shard knows which rectangles of which whole tensors it holds, so that weights can be initialized, saved and loaded without knowing the
layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from meshwright.describe.model import Model
from meshwright.train.checkpoint import Piece
from meshwright.train.model.experts import expert_dim, expert_tensors, is_routed
from meshwright.train.model.transformer import Transformer, tensors_in
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.tensor import TABLES, copies_of, cut_dim, num_entries

SUM_BLOCK = 128  # elements that are added up in fp32
ADOPTED = 0.2  # of a new peak, when the usual one is updated
SMALLEST_PEAK = 1e-30  # of a bucket without gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The position of a rank's parameter in the whole tensor: a slice along one dimension, or all of it."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor
    start: tuple[int, ...]  # where this rank's part begins
    local: tuple[int, ...]  # shape of this rank's part
    copies: int = 1  # neighbouring tensor-parallel ranks that hold the same part; each has the gradient of its own queries only
    is_padding: bool = False  # whether it is no part of the whole tensor: zeros that make the parts of all ranks equally large

    def rows(self, first: int, last: int, tensor: Tensor) -> Iterator[Piece]:
        """The pieces of the whole tensor that are elements `first` to `last` of this rank's part, stored flat in `tensor`."""
        for begin, shape, span in rectangles(self.local, first, last):
            start = tuple(a + b for a, b in zip(self.start, begin, strict=True))
            yield Piece(name=self.name, shape=self.shape, start=start, tensor=tensor[span].view(shape))


Span = tuple[Cut, int, int, int]  # cut, first and last element of its part, start in the flat tensor


def cuts_of(chunk: Transformer, axis: Axis, experts: Axis, etp: int) -> dict[str, tuple[Cut, ...]]:
    """The position in the whole model of each parameter of a chunk that is split over tensor ranks, or over ranks with experts, in order.

    `etp` neighbours among the ranks of `experts` have parts of the same experts. A tied head is the table of the embedding under another
    name, as is the copy for multi-token prediction.
    """
    tied = {"next_embed.weight": "embed.weight"} | ({"head.weight": "embed.weight"} if chunk.model.tied_embeddings else {})
    return {
        name: tuple(
            _expert_cuts(name, p, chunk.model, experts, etp) if is_routed(name) else _cuts(tied.get(name, name), p.shape, chunk.model, axis)
        )
        for name, p in chunk.named_parameters()
    }


def _expert_cuts(name: str, parameter: Tensor, model: Model, axis: Axis, etp: int) -> Iterator[Cut]:
    """This rank's experts, one after another, each with its part of every tensor that the parameter holds."""
    parts = [(tensor, tuple(view.shape)) for tensor, view in expert_tensors(name, parameter, model, etp)]
    num_held, (place, part) = parts[0][1][0], divmod(axis.index, etp)
    for expert in range(num_held):
        for tensor, (_, *local) in parts:
            shape, start = [axis.size // etp * num_held, *local], [place * num_held + expert, *(0 for _ in local)]
            dim = expert_dim(tensor)
            shape[dim], start[dim] = etp * local[dim - 1], part * local[dim - 1]
            yield Cut(name=tensor, shape=tuple(shape), start=tuple(start), local=(1, *local))


def _cuts(name: str, shape: Sequence[int], model: Model, axis: Axis) -> Iterator[Cut]:
    if name.endswith(TABLES):
        yield from _table_cuts(name, shape, model, axis)
        return
    key_copies = model.key_copies(axis.size)
    held = tensors_in(name, model, key_copies)
    unit = shape[0] // sum(share for _, share in held)
    for tensor, share in held:
        yield cut_of(tensor, (share * unit, *shape[1:]), cut_dim(tensor), axis, copies_of(tensor, key_copies))


def _table_cuts(name: str, shape: Sequence[int], model: Model, axis: Axis) -> Iterator[Cut]:
    """This rank's entries of the vocabulary, and the padding after them."""
    rows, width = shape
    num_here = num_entries(model.vocab_size, rows, axis)
    whole, start = (model.vocab_size, width), (min(axis.index * rows, model.vocab_size), 0)
    yield Cut(name=name, shape=whole, start=start, local=(num_here, width))
    if num_here < rows:
        yield Cut(name=name, shape=whole, start=(model.vocab_size, 0), local=(rows - num_here, width), is_padding=True)


def has_padding(cuts: Sequence[Cut]) -> bool:
    """Whether a part of a parameter is padding, which must be zero."""
    return any(cut.is_padding for cut in cuts)


def spans_of(cuts: Sequence[Cut], first: int, last: int, where: int) -> Iterator[Span]:
    """The pieces that elements `first` to `last` of a parameter are, stored in a flat tensor from `where` on; padding is none."""
    offset = 0
    for cut in cuts:
        size = math.prod(cut.local)
        begin, end = max(first, offset), min(last, offset + size)
        if begin < end and not cut.is_padding:
            yield cut, begin - offset, end - offset, where + begin - first
        offset += size


def cut_of(name: str, local: Sequence[int], dim: int | None, axis: Axis, copies: int = 1) -> Cut:
    """The cut of a parameter that is split evenly along `dim` over the ranks of `axis` (None: not split), `copies` of them the same."""
    shape, start = list(local), [0] * len(local)
    if dim is not None:
        shape[dim] *= axis.size // copies
        start[dim] = axis.index // copies * local[dim]
    return Cut(name=name, shape=tuple(shape), start=tuple(start), local=tuple(local), copies=copies)


def rectangles(shape: Sequence[int], first: int, last: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], slice]]:
    """Elements `first` to `last` of a tensor in row-major order, as rectangles: (start, shape, position in the range).

    A range of elements consists of the end of a row, some whole rows and the beginning of another row; with more dimensions the same holds
    for each of these.
    """
    yield from _runs(tuple(shape), first, last, (), 0)


def _runs(
    shape: tuple[int, ...], first: int, last: int, above: tuple[int, ...], done: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], slice]]:
    if first >= last:
        return
    if len(shape) == 1:
        yield (*above, first), (*(1 for _ in above), last - first), slice(done, done + last - first)
        return
    row = math.prod(shape[1:])
    top, bottom = -(-first // row), last // row  # whole rows from `top` up to `bottom`
    if top > bottom:  # within one row
        yield from _runs(shape[1:], first - bottom * row, last - bottom * row, (*above, bottom), done)
        return
    yield from _runs(shape[1:], first - (top - 1) * row, row, (*above, top - 1), done) if first < top * row else ()
    done += top * row - first
    if bottom > top:
        start, size = (*above, top, *(0 for _ in shape[1:])), (*(1 for _ in above), bottom - top, *shape[1:])
        yield start, size, slice(done, done + (bottom - top) * row)
        done += (bottom - top) * row
    yield from _runs(shape[1:], 0, last - bottom * row, (*above, bottom), done) if last > bottom * row else ()


@dataclass(slots=True, kw_only=True, eq=False)
class Shard:
    """A flat range of elements that this rank's optimizer owns, possibly of several parameters."""

    values: Tensor  # what the optimizer updates
    gradient: Tensor | None  # of the whole batch, summed; None: not computed yet
    spans: tuple[Span, ...]
    decays: bool  # whether weight decay applies
    is_partial: bool  # whether the gradients of tensor-parallel ranks must still be added up
    copies: int  # ranks that hold the same shard
    counted: bool = True  # whether it counts in the norm: a tied copy does not
    copy: Tensor | None = None  # the same values in the precision of the products, if that is another one

    def renew_copy(self) -> None:
        """Copy the values to the copy for the products."""
        if self.copy is not None:
            self.copy.copy_(self.values)

    def pieces(self, tensor: Tensor, prefix: str) -> Iterator[Piece]:
        """`tensor`, laid out like the values, as pieces of the whole tensors, named `prefix/name`."""
        for cut, first, last, offset in self.spans:
            for piece in cut.rows(first, last, tensor[offset : offset + last - first]):
                yield Piece(name=f"{prefix}/{piece.name}", shape=piece.shape, start=piece.start, tensor=piece.tensor)

    def copied(self) -> list[Tensor]:
        """The parts of the gradient that other tensor-parallel ranks also contribute to: key-value heads that several ranks hold."""
        if self.gradient is None:
            return []
        return [self.gradient[offset : offset + last - first] for cut, first, last, offset in self.spans if cut.copies > 1]

    def counts(self, tp_index: int) -> list[Tensor]:
        """The parts of the gradient that this tensor-parallel rank counts in the norm. Of several copies, the first rank counts."""
        if self.gradient is None or not self.counted or (self.is_partial and tp_index > 0):
            return []
        if all(tp_index % cut.copies == 0 for cut, *_ in self.spans):
            return [self.gradient]
        return [self.gradient[at : at + last - first] for cut, first, last, at in self.spans if tp_index % cut.copies == 0]

    def names_of(self, flags: Tensor) -> list[str]:
        """Names of the parameters with any flag set, `flags` being laid out like the values."""
        return [cut.name for cut, first, last, offset in self.spans if bool(flags[offset : offset + last - first].any())]


def square_sum(shards: Sequence[Shard], tp_index: int) -> Tensor:
    """Sum of squares of gradients, each element of the model counted once over all ranks together; a scalar in fp64."""
    total = torch.zeros((), dtype=torch.float64, device=shards[0].values.device if shards else "cpu")
    by_copies: dict[int, list[Tensor]] = {}
    for shard in shards:
        for part in shard.counts(tp_index):
            by_copies.setdefault(shard.copies, []).append(part)
    for copies, gradients in by_copies.items():
        total += squares_of(gradients).sum() / copies
    return total


def squares_of(gradients: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each tensor, in fp64; on a GPU by one kernel that reads at the full memory bandwidth."""
    if _has_kernel(gradients[0]):
        from meshwright.train.kernels.square_kernel import square_sums

        return square_sums(gradients)
    norms = torch._foreach_norm(list(gradients), 2, dtype=torch.float32)
    return torch.stack(norms).double().square()


def measures_of(gradient: Tensor) -> Tensor:
    """The sum of squares of a tensor, its sum, and its largest absolute value, in fp64."""
    if _has_kernel(gradient):
        from meshwright.train.kernels.square_kernel import measures

        return measures([gradient])[0]
    low, high = torch.aminmax(gradient)
    return torch.stack((squares_of([gradient])[0], sum_of(gradient), torch.maximum(high, -low).double()))


class UsualPeaks:
    """The usual size of the largest gradient of each bucket, kept on the device: buckets differ, and each is like itself before."""

    def __init__(self) -> None:
        self._usual: Tensor | None = None  # logarithms

    def highest(self, peaks: Tensor) -> Tensor:
        """The highest ratio of a bucket's largest gradient to its usual one."""
        logs = peaks.clamp(min=SMALLEST_PEAK).log()
        if self._usual is None or len(self._usual) != len(logs):
            self._usual = torch.nan_to_num(logs, posinf=0.0)
        above = logs - self._usual
        self._usual = self._usual + ADOPTED * torch.nan_to_num(above).clamp(-math.log(2), math.log(2))
        return above.max().exp()


def sum_of(gradient: Tensor) -> Tensor:
    """The sum of a tensor in fp64. Blocks are added up in fp32, and only their sums in fp64: all in fp64 torch is six times slower.

    One fp32 sum of the whole would round to an epsilon of itself, and the sum of gradients that have a common sign is far above their norm.
    """
    if _has_kernel(gradient):
        from meshwright.train.kernels.square_kernel import measures

        return measures([gradient])[0, 1]
    flat = gradient.flatten()
    blocks = flat[: len(flat) // SUM_BLOCK * SUM_BLOCK].view(-1, SUM_BLOCK)
    return blocks.sum(1, dtype=torch.float32).sum(dtype=torch.float64) + flat[blocks.numel() :].sum(dtype=torch.float64)


def _has_kernel(tensor: Tensor) -> bool:
    return tensor.is_cuda and find_spec("triton") is not None
