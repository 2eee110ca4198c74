"""One rank's pieces as a safetensors file, hashed block by block while it is written.

The file is plain safetensors, and other readers can open it. It is written here, not by the library, so that each byte is hashed while it
is written and memory stays bounded. It is read here, so that only the needed blocks are read, each is compared with its hash, and a
duplicate key is refused. Tests compare both with the library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from meshwright.errors import InputError
from meshwright.storage import Location
from meshwright.train.checkpoint.durable import CheckpointError, canonical, explained, new_file, parse_json, write_all
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.source import Source, opened

BLOCK_BYTES = 4 << 20  # the unit of hashing and of reading
MAX_HEADER_BYTES = 100_000_000  # the library's own limit
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor in a safetensors file: its form, and where its bytes begin after the header."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """The content of a shard: its header, and the pieces in the order of their bytes."""

    header: bytes
    pieces: tuple[Piece, ...]
    offsets_bytes: tuple[int, ...]
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        """The size of the file: eight bytes that count the header, the header, the data."""
        return 8 + len(self.header) + self.data_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A shard that is on the disk: its size, and the SHA-256 of each block of `BLOCK_BYTES`."""

    size_bytes: int
    blocks: tuple[str, ...]


def key(name: str, start: Sequence[int]) -> str:
    """The name of a piece inside its file."""
    return f"{name}@{','.join(map(str, start))}"


def dtype_name(tensor: torch.Tensor, name: str) -> str:
    """The safetensors word for a tensor's type."""
    if tensor.dtype not in DTYPE_NAMES:
        raise InputError(
            f"a tensor of type {tensor.dtype} cannot be saved", where=f"tensor {name!r}", fix=f"use one of {', '.join(DTYPES)}"
        )
    return DTYPE_NAMES[tensor.dtype]


def lay_out(pieces: Iterable[Piece]) -> ShardLayout:
    """The position of each piece in the file. Wide types come first, so that every tensor is aligned; empty pieces are left out."""
    full = [piece for piece in pieces if piece.tensor.numel()]
    full.sort(key=lambda piece: (-piece.tensor.element_size(), piece.name, piece.start))
    entries: dict[str, object] = {}
    offsets_bytes: list[int] = []
    offset = 0
    for piece in full:
        name = key(piece.name, piece.start)
        if name in entries:
            raise InputError(f"the piece {name!r} is given twice", where="pieces to save", fix="pass each piece once")
        end = offset + piece.tensor.nbytes
        entries[name] = {"dtype": dtype_name(piece.tensor, piece.name), "shape": list(piece.tensor.shape), "data_offsets": [offset, end]}
        offsets_bytes.append(offset)
        offset = end
    header = canonical(entries)
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise InputError(
            f"{len(full):,} pieces need a header of {len(header):,} bytes; a file takes {MAX_HEADER_BYTES:,}",
            where="pieces to save",
            fix="save fewer pieces per rank",
        )
    return ShardLayout(header=header, pieces=tuple(full), offsets_bytes=tuple(offsets_bytes), data_bytes=offset)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The values of a tensor as bytes in row order; copied only if needed."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def write_shard(path: Path, layout: ShardLayout, data: Iterable[memoryview]) -> Written:
    """Write header and data to a new file, and return the hashes of what was written."""
    hashes = BlockHashes()
    with explained(f"cannot write {path.name}", path), new_file(path) as fd:
        for part in parts_of(layout, data):
            for first in range(0, len(part), BLOCK_BYTES):
                block = part[first : first + BLOCK_BYTES]
                hashes.add(block)
                write_all(fd, block)
    return Written(size_bytes=layout.file_bytes, blocks=hashes.finish())


def parts_of(layout: ShardLayout, data: Iterable[memoryview]) -> Iterator[memoryview]:
    """Everything in the file, in order."""
    yield memoryview(len(layout.header).to_bytes(8, "little") + layout.header)
    yield from data


