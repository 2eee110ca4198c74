"""Whole runs in object storage, as a user starts them: on one machine after another, with faults of the server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer
from small_run import Command, Small, events_of, start, steps_of, tensors_of, until

from meshwright.storage import Remote
from meshwright.train.checkpoint import newest_loadable


class Machine:
    """A machine with a cache of its own, on which commands run."""

    def __init__(self, folder: Path, server: ObjectServer, port: int | None = None) -> None:
        self.folder = folder
        self.environment = {**server.variables(port or server.port), "XDG_CACHE_HOME": str(folder / "cache")}

    def start(self, *arguments: str | Path) -> Command:
        return start(self.folder / "work", arguments, environment=self.environment)

    def done(self, *arguments: str | Path, code: int = 0) -> Command:
        command = self.start(*arguments)
        assert command.wait() == code, f"{command.out}\n{command.err}"
        return command

    def run_folder(self, name: str) -> Path:
        (found,) = (self.folder / "cache" / "meshwright" / "runs").glob(f"*/{name}")
        return found


@pytest.fixture
def place(s3: ObjectServer) -> Remote:
    return s3.place()


def test_a_run_goes_on_at_another_machine_with_the_same_steps(
    s3: ObjectServer, place: Remote, small: Small, plan_of_two: Path, tmp_path: Path
) -> None:
    one, two = Machine(tmp_path / "one", s3), Machine(tmp_path / "two", s3)
    common = ("--runs", str(place), "--name", "a", "--checkpoint-every", "2")
    one.done("train", plan_of_two, *common, "--steps", "4")
    shutil.rmtree(tmp_path / "one")
    again = two.done("train", *common, "--resume", "--steps", "6")
    assert "continuing from step-00000004" in again.out
    whole = Machine(tmp_path / "whole", s3)
    whole.done("train", plan_of_two, "--runs", tmp_path / "disk", "--name", "a", "--steps", "6")
    run = two.run_folder("a")
    assert [step["loss"] for step in steps_of(run)] == [step["loss"] for step in steps_of(tmp_path / "disk" / "a")]
    stored, on_disk = (newest_loadable(folder).path for folder in (place / "a" / "checkpoints", tmp_path / "disk" / "a" / "checkpoints"))
    assert all(bool((value == tensors_of(on_disk)[name]).all()) for name, value in tensors_of(stored).items())
    assert not (run / "checkpoints").exists()

    three = Machine(tmp_path / "three", s3)
    report = three.done("report", f"{place}/a", "--json")
    assert json.loads(report.out)["runs"][0]["name"] == "a"
    assert "6" in three.done("ledger", f"{place}/a").out
    assert three.done("generate", f"{place}/a", "--prompt", "ba", "--tokens", "2").err.endswith("step 6\n")
    taken = three.done("train", plan_of_two, *common, code=2)
    assert "the run's folder exists" in taken.err
    over = three.done("train", *common, "--resume-if-exists", "--steps", "7")
    assert "continuing from step-00000006" in over.out


def test_a_corpus_at_a_url_is_copied_once(s3: ObjectServer, place: Remote, small: Small, plan_of_two: Path, tmp_path: Path) -> None:
    for path in small.corpus.iterdir():
        if path.is_file():
            (place / "corpus" / path.name).write(path.read_bytes())
    machine = Machine(tmp_path, s3)
    machine.done("train", plan_of_two, "--runs", tmp_path / "runs", "--name", "a", "--corpus", f"{place}/corpus", "--steps", "1")
    header = json.loads((tmp_path / "runs" / "a" / "run.json").read_text())
    assert header["arguments"]["corpus"] == f"{place}/corpus"
    (copy,) = (tmp_path / "cache" / "meshwright" / "corpora").iterdir()
    assert (copy / "train.tokens").read_bytes() == (small.corpus / "train.tokens").read_bytes()
    (place / "corpus" / "train.tokens").remove()  # the copy is used
    machine.done("train", "--runs", tmp_path / "runs", "--name", "a", "--resume", "--steps", "2")


def test_a_dead_server_does_not_stop_training(
    proxy: FaultProxy, s3: ObjectServer, place: Remote, small: Small, plan_of_two: Path, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, s3, proxy.port)
    command = machine.start("train", plan_of_two, "--runs", str(place), "--name", "a", "--steps", "400", "--checkpoint-every", "0")
    run = until(lambda: next((tmp_path / "cache" / "meshwright" / "runs").glob("*/a"), None), lambda: command.err, command)
    command.step(run, 2)
    proxy.faults.is_dead = True
    until(lambda: events_of(run, "storage_failed"), lambda: command.err, command)
    proxy.faults.is_dead = False
    assert command.wait() == 0, command.err  # it may end before the next try, and then stores all at its end
    assert [event["kind"] for event in events_of(run) if event["kind"].startswith("storage")] == ["storage_failed", "storage_back"]
    assert (place / "a" / "steps.jsonl").read() == (run / "steps.jsonl").read_bytes()


def test_wrong_urls_are_one_message_each(s3: ObjectServer, place: Remote, plan_of_two: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, s3)
    for arguments, message in (
        (("train", plan_of_two, "--runs", "s3://test-nowhere/runs", "--name", "a"), "there is no bucket s3://test-nowhere"),
        (("train", plan_of_two, "--runs", "ftp://host/runs", "--name", "a"), "is not a URL of object storage"),
        (("train", "--runs", str(place), "--resume"), "which run should be continued?"),
        (("train", "--runs", str(place), "--resume", "--name", "none"), "no run named 'none'"),
        (("train", plan_of_two, "--corpus", f"{place}/none"), "no finished corpus here"),
        (("report", f"{place}/none"), "no run here"),
        (("report", "s3://test-nowhere"), "this URL names a bucket"),
        (("simulate", plan_of_two, "--runs", str(place)), "are in a folder of this machine"),
    ):
        command = machine.done(*arguments, code=2)
        assert message in command.err and "Traceback" not in command.err, command.err
