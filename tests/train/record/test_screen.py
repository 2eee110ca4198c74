"""A reader that stops reading holds nobody up, and loses only what no longer matters."""

from __future__ import annotations

import fcntl
import io
import os
import threading
from collections.abc import Iterator

import pytest

from meshwright.train.record import screen
from meshwright.train.record.screen import Screen


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A small pipe: its end to read, and a file to write."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with open(writing, "w") as out:
        yield reading, out
    os.close(reading)


def test_a_reader_that_reads_gets_all_in_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reading, out = pipe
    shown = Screen(out)
    for number in range(5):
        shown.write(f"{number}\n")
    shown.end()
    assert os.read(reading, 1000) == b"0\n1\n2\n3\n4\n"


def test_a_reader_that_stopped_blocks_nobody(pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "END_S", 0.05)
    reading, out = pipe
    shown = Screen(out)

    def train() -> None:
        for number in range(3000):
            shown.write(f"step {number}".ljust(100) + "\n", is_live=True)
        shown.write("the end\n")
        shown.end()

    training = threading.Thread(target=train, daemon=True)
    training.start()
    training.join(60)
    assert not training.is_alive()
    assert len(shown._waiting) <= 2  # of the live lines the last alone waits
    got = b""
    while not got.endswith(b"the end\n"):
        got += os.read(reading, 4096)
    assert got.splitlines()[-2].startswith(b"step 2999")


def test_lasting_lines_wait_in_bounded_number(pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "END_S", 0.05)
    reading, out = pipe
    os.write(out.fileno(), b"." * 4096)  # the reader has stopped before the first line
    shown = Screen(out)
    for number in range(5000):
        shown.write(f"{number:0200}\n")
    shown.end()
    assert screen.MOST_TEXTS - 1 <= len(shown._waiting) <= screen.MOST_TEXTS  # the thread may hold one that it cannot hand over
    got = b""
    while not got.endswith(f"{4999:0200}\n".encode()):
        got += os.read(reading, 1 << 20)
    assert screen.MOST_TEXTS <= got.count(b"\n") <= screen.MOST_TEXTS + 1
