"""Copies of objects on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.storage import Remote, StorageError
from meshwright.storage import fetch as fetch_module
from meshwright.storage.fetch import fetch

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "PART_BYTES", 20_000)


@pytest.fixture
def place(s3: ObjectServer) -> Remote:
    found = s3.place(patience_s=5.0) / "file"
    found.write(CONTENT)
    return found


def test_an_object_is_copied_once(place: Remote, tmp_path: Path) -> None:
    arrived: list[int] = []
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST, arrived.append)
    assert (tmp_path / "file").read_bytes() == CONTENT and sum(arrived) == len(CONTENT)
    place.remove()
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_copy_goes_on_where_it_was_cut_off(proxy: FaultProxy, s3: ObjectServer, tmp_path: Path) -> None:
    place = s3.place(patience_s=0.2) / "file"
    place.write(CONTENT)
    (tmp_path / "file.part").write_bytes(CONTENT[:100_001])
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT
    num_parts = sum(line.startswith("GET") for line in proxy.faults.log)
    assert num_parts == -(-(len(CONTENT) - 100_001) // 20_000)


def test_a_server_that_dies_leaves_a_part_that_is_used_later(proxy: FaultProxy, s3: ObjectServer, tmp_path: Path) -> None:
    place = s3.place(patience_s=0.2) / "file"
    place.write(CONTENT)

    def dies(num_bytes: int) -> None:
        proxy.faults.is_dead = True

    with pytest.raises(StorageError, match="did not answer"):
        fetch(place, tmp_path / "file", len(CONTENT), DIGEST, dies)
    assert not (tmp_path / "file").exists() and (tmp_path / "file.part").stat().st_size >= 20_000
    proxy.faults.is_dead = False
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_answers_that_are_cut_short_do_not_damage_a_copy(proxy: FaultProxy, place: Remote, tmp_path: Path) -> None:
    proxy.faults.answers, proxy.faults.only = ["truncate", 503, "reset", "truncate"], "GET"
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT[:-1]], ids=["another byte", "too short"])
def test_damage_is_found_and_leaves_nothing(place: Remote, tmp_path: Path, content: bytes) -> None:
    place.write(content)
    with pytest.raises(StorageError, match=r"is damaged|has fewer"):
        fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert not (tmp_path / "file").exists()
    place.write(CONTENT)
    fetch(place, tmp_path / "file", len(CONTENT), DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT
