"""The newest whole checkpoint is found, anything else is skipped with a reason, and pruning takes only what it should."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.train.checkpoint import CheckpointError, Keep, newest, newest_loadable, prune, save, verify
from meshwright.train.checkpoint.durable import canonical
from meshwright.train.checkpoint.folder import being_read

SHARD = "shard-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path, states) -> Path:
    """Steps 1 and 2, saved by two ranks, and the beginning of a step 3."""
    for step in (1, 2):
        states.save_by_ranks(tmp_path, step, float(step), num_ranks=2)
    (tmp_path / ".step-00000003.partial-cafe-1").mkdir()
    return tmp_path


def rewrite(folder: Path, change: Callable[[dict], None]) -> None:
    """Change a manifest, and give it the hash that fits: what someone does who knows the format."""
    path = folder / "manifest.json"
    content = json.loads(path.read_bytes())
    del content["sha256"]
    change(content)
    path.write_bytes(canonical(content | {"sha256": hashlib.sha256(canonical(content)).hexdigest()}))


def test_the_newest_is_found_and_the_unfinished_reported(folder: Path) -> None:
    found = newest(folder)
    assert (found.path, found.step) == (folder / "step-00000002", 2)
    assert found.skipped == ((folder / ".step-00000003.partial-cafe-1", "the save was not finished"),)


def test_an_empty_or_absent_folder_has_none(tmp_path: Path) -> None:
    assert newest(tmp_path).path is newest(tmp_path / "absent").path is None


def file_name(name: str) -> Callable[[Path], None]:
    return lambda path: rewrite(path, lambda content: content["body"]["files"][1].update(name=name))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda path: (path / SHARD).unlink(), f"cannot open {SHARD}: No such file"),
    "short shard": (lambda path: os.truncate(path / SHARD, 100), f"{SHARD} has 100 bytes, and was saved with"),
    "long shard": (lambda path: (path / SHARD).write_bytes((path / SHARD).read_bytes() + b"x"), "and was saved with"),
    "extra shard": (lambda path: (path / "shard-00002-of-00003.safetensors").write_bytes(b""), "is not part of this checkpoint"),
    "extra report": (lambda path: (path / "shard-00001-of-00002.json").write_bytes(b""), "is not part of this checkpoint"),
    "shard is a link": (lambda path: ((path / SHARD).rename(path.parent / "s"), (path / SHARD).symlink_to("../s")), "cannot open"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "cannot open manifest.json: No such file"),
    "empty manifest": (lambda path: (path / "manifest.json").write_bytes(b""), "manifest.json is empty"),
    "half a manifest": (lambda path: os.truncate(path / "manifest.json", 300), "manifest.json is not JSON"),
    "binary manifest": (lambda path: (path / "manifest.json").write_bytes(b"\xff\x00"), "manifest.json is not JSON"),
    "deep manifest": (lambda path: (path / "manifest.json").write_bytes(b"[" * 200_000), "manifest.json is not JSON"),
    "list manifest": (lambda path: (path / "manifest.json").write_bytes(b"[]"), "is not one of a meshwright checkpoint"),
    "later version": (lambda path: rewrite(path, lambda content: content.update(version=2)), "format version 2 is unknown"),
    "earlier version": (lambda path: rewrite(path, lambda content: content.update(version=0)), "format version 0 is unknown"),
    "version by another type": (lambda path: rewrite(path, lambda content: content.update(version=True)), "version True is unknown"),
    "no version": (lambda path: rewrite(path, lambda content: content.pop("version")), "format version None is unknown"),
    "step of another": (lambda path: rewrite(path, lambda content: content["body"].update(step=7)), "step-00000002 holds step 7"),
    "out of the folder": (file_name("../step-00000001/" + SHARD), "not 2 shards in order"),
    "absolute": (file_name("/etc/passwd"), "not 2 shards in order"),
    "the same shard twice": (file_name("shard-00000-of-00002.safetensors"), "not 2 shards in order"),
    "no files": (lambda path: rewrite(path, lambda content: content["body"].update(files=[])), "not 0 shards in order"),
    "no blocks": (lambda path: rewrite(path, lambda content: content["body"]["files"][0].update(blocks=[])), "has 0 hashes"),
    "a gap": (lambda path: rewrite(path, lambda content: content["body"]["tensors"]["weights/a"]["pieces"].pop()), "are in no piece"),
    "unknown field": (lambda path: rewrite(path, lambda content: content["body"].update(run="x")), "run in manifest.json"),
    "text for a number": (lambda path: rewrite(path, lambda content: content["body"].update(step="2")), "step in manifest.json"),
    "a file beyond": (
        lambda path: rewrite(path, lambda content: content["body"]["tensors"]["weights/a"]["pieces"][0].update(file=9)),
        "a piece in a file that is not listed",
    ),
}


@pytest.mark.parametrize("damage, message", DAMAGES.values(), ids=DAMAGES)
def test_one_that_is_not_whole_is_skipped_with_the_reason(damage: Callable[[Path], object], message: str, folder: Path, states) -> None:
    damage(folder / "step-00000002")
    found = newest(folder)
    assert (found.step, states.value(found.path)) == (1, 1.0)
    path, why = found.skipped[-1]
    assert path == folder / "step-00000002" and message in why


def test_a_step_that_is_a_file_or_a_link_is_skipped(folder: Path) -> None:
    (folder / "step-00000004").write_text("")
    (folder / "step-00000005").symlink_to("step-00000001")
    found = newest(folder)
    assert found.step == 2
    assert [why for path, why in found.skipped[1:]] == ["step-00000005 is not a folder", "step-00000004 is not a folder"]


def test_every_bit_of_a_manifest_counts(folder: Path, flip: Callable[[Path, int], None]) -> None:
    manifest = folder / "step-00000002" / "manifest.json"
    for index in range(0, manifest.stat().st_size, 7):
        flip(manifest, index)
        assert newest(folder).step == 1, index
        flip(manifest, index)
    assert newest(folder).step == 2


def test_a_shard_of_another_generation_is_found_out(folder: Path) -> None:
    shutil.copy(folder / "step-00000001" / SHARD, folder / "step-00000002" / SHARD)  # the same names and sizes
    with pytest.raises(CheckpointError, match=f"{SHARD} is damaged"):
        verify(folder / "step-00000002")
    assert newest_loadable(folder).step == 1


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_opened(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    poison = pickle.dumps(Canary(canary))
    for name in ("manifest.json", SHARD, ".metadata"):
        place = tmp_path / f"step-0000001{len(name) % 10}"
        shutil.copytree(folder / "step-00000002", place)
        rewrite(place, lambda content, place=place: content["body"].update(step=int(place.name[5:])))
        (place / name).write_bytes(poison)
    only_pickles = tmp_path / "step-00000099"
    only_pickles.mkdir()
    (only_pickles / ".metadata").write_bytes(poison)
    (only_pickles / "__0_0.distcp").write_bytes(poison)
    found = newest_loadable(tmp_path)
    assert "cannot open manifest.json" in dict(found.skipped)[only_pickles]
    assert not canary.exists()
    pickle.loads(poison)  # the canary itself works
    assert canary.exists()


@pytest.mark.parametrize(
    "keep, left",
    [
        (Keep(last=1), [60]),
        (Keep(last=2), [50, 60]),
        (Keep(last=1, every_steps=20), [20, 40, 60]),
        (Keep(last=9), [10, 20, 30, 40, 50, 60]),
    ],
)
def test_the_last_and_every_so_many_are_kept(keep: Keep, left: list[int], tmp_path: Path, states) -> None:
    for step in range(10, 70, 10):
        states.save(tmp_path, step, 1.0, keep=keep)
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == left


def test_pruning_leaves_newer_damaged_and_foreign_ones(folder: Path, states) -> None:
    (folder / "step-00000001" / SHARD).unlink()
    states.save(folder, 9, 9.0)
    path = states.save(folder, 3, 3.0, keep=Keep(last=1)).path
    (folder / "mine").mkdir()
    assert prune(folder, Keep(last=1), path) == []
    assert {entry.name for entry in folder.iterdir()} == {"step-00000001", "step-00000003", "step-00000009", "mine"}


def test_one_that_is_being_read_is_not_pruned(folder: Path, states) -> None:
    with being_read(folder / "step-00000001"):
        assert states.save(folder, 3, 3.0, keep=Keep(last=1)).notes[-1] == "pruned step-00000002"
    assert states.value(folder / "step-00000001") == 1.0
    assert prune(folder, Keep(last=1), folder / "step-00000003") == ["step-00000001"]


def test_keeping_none_is_refused() -> None:
    with pytest.raises(InputError, match="cannot keep the last 0"):
        Keep(last=0)


def test_saving_and_pruning_while_others_look(tmp_path: Path, states) -> None:
    states.save(tmp_path, 0, 0.0)
    done = threading.Event()
    seen: list[float] = []

    def look() -> None:
        while not done.is_set():
            found = newest(tmp_path)
            try:
                seen.append(states.value(found.path))
            except CheckpointError:
                seen.append(-1.0)  # pruned between finding and reading: an error, not half read

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for step in range(1, 40):
            save(tmp_path, step, states.pieces(float(step)), {"value": float(step)}, keep=Keep(last=2))
    finally:
        done.set()
        reader.join()
    values = [value for value in seen if value >= 0]
    assert values and values == sorted(values)
