"""What one layout saved, any other loads, bit for bit; what does not match is named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.checkpoint import CheckpointError, Keep, Piece, load, newest_loadable, save, verify
from meshwright.train.checkpoint import loading as loading_module
from meshwright.train.checkpoint.piece import Box

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float8_e4m3fn)


@st.composite
def cuts(draw: st.DrawFn, box: Box) -> list[Box]:
    """A box cut into rectangles by random cuts through random parts of it."""
    boxes = [box]
    for _ in range(draw(st.integers(0, 5))):
        part = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        if not part.shape:
            return [part]
        dim = draw(st.integers(0, len(part.shape) - 1))
        length = draw(st.integers(0, part.shape[dim]))
        first = Box(start=part.start, shape=(*part.shape[:dim], length, *part.shape[dim + 1 :]))
        start = (*part.start[:dim], part.start[dim] + length, *part.start[dim + 1 :])
        boxes += [first, Box(start=start, shape=(*part.shape[:dim], part.shape[dim] - length, *part.shape[dim + 1 :]))]
    return boxes


@st.composite
def resharding(draw: st.DrawFn) -> tuple[list[tuple[torch.Tensor, list[Box], list[Box]]], int, int]:
    """Tensors with two ways to cut each, the number of ranks that save, and the size of a slab."""
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
        dtype = draw(st.sampled_from(TYPES))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
        width = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 256, (*shape, width), dtype=torch.uint8, generator=generator)  # NaNs and all
        whole = Box(start=(0,) * len(shape), shape=shape)
        tensors.append((raw.view(dtype).reshape(shape), draw(cuts(whole)), draw(cuts(whole))))
    return tensors, draw(st.integers(1, 3)), draw(st.sampled_from([1, 16, 4 << 20]))


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(first, last) for first, last in zip(box.start, box.stop, strict=True))]


def raw_bytes(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=resharding())
def test_any_cut_loads_any_other_bit_for_bit(case: tuple, together: Callable[[list], list], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, num_ranks, slab_bytes = case
    monkeypatch.setattr(loading_module, "BLOCK_BYTES", slab_bytes)  # so that small tensors too are read in many slabs
    parts: list[list[Piece]] = [[] for _ in range(num_ranks)]
    wanted: list[Piece] = []
    for number, (tensor, saved_boxes, wanted_boxes) in enumerate(tensors):
        shape, name = tuple(tensor.shape), f"t{number}"
        parts[0].append(Piece(name=name, shape=shape, start=(0,) * len(shape), tensor=tensor[:0] if shape else tensor))
        for turn, box in enumerate(saved_boxes if shape else []):
            if box.num_elements:
                parts[turn % num_ranks].append(Piece(name=name, shape=shape, start=box.start, tensor=cut(tensor, box)))
        for box in wanted_boxes:
            empty = torch.zeros(box.shape[::-1], dtype=tensor.dtype).permute(tuple(reversed(range(len(shape)))))  # not contiguous
            wanted.append(Piece(name=name, shape=shape, start=box.start, tensor=empty))
    with tempfile.TemporaryDirectory() as name:
        kinds = {"num_ranks": num_ranks, "token": "ab"}
        saves = [lambda rank=rank: save(Path(name), 1, parts[rank], {}, rank=rank, **kinds) for rank in range(num_ranks)]
        path = together(saves)[0].path
        load(path, wanted, names={f"t{number}" for number in range(len(tensors))})
    for piece in wanted:
        assert raw_bytes(piece.tensor) == raw_bytes(cut(tensors[int(piece.name[1:])][0], piece.box))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A shard of a dozen blocks: 12 million numbers, and a small tensor after them."""
    big = torch.arange(12_000_000, dtype=torch.int32).reshape(3000, 4000)
    small = Piece(name="small", shape=(2,), start=(0,), tensor=torch.ones(2))
    return save(tmp_path, 1, [Piece(name="big", shape=(3000, 4000), start=(0, 0), tensor=big), small], {"samples": 8}).path


