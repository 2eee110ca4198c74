"""A copy of a rank's state in host memory: the bytes of its shard, untouched by what training does afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.shard import ShardLayout, bytes_of, lay_out, write_shard
from meshwright.train.checkpoint.snapshot import Snapshot

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)


def piece(name: str, tensor: torch.Tensor) -> Piece:
    return Piece(name=name, shape=tuple(tensor.shape), start=(0,) * tensor.dim(), tensor=tensor)


def state(device: str = "cpu") -> list[Piece]:
    """Tensors of many types, one that is a view across rows, one that is a number, one that is empty."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(7, 5, generator=generator)
    found = [piece(f"weights/{number}", (drawn * 9).to(dtype).to(device)) for number, dtype in enumerate(DTYPES)]
    return [
        *found,
        piece("view", drawn.to(device).t()[1:4]),
        piece("number", torch.tensor(3.5, device=device)),
        piece("empty", torch.empty(0, 4, device=device)),
    ]


def copied(snapshot: Snapshot, layout: ShardLayout) -> bytes:
    snapshot.take(layout)
    snapshot.wait()
    return b"".join(bytes(part) for part in snapshot.data(layout))


def plain(layout: ShardLayout) -> bytes:
    """The bytes one by one, without a snapshot."""
    return b"".join(bytes(bytes_of(one.tensor)) for one in layout.pieces)


@pytest.mark.parametrize("device", DEVICES)
def test_the_copy_is_the_shards_bytes_in_their_order(device: str) -> None:
    layout = lay_out(state(device))
    found = copied(Snapshot(), layout)
    assert found == plain(layout) and len(found) == layout.data_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_what_training_changes_afterwards_is_not_in_it(device: str) -> None:
    pieces = [piece("weights/a", torch.ones(64, 3, device=device))]
    layout, snapshot = lay_out(pieces), Snapshot()
    snapshot.take(layout)
    pieces[0].tensor.zero_()
    snapshot.wait()
    assert b"".join(map(bytes, snapshot.data(layout))) == torch.ones(64, 3).numpy().tobytes()
    assert (snapshot.copy_s() > 0) == (device == "cuda")


def test_memory_is_reused_for_less_and_grows_for_more() -> None:
    snapshot = Snapshot()
    small, large = (lay_out([piece("a", torch.full((count,), float(count)))]) for count in (10, 1000))
    assert copied(snapshot, small) == plain(small)
    assert copied(snapshot, large) == plain(large)
    place = snapshot._memory.data_ptr()
    assert copied(snapshot, small) == plain(small) and snapshot._memory.data_ptr() == place  # nothing of the larger one behind it


def test_memory_can_be_had_before_and_given_back_after() -> None:
    snapshot, layout = Snapshot(), lay_out(state())
    snapshot.reserve(layout)
    place = snapshot._memory.data_ptr()
    assert copied(snapshot, layout) == plain(layout) and snapshot._memory.data_ptr() == place
    snapshot.release()
    assert snapshot._memory.numel() == 0 and copied(snapshot, layout) == plain(layout)


def test_a_rank_without_a_piece_copies_nothing() -> None:
    assert copied(Snapshot(), lay_out([])) == b""


def test_gradients_are_not_asked_for() -> None:
    weight = torch.ones(3, requires_grad=True)
    layout = lay_out([piece("a", weight)])
    assert copied(Snapshot(), layout) == torch.ones(3).numpy().tobytes() and weight.grad_fn is None


def test_a_shard_written_from_it_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    layout, snapshot = lay_out(state()), Snapshot()
    snapshot.take(layout)
    write_shard(tmp_path / "a.safetensors", layout, snapshot.data(layout))
    read = load_file(tmp_path / "a.safetensors")
    for one in state():
        if one.tensor.numel():
            found = read[f"{one.name}@{','.join(map(str, one.start))}"]
            assert (found.dtype, found.shape) == (one.tensor.dtype, one.tensor.shape) and bytes_of(found) == bytes_of(one.tensor)
