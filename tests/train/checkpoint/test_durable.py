"""Files that are on the disk before anyone relies on them, and errors that say what the disk refused and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.checkpoint import durable
from meshwright.train.checkpoint.durable import (
    FIXES,
    CheckpointError,
    canonical,
    explained,
    may_pass,
    new_file,
    parse_json,
    read_at,
    read_json,
    regular_file,
    remove_folder,
    sync_folder,
    write_all,
    write_json,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("number", FIXES)
def test_a_refusal_says_what_failed_where_and_how_to_mend_it(number: int) -> None:
    with pytest.raises(CheckpointError) as caught, explained("cannot write the shard", Path("/disk/shard")):
        raise OSError(number, "as the system says it")
    assert caught.value.what == f"cannot write the shard: {os.strerror(number)}"
    assert (caught.value.where, caught.value.fix) == ("/disk/shard", FIXES[number])


def test_an_error_without_a_number_or_of_an_unknown_one_is_told_too() -> None:
    for error, reason in ((OSError("strange"), "strange"), (OSError(errno.EBADF, "x"), os.strerror(errno.EBADF))):
        with pytest.raises(CheckpointError, match=f"cannot read: {reason}") as caught, explained("cannot read", Path("a")):
            raise error
        assert caught.value.fix == "see the disk's own messages"


@pytest.mark.parametrize(("number", "passes"), [(errno.EIO, True), (errno.ESTALE, True), (errno.ENOSPC, False), (errno.EACCES, False)])
def test_only_what_may_pass_is_tried_again(number: int, passes: bool) -> None:
    with pytest.raises(CheckpointError) as caught, explained("cannot read", Path("a")):
        raise OSError(number, "x")
    assert may_pass(caught.value) is passes
    assert not may_pass(CheckpointError("the file is empty", where="a"))


def test_every_byte_is_written_though_the_system_takes_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    with new_file(tmp_path / "a") as fd:
        write_all(fd, b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_system_that_takes_nothing_is_an_error_and_no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(OSError, match="nothing was written"):
        write_all(9, b"x")


def test_a_new_file_never_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    with pytest.raises(FileExistsError), new_file(tmp_path / "a"):
        raise AssertionError("it must not be opened")
    assert (tmp_path / "a").read_text() == "kept"


def test_a_file_is_synced_before_its_block_ends_and_a_folder_when_asked(tmp_path: Path, watched: Callable[..., object]) -> None:
    with watched(lambda *_: None) as calls, new_file(tmp_path / "a"):  # type: ignore[attr-defined]
        pass
    assert calls == ["open", "fsync", "close"]
    with watched(lambda *_: None) as calls:  # type: ignore[attr-defined]
        sync_folder(tmp_path)
    assert calls == ["open", "fsync", "close"]


def test_a_block_that_fails_is_closed_and_not_synced(tmp_path: Path, watched: Callable[..., object]) -> None:
    with pytest.raises(ZeroDivisionError), watched(lambda *_: None) as calls, new_file(tmp_path / "a"):  # type: ignore[attr-defined]
        raise ZeroDivisionError
    assert calls == ["open", "close"]


@given(VALUES)
def test_equal_values_have_equal_bytes_and_come_back(value: object) -> None:
    text = canonical(value)
    assert parse_json(text, Path("a")) == value and canonical(parse_json(text, Path("a"))) == text


def test_the_order_of_keys_does_not_show() -> None:
    assert canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1}) == b'{"a":[1,2],"b":1}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical(value)


@pytest.mark.parametrize(
    "text, why",
    [
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"b": {"a": 1, "a": 1}}', "occurs twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"-Infinity", "-Infinity is not a JSON number"),
        (b"{", "Expecting"),
        (b"\xff", "utf-8"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_text_that_is_not_as_it_is_written_here_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(CheckpointError, match=r"m\.json is not JSON as written here") as caught:
        parse_json(text, Path("there/m.json"))
    assert why in caught.value.what and caught.value.where == "there/m.json"


def test_a_json_file_appears_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    (tmp_path / "a.json.unfinished").write_text("of a writer that died")
    for value in ({"a": 1}, {"a": 2}):  # the second replaces the first
        write_json(path, value)
        assert read_json(path) == value and [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_writer_that_dies_leaves_the_old_file_as_it_was(tmp_path: Path, watched: Callable[..., object]) -> None:
    write_json(tmp_path / "a.json", 1)

    def dies(number: int, name: str, arguments: tuple) -> None:
        if name == "rename":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watched(dies):  # type: ignore[attr-defined]
        write_json(tmp_path / "a.json", 2)
    assert read_json(tmp_path / "a.json") == 1


def test_an_empty_an_absurd_and_an_absent_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    with pytest.raises(CheckpointError, match=r"cannot open m\.json: No such file"):
        read_json(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"m\.json is empty"):
        read_json(path)
    monkeypatch.setattr(durable, "MAX_JSON_BYTES", 4)
    path.write_bytes(b"12345")
    with pytest.raises(CheckpointError, match=r"m\.json has 5 bytes, more than the 4 of any manifest"):
        read_json(path)
    path.write_bytes(b"1234")
    assert read_json(path) == 1234


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "link").symlink_to("plain")
    os.mkfifo(tmp_path / "pipe")  # nobody writes: an ordinary open would wait for ever
    with regular_file(tmp_path / "plain") as fd:
        assert os.read(fd, 9) == b"x"
    for name, why in (("link", "cannot open link"), ("pipe", "pipe is not a plain file"), (".", "is not a plain file")):
        with pytest.raises(CheckpointError, match=why), regular_file(tmp_path / name):
            raise AssertionError("it must not be opened")


@pytest.mark.parametrize(
    "offset, length, expected", [(0, 10, b"0123456789"), (4, 3, b"456"), (8, 5, b"89"), (10, 4, b""), (50, 4, b""), (3, 0, b"")]
)
def test_bytes_are_read_from_an_offset_to_the_end_at_most(
    offset: int, length: int, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:2]], at))  # a system that gives two bytes at a time
    with regular_file(tmp_path / "a") as fd:
        assert bytes(read_at(fd, offset, memoryview(bytearray(length)))) == expected


def test_a_folder_that_is_gone_is_removed_already(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for _ in range(2):
        remove_folder(tmp_path / "a")
        assert not (tmp_path / "a").exists()
