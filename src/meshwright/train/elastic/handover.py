"""A state that moves between ranks in memory: pieces that some ranks hold go to ranks that want them, whatever the two layouts are.

Ranks of one column exchange pieces: those with the same position on the tensor and pipeline axes, since these axes do not change. Each rank
tells the others what it holds and wants, and every rank derives from that the same list of messages. A message ends with a digest of its
bits, which the receiver checks. Messages are small beside a state, because the memory of a GPU may have little room beside two states.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.train.checkpoint import Piece
from meshwright.train.checkpoint.piece import Box

WORD_BYTES = 8  # a message is padded to whole words; the last one is the sum of the others
MESSAGE_BYTES = 2**28  # a message has pieces up to this size, or a single one
Entry = tuple[str, Box]  # the name of a tensor, and a part of it
Table = Sequence[Entry]


class DamagedState(MeshwrightError):
    """A state that arrived with other bits than were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What a hand-over cost this rank."""

    num_bytes: int  # received
    seconds: float


def table_of(pieces: Sequence[Piece]) -> list[Entry]:
    """What the pieces are, without their values."""
    return [(piece.name, piece.box) for piece in pieces]


def hand_over(
    held: Sequence[Piece], wanted: Sequence[Piece], column: Sequence[int], sources: Sequence[Sequence[int]], device: torch.device
) -> HandedOver:
    """Fill the wanted pieces of all ranks of a column. Every rank of it must call this.

    `column` are the ranks; `sources` are groups of them, each of which holds the whole state once. A rank that holds all it wants takes it
    from itself. The others are spread over the groups.
    """
    started_s = time.monotonic()
    own = dist.get_rank()
    tables = _tables(held, wanted, column, device)
    coming = {rank: list(_shares(tables, givers, rank)) for rank, givers in _givers(tables, column, sources).items()}
    by_name = {(piece.name, piece.box): piece.tensor for piece in held}
    targets: dict[Entry, Tensor] = {(piece.name, piece.box): piece.tensor for piece in wanted}
    element_bytes = {piece.name: piece.tensor.element_size() for piece in (*held, *wanted)}
    _take_own([share for share in coming[own] if share[0] == own], by_name, targets)
    sends = {to: _messages([share for share in shares if share[0] == own], element_bytes) for to, shares in coming.items() if to != own}
    by_giver: dict[int, list[Share]] = defaultdict(list)
    for share in coming[own]:
        by_giver[share[0]].append(share)
    receives = {giver: _messages(shares, element_bytes) for giver, shares in by_giver.items() if giver != own}
    num_bytes = 0
    for turn in range(max((len(messages) for messages in (*sends.values(), *receives.values())), default=0)):
        sent = {
            to: _packed([_part(by_name[entry], entry[1], box) for _, entry, _, box in messages[turn]], device)
            for to, messages in sends.items()
            if turn < len(messages)
        }
        due = {giver: messages[turn] for giver, messages in receives.items() if turn < len(messages)}
        sizes = {giver: _padded(sum(_bytes_of(share, element_bytes) for share in shares)) for giver, shares in due.items()}
        received = exchange(sent, sizes, device)
        for giver, shares in due.items():
            _fill(targets, shares, checked(received[giver], giver))
        num_bytes += sum(sizes.values())
    return HandedOver(num_bytes=num_bytes, seconds=time.monotonic() - started_s)


def messages_of(sizes: Sequence[int]) -> list[slice]:
    """How things of these sizes are put into messages of at most `MESSAGE_BYTES`, one after another; a larger one is alone."""
    found, first, size = [], 0, 0
    for number, one in enumerate(sizes):
        if number > first and size + one > MESSAGE_BYTES:
            found.append(slice(first, number))
            first, size = number, 0
        size += one
    return [*found, slice(first, len(sizes))] if sizes else []


Share = tuple[int, Entry, Entry, Box]  # giver, what it holds, what is wanted, and the part that is both


def _shares(tables: Mapping[int, tuple[Table, Table]], givers: Sequence[int], rank: int) -> Iterator[Share]:
    """What a rank receives, in order: for each piece that it wants, the parts that its givers hold."""
    by_name: dict[str, list[tuple[int, Entry]]] = defaultdict(list)
    for giver in givers:
        for entry in tables[giver][0]:
            by_name[entry[0]].append((giver, entry))
    for name, box in tables[rank][1]:
        for giver, entry in by_name[name]:
            both = entry[1].overlap(box)
            if both is not None:
                yield giver, entry, (name, box), both


def _bytes_of(share: Share, element_bytes: Mapping[str, int]) -> int:
    _, (name, _), _, box = share
    return prod(box.shape) * element_bytes[name]


def _messages(shares: Sequence[Share], element_bytes: Mapping[str, int]) -> list[Sequence[Share]]:
    """What one rank gives another, message by message."""
    return [shares[part] for part in messages_of([_bytes_of(share, element_bytes) for share in shares])]


def _givers(tables: Mapping[int, tuple[Table, Table]], column: Sequence[int], sources: Sequence[Sequence[int]]) -> dict[int, Sequence[int]]:
    """From which ranks each rank takes its state."""
    return {
        rank: (rank,) if _is_whole(tables, rank) else sources[position % len(sources)]
        for position, rank in enumerate(column)
        if tables[rank][1]
    } | {rank: () for rank in column if not tables[rank][1]}


def _is_whole(tables: Mapping[int, tuple[Table, Table]], rank: int) -> bool:
    """Whether a rank holds all that it wants."""
    if not tables[rank][0]:
        return False
    found = sum(prod(box.shape) for *_, box in _shares(tables, (rank,), rank))
    return found == sum(prod(box.shape) for _, box in tables[rank][1])


def _tables(held: Sequence[Piece], wanted: Sequence[Piece], column: Sequence[int], device: torch.device) -> dict[int, tuple[Table, Table]]:
    """What every rank of the column holds and wants."""
    mine = (table_of(held), table_of(wanted))
    text = json.dumps([[[name, box.start, box.shape] for name, box in table] for table in mine]).encode()
    own = dist.get_rank()
    others = [rank for rank in column if rank != own]
    size = torch.tensor([len(text)], dtype=torch.int64, device=device).view(torch.uint8)
    sizes = {
        rank: int(got.view(torch.int64)) for rank, got in exchange(dict.fromkeys(others, size), dict.fromkeys(others, 8), device).items()
    }
    message = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    texts = exchange(dict.fromkeys(others, message), sizes, device)
    return {own: mine, **{rank: _read_tables(bytes(got.tolist())) for rank, got in texts.items()}}


def _read_tables(text: bytes) -> tuple[Table, Table]:
    held, wanted = (
        [(str(name), Box(start=tuple(start), shape=tuple(shape))) for name, start, shape in table] for table in json.loads(text)
    )
    return held, wanted


def exchange(sent: Mapping[int, Tensor], sizes: Mapping[int, int], device: torch.device) -> dict[int, Tensor]:
    """Send bytes to ranks, and receive so many bytes of others; all of it together, so that no two ranks wait for each other."""
    received = {rank: torch.empty(size, dtype=torch.uint8, device=device) for rank, size in sizes.items()}
    operations = [dist.P2POp(dist.isend, message, rank) for rank, message in sorted(sent.items()) if message.numel()]
    operations += [dist.P2POp(dist.irecv, message, rank) for rank, message in sorted(received.items()) if message.numel()]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return received


def _part(tensor: Tensor, box: Box, part: Box) -> Tensor:
    """The part of a piece that stands at `box` in the whole tensor."""
    return tensor[tuple(slice(first - at, first - at + size) for first, at, size in zip(part.start, box.start, part.shape, strict=True))]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // WORD_BYTES) * WORD_BYTES + WORD_BYTES


def _packed(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The parts as one message, with the digest of their bits at its end."""
    flat = [part.detach().contiguous().view(-1).view(torch.uint8) for part in parts]
    message = torch.zeros(_padded(sum(part.numel() for part in flat)), dtype=torch.uint8, device=device)
    at = 0
    for part in flat:
        message[at : at + part.numel()] = part
        at += part.numel()
    words = message.view(torch.int64)
    words[-1] = words[:-1].sum()
    return message


