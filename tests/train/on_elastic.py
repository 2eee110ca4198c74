"""What tests of replicas that come and go run on gloo ranks."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from parity import replica_of

from meshwright.plan.plan import Plan
from meshwright.train.checkpoint import Piece
from meshwright.train.elastic.copies import Copies
from meshwright.train.elastic.handover import DamagedState, bytes_with_digest, checked, hand_over


def copied(plan: Plan) -> tuple[int, int, str, str]:
    """This rank and the one before it, and digests of the pieces that its copies have of both."""
    with replica_of(plan.model, plan.workload, plan.layout) as (replica, mesh):
        copies = Copies(replica, every=1)
        copies.take(3, 24)
        copies.take(4, 32)
        copies.confirmed()
        assert [copy.step for copy in copies.kept] == [4]
        return mesh.rank, copies.previous_rank, digest(copies.own_pieces(4)), digest(copies.neighbours_pieces(4))


def digest(pieces: list[Piece]) -> str:
    """A digest of names, places and bits."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(f"{piece.name}{piece.start}{piece.shape}".encode() + piece.tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def handed(rows: dict[int, tuple[int, int]], wants: dict[int, tuple[int, int]], sources: list[list[int]]) -> list[float]:
    """Rows of a table that each rank gets, if each holds some rows; as one flat list."""
    whole = torch.arange(24.0).view(8, 3)

    def piece(first: int, last: int, tensor: torch.Tensor) -> Piece:
        return Piece(name="weights/table", shape=(8, 3), start=(first, 0), tensor=tensor)

    rank = dist.get_rank()
    held = [piece(*rows[rank], whole[slice(*rows[rank])].clone())] if rank in rows else []
    first, last = wants[rank]
    wanted = piece(first, last, torch.full((last - first, 3), -1.0))
    hand_over(held, [wanted], range(dist.get_world_size()), sources, torch.device("cpu"))
    return [float(value) for value in wanted.tensor.flatten()]


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
