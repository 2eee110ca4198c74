"""A growing file is read line by line, each byte once."""

from __future__ import annotations

import os

import pytest

from meshwright.errors import InputError
from meshwright.serve import tail as tail_module
from meshwright.serve.tail import Tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps.jsonl"


def test_only_new_lines_come_back(path):
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    assert tail.read() == (False, [b"one", b"two"])
    assert tail.read() == (False, [])
    with path.open("ab") as file:
        file.write(b"three\n")
    assert tail.read() == (False, [b"three"])
    assert tail.num_lines == 3


def test_a_half_written_line_waits_for_its_end(path):
    path.write_bytes(b"one\nhal")
    tail = Tail(path)
    assert tail.read() == (False, [b"one"])
    with path.open("ab") as file:
        file.write(b"f\n")
    assert tail.read() == (False, [b"half"])


def test_a_file_put_in_its_place_is_read_anew(path, tmp_path):
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    tail.read()
    (tmp_path / "new").write_bytes(b"one\ntwo\nthree\n")
    os.replace(tmp_path / "new", path)
    assert tail.read() == (True, [b"one", b"two", b"three"])


def test_a_file_that_shrank_or_went_is_read_anew(path):
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    tail.read()
    os.truncate(path, 4)
    assert tail.read() == (True, [b"one"])
    path.unlink()
    assert tail.read() == (True, [])


def test_no_file_has_no_lines(path):
    assert Tail(path).read() == (False, [])


def test_a_long_file_comes_in_blocks_and_loses_nothing(path, monkeypatch):
    monkeypatch.setattr(tail_module, "BLOCK_BYTES", 64)
    lines = [f"line {number}".encode() for number in range(100)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    tail, found = Tail(path), []
    while new := tail.read()[1]:
        found += new
    assert found == lines


def test_a_line_longer_than_any_of_ours_is_one_line_that_no_parser_takes(path, monkeypatch):
    monkeypatch.setattr(tail_module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(tail_module, "LONGEST_LINE_BYTES", 64)
    path.write_bytes(b"x" * 1000 + b"\nafter\n")
    tail, found = Tail(path), []
    for _ in range(40):
        found += tail.read()[1]
    assert found == [b"\0", b"after"]


def test_a_link_and_a_pipe_are_refused(path, tmp_path):
    (tmp_path / "secret").write_text("secret\n")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        Tail(path).read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a plain file"):
        Tail(path).read()
