"""The manifest: what a checkpoint contains, where each piece is, and the hash of every block.

It is written last and has a hash of itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from meshwright.storage import Location
from meshwright.train.checkpoint.durable import CheckpointError, canonical, new_file, write_all
from meshwright.train.checkpoint.piece import Box, Piece, check_tiling
from meshwright.train.checkpoint.shard import BLOCK_BYTES, DTYPES, Written, dtype_name
from meshwright.train.checkpoint.source import json_at

MANIFEST = "manifest.json"
FORMAT = "meshwright-checkpoint"
VERSION = 1

Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
T = TypeVar("T")
CLOSED = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class SavedPiece:
    """One piece: the number of its file, and its position in its tensor."""

    file: Count
    start: tuple[Count, ...]
    shape: tuple[Count, ...]

    @property
    def box(self) -> Box:
        return Box(start=self.start, shape=self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class SavedTensor:
    """One global tensor and its pieces."""

    dtype: str
    shape: tuple[Count, ...]
    pieces: tuple[SavedPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class SavedFile:
    """One shard: name, size, and the SHA-256 of each of its blocks."""

    name: str
    size_bytes: Count
    blocks: tuple[Hash, ...]

    @property
    def written(self) -> Written:
        return Written(size_bytes=self.size_bytes, blocks=self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class ShardReport:
    """What a rank reports to rank 0, in a file next to its shard, once the shard is on disk."""

    attempt: str
    step: Count
    rank: Count
    num_ranks: Count
    file: SavedFile
    tensors: dict[str, SavedTensor]


@dataclass(frozen=True, slots=True, kw_only=True, config=CLOSED)
class Manifest:
    """A checkpoint: its step, the caller's scalars, its files and its tensors."""

    step: Count
    attempt: str  # which save wrote it, so that ranks recognize their own
    block_bytes: Literal[4_194_304]
    scalars: dict[str, Any]
    files: tuple[SavedFile, ...]
    tensors: dict[str, SavedTensor]

    @property
    def num_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


BODY = TypeAdapter(Manifest)
REPORT = TypeAdapter(ShardReport)


def shard_name(rank: int, num_ranks: int) -> str:
    """The file name of a rank's shard."""
    return f"shard-{rank:05d}-of-{num_ranks:05d}.safetensors"


def tensor_table(pieces: Iterable[Piece], file: int) -> dict[str, SavedTensor]:
    """What one rank's pieces say about their tensors. A tensor of which the rank holds nothing is listed too."""
    table: dict[str, SavedTensor] = {}
    for piece in pieces:
        saved = (SavedPiece(file=file, start=tuple(piece.start), shape=tuple(piece.tensor.shape)),) if piece.tensor.numel() else ()
        one = SavedTensor(dtype=dtype_name(piece.tensor, piece.name), shape=tuple(piece.shape), pieces=saved)
        _merge(table, {piece.name: one}, f"rank {file}")
    return table


def _merge(table: dict[str, SavedTensor], more: Mapping[str, SavedTensor], who: str) -> None:
    for name, tensor in more.items():
        known = table.get(name)
        if known and (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
            raise CheckpointError(
                f"tensor {name!r} is {known.dtype} {list(known.shape)} on one rank and {tensor.dtype} {list(tensor.shape)} on another",
                where=who,
            )
        table[name] = SavedTensor(dtype=tensor.dtype, shape=tensor.shape, pieces=(known.pieces if known else ()) + tensor.pieces)


def combine(step: int, attempt: str, scalars: Mapping[str, Any], reports: Iterable[ShardReport]) -> Manifest:
    """The manifest of a save, from the reports of all ranks. The pieces must cover every tensor exactly once."""
    ordered = sorted(reports, key=lambda report: report.rank)
    tensors: dict[str, SavedTensor] = {}
    for report in ordered:
        _merge(tensors, report.tensors, report.file.name)
    files = tuple(report.file for report in ordered)
    manifest = Manifest(step=step, attempt=attempt, block_bytes=4_194_304, scalars=dict(scalars), files=files, tensors=tensors)
    check(manifest, f"the pieces of step {step}")
    return manifest


def check(manifest: Manifest, where: str) -> None:
    """Raise an error if a manifest is not consistent, or if a name in it points outside its folder."""
    num_files = len(manifest.files)
    if not num_files or [file.name for file in manifest.files] != [shard_name(rank, num_files) for rank in range(num_files)]:
        raise CheckpointError(f"the files are {[file.name for file in manifest.files][:4]}, not {num_files} shards in order", where=where)
    for file in manifest.files:
        if len(file.blocks) != -(-file.size_bytes // BLOCK_BYTES):
            raise CheckpointError(f"{file.name} of {file.size_bytes:,} bytes has {len(file.blocks)} hashes", where=where)
    for name, tensor in manifest.tensors.items():
        if tensor.dtype not in DTYPES or any(piece.file >= num_files for piece in tensor.pieces):
            raise CheckpointError(f"tensor {name!r} has the type {tensor.dtype!r}, or a piece in a file that is not listed", where=where)
        check_tiling(name, tensor.shape, [piece.box for piece in tensor.pieces], where)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, with a hash of itself, to the disk."""
    with new_file(folder / MANIFEST) as fd:
        write_all(fd, manifest_bytes(manifest))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as its file has it, with a hash of itself."""
    content = {"format": FORMAT, "version": VERSION, "body": BODY.dump_python(manifest, mode="json")}
    return canonical(content | {"sha256": _digest(content)})


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(content)).hexdigest()


def read_manifest(folder: Location) -> Manifest:
    """The manifest of the checkpoint in `folder`; an error says why it cannot be used."""
    path = folder / MANIFEST
    content = json_at(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} is not one of a meshwright checkpoint", where=str(path))
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(
            f"format version {version!r} is unknown; this meshwright reads version {VERSION}",
            where=str(path),
            fix="load it with the release that wrote it",
        )
    if content.pop("sha256", None) != _digest(content):
        raise CheckpointError(f"{MANIFEST} is damaged: it does not have the hash it was saved with", where=str(path))
    manifest = validated(BODY, content.get("body"), path)
    check(manifest, str(path))
    return manifest


def validated(kind: TypeAdapter[T], content: object, path: Location) -> T:
    """`content` as a value of `kind`; the error names the first thing that is wrong."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{'.'.join(map(str, first['loc']))} in {path.name}: {first['msg']}", where=str(path)) from error
