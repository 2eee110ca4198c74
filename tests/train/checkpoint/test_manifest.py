"""The manifest: what ranks report makes one table that covers every tensor once, and what is not as it was written is not believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.train.checkpoint.durable import CheckpointError, canonical
from meshwright.train.checkpoint.manifest import (
    BODY,
    MANIFEST,
    REPORT,
    Manifest,
    SavedFile,
    SavedPiece,
    SavedTensor,
    ShardReport,
    check,
    combine,
    read_manifest,
    shard_name,
    tensor_table,
    validated,
    write_manifest,
)
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.shard import BLOCK_BYTES


def rows(first: int, last: int, name: str = "weights/a", dtype: torch.dtype = torch.float32) -> Piece:
    """Rows of a tensor of 6 x 4."""
    return Piece(name=name, shape=(6, 4), start=(first, 0), tensor=torch.zeros(last - first, 4, dtype=dtype))


def report(rank: int, *pieces: Piece, num_ranks: int = 2, size_bytes: int = 100) -> ShardReport:
    blocks = tuple("ab" * 32 for _ in range(-(-size_bytes // BLOCK_BYTES)))
    file = SavedFile(name=shard_name(rank, num_ranks), size_bytes=size_bytes, blocks=blocks)
    return ShardReport(attempt="cafe", step=3, rank=rank, num_ranks=num_ranks, file=file, tensors=tensor_table(pieces, rank))


def whole(**changes: Any) -> Manifest:
    """The manifest of two ranks that hold 4 and 2 rows."""
    found = combine(3, "cafe", {"samples": 24}, [report(0, rows(0, 4)), report(1, rows(4, 6))])
    return replace(found, **changes)


def test_a_table_names_type_shape_file_and_place_of_every_piece() -> None:
    table = tensor_table([rows(0, 2), rows(2, 6), rows(0, 6, "weights/b", torch.bfloat16)], file=5)
    pieces = (SavedPiece(file=5, start=(0, 0), shape=(2, 4)), SavedPiece(file=5, start=(2, 0), shape=(4, 4)))
    assert table["weights/a"] == SavedTensor(dtype="F32", shape=(6, 4), pieces=pieces)
    assert table["weights/b"].dtype == "BF16"


def test_a_tensor_of_which_a_rank_holds_nothing_is_named_without_a_piece() -> None:
    assert tensor_table([rows(6, 6)], file=0)["weights/a"] == SavedTensor(dtype="F32", shape=(6, 4), pieces=())


def test_what_ranks_wrote_is_one_table_in_the_order_of_ranks() -> None:
    found = combine(3, "cafe", {"samples": 24}, [report(1, rows(4, 6)), report(0, rows(0, 4))])  # as their reports happened to come
    assert found == whole() and [file.name for file in found.files] == [shard_name(0, 2), shard_name(1, 2)]
    assert [(piece.file, piece.start) for piece in found.tensors["weights/a"].pieces] == [(0, (0, 0)), (1, (4, 0))]
    assert found.num_bytes == 200 and (found.step, found.scalars) == (3, {"samples": 24})


@pytest.mark.parametrize(
    "second, why",
    [
        (report(1, rows(3, 6)), "two pieces of 'weights/a' overlap"),
        (report(1, rows(5, 6)), "4 of 24 elements of 'weights/a' are in no piece"),
        (report(1, rows(4, 6, dtype=torch.bfloat16)), "is F32 [6, 4] on one rank and BF16 [6, 4] on another"),
        (report(0, rows(4, 6)), "not 2 shards in order"),  # a rank twice
        (report(1, rows(4, 6), num_ranks=3), "not 2 shards in order"),
    ],
)
def test_ranks_that_do_not_make_up_the_whole_are_refused(second: ShardReport, why: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        combine(3, "cafe", {}, [report(0, rows(0, 4)), second])
    assert why in caught.value.what


def test_a_report_goes_through_json_unchanged(tmp_path: Path) -> None:
    sent = report(1, rows(4, 6), rows(0, 6, "weights/b"), size_bytes=2 * BLOCK_BYTES + 1)
    assert validated(REPORT, json.loads(canonical(REPORT.dump_python(sent, mode="json"))), tmp_path / "r.json") == sent


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(tmp_path, whole())
    assert read_manifest(tmp_path) == whole()
    with pytest.raises(FileExistsError):  # a manifest is written once
        write_manifest(tmp_path, whole())


def test_equal_manifests_are_equal_bytes(tmp_path: Path) -> None:
    texts = []
    for name, scalars in (("a", {"x": 1, "y": 2}), ("b", {"y": 2, "x": 1})):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, whole(scalars=scalars))
        texts.append((tmp_path / name / MANIFEST).read_bytes())
    assert texts[0] == texts[1]


def test_the_hash_is_that_of_everything_else(tmp_path: Path) -> None:
    write_manifest(tmp_path, whole())
    content = json.loads((tmp_path / MANIFEST).read_bytes())
    stated = content.pop("sha256")
    assert stated == hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def forge(change: Callable[[dict], object], content: dict) -> bytes:
    """A manifest changed by someone who knows the format, with the hash that fits."""
    del content["sha256"]
    change(content)
    return canonical(content | {"sha256": hashlib.sha256(canonical(content)).hexdigest()})


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda content: content.update(format="other"), "is not one of a meshwright checkpoint"),
        (lambda content: content.update(version=1.0), "format version 1.0 is unknown"),
        (lambda content: content.pop("body"), "in manifest.json: "),
        (lambda content: content["body"].update(step=-1), "step in manifest.json"),
        (lambda content: content["body"].update(block_bytes=1), "block_bytes in manifest.json"),
        (lambda content: content["body"]["files"][0].update(blocks=["XY" * 32]), "files.0.blocks.0 in manifest.json"),
        (lambda content: content["body"]["files"][0].update(size_bytes=BLOCK_BYTES + 1), "has 1 hashes"),
        (lambda content: content["body"]["files"].reverse(), "not 2 shards in order"),
        (lambda content: content["body"]["tensors"]["weights/a"].update(dtype="F4"), "has the type 'F4'"),
        (lambda content: content["body"]["tensors"]["weights/a"]["pieces"][0].update(start=[1, 0]), "overlap"),
        (lambda content: content["body"]["tensors"]["weights/a"]["pieces"][0].update(start=[0]), "lies outside of its shape"),
        (lambda content: content["body"]["tensors"]["weights/a"]["pieces"][0].update(shape=[4]), "lies outside of its shape"),
    ],
)
def test_even_a_manifest_with_the_right_hash_must_make_sense(change: Callable[[dict], object], why: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, whole())
    path = tmp_path / MANIFEST
    path.write_bytes(forge(change, json.loads(path.read_bytes())))
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert why in caught.value.what and caught.value.where == str(path)


def test_a_hash_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    write_manifest(tmp_path, whole())
    path = tmp_path / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"samples":24', b'"samples":25'))
    with pytest.raises(CheckpointError, match="is damaged: it does not have the hash it was saved with"):
        read_manifest(tmp_path)


def test_a_file_has_a_hash_for_every_block_begun() -> None:
    file = whole().files[0]
    for size_bytes, count in ((0, 0), (1, 1), (BLOCK_BYTES, 1), (BLOCK_BYTES + 1, 2)):
        made = replace(file, size_bytes=size_bytes, blocks=("00" * 32,) * count)
        check(whole(files=(made, whole().files[1])), "here")
        assert made.written.blocks == made.blocks and made.written.size_bytes == size_bytes
    with pytest.raises(CheckpointError, match="of 100 bytes has 2 hashes"):
        check(whole(files=(replace(file, blocks=("00" * 32,) * 2), whole().files[1])), "here")


def test_the_first_thing_wrong_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"attempt in m\.json: Field required"):
        validated(BODY, {"step": 1}, tmp_path / "m.json")
