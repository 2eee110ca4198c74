"""The line that a person watches: renewed on a terminal, plain lines in a file, and nothing that ends a run."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from small_run import Small

from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.health.slow_links import SlowLink
from meshwright.train.job import TrainingJob
from meshwright.train.loop import Progress
from meshwright.train.record import logbook
from meshwright.train.record.logbook import LiveLine, of_step, progress_stream

PARTS_S = {"compute": 0.3, "exposed_tp": 0.1}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def job(small: Small, tmp_path: Path) -> TrainingJob:
    return TrainingJob(plan=small.plan("dp=2", training={"target_loss": 5.0}), runs=tmp_path, name="a", corpus=small.corpus, num_steps=100)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at its first entry."""
    now_s = [1000.0]
    monkeypatch.setattr(logbook.time, "monotonic", lambda: now_s[0])
    return now_s


def show(line: LiveLine, clock: list[float], num_steps: int, step_s: float) -> None:
    for step in range(1, num_steps + 1):
        clock[0] += step_s
        line.step(Progress(step=step, samples=8 * step), 6.0, 0.4, PARTS_S)


@pytest.mark.parametrize("attention", ["", "flash-attn-4 4.5"])
def test_a_run_that_begins_names_what_it_attends_by_if_not_torch(job: TrainingJob, monkeypatch: pytest.MonkeyPatch, attention: str) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    book = object.__new__(logbook.Logbook)
    book.job, book.writer = job, None
    monkeypatch.setattr(logbook.Logbook, "event", lambda self, kind, progress, **detail: events.append((kind, detail)))
    book.begun(Progress(step=0, samples=0), 1.5, attention, num_groups=8, groups_s=0.25)
    ((kind, detail),) = events
    assert kind == "start" and detail["starting_s"] == 1.5 and detail.get("attention", "") == attention
    assert ("attention" in detail) == bool(attention)


def test_a_slow_link_is_recorded_with_what_was_compared(job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"axis": "dp", "groups": ((0, 4),), "hosts": ("a", "b"), "peers": ((1, 5),), "step": 50, "num_steps": 40}
    found = [SlowLink(**groups, slowdown=2.0), SlowLink(**groups, slowdown=1.0, recovered=True)]
    events: list[tuple[str, dict[str, object]]] = []
    book = object.__new__(logbook.Logbook)
    book.job, book.writer, book.live, book._share = job, None, None, np.ones(8)
    book.slow_links = MagicMock(update=lambda *_: found)
    monkeypatch.setattr(logbook.Logbook, "event", lambda self, kind, progress, **detail: events.append((kind, detail)))
    book._links(MagicMock(step=50, step_s=1.0), np.zeros((8, 11)))
    assert [kind for kind, _ in events] == ["slow_link", "recovered_link"]
    detail = events[0][1]
    assert (detail["ranks"], detail["groups"], detail["hosts"], detail["compared_with"]) == ([0, 4], [[0, 4]], ["a", "b"], [[1, 5]])
    assert str(detail["message"]).startswith(
        "the link between hosts a and b is slow: the data-parallel exchange between ranks 0, 4 takes 100 % longer"
    )


def test_a_terminal_has_one_line(job: TrainingJob, clock: list[float]) -> None:
    out = Terminal()
    line = LiveLine(job, out)
    show(line, clock, 3, 1.0)
    line.end()
    words = "loss 6.000  640 tokens/s  exposed 25 %  at most"
    assert out.getvalue().count("\n") == 1
    assert [text.rstrip() for text in out.getvalue().strip("\r\n").split("\r")] == [
        f"step 1/100  {words} 39.6 s to the end",
        f"step 2/100  {words} 39.2 s to the end",
        f"step 3/100  {words} 38.8 s to the end",
    ]


def test_a_terminal_is_not_renewed_faster_than_one_can_read(job: TrainingJob, clock: list[float]) -> None:
    out = Terminal()
    show(LiveLine(job, out), clock, 100, 0.01)
    assert 4 <= out.getvalue().count("\r") <= 6


def test_a_file_has_plain_lines(job: TrainingJob, clock: list[float]) -> None:
    out = io.StringIO()
    line = LiveLine(job, out)
    show(line, clock, 25, 1.0)
    line.evaluation(Progress(step=25, samples=200), 5.5)
    line.end()
    lines = out.getvalue().splitlines()
    assert "\r" not in out.getvalue()
    assert [text.split()[1] for text in lines] == ["1/100", "11/100", "21/100", "25:"]
    assert lines[-1] == "step 25: validation loss 5.5000, target 5.0000"


def test_a_lasting_line_stands_above_the_live_one(job: TrainingJob, clock: list[float]) -> None:
    out = Terminal()
    line = LiveLine(job, out)
    show(line, clock, 1, 1.0)
    line.say("rank 1 is slow")
    assert out.getvalue().endswith(" \rrank 1 is slow\n")


def test_a_reader_that_went_away_does_not_end_the_run(job: TrainingJob, clock: list[float]) -> None:
    attempts = []

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            attempts.append(text)
            raise BrokenPipeError

    line = LiveLine(job, Closed())
    show(line, clock, 2, 20.0)
    assert len(attempts) >= 2  # it went on after the first refusal


def test_where_it_is_reported(job: TrainingJob) -> None:
    from dataclasses import replace

    assert progress_stream(job) is sys.stdout
    assert progress_stream(replace(job, prints_json=True)) is sys.stderr


def test_parts_add_up_to_the_step_of_the_first_rank() -> None:
    everyones = np.zeros((4, len(PARTS)))
    everyones[:, PARTS.index("compute")] = [1.0, 1.0, 3.0, 3.0]  # the second stage has more to do
    everyones[:, PARTS.index("bubble")] = [3.0, 3.0, 1.0, 1.0]
    parts_s = of_step(everyones, Layout(tp=2, pp=2), 8.0)
    assert (parts_s["compute"], parts_s["bubble"], sum(parts_s.values())) == (6.0, 2.0, 8.0)


@pytest.mark.parametrize(("recorded", "counts", "is_made_up"), [(2, 3, True), (3, 3, False), (2, 2, False), (1, 3, False)])
def test_a_step_that_the_lost_writer_did_not_record_is_made_up(
    job: TrainingJob, monkeypatch: pytest.MonkeyPatch, recorded: int, counts: int, is_made_up: bool
) -> None:
    """A rank that is left has the result of the newest step, and may be the one that writes the records from now on."""
    job.folder.mkdir(parents=True)
    (job.folder / "steps.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(1, recorded + 1)))
    unwritten, written = MagicMock(step=3), list[object]()
    book = object.__new__(logbook.Logbook)
    book.writer = MagicMock(folder=job.folder, step=written.append)
    monkeypatch.setattr(logbook.Logbook, "_record", lambda self, done, parts_s: (done.step, parts_s))
    book.make_up(unwritten, Progress(step=counts, samples=8 * counts))
    book.make_up(None, Progress(step=counts, samples=8 * counts))
    assert written == ([(3, {})] if is_made_up else [])