def checked(message: Tensor, sender: int) -> Tensor:
    """The content of a message; an error if its digest does not fit."""
    words = message.view(torch.int64)
    if bool(words[-1] != words[:-1].sum()):
        raise DamagedState(
            f"the state that rank {sender} sent arrived with other bits",
            where=f"the link between rank {sender} and rank {dist.get_rank()}",
            fix="check the machines of these ranks (meshwright doctor)",
        )
    return message[:-WORD_BYTES]


@torch.no_grad()
def _take_own(shares: Sequence[Share], by_name: Mapping[Entry, Tensor], targets: Mapping[Entry, Tensor]) -> None:
    """Copy what this rank holds itself to the pieces that it wants."""
    for _, held, entry, box in shares:
        _part(targets[entry], entry[1], box).copy_(_part(by_name[held], held[1], box))


@torch.no_grad()
def _fill(targets: Mapping[Entry, Tensor], shares: Sequence[Share], content: Tensor) -> None:
    """Copy the content of a message to the pieces that this rank wants."""
    at = 0
    for _, _, entry, box in shares:
        target = _part(targets[entry], entry[1], box)
        size = prod(box.shape) * target.element_size()
        target.copy_(_values(content[at : at + size], target).view(box.shape))
        at += size


def _values(part: Tensor, like: Tensor) -> Tensor:
    """Bytes as numbers of another tensor's kind; a copy, since they may not be aligned in their message."""
    return part.clone().view(like.dtype)


