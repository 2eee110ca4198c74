"""Shards are safetensors files as the library has them; one that lies about itself is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from meshwright.errors import InputError
from meshwright.train.checkpoint import CheckpointError, Piece
from meshwright.train.checkpoint.shard import BLOCK_BYTES, DTYPES, Written, bytes_of, lay_out, open_shard, write_shard


def piece(name: str, tensor: torch.Tensor) -> Piece:
    return Piece(name=name, shape=tuple(tensor.shape), start=(0,) * tensor.ndim, tensor=tensor)


def hashed(path: Path) -> Written:
    """What an honest manifest would say of the file, so that only its header is left to object to."""
    content = path.read_bytes()
    blocks = [hashlib.sha256(content[first : first + BLOCK_BYTES]).hexdigest() for first in range(0, len(content), BLOCK_BYTES)]
    return Written(size_bytes=len(content), blocks=tuple(blocks))


def test_the_library_reads_what_is_written_in_every_type(tmp_path: Path) -> None:
    values = {name: torch.arange(24).reshape(4, 6).to(dtype) for name, dtype in DTYPES.items()}
    values |= {"one number": torch.tensor(2.5), "columns": torch.arange(12.0).reshape(3, 4).T}
    layout = lay_out([piece(name, tensor) for name, tensor in values.items()])
    written = write_shard(tmp_path / "s", layout, (bytes_of(one.tensor) for one in layout.pieces))
    assert written == hashed(tmp_path / "s")
    with safe_open(tmp_path / "s", framework="pt") as file:
        found = {name.split("@")[0]: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert found.keys() == values.keys()
    for name, tensor in values.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)), name


def test_a_header_of_the_library_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}, tmp_path / "s", metadata={"format": "pt"})
    with open_shard(tmp_path / "s", hashed(tmp_path / "s")) as reader:
        entries, data_offset = reader.entries()
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {"a": ("F32", (3,)), "b": ("BF16", (2, 2))}
    assert data_offset + sum(entry.num_bytes for entry in entries.values()) == (tmp_path / "s").stat().st_size


def test_hashes_are_of_blocks_whatever_the_sizes_of_tensors(tmp_path: Path) -> None:
    layout = lay_out([piece("big", torch.arange(3_000_000.0)), piece("small", torch.ones(3))])
    written = write_shard(tmp_path / "s", layout, (bytes_of(one.tensor) for one in layout.pieces))
    assert len(written.blocks) == 3
    assert written == hashed(tmp_path / "s")


def test_a_piece_given_twice_and_a_type_without_a_name_are_refused() -> None:
    with pytest.raises(InputError, match="'w@0' is given twice"):
        lay_out([piece("w", torch.ones(2)), piece("w", torch.ones(2))])
    with pytest.raises(InputError, match="complex64 cannot be saved"):
        lay_out([piece("w", torch.ones(2, dtype=torch.complex64))])


def entry(shape: object, first: object, last: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


LIES = {  # of files with 8 bytes of data
    "past the end": json.dumps({"a": entry([4], 0, 16)}),
    "short of the end": json.dumps({"a": entry([1], 0, 4)}),
    "overlap": json.dumps({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}),
    "hole": json.dumps({"a": entry([1], 0, 4), "b": entry([0], 8, 8)}),
    "huge": json.dumps({"a": entry([2**63], 0, 2**63)}),
    "a product that wraps to 8 bytes": json.dumps({"a": entry([2**33, 2**31 + 1], 0, 8)}),
    "negative": json.dumps({"a": entry([-2], 8, 0)}),
    "doubled key": json.dumps({"a": entry([2], 0, 8)})[:-1] + ", " + json.dumps({"a": entry([2], 0, 8)})[1:],
    "doubled shape": '{"a": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}',
    "size of another type": json.dumps({"a": entry([2], 0, 8, "F64")}),
    "unknown type": json.dumps({"a": entry([2], 0, 8, "O")}),
    "type is a list": json.dumps({"a": entry([2], 0, 8, ["F32"])}),
    "shape of text": json.dumps({"a": entry("2", 0, 8)}),
    "true for one": json.dumps({"a": entry([2, True], 0, 8)}),
    "three offsets": '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}',
    "a list": "[]",
    "not JSON": "{",
    "NaN": '{"a": NaN}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("header", LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(header: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with open_shard(path, hashed(path)) as reader, pytest.raises(CheckpointError):
        reader.entries()


@pytest.mark.parametrize("num_bytes", [2**63, 2**64 - 1, 200, 17])
def test_a_header_longer_than_the_file_is_refused(num_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(num_bytes.to_bytes(8, "little") + b"{}" + bytes(14))
    with open_shard(path, hashed(path)) as reader, pytest.raises(CheckpointError, match="claims"):
        reader.entries()


def test_a_link_or_a_pipe_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(bytes(16))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(CheckpointError, match=name), open_shard(tmp_path / name, hashed(tmp_path / "real")):
            pass
