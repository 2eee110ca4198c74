"""Files of a disk and objects of a server, read alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.storage import Location, StorageError
from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.checkpoint.source import json_at, opened, sizes_at


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    contents = {"a.json": b'{"one": 1}', "b.json": b"", "c.json": b"{"}
    if request.param == "disk":
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path
    place = request.getfixturevalue("s3").place()
    for name, content in contents.items():
        (place / name).write(content)
    return place


def test_bytes_at_an_offset(folder: Location) -> None:
    with opened(folder / "a.json") as source:
        assert source.size_bytes == 10
        room = memoryview(bytearray(5))
        assert bytes(source.read_at(1, room)) == b'"one"'
        assert bytes(source.read_at(8, room)) == b"1}", "the file ends before"


def test_json_and_sizes(folder: Location) -> None:
    assert json_at(folder / "a.json") == {"one": 1}
    assert sizes_at(folder, ["a.json", "b.json"]) == {"a.json": 10, "b.json": 0}


@pytest.mark.parametrize("name, message", [("b.json", "is empty"), ("c.json", "is not JSON"), ("d.json", "cannot open d.json")])
def test_what_cannot_be_read_is_damage(folder: Location, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        json_at(folder / name)


def test_a_missing_file_has_no_size(folder: Location) -> None:
    with pytest.raises(CheckpointError, match=r"cannot open d\.json"):
        sizes_at(folder, ["a.json", "d.json"])


def test_a_server_that_does_not_answer_is_no_damage(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place(patience_s=0.2)
    proxy.faults.is_dead = True
    with pytest.raises(StorageError, match="did not answer"):
        json_at(place / "a.json")