def bytes_with_digest(pieces: Sequence[Piece], device: torch.device) -> Tensor:
    """The values of pieces as one message, with the digest of their bits."""
    return _packed([piece.tensor for piece in pieces], device)


def pieces_in(message: Tensor, pieces: Sequence[Mapping[str, Any]], sender: int) -> list[Piece]:
    """The pieces in a message that `bytes_with_digest` made, by their descriptions (`described`)."""
    content, at, found = checked(message, sender), 0, []
    for one in pieces:
        dtype, size = getattr(torch, one["dtype"]), _described_bytes(one)
        tensor = content[at : at + size].clone().view(dtype).view(one["size"])
        found.append(Piece(name=one["name"], shape=tuple(one["shape"]), start=tuple(one["start"]), tensor=tensor))
        at += size
    return found


def described(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """What another rank needs to know of pieces in order to read their bytes."""
    return [
        {
            "name": piece.name,
            "shape": list(piece.shape),
            "start": list(piece.start),
            "size": list(piece.tensor.shape),
            "dtype": str(piece.tensor.dtype).removeprefix("torch."),
        }
        for piece in pieces
    ]


def moved(pieces: Sequence[Piece], to: Sequence[int], sources: Sequence[int], device: torch.device) -> dict[int, list[Piece]]:
    """Send pieces to ranks, and return those that other ranks send to this one, by rank."""
    text = json.dumps(described(pieces)).encode()
    size = torch.tensor([len(text)], dtype=torch.int64, device=device).view(torch.uint8)
    coming = {
        rank: int(got.view(torch.int64)) for rank, got in exchange(dict.fromkeys(to, size), dict.fromkeys(sources, 8), device).items()
    }
    words = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    texts = exchange(dict.fromkeys(to, words), coming, device)
    told = {rank: json.loads(bytes(got.tolist())) for rank, got in texts.items()}
    found: dict[int, list[Piece]] = {rank: [] for rank in sources}
    sends, receives = batches(pieces), {rank: described_batches(entries) for rank, entries in told.items()}
    for turn in range(max(len(sends) if to else 0, *(len(entries) for entries in receives.values()), 0)):
        message = bytes_with_digest(sends[turn], device) if to and turn < len(sends) else None
        sent = {} if message is None else dict.fromkeys(to, message)
        due = {rank: entries[turn] for rank, entries in receives.items() if turn < len(entries)}
        received = exchange(sent, {rank: message_bytes(entries) for rank, entries in due.items()}, device)
        for rank, entries in due.items():
            found[rank] += pieces_in(received[rank], entries, rank)
    return found


def batches(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Pieces, message by message."""
    return [pieces[part] for part in messages_of([piece.tensor.numel() * piece.tensor.element_size() for piece in pieces])]


def described_batches(entries: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """The same of pieces that another rank has described."""
    return [entries[part] for part in messages_of([_described_bytes(one) for one in entries])]


def message_bytes(entries: Sequence[Mapping[str, Any]]) -> int:
    """The size of a message with pieces that another rank has described."""
    return _padded(sum(_described_bytes(one) for one in entries))


def _described_bytes(one: Mapping[str, Any]) -> int:
    dtype: torch.dtype = getattr(torch, one["dtype"])
    return int(prod(one["size"])) * dtype.itemsize
