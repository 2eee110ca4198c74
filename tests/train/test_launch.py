"""Ranks start, meet and end together; whoever fails first is named, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import faults
import pytest
import torch.distributed as dist
from entries import ranks_that
from small_run import Command, Small, events_of, last_step, start, steps_of, until

from meshwright.errors import InputError
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter
from meshwright.train.launch import Failure, explain_failure
from meshwright.train.meeting import ANSWER_S, meet
from meshwright.train.record.ending import opened, record_failure


def ranks(folder: Path, what: str) -> Command:
    return start(folder, [what], entry=ranks_that)


def test_all_end_well(tmp_path: Path) -> None:
    command = ranks(tmp_path, "finish")
    assert command.wait() == 0
    assert sorted(command.err.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_what_rank_0_decides_is_known_to_all(tmp_path: Path) -> None:
    command = ranks(tmp_path, "agree")
    assert (command.wait(), command.err) == (0, "")


def test_bad_input_is_reported_once(tmp_path: Path) -> None:
    command = ranks(tmp_path, "refuse")
    assert command.wait() == 2
    assert command.err == "meshwright: no such thing\n  where: the input\n  fix:   give another\n"


def test_the_others_are_ended_with_one_that_fails(tmp_path: Path) -> None:
    command = ranks(tmp_path, "break")
    assert command.wait(60.0) == 1
    assert command.err.startswith("meshwright: rank 1 failed: ZeroDivisionError: division by zero\nTraceback")
    assert command.err.count("meshwright: ") == 1


def test_who_was_killed_is_reported_and_not_who_noticed(tmp_path: Path) -> None:
    command = ranks(tmp_path, "lose")
    assert command.wait(60.0) == 1
    assert command.err == "meshwright: rank 1 was killed by SIGKILL: often because the machine is out of memory\n"


def test_a_second_control_c_ends_ranks_that_do_not_listen(tmp_path: Path) -> None:
    command = ranks(tmp_path, "ignore")
    until(lambda: command.out.count("ready") == 2)
    for _ in range(2):
        os.kill(command.pid, signal.SIGINT)
        time.sleep(0.3)
    assert command.wait(60.0) == 130


def test_a_launcher_that_says_too_little() -> None:
    with pytest.raises(InputError, match="MASTER_ADDR is not set"):
        meet({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"})


def test_a_lost_connection_is_no_cause() -> None:
    assert explain_failure(RuntimeError("[gloo] Connection closed by peer"), 3) == (
        False,
        "meshwright: rank 3 lost the connection to another rank",
    )
    is_cause, message = explain_failure(RuntimeError("size mismatch\nand more"), 3)
    assert is_cause
    assert message.startswith("meshwright: rank 3 failed: RuntimeError: size mismatch\n")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def launched(
    folder: Path, rank: int, port: int, *arguments: str | Path, environment: Mapping[str, str] | None = None, **fault: Any
) -> Command:
    """One of two ranks, as torchrun starts them."""
    given = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(environment or {})}
    where = ("--runs", str(folder / "runs"), "--name", "a", "--rendezvous-timeout", "2")
    return start(folder / str(rank), ["train", *where, *arguments], environment=given, **fault)


@pytest.fixture(scope="module")
def plan(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.plan_file(tmp_path_factory.mktemp("plan") / "plan.json", "dp=2")


def test_a_port_that_is_taken(plan: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = launched(tmp_path, 0, port, plan)
        assert command.wait(60.0) == 2
    assert command.err == f"meshwright: port {port} is taken\n  where: 127.0.0.1:{port}\n  fix:   choose another port (--master-port)\n"


def test_a_rank_that_finds_another_program_at_the_port_says_so(plan: Path, tmp_path: Path) -> None:
    """It accepts connections and is silent: torch alone would wait for its answer for minutes, whatever the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = launched(tmp_path, 1, port, plan)
        until(lambda: command.process.exitcode is not None, timeout_s=60.0)
    assert command.wait() == 2
    assert command.err.startswith(f"meshwright: another program listens on port {port}: it does not answer as rank 0 would\n")


def test_a_short_timeout_is_kept_where_a_listener_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        started_s = time.monotonic()
        with pytest.raises(InputError, match="another program listens"):
            meet(environment, 0.5)
        assert time.monotonic() - started_s < ANSWER_S


@pytest.fixture
def agents_store() -> Iterator[dist.TCPStore]:
    """A store that a launcher keeps from one start of its ranks to the next, as torchrun does."""
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_restart_does_not_find_the_addresses_of_dead_ranks(plan: Path, tmp_path: Path, agents_store: dist.TCPStore) -> None:
    arguments = (plan, "--steps", "3", "--rendezvous-timeout", "40", "--no-save")
    environment = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    for attempt, dead in enumerate((1, None)):
        given = {"environment": environment, "before": faults.exits, "with_": (dead, 1, 3)}
        both = [launched(tmp_path / str(attempt), rank, agents_store.port, *arguments, **given) for rank in (0, 1)]
        assert [command.wait(60.0) for command in both] == ([1, 3] if dead else [0, 0]), both[0].err
    assert len(steps_of(tmp_path / "1" / "runs" / "a")) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_do_not_come(plan: Path, tmp_path: Path, rank: int) -> None:
    """Rank 1 finds nobody at the address; rank 0 is there, and nobody comes."""
    command = launched(tmp_path, rank, free_port(), plan)
    assert command.wait(60.0) == 2
    assert command.err.startswith("meshwright: the ranks did not meet within 2 s: ")
    assert command.err.count("\n") == 3
    assert command.out == ""


def test_what_all_ranks_find_wrong_is_reported_once(plan: Path, tmp_path: Path) -> None:
    both = [launched(tmp_path, rank, 1, plan, "--layout", "dp=4,mbs=1") for rank in (0, 1)]
    assert [command.wait() for command in both] == [2, 2]
    assert both[0].err.startswith("meshwright: the plan needs 4 ranks (tp=1,cp=1,pp=1,vp=1,dp=4,mbs=1), and 2 were started\n")
    assert both[1].err == ""


@pytest.mark.parametrize("dead", [0, 1])
def test_under_another_launcher_a_rank_that_is_left_records_the_end(plan: Path, tmp_path: Path, dead: int) -> None:
    port, run = free_port(), tmp_path / "runs" / "a"
    arguments = (plan, "--steps", "5", "--rendezvous-timeout", "40")
    both = [launched(tmp_path, rank, port, *arguments, before=faults.exits, with_=(dead, 2, 3)) for rank in (0, 1)]
    codes = [command.wait(60.0) for command in both]
    assert (codes[dead], codes[1 - dead]) == (3, 1)
    assert read_run(run).header.status == "failed"
    (event,) = events_of(run, "failed")
    assert (event["reason"], event["rank"], event["step"]) == ("connection", 1 - dead, last_step(run))


def test_a_folder_that_is_another_runs_is_left_alone(tmp_path: Path) -> None:
    store, failure = dist.HashStore(), Failure(reason="exit", rank=0, message="rank 0 ended", exit_code=3)
    writer = RunWriter.create(tmp_path, RunHeader(name="a", kind="trained", seed=0, num_ranks=1, machine="one"))
    record_failure(tmp_path / "a", failure, store)
    assert read_run(tmp_path / "a").header.status == "running" and not read_run(tmp_path / "a").events
    opened(store)
    writer.step(StepRecord(step=1, samples=8, loss=1.0, grad_norm=1.0, step_s=0.1))
    writer.close()
    record_failure(tmp_path / "a", failure, store)
    run = read_run(tmp_path / "a")
    assert run.header.status == "failed"
    assert [(event.kind, event.step, event.detail["exit_code"]) for event in run.events] == [("failed", 1, 3)]


@pytest.mark.long
def test_torchrun(plan: Path, tmp_path: Path) -> None:
    from torch.distributed.run import main as torchrun

    arguments = ["--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "meshwright", "train", str(plan), "--steps", "3"]
    command = start(tmp_path, [*arguments, "--name", "a"], entry=torchrun)
    assert command.wait() == 0, command.err
    assert [step["step"] for step in steps_of(tmp_path / "runs" / "a")] == [1, 2, 3]
    assert command.out.count("parts of the step") == 1


def test_loading_the_trainer_asks_nothing_of_cuda() -> None:
    """A parent that has asked CUDA anything cannot fork ranks that use it."""
    code = (
        "import torch\n"
        "def asked(*_): raise AssertionError('CUDA was asked')\n"
        "torch._C._cuda_getDeviceCount = torch.cuda.is_available = torch.cuda.device_count = asked\n"
        "import meshwright.train.session, meshwright.train.launch, meshwright.cli.train_run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