class BlockHashes:
    """SHA-256 of each block of a stream."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._hash = hashlib.sha256()
        self._num_bytes = 0

    def add(self, data: memoryview) -> None:
        """Hash the next bytes."""
        while len(data):
            part = data[: BLOCK_BYTES - self._num_bytes]
            self._hash.update(part)
            self._num_bytes += len(part)
            data = data[len(part) :]
            if self._num_bytes == BLOCK_BYTES:
                self._close()

    def _close(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash = hashlib.sha256()
        self._num_bytes = 0

    def finish(self) -> tuple[str, ...]:
        """The hashes of all blocks; the last one may be short."""
        if self._num_bytes:
            self._close()
        return tuple(self._done)


class ShardReader:
    """Reads a shard, and returns no byte whose block does not have its saved hash."""

    def __init__(self, source: Source, path: Location, written: Written) -> None:
        self.path = path
        self._source = source
        self._written = written
        # Two buffers for the whole file: a new buffer for each block would cost more than reading it.
        self._room = memoryview(bytearray(min(BLOCK_BYTES, written.size_bytes)))
        self._out = memoryview(bytearray(min(BLOCK_BYTES, written.size_bytes)))
        self._block_number = -1
        self._block = self._room[:0]
        size_bytes = source.size_bytes
        if size_bytes != written.size_bytes:
            raise CheckpointError(f"{path.name} has {size_bytes:,} bytes, and was saved with {written.size_bytes:,}", where=str(path))

    def block(self, number: int) -> memoryview:
        """One block, checked against its hash. The last one is kept, because neighbouring pieces often share it."""
        if number != self._block_number:
            self._block_number = -1
            size_bytes = min(BLOCK_BYTES, self._written.size_bytes - number * BLOCK_BYTES)
            data = self._source.read_at(number * BLOCK_BYTES, self._room[:size_bytes])
            if hashlib.sha256(data).hexdigest() != self._written.blocks[number]:
                first = number * BLOCK_BYTES
                raise CheckpointError(
                    f"{self.path.name} is damaged: bytes {first:,} to {first + len(data):,} do not have the hash they were saved with",
                    where=str(self.path),
                    fix="go back to an older checkpoint, or restore this file",
                )
            self._block_number, self._block = number, data
        return self._block

    def read(self, offset: int, num_bytes: int) -> memoryview:
        """Bytes of the file, all verified. They are valid until the next read."""
        if offset + num_bytes > self._written.size_bytes:
            raise CheckpointError(
                f"{self.path.name} ends before byte {offset + num_bytes:,}, which its header refers to", where=str(self.path)
            )
        out = self._out[:num_bytes] if num_bytes <= len(self._out) else memoryview(bytearray(num_bytes))
        done = 0
        while done < num_bytes:
            number, skip = divmod(offset + done, BLOCK_BYTES)
            part = self.block(number)[skip : skip + num_bytes - done]
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def entries(self) -> tuple[dict[str, Entry], int]:
        """The header's tensors, and the offset of the first data byte in the file."""
        header_bytes = int.from_bytes(self.read(0, 8), "little")
        if header_bytes > min(MAX_HEADER_BYTES, self._written.size_bytes - 8):
            raise CheckpointError(f"the header of {self.path.name} claims {header_bytes:,} bytes", where=str(self.path))
        header = parse_json(bytes(self.read(8, header_bytes)), self.path)
        return parse_header(header, self._written.size_bytes - 8 - header_bytes, self.path), 8 + header_bytes


@contextmanager
def open_shard(path: Location, written: Written) -> Iterator[ShardReader]:
    """A reader of the shard at `path`."""
    with opened(path) as source:
        yield ShardReader(source, path, written)


def parse_header(header: object, data_bytes: int, path: Location) -> dict[str, Entry]:
    """The tensors of a header, which must fill the data without a gap or an overlap."""
    if not isinstance(header, Mapping):
        raise CheckpointError(f"the header of {path.name} is not a table", where=str(path))
    entries = {name: _entry(name, value, path) for name, value in header.items() if name != "__metadata__"}
    expected = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset_bytes, item[1].num_bytes)):
        if entry.offset_bytes != expected:
            raise CheckpointError(f"tensor {name!r} begins at byte {entry.offset_bytes:,}, not at {expected:,}", where=str(path))
        expected += entry.num_bytes
    if expected != data_bytes:
        raise CheckpointError(f"the header of {path.name} states {expected:,} bytes of data; there are {data_bytes:,}", where=str(path))
    return entries


def _entry(name: str, value: object, path: Location) -> Entry:
    """One tensor of a header, with each number checked before it is used."""
    if not isinstance(value, Mapping) or set(value) != {"dtype", "shape", "data_offsets"} or str(value["dtype"]) not in DTYPES:
        raise CheckpointError(f"tensor {name!r} has no proper type, shape and offsets", where=str(path))
    shape, offsets = value["shape"], value["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 else [None]
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise CheckpointError(f"tensor {name!r} has the shape {shape} and the offsets {offsets}", where=str(path))
    entry = Entry(dtype=str(value["dtype"]), shape=tuple(shape), offset_bytes=offsets[0])
    if offsets[1] - offsets[0] != entry.num_bytes:
        raise CheckpointError(
            f"tensor {name!r} of shape {shape} has {offsets[1] - offsets[0]:,} bytes, not {entry.num_bytes:,}", where=str(path)
        )
    return entry