def wanted(name: str, shape: tuple[int, ...], start: tuple[int, ...], size: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Piece:
    return Piece(name=name, shape=shape, start=start, tensor=torch.zeros(size, dtype=dtype))


def test_only_the_blocks_that_are_needed_are_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: (read.append(sum(map(len, buffers))), real(fd, buffers, offset))[1])
    piece = wanted("big", (3000, 4000), (1500, 7), (10, 5))
    manifest = load(checkpoint, [piece], names=None)
    assert piece.tensor[3].tolist() == [1503 * 4000 + column for column in range(7, 12)]
    assert manifest.scalars == {"samples": 8}
    assert sum(read) < 3 * (4 << 20) < manifest.num_bytes / 3


def test_a_flipped_bit_names_the_shard_when_its_block_is_needed(checkpoint: Path, flip: Callable[[Path, int], None]) -> None:
    shard = checkpoint / "shard-00000-of-00001.safetensors"
    flip(shard, 30_000_000)
    load(checkpoint, [wanted("small", (2,), (0,), (2,), torch.float32)], names=None)  # lies in another block
    with pytest.raises(CheckpointError, match=r"shard-00000-of-00001\.safetensors is damaged: bytes 29,360,128 to 33,554,432"):
        load(checkpoint, [wanted("big", (3000, 4000), (0, 0), (3000, 4000))], names=None)


def test_ranks_share_the_verification(checkpoint: Path, flip: Callable[[Path, int], None]) -> None:
    flip(checkpoint / "shard-00000-of-00001.safetensors", -1)
    for part in range(4):
        verify(checkpoint, part=part, num_parts=5)
    with pytest.raises(CheckpointError, match="damaged"):
        verify(checkpoint, part=4, num_parts=5)


def test_every_block_falls_to_one_part(states, tmp_path: Path, flip: Callable[[Path, int], None]) -> None:
    path = states.save_by_ranks(tmp_path, 1, 1.0, num_ranks=4)
    for rank in range(4):
        shard = path / f"shard-{rank:05d}-of-00004.safetensors"
        flip(shard, -1)
        refusals = []
        for part in range(3):
            try:
                verify(path, part=part, num_parts=3)
            except CheckpointError as error:
                refusals.append(error.what)
        assert len(refusals) == 1 and shard.name in refusals[0]
        flip(shard, -1)


def test_newest_loadable_falls_back_and_says_why(states, tmp_path: Path, flip: Callable[[Path, int], None]) -> None:
    states.save(tmp_path, 1, 1.0)
    damaged = states.save(tmp_path, 2, 2.0).path
    flip(damaged / "shard-00000-of-00001.safetensors", -1)
    found = newest_loadable(tmp_path)
    assert (found.step, states.value(found.path)) == (1, 1.0)
    assert [(path, "shard-00000-of-00001.safetensors is damaged" in why) for path, why in found.skipped] == [(damaged, True)]


def test_names_shapes_and_types_must_match(checkpoint: Path) -> None:
    small = wanted("small", (2,), (0,), (2,), torch.float32)
    with pytest.raises(InputError, match="lacks 1 tensor: weights/x"):
        load(checkpoint, [small], names={"big", "small", "weights/x"})
    with pytest.raises(InputError, match="holds 1 tensor: big, which this run does not have"):
        load(checkpoint, [small], names={"small"})
    with pytest.raises(InputError, match=r"'small' has the shape \[2\] in the checkpoint, \[3\] here"):
        load(checkpoint, [wanted("small", (3,), (0,), (2,), torch.float32)], names=None)
    with pytest.raises(InputError, match=r"'small' is torch\.float32 in the checkpoint, torch\.bfloat16 here"):
        load(checkpoint, [wanted("small", (2,), (0,), (2,), torch.bfloat16)], names=None)


def test_a_parameter_is_filled_in_place(checkpoint: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    load(checkpoint, [Piece(name="small", shape=(2,), start=(0,), tensor=parameter)], names=None)
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.requires_grad and parameter.is_leaf


def test_a_checkpoint_that_is_pruned_while_it_is_looked_at_gives_way_to_the_next(tmp_path: Path, states) -> None:
    states.save(tmp_path, 1, 1.0)
    steps = iter((2, 3, 4))

    def look(path: Path) -> None:
        step = next(steps, None)
        if step is not None:  # meanwhile the run saves another one, and keeps only that
            states.save(tmp_path, step, float(step), keep=Keep(last=1))
        verify(path)

    found = newest_loadable(tmp_path, check=look)
    assert (found.step, found.skipped) == (4, ())
    assert states.value(found.path) == 4.0
