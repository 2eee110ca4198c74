"""This rank's share of a batch: its samples, and its tokens of these samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.model.attention import Context
from meshwright.train.model.transformer import Ahead
from meshwright.train.parallel.context import positions_of, runs_for
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.pipeline import MicroBatch

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # tokens, labels, documents: [samples, sequence]
Deal = tuple[int, ...]  # micro-batches of each replica in one step, by its data-parallel index
Read = Callable[[Sequence[int]], Arrays]


def even_deal(layout: Layout, count: int) -> Deal:
    """The deal of `count` samples in which all replicas have equally many micro-batches."""
    return (-(-count // (layout.dp * layout.micro_batch)),) * layout.dp


def sample_numbers(layout: Layout, dp_index: int, first: int, count: int, deal: Deal | None = None) -> list[list[int]]:
    """Global numbers of the samples in each micro-batch of one replica, for the `count` samples from `first` on.

    Micro-batches are given to the replicas in turn, so that a batch has the same samples for any number of replicas. A `deal` says how many
    each replica has; one that has all of its own is passed over in later turns, so a batch has the same samples for any deal, too. Without
    a deal all have equally many. If `count` does not divide evenly, there are more numbers than samples; an evaluation then ignores the
    numbers beyond the end.
    """
    deal = deal or even_deal(layout, count)
    if len(deal) != layout.dp or sum(deal) * layout.micro_batch < count:
        raise ValueError(f"the deal {deal} does not give {count} samples to {layout.dp} replicas")
    starts, size = [], layout.micro_batch
    for turn in range(deal[dp_index]):
        earlier = sum(min(number, turn) for number in deal)  # micro-batches of all turns before
        in_turn = sum(number > turn for number in deal[:dp_index])
        starts.append(first + (earlier + in_turn) * size)
    return [list(range(start, start + size)) for start in starts]


def micro_batches(
    read: Read, first: int, workload: Workload, mesh: Mesh, deal: Deal | None = None, *, num_ahead: int = 0
) -> list[MicroBatch]:
    """This rank's micro-batches of the global batch that begins with sample `first`."""
    numbers = sample_numbers(mesh.layout, mesh.dp.index, first, workload.global_batch, deal)
    return [micro_batch(read(group), group, workload, mesh, num_ahead=num_ahead) for group in numbers]


def micro_batch(arrays: Arrays, numbers: Sequence[int], workload: Workload, mesh: Mesh, *, num_ahead: int = 0) -> MicroBatch:
    """One micro-batch of whole sequences, reduced to this rank's tokens; `num_ahead`: layers of multi-token prediction that read it."""
    tokens, labels, documents = (torch.from_numpy(array) for array in arrays)
    cp = mesh.cp
    positions = positions_of(workload.seq_len, cp.size, cp.index)
    drops = workload.adapters is not None and workload.adapters.dropout > 0
    context = Context(positions=_move(positions, mesh), samples=_move(torch.tensor(list(numbers)), mesh) if drops else None)
    if workload.packed:
        everyones = torch.cat([positions_of(workload.seq_len, cp.size, i) for i in range(cp.size)])
        mine, all_of_them = _move(documents[:, positions], mesh), _move(documents[:, everyones], mesh)
        found = runs_for(mesh.layout.cp_kind, arrays[2], cp.size, cp.index)
        runs = tuple(each.moved(lambda starts: _move(starts, mesh)) if each is not None else None for each in found)
        context = replace(context, documents=mine, everyones_documents=all_of_them, runs=runs)
    return MicroBatch(
        tokens=_move(tokens[:, positions].long(), mesh),
        labels=_move(labels[:, positions].long(), mesh),
        context=context,
        samples=tuple(numbers),
        ahead=tuple(
            Ahead(*(_move(part[:, positions].long(), mesh) for part in looked_ahead(tokens, labels, documents, distance)))
            for distance in range(1, num_ahead + 1)
        ),
    )


def looked_ahead(tokens: Tensor, labels: Tensor, documents: Tensor, distance: int) -> tuple[Tensor, Tensor]:
    """For every position of whole sequences, the token so many positions later, and its label: the token after that one.

    There is a label only if both are in the document of the position. Positions without a token so far ahead have token 0 and no label.
    """
    later, after = torch.zeros_like(tokens), torch.full_like(labels, IGNORED_LABEL)
    later[:, :-distance] = tokens[:, distance:]
    is_same = documents[:, distance:] == documents[:, :-distance]
    after[:, :-distance] = torch.where(is_same, labels[:, distance:], IGNORED_LABEL)
    return later, after


def without_loss(arrays: Arrays, keep: Sequence[bool]) -> Arrays:
    """The same samples, with a loss only on those to keep."""
    tokens, labels, documents = arrays
    labels = labels.copy()
    labels[[not kept for kept in keep]] = IGNORED_LABEL
    return tokens, labels, documents


def _move(tensor: Tensor, mesh: Mesh) -> Tensor:
    if mesh.device.type == "cuda":
        return tensor.pin_memory().to(mesh.device, non_blocking=True)
    return tensor
