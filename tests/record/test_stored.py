"""The records of a run in object storage, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer

from meshwright.errors import InputError
from meshwright.record import stored
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.stored import Copies, Mirror, has_records, own_writer, pull, push, record_names
from meshwright.record.writer import RunWriter, is_free
from meshwright.storage import StorageError
from meshwright.storage.lease import Lease

HEADER = RunHeader(name="a", kind="trained", seed=1, num_ranks=1, machine="here")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "ROUND_S", 0.05)
    monkeypatch.setattr(stored, "BEAT_S", 0.05)
    monkeypatch.setattr(stored, "ROUND_PATIENCE_S", 0.2)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter.create(tmp_path / "runs", HEADER, b"{}") as made:
        made.event("start", 0)
        yield made


def step(number: int) -> StepRecord:
    return StepRecord(step=number, samples=number, loss=1.0, grad_norm=1.0, step_s=0.1)


def until(met: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not met():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_records_are_copied_there_and_back(s3: ObjectServer, writer: RunWriter, tmp_path: Path) -> None:
    place = s3.place() / "a"
    copies = Copies(writer.folder, place, "me")
    copies.copy()
    writer.step(step(1))
    copies.copy()
    assert copies.missing() == [] and has_records(place)
    pull(place, tmp_path / "other" / "a")
    assert [record.step for record in read_run(tmp_path / "other" / "a").records] == [1]
    writer.step(step(2))
    writer.finish("finished")
    copies.copy()
    pull(place, tmp_path / "other" / "a")
    again = read_run(tmp_path / "other" / "a")
    assert [record.step for record in again.records] == [1, 2] and again.header.status == "finished"


def test_checkpoints_locks_and_drafts_are_not_copied(tmp_path: Path) -> None:
    for name in ("run.json", ".lock", ".remote.json", ".run.json.new", "checkpoints/step-1/x", "flight/rank-0.json", ".step-aside.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert record_names(tmp_path) == [".step-aside.json", "flight/rank-0.json", "run.json"]


@pytest.mark.parametrize("num_puts", range(6))
def test_a_copy_that_is_cut_off_anywhere_can_be_read(
    proxy: FaultProxy, s3: ObjectServer, writer: RunWriter, tmp_path: Path, num_puts: int
) -> None:
    place = s3.place(patience_s=0.1) / "a"
    copies = Copies(writer.folder, place, "me")
    copies.copy()
    for number in (1, 2):
        writer.step(step(number))
        writer.event("evaluation", number)
        writer.update(num_steps=number)
        proxy.faults.only, proxy.faults.answers = "PUT", []
        proxy.faults.answers = ["pass"] * num_puts + [500] * 1000
        try:
            copies.copy()
        except StorageError:
            assert num_puts < 4
        proxy.faults.answers = []
        pull(place, tmp_path / "other" / "a")
        assert read_run(tmp_path / "other" / "a").header.name == "a"


def test_damage_is_found(s3: ObjectServer, writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3.place() / "a"
    monkeypatch.setattr(stored, "READS", 2)
    Copies(writer.folder, place, "me").copy()
    (place / "events.jsonl").write(b"something else\n")
    with pytest.raises(StorageError, match=r"events\.jsonl is damaged"):
        pull(place, tmp_path / "other" / "a")


@pytest.mark.parametrize("index", [b"", b"{}", b'{"owner": "a", "files": {"../x": []}}', b'{"owner": "a", "files": {"/etc/x": []}}'])
def test_a_list_of_files_is_not_trusted(s3: ObjectServer, tmp_path: Path, index: bytes) -> None:
    place = s3.place() / "a"
    (place / ".stored.json").write(index)
    with pytest.raises(StorageError, match="the list of the run's files"):
        pull(place, tmp_path / "a")


def test_no_run_is_one_message(s3: ObjectServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run here"):
        pull(s3.place() / "a", tmp_path / "a")


def test_own_records_are_kept_until_another_has_written(s3: ObjectServer, writer: RunWriter, tmp_path: Path) -> None:
    place = s3.place() / "a"
    mirror = Mirror(writer.folder, place, Lease.take(place), lambda kind, message: None)
    assert mirror.close() == []
    writer.step(step(1))  # not copied: this machine lost its connection
    pull(place, writer.folder)
    assert len(read_run(writer.folder).records) == 1
    pull(place, tmp_path / "other" / "a")
    Copies(tmp_path / "other" / "a", place, "another writer").copy()
    pull(place, writer.folder)
    assert read_run(writer.folder).records == () and own_writer(writer.folder) == ""


def test_a_mirror_copies_renews_and_reports_a_dead_server(proxy: FaultProxy, s3: ObjectServer, writer: RunWriter, tmp_path: Path) -> None:
    place = s3.place() / "a"
    told: list[str] = []
    mirror = Mirror(writer.folder, place, Lease.take(place), lambda kind, message: told.append(kind))
    until(lambda: has_records(place) and mirror.lease.owner.beat > 1)
    proxy.faults.is_dead = True
    writer.step(step(1))
    until(lambda: told == ["storage_failed"])
    proxy.faults.is_dead = False
    until(lambda: told == ["storage_failed", "storage_back"])
    assert mirror.close() == []
    pull(place, tmp_path / "other" / "a")
    assert len(read_run(tmp_path / "other" / "a").records) == 1
    Lease.take(place, wait=lambda seconds: pytest.fail("it was released")).release()


def test_what_was_not_stored_is_named_at_the_end(proxy: FaultProxy, s3: ObjectServer, writer: RunWriter) -> None:
    place = s3.place(patience_s=0.3) / "a"
    told: list[str] = []
    mirror = Mirror(writer.folder, place, Lease.take(place), lambda kind, message: told.append(message))
    until(lambda: has_records(place))
    proxy.faults.is_dead = True
    writer.step(step(1))
    until(lambda: bool(told))
    *names, why = mirror.close()
    assert "steps.jsonl" in names and "did not answer" in why
    proxy.faults.is_dead = False
    assert push(writer.folder, place) == []
    assert (place / "steps.jsonl").read() == (writer.folder / "steps.jsonl").read_bytes()


def test_a_writer_that_was_replaced_stores_nothing_more(s3: ObjectServer, writer: RunWriter) -> None:
    place = s3.place() / "a"
    told: list[str] = []
    mirror = Mirror(writer.folder, place, Lease.take(place), lambda kind, message: told.append(message))
    until(lambda: has_records(place))
    (place / ".lease-00000009.json").write(b"{}")
    until(lambda: bool(told))
    assert "another process has taken over" in told[0]
    writer.step(step(1))
    assert "steps.jsonl" in mirror.close()
    assert (place / "steps.jsonl").read() == b""


def test_a_folder_with_the_name_of_its_writer_alone_is_free(tmp_path: Path) -> None:
    (tmp_path / ".remote.json").write_text("{}")
    assert is_free(tmp_path) and own_writer(tmp_path) == ""
