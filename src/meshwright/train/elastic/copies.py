"""Checkpoints in memory: every few steps each rank keeps its state in host memory, and a copy of it at a rank of the next replica
(of several nodes: of the next one on another node).

They are needed where the optimizer's state is divided among replicas (ZeRO) and no second group holds it: when a replica is lost, its part
of the state is at the replica after it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.layout import Layout
from meshwright.train.checkpoint import Piece
from meshwright.train.elastic.handover import batches, bytes_with_digest, described, described_batches, exchange, message_bytes, pieces_in
from meshwright.train.replica import Replica

Descriptions = Sequence[Sequence[Mapping[str, Any]]]  # of pieces, message by message


def whole_groups(layout: Layout, present: set[int]) -> list[range]:
    """Groups of ranks that each hold a whole state, by their positions on dp and cp together; `present` are replicas, by position on dp."""
    size = layout.sharing_ranks if layout.zero_stage else 1
    groups = [range(first, first + size) for first in range(0, layout.dp * layout.cp, size)]
    return [group for group in groups if all(position // layout.cp in present for position in group)]


def has_second_copy(layout: Layout) -> bool:
    """Whether the loss of any one replica leaves a whole state with the others."""
    return all(whole_groups(layout, set(range(layout.dp)) - {lost}) for lost in range(layout.dp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The state of one step: this rank's own, and that of the same rank of the replica before it."""

    step: int
    samples: int
    own: Sequence[Tensor]  # messages: bytes, each with a digest
    neighbours: Sequence[Tensor]


def _pieces(messages: Sequence[Tensor], descriptions: Descriptions, sender: int) -> list[Piece]:
    pairs = zip(messages, descriptions, strict=True)
    return [piece for message, entries in pairs for piece in pieces_in(message, entries, sender)]


class Copies:
    """The checkpoints in memory of one rank in one generation."""

    def __init__(self, replica: Replica, every: int, apart: int = 1) -> None:
        mesh = replica.mesh
        self.apart, self.rank = apart, mesh.rank
        self._replica: Replica | None = replica
        self.every, self.device = every, torch.device("cpu") if mesh.device.type == "cpu" else mesh.device
        size = mesh.dp.size
        self.next_rank = mesh.dp.ranks[(mesh.dp.index + apart) % size]
        self.previous_rank = mesh.dp.ranks[(mesh.dp.index - apart) % size]
        self.kept: list[Copy] = []  # the newest last; an older one until all ranks have the newest
        self.num_taken = 0
        self.taken_s = 0.0
        self._described: tuple[Descriptions, Descriptions] | None = None  # own pieces, and the neighbour's, message by message

    def is_due(self, step: int) -> bool:
        """Whether a copy is due after a step."""
        return step % self.every == 0

    def take(self, step: int, samples: int) -> float:
        """Copy the state, and exchange copies with the neighbours; return the seconds this took. All ranks must call it."""
        started_s = time.monotonic()
        assert self._replica is not None, "the generation has not ended yet"
        self._replica.ready()
        pieces = list(self._replica.state())
        if self._described is None:
            self._described = self._introduced(pieces)
        own, neighbours = self._swapped(pieces, self._described[1])
        if self._replica.is_cut():  # communicators that are aborted end as if all were well, and leave anything in their buffers
            raise RuntimeError("the copy of the neighbour's state may not have arrived: the connections to other ranks were cut")
        self.kept = [*self.kept[-1:], Copy(step=step, samples=samples, own=own, neighbours=neighbours)]
        self.num_taken += 1
        seconds = time.monotonic() - started_s
        self.taken_s += seconds
        return seconds

    def end(self) -> None:
        """Keep the copies that there are, and nothing else."""
        self._replica = None

    def confirmed(self) -> None:
        """All ranks have the newest copy, because a sum over all of them has ended since: older ones are dropped."""
        self.kept = self.kept[-1:]

    def at(self, step: int) -> Copy | None:
        """The copy of a step, if this rank has it."""
        return next((copy for copy in self.kept if copy.step == step), None)

    def own_pieces(self, step: int) -> list[Piece]:
        """This rank's pieces of a step."""
        copy = self.at(step)
        assert copy is not None and self._described is not None, "the ranks have agreed on a step of which all have a copy"
        return _pieces(copy.own, self._described[0], self.rank)

    def neighbours_pieces(self, step: int) -> list[Piece]:
        """The pieces of the replica before this one at a step."""
        copy = self.at(step)
        assert copy is not None and self._described is not None, "the ranks have agreed on a step of which all have a copy"
        return _pieces(copy.neighbours, self._described[1], self.previous_rank)

    def _introduced(self, pieces: Sequence[Piece]) -> tuple[Descriptions, Descriptions]:
        """Descriptions of this rank's pieces and of its neighbour's, which it receives once."""
        mine = described(pieces)
        text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(self.device)
        size = torch.tensor([text.numel()], dtype=torch.int64, device=self.device).view(torch.uint8)
        to, source = self.next_rank, self.previous_rank
        num_bytes = int(exchange({to: size}, {source: 8}, self.device)[source].view(torch.int64))
        neighbours = json.loads(bytes(exchange({to: text}, {source: num_bytes}, self.device)[source].tolist()))
        return described_batches(mine), described_batches(neighbours)

    def _swapped(self, pieces: Sequence[Piece], coming: Descriptions) -> tuple[list[Tensor], list[Tensor]]:
        """Messages with this rank's pieces, which go to the rank after, and those of the rank before, in host memory."""
        own, neighbours = list[Tensor](), list[Tensor]()
        leaving = batches(pieces)
        for turn in range(max(len(leaving), len(coming))):
            sent = {self.next_rank: bytes_with_digest(leaving[turn], self.device)} if turn < len(leaving) else {}
            sizes = {self.previous_rank: message_bytes(coming[turn])} if turn < len(coming) else {}
            received = exchange(sent, sizes, self.device)
            own += [message.cpu() for message in sent.values()]
            neighbours += [message.cpu() for message in received.values()]
        return own, neighbours


def copies_for(replica: Replica, every: int, apart: int = 1) -> Copies | None:
    """Checkpoints in memory, if this layout needs them."""
    layout = replica.mesh.layout
    if layout.dp == 1 or every == 0 or has_second_copy(layout):
        return None
    return Copies(replica, every, apart)


def cost_in_words(copies: Copies) -> Mapping[str, Any]:
    """What the record says about checkpoints in memory."""
    held = copies.kept[-1] if copies.kept else None
    num_bytes = sum(message.numel() for message in (*held.own, *held.neighbours)) if held else 0
    return {"memory_copies": copies.num_taken, "memory_copy_s": copies.taken_s, "memory_copy_bytes": num_bytes}
