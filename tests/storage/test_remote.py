"""Objects below a URL, on real servers, with faults between them and us."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.errors import InputError
from meshwright.storage import Missing, Remote, StorageError, is_url, remote


@pytest.mark.parametrize("text", ["s3://bucket/a/b", "az://container/a/b", str(Path("s3://bucket/a/b"))])
def test_a_url_is_known_also_as_a_path(text: str) -> None:
    assert is_url(text)
    assert str(Remote.at(text)).endswith("/a/b") and "://" in str(Remote.at(text))


def test_a_path_is_not_a_url() -> None:
    assert not any(is_url(text) for text in ("runs", "/mnt/runs", "./s3", "a:b", "C:/runs"))


@pytest.mark.parametrize("text", ["ftp://host/a", "s3://", "s3://bucket/../a", "file:///a", "s3:bucket"])
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a URL of object storage"):
        Remote.at(text)


def test_parts_of_a_place() -> None:
    place = Remote.at("s3://bucket//a//b/")
    assert (place.root, place.key, place.name) == ("s3://bucket", "a/b", "b")
    assert str(place / "c") == "s3://bucket/a/b/c"
    assert str(Remote.at("s3://bucket") / "c") == "s3://bucket/c"


@pytest.fixture(params=["s3", "azure"])
def place(request: pytest.FixtureRequest) -> Remote:
    server: ObjectServer = request.getfixturevalue(request.param)
    return server.place() / "a folder, with 100 % + signs"


def test_objects_are_written_read_listed_and_removed(place: Remote) -> None:
    (place / "one").write(b"first")
    (place / "one").write(b"second")
    (place / "below" / "two").write(b"")
    assert (place / "one").read() == b"second"
    assert (place / "below" / "two").read() == b""
    assert (place / "one").size_bytes() == 6 and (place / "one").exists()
    assert bytes((place / "one").read_range(2, 4)) == b"co" and bytes((place / "one").read_range(4, 99)) == b"nd"
    assert place.files() == {"one": 6} and place.folders() == ["below"]
    place.remove_all()
    assert place.files() == {} and place.folders() == []
    (place / "one").remove()
    assert not (place / "one").exists()
    with pytest.raises(Missing, match="one does not exist"):
        (place / "one").read()


def test_only_one_of_two_creates_an_object(place: Remote) -> None:
    assert (place / "lock").create(b"mine")
    assert not (place / "lock").create(b"yours")
    assert (place / "lock").create(b"mine"), "the same content: an earlier request worked, and its answer was lost"
    assert (place / "lock").read() == b"mine"


def test_a_large_object_is_uploaded_in_parts(place: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    blocks = [bytes([number]) * (1 << 20) for number in range(12)]
    (place / "large").upload((memoryview(block) for block in blocks), 12 << 20)
    assert (place / "large").size_bytes() == 12 << 20
    assert bytes((place / "large").read_range((5 << 20) - 1, (5 << 20) + 1)) == b"\x04\x05"


def test_no_bucket_is_one_message(s3: ObjectServer) -> None:
    for act in (lambda place: place.write(b""), lambda place: place.files()):
        with pytest.raises(InputError, match="there is no bucket s3://test-nowhere"):
            act(Remote.at("s3://test-nowhere/a"))


def test_no_credentials_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no credentials for az://nowhere") as refused:
        Remote.at("az://nowhere/a", 0.5).write(b"")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in refused.value.fix


def test_a_missing_package_is_one_message() -> None:
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from meshwright.storage import Remote\n"
        "try: Remote.at('s3://b/a').read()\n"
        "except Exception as error: print(type(error).__name__, error.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "InputError pip install 'meshwright[storage]'\n"


@pytest.mark.parametrize("fault", [429, 500, 503, "reset"])
def test_a_passing_fault_is_tried_again(proxy: FaultProxy, s3: ObjectServer, fault: int | str) -> None:
    place = s3.place()
    for act in (lambda: (place / "a").write(b"abc"), lambda: (place / "a").read(), lambda: place.files()):
        proxy.faults.answers = [fault, fault]
        act()
        assert proxy.faults.answers == []
    assert (place / "a").read() == b"abc"


def test_an_answer_that_is_cut_short_is_asked_for_again(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place()
    content = bytes(range(256)) * 4096
    (place / "a").write(content)
    proxy.faults.answers, proxy.faults.only = ["truncate", "truncate"], "GET"
    assert bytes((place / "a").read_range(0, len(content))) == content
    assert proxy.faults.answers == []


def test_a_create_whose_answer_is_lost_has_worked(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place()
    proxy.faults.answers, proxy.faults.only = ["truncate"], "PUT"
    assert (place / "a").create(b"mine")
    assert (place / "a").read() == b"mine"


def test_latency_only_takes_time(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place()
    proxy.faults.latency_s = 0.05
    (place / "a").write(b"abc")
    assert (place / "a").read() == b"abc"


def test_a_dead_server_is_an_error_after_the_patience(proxy: FaultProxy, s3: ObjectServer) -> None:
    place = s3.place(patience_s=0.5)
    proxy.faults.is_dead = True
    begun_s = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write a: the server did not answer as it should for 0.5 s"):
        (place / "a").write(b"abc")
    assert time.monotonic() - begun_s < 20
    proxy.faults.is_dead = False
    (place / "a").write(b"abc")
    assert (place / "a").read() == b"abc"


def parts(number: int = 12) -> list[bytes]:
    return [bytes([block]) * (1 << 20) for block in range(number)]


@pytest.mark.parametrize("faults", [[429, 503, 429], ["reset", "reset"], ["pass", 429, "reset", "truncate", 500]], ids=str)
def test_a_large_upload_survives_faults_in_any_part(
    proxy: FaultProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch, faults: list[int | str]
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    place = s3.place() / "large"
    proxy.faults.answers, proxy.faults.only = list(faults), "PUT"
    place.upload(parts(), 12 << 20)
    assert not proxy.faults.answers, "all faults were met"
    assert place.read() == b"".join(parts())


def test_the_begin_and_the_end_of_a_large_upload_survive_faults(
    proxy: FaultProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    place = s3.place() / "large"
    proxy.faults.answers, proxy.faults.only = [429, 500, "pass", 503, 429], "POST"
    place.upload(parts(), 12 << 20)
    assert not proxy.faults.answers and place.read() == b"".join(parts())


def test_a_server_that_dies_in_a_large_upload_leaves_no_object(
    proxy: FaultProxy, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 5 << 20)
    place = s3.place(patience_s=0.5) / "large"

    def dying() -> Iterator[bytes]:
        for number, part in enumerate(parts()):
            proxy.faults.is_dead = number > 7
            yield part

    with pytest.raises(StorageError, match="did not answer"):
        place.upload(dying(), 12 << 20)
    proxy.faults.is_dead = False
    assert not place.exists()
