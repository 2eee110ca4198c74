"""Loading: each wanted piece is filled from whatever saved pieces overlap it, so that any layout reads any other's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch

from meshwright.errors import InputError
from meshwright.storage import Location, Remote
from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.checkpoint.folder import Found, being_read, check_whole, newest_passing
from meshwright.train.checkpoint.manifest import Manifest, SavedFile, SavedPiece, SavedTensor
from meshwright.train.checkpoint.piece import Box, Piece
from meshwright.train.checkpoint.shard import BLOCK_BYTES, DTYPES, Entry, ShardReader, key, open_shard

SHOWN_NAMES = 5
SHARE_BLOCKS = 16  # that one thread reads at a time
SHARE_BYTES = SHARE_BLOCKS * BLOCK_BYTES
REMOTE_THREADS, MOST_THREADS = 8, 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What goes from one saved piece to one wanted piece."""

    wanted: Piece
    saved: SavedPiece
    common: Box  # in the whole tensor


def load(path: Location, wanted: Iterable[Piece], *, names: Collection[str] | None, num_threads: int | None = None) -> Manifest:
    """Fill the tensors of all `wanted` pieces from the checkpoint at `path`, and return its manifest (step, scalars).

    `names` are those of all tensors of the run, over all ranks: one more or one less in the checkpoint is an error. None says that a part
    of the checkpoint is wanted on purpose. Only blocks that hold wanted values are read, each against its hash, by `num_threads` at once
    (None: as many as `reading_threads` says). After an error the tensors may hold anything.
    """
    with being_read(path):
        manifest = check_whole(path)
        pieces = [piece for piece in wanted]
        check_names(manifest, {piece.name for piece in pieces} if names is None else names, exact=names is not None, where=path)
        by_file = defaultdict(list)
        for piece in pieces:
            for transfer in _transfers(piece, manifest.tensors[piece.name], path):
                by_file[transfer.saved.file].append(transfer)
        shares = [share for number, transfers in sorted(by_file.items()) for share in _shares(manifest.files[number], transfers)]
        _at_once(lambda share: _fill(path, *share), shares, num_threads or reading_threads(path))
    return manifest


def reading_threads(path: Location) -> int:
    """Threads that read and hash at once: as many as torch uses; for object storage more, because they mostly wait."""
    return max(min(torch.get_num_threads(), MOST_THREADS), REMOTE_THREADS if isinstance(path, Remote) else 1)


def _at_once(body: Callable[[T], object], items: list[T], num_threads: int) -> None:
    """Call `body` with every item, on several threads; the error is that of the first item that has one."""
    if num_threads == 1 or len(items) < 2:
        for item in items:
            body(item)
        return
    with ThreadPoolExecutor(min(num_threads, len(items))) as pool:
        results = [pool.submit(body, item) for item in items]
        try:
            for result in results:
                result.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the rest need not be read


def _shares(file: SavedFile, transfers: list[Transfer]) -> Iterator[tuple[SavedFile, list[Transfer]]]:
    """The transfers of one file in groups for several threads, each of `SHARE_BYTES` or a little more."""
    share: list[Transfer] = []
    num_bytes = 0
    for transfer in transfers:
        share.append(transfer)
        num_bytes += transfer.common.num_elements * transfer.wanted.tensor.element_size()
        if num_bytes >= SHARE_BYTES:
            yield file, share
            share, num_bytes = [], 0
    if share:
        yield file, share


