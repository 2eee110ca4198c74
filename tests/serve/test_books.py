"""Ledgers of live runs: made beside the requests, once for each change, never for ever, and none of a damaged folder."""

from __future__ import annotations

import threading
import time

import pytest

from meshwright.ledger import ledger_of
from meshwright.serve import books as module
from meshwright.serve.books import Books, _made
from meshwright.serve.live import LiveRun


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr("meshwright.serve.live.LOOK_S", 0.0)


@pytest.fixture
def books():
    books = Books()
    yield books
    books.close()


def live(writer) -> LiveRun:
    run = LiveRun(writer.folder)
    run.refresh()
    return run


def settled(books: Books, run: LiveRun):
    """The ledger, once it is made."""
    deadline_s = time.monotonic() + 20
    while (found := books.ledger(run)) is None and not books.is_settled(run) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return found


def test_a_ledger_comes_once_it_is_made_and_is_that_of_the_folder(books, new_run, plan_bytes):
    run = live(new_run("a", 20, plan=plan_bytes))
    found = settled(books, run)
    assert found is not None and found.usd == ledger_of(run.folder).usd and books.is_settled(run)


def test_no_request_waits_for_a_ledger(books, new_run, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(module, "_made", lambda folder: (go.wait(20), 0.0))
    run = live(new_run("a", 3))
    assert books.ledger(run) is None and not books.is_settled(run)
    assert books.ledger(run) is None  # and none is asked for twice
    go.set()


def test_a_ledger_is_made_again_after_a_change_and_a_rest(books, new_run, monkeypatch):
    made = []
    monkeypatch.setattr(module, "_made", lambda folder: (made.append(folder) or ledger_of(folder), 0.0))
    changes = [100.0]
    monkeypatch.setattr(LiveRun, "touched", property(lambda run: changes[-1]))
    run = live(new_run("a", 3))
    settled(books, run)
    changes.append(200.0)
    books.ledger(run)
    assert len(made) == 1 and not books.is_settled(run)  # it is too young
    monkeypatch.setattr(module, "AGE_S", 0.0)
    books.ledger(run)
    deadline_s = time.monotonic() + 20
    while not books.is_settled(run) and time.monotonic() < deadline_s:
        books.ledger(run)
    assert len(made) == 2


def test_a_run_that_is_gone_is_forgotten(books, new_run):
    run = live(new_run("a", 3))
    settled(books, run)
    books.forget(run)
    books.forget(run)
    assert not books.is_settled(run)


def test_of_a_damaged_folder_there_is_none_and_it_is_not_asked_for_again(books, new_run):
    writer = new_run("a", 3)
    run = live(writer)
    (writer.folder / "steps.jsonl").unlink()
    (writer.folder / "steps.jsonl").mkdir()
    assert settled(books, run) is None and books.is_settled(run)


def test_a_file_that_is_too_long_or_a_link_is_not_added_up(new_run, tmp_path, monkeypatch):
    writer = new_run("a", 3)
    assert _made(writer.folder)[0] is not None
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert _made(writer.folder)[0] is None
    monkeypatch.undo()
    (tmp_path / "other").write_bytes((writer.folder / "steps.jsonl").read_bytes())
    (writer.folder / "steps.jsonl").unlink()
    (writer.folder / "steps.jsonl").symlink_to(tmp_path / "other")
    assert _made(writer.folder)[0] is None


def test_after_closing_nothing_is_started_and_a_request_still_gets_an_answer(new_run, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(module, "_made", lambda folder: (None, float(go.wait(20))))
    books = Books()
    first, second = live(new_run("a", 3)), live(new_run("b", 3))
    books.ledger(first)
    books.ledger(second)  # waits behind the first, and is given up
    books.close()
    assert books.ledger(second) is None and books.ledger(live(new_run("c", 3))) is None
    go.set()
