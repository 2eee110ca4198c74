"""Runs at a URL, as the live page shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.stored import Copies
from meshwright.record.writer import RunWriter
from meshwright.serve import stored_runs
from meshwright.serve.live import LiveRun
from meshwright.serve.shelf import Shelf
from meshwright.serve.stored_runs import StoredRuns
from meshwright.storage import Remote

HEADER = RunHeader(name="a", kind="trained", seed=1, num_ranks=1, machine="here")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter.create(tmp_path / "written", HEADER, b"{}") as made:
        made.event("start", 0)
        yield made


def stored(writer: RunWriter, place: Remote) -> Copies:
    return Copies(writer.folder, place / "a", "the owner")


def step(number: int) -> StepRecord:
    return StepRecord(step=number, samples=number, loss=1.0, grad_norm=1.0, step_s=0.1)


def test_steps_appear_without_a_new_beginning(s3: ObjectServer, writer: RunWriter, tmp_path: Path) -> None:
    place = s3.place()
    copies, runs = stored(writer, place), StoredRuns(place, tmp_path / "cache", pytest.fail)
    shelf = Shelf(runs.folder, str(place))
    assert shelf.listed() == {"runs": [], "num_runs": 0, "folder": str(place)}
    live = LiveRun(runs.folder / "a")
    for number in (1, 2):
        writer.step(step(number))
        copies.copy()
        runs.round()
        live.looked_s = 0.0
        live.refresh()
        assert (live.num_done, live.life) == (number, 1)
    (row,) = shelf.listed()["runs"]
    assert (row["name"], row["step"], row["status"]) == ("a", 2, "running")


def test_a_run_that_has_ended_is_not_asked_for_again_at_once(
    proxy: FaultProxy, s3: ObjectServer, writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3.place()
    copies, runs = stored(writer, place), StoredRuns(place, tmp_path / "cache", pytest.fail)
    writer.step(step(1))
    writer.finish("finished")
    copies.copy()
    runs.round()
    asked = len(proxy.faults.log)
    runs.round()
    assert len(proxy.faults.log) == asked + 1, "only the list of runs"
    monkeypatch.setattr(stored_runs, "ENDED_S", 0.0)
    runs.round()
    assert len(proxy.faults.log) == asked + 3


def test_a_server_that_dies_is_told_once_and_when_it_is_back(
    proxy: FaultProxy, s3: ObjectServer, writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_runs, "ROUND_PATIENCE_S", 0.2)
    place, said = s3.place(), []
    runs = StoredRuns(place, tmp_path / "cache", said.append)
    stored(writer, place).copy()
    proxy.faults.is_dead = True
    runs.round()
    runs.round()
    proxy.faults.is_dead = False
    runs.round()
    assert len(said) == 2 and "did not answer" in said[0] and said[1] == f"{place} can be read again"


def test_a_damaged_run_is_named_and_the_others_are_shown(s3: ObjectServer, writer: RunWriter, tmp_path: Path) -> None:
    place, said = s3.place(), []
    stored(writer, place).copy()
    (place / "b" / ".stored.json").write(b"{}")
    (place / "no-run" / "notes.txt").write(b"of somebody else")
    runs = StoredRuns(place, tmp_path / "cache", said.append)
    runs.round()
    assert len(said) == 1 and "b: the list of the run's files is damaged" in said[0]
    assert [row["name"] for row in Shelf(runs.folder).listed()["runs"]] == ["a"]
