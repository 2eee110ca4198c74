"""What tests of replicas that come and go run on gloo ranks."""

from __future__ import annotations

import hashlib
from unittest.mock import patch

import torch
import torch.distributed as dist
from parity import replica_of

from meshwright.plan.plan import Plan
from meshwright.train.checkpoint import Piece
from meshwright.train.elastic import handover
from meshwright.train.elastic.copies import Copies
from meshwright.train.elastic.handover import MESSAGE_BYTES, DamagedState, bytes_with_digest, checked, hand_over

KINDS = ("weights", "means", "squares")


def copied(plan: Plan, message_bytes: int = MESSAGE_BYTES) -> tuple[int, int, str, str]:
    """This rank and the one before it, and digests of the pieces that its copies have of both."""
    with replica_of(plan.model, plan.workload, plan.layout) as (replica, mesh), patch.object(handover, "MESSAGE_BYTES", message_bytes):
        copies = Copies(replica, every=1)
        copies.take(3, 24)
        copies.take(4, 32)
        copies.confirmed()
        assert [copy.step for copy in copies.kept] == [4]
        assert (len(copies.kept[0].own) > 1) == (message_bytes < MESSAGE_BYTES)
        return mesh.rank, copies.previous_rank, digest(copies.own_pieces(4)), digest(copies.neighbours_pieces(4))


def digest(pieces: list[Piece]) -> str:
    """A digest of names, places and bits."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(f"{piece.name}{piece.start}{piece.shape}".encode() + piece.tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def handed(rows: dict[int, tuple[int, int]], wants: dict[int, tuple[int, int]], sources: list[list[int]]) -> list[float]:
    """Rows of tables that each rank gets, if each holds some rows; as one flat list.

    The tables are those of the weights and of two moments, one after another, and a message has room for two of them.
    """
    whole = torch.arange(24.0).view(8, 3)

    def pieces(first: int, last: int, rows: torch.Tensor) -> list[Piece]:
        return [Piece(name=f"{kind}/table", shape=(8, 3), start=(first, 0), tensor=rows + 100 * n) for n, kind in enumerate(KINDS)]

    rank = dist.get_rank()
    held = pieces(*rows[rank], whole[slice(*rows[rank])]) if rank in rows else []
    first, last = wants[rank]
    wanted = pieces(first, last, torch.full((last - first, 3), -1.0))
    with patch.object(handover, "MESSAGE_BYTES", 2 * whole.nbytes):
        hand_over(held, wanted, range(dist.get_world_size()), sources, torch.device("cpu"))
    return [float(value) for piece in wanted for value in piece.tensor.flatten()]


def moved_in_parts() -> list[list[float]]:
    """What rank 1 is given by rank 0, message by message."""
    rank = dist.get_rank()
    pieces = [Piece(name=f"{kind}/a", shape=(5,), start=(0,), tensor=torch.arange(5.0) + 10 * n) for n, kind in enumerate(KINDS)]
    with patch.object(handover, "MESSAGE_BYTES", 40):
        found = handover.moved(pieces if rank == 0 else [], [1] if rank == 0 else [], [0] if rank == 1 else [], torch.device("cpu"))
    return [piece.tensor.tolist() for piece in found.get(0, [])]


def flipped() -> str:
    """What a receiver says of a message in which one bit has changed."""
    message = bytes_with_digest([Piece(name="weights/a", shape=(5,), start=(0,), tensor=torch.ones(5))], torch.device("cpu"))
    assert checked(message, 0).numel() >= 20
    message[7] ^= 1
    try:
        checked(message, 0)
    except DamagedState as error:
        return str(error.what)
    return ""