def check_names(manifest: Manifest, names: Collection[str], *, exact: bool, where: Location) -> None:
    """Pass when the checkpoint has the tensors of these names, and, where `exact`, no others."""
    missing = sorted(set(names) - set(manifest.tensors))
    if missing:
        raise InputError(f"the checkpoint lacks {_some(missing)}", where=str(where), fix="load it into the model it was saved from")
    extra = sorted(set(manifest.tensors) - set(names)) if exact else []
    if extra:
        raise InputError(
            f"the checkpoint holds {_some(extra)}, which this run does not have",
            where=str(where),
            fix="load it into the model it was saved from",
        )


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN_NAMES
    return (
        f"{len(names)} tensor{'s' if len(names) > 1 else ''}: " + ", ".join(names[:SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
    )


def _transfers(piece: Piece, saved: SavedTensor, path: Location) -> list[Transfer]:
    """What to copy into one wanted piece, once its form is known to be that of the saved tensor."""
    if saved.shape != tuple(piece.shape):
        raise InputError(
            f"{piece.name!r} has the shape {list(saved.shape)} in the checkpoint, {list(piece.shape)} here",
            where=str(path),
            fix="load into the model that was saved",
        )
    if DTYPES[saved.dtype] != piece.tensor.dtype:
        raise InputError(
            f"{piece.name!r} is {DTYPES[saved.dtype]} in the checkpoint, {piece.tensor.dtype} here",
            where=str(path),
            fix="load into tensors of the saved type, and convert afterwards",
        )
    overlaps = [(one, one.box.overlap(piece.box)) for one in saved.pieces]
    return [Transfer(wanted=piece, saved=one, common=common) for one, common in overlaps if common]


def _fill(path: Location, file: SavedFile, transfers: list[Transfer]) -> None:
    """Copy what one shard has for these transfers, in the order of its bytes."""
    with open_shard(path / file.name, file.written) as reader:
        entries, data_offset = reader.entries()
        for transfer in sorted(transfers, key=lambda transfer: _entry(reader, entries, transfer).offset_bytes):
            entry = _entry(reader, entries, transfer)
            _copy(reader, data_offset + entry.offset_bytes, entry, transfer)


def _entry(reader: ShardReader, entries: Mapping[str, Entry], transfer: Transfer) -> Entry:
    """Where the shard keeps a saved piece; header and manifest must agree on it."""
    name = key(transfer.wanted.name, transfer.saved.start)
    entry = entries.get(name)
    if entry is None or entry.shape != transfer.saved.shape or DTYPES[entry.dtype] != transfer.wanted.tensor.dtype:
        raise CheckpointError(f"{reader.path.name} does not hold {name!r} as the manifest has it", where=str(reader.path))
    return entry


def _copy(reader: ShardReader, offset: int, entry: Entry, transfer: Transfer) -> None:
    """Copy the common box of one transfer; both sides are cut to it first."""
    inner = tuple(first - origin for first, origin in zip(transfer.common.start, transfer.saved.start, strict=True))
    into = tuple(
        slice(first - origin, first - origin + length)
        for first, origin, length in zip(transfer.common.start, transfer.wanted.start, transfer.common.shape, strict=True)
    )
    target = transfer.wanted.tensor.detach()[into]
    if not entry.shape:  # a single number has no rows to go along
        _copy_rows(reader, offset, (1,), Box(start=(0,), shape=(1,)), target.view(1))
    else:
        _copy_rows(reader, offset, entry.shape, Box(start=inner, shape=transfer.common.shape), target)


def _copy_rows(reader: ShardReader, offset: int, shape: tuple[int, ...], box: Box, target: torch.Tensor) -> None:
    """Copy `box` of a tensor of `shape` that is stored at `offset`, about a block at a time, so that memory stays bounded."""
    row_bytes = prod(shape[1:]) * target.element_size()
    if len(shape) > 1 and row_bytes > BLOCK_BYTES:
        for row in range(box.shape[0]):
            rest = Box(start=box.start[1:], shape=box.shape[1:])
            _copy_rows(reader, offset + (box.start[0] + row) * row_bytes, shape[1:], rest, target[row])
        return
    columns = tuple(slice(first, last) for first, last in zip(box.start[1:], box.stop[1:], strict=True))
    num_rows = max(1, BLOCK_BYTES // row_bytes)
    for first in range(0, box.shape[0], num_rows):
        last = min(first + num_rows, box.shape[0])
        data = reader.read(offset + (box.start[0] + first) * row_bytes, (last - first) * row_bytes)
        rows = torch.frombuffer(data, dtype=target.dtype).view(last - first, *shape[1:])
        target[first:last].copy_(rows[(slice(None), *columns)])


def verify(path: Location, *, part: int = 0, num_parts: int = 1, num_threads: int | None = None) -> None:
    """Pass when every block of a checkpoint has its hash. Ranks may share the work: each takes one part of the blocks."""
    with being_read(path):
        manifest = check_whole(path)
        num_blocks = sum(len(file.blocks) for file in manifest.files)
        first, last = part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts
        shares: list[tuple[SavedFile, range]] = []
        for file in manifest.files:
            numbers = range(max(first, 0), min(last, len(file.blocks)))
            first, last = first - len(file.blocks), last - len(file.blocks)
            shares += [(file, numbers[start : start + SHARE_BLOCKS]) for start in range(0, len(numbers), SHARE_BLOCKS)]
        _at_once(lambda share: _verify_blocks(path, *share), shares, num_threads or reading_threads(path))


def _verify_blocks(path: Location, file: SavedFile, numbers: range) -> None:
    with open_shard(path / file.name, file.written) as reader:
        for number in numbers:
            reader.block(number)


def newest_loadable(folder: Location, *, check: Callable[[Location], object] = verify) -> Found:
    """The newest checkpoint whose every block has its hash, and why newer ones were skipped.

    `check` raises CheckpointError for one that will not do. Ranks that share the work pass one that verifies a part each and then agrees.
    """
    return newest_passing(folder, check)
