"""Ranks that a launcher has started find each other within a time limit, or say who did not come and why."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import injected
import pytest
import torch.distributed as dist
from small_run import free_port, launched, start, steps_of, until

from meshwright.errors import InputError
from meshwright.train import meeting
from meshwright.train.meeting import ANSWER_S, Address, meet
from meshwright.train.sealed import proof


def test_a_launcher_that_says_too_little() -> None:
    with pytest.raises(InputError, match="MASTER_ADDR is not set"):
        meet({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"})


def test_a_port_that_is_taken(plan_of_two: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = launched(tmp_path, 0, port, plan_of_two)
        assert command.wait(60.0) == 2
    assert command.err == f"meshwright: port {port} is taken\n  where: 127.0.0.1:{port}\n  fix:   choose another port (--master-port)\n"


def test_a_rank_that_finds_another_program_at_the_port_says_so(plan_of_two: Path, tmp_path: Path) -> None:
    """It accepts connections and is silent: torch alone would wait for its answer for minutes, whatever the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = launched(tmp_path, 1, port, plan_of_two)
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


def test_a_restart_does_not_find_the_addresses_of_dead_ranks(plan_of_two: Path, tmp_path: Path, agents_store: dist.TCPStore) -> None:
    arguments = (plan_of_two, "--steps", "3", "--rendezvous-timeout", "40", "--no-save")
    environment = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    for attempt, dead in enumerate((1, None)):
        given = {"environment": environment, "before": injected.exits, "with_": (dead, 1, 3)}
        both = [launched(tmp_path / str(attempt), rank, agents_store.port, *arguments, **given) for rank in (0, 1)]
        assert [command.wait(60.0) for command in both] == ([1, 3] if dead else [0, 0]), both[0].err
    assert len(steps_of(tmp_path / "1" / "runs" / "a")) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_do_not_come(plan_of_two: Path, tmp_path: Path, rank: int) -> None:
    """Rank 1 finds nobody at the address; rank 0 is there, and nobody comes."""
    command = launched(tmp_path, rank, free_port(), plan_of_two)
    assert command.wait(60.0) == 2
    assert command.err.startswith("meshwright: the ranks did not meet within 2 s: ")
    assert command.err.count("\n") == 3
    assert command.out == ""


def test_what_all_ranks_find_wrong_is_reported_once(plan_of_two: Path, tmp_path: Path) -> None:
    both = [launched(tmp_path, rank, 1, plan_of_two, "--layout", "dp=4,mbs=1") for rank in (0, 1)]
    assert [command.wait() for command in both] == [2, 2]
    assert both[0].err.startswith("meshwright: the plan needs 4 ranks (tp=1,cp=1,pp=1,vp=1,dp=4,mbs=1), and 2 were started\n")
    assert both[1].err == ""


@pytest.mark.long
def test_torchrun(plan_of_two: Path, tmp_path: Path) -> None:
    from torch.distributed.run import main as torchrun

    arguments = ["--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "meshwright", "train", str(plan_of_two), "--steps", "3"]
    command = start(tmp_path, [*arguments, "--name", "a"], entry=torchrun)
    assert command.wait() == 0, command.err
    assert [step["step"] for step in steps_of(tmp_path / "runs" / "a")] == [1, 2, 3]
    assert command.out.count("parts of the step") == 1


@pytest.mark.parametrize(
    "name, text, limit",
    [
        ("MASTER_PORT", "http", " from 0 to 65535"),
        ("MASTER_PORT", "70000", " from 0 to 65535"),
        ("MASTER_PORT", "", " from 0 to 65535"),
        ("RANK", "-1", ""),
        ("WORLD_SIZE", "two", ""),
        ("LOCAL_RANK", "0.5", ""),
        ("LOCAL_WORLD_SIZE", "\u0663", ""),  # a digit, but none that torch reads
        ("WORLD_SIZE", "9" * 5000, ""),
    ],
)
def test_a_variable_that_is_no_number_is_named(name: str, text: str, limit: str) -> None:
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", name: text}
    with pytest.raises(InputError) as caught:
        meet(given)
    assert caught.value.what == f"{name} is {text!r}, not a whole number{limit}" and "torchrun" in caught.value.fix


def test_one_rank_alone_meets_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in given.items():
        monkeypatch.setenv(name, value)  # torch reads them there
    place = meet(given, 20.0)
    assert (place.rank, place.num_ranks, place.local_rank, place.num_local_ranks) == (0, 1, 0, 1)
    place.store.set("key", "value")
    assert place.store.get("key") == b"value"


def address(timeout_s: float = 5.0) -> Address:
    return Address(host="127.0.0.1", port=free_port(), timeout_s=timeout_s, until_s=time.monotonic() + timeout_s)


def agreed(store: dist.Store, num_ranks: int, timeout_s: float = 20.0, secret: bytes = b"") -> list[str]:
    """The names that so many ranks agree on, as threads."""
    names = [""] * num_ranks
    there = address(timeout_s)

    def join(rank: int) -> None:
        names[rank] = meeting._agreed_name(store, rank, num_ranks, there, secret)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return names


def test_ranks_of_a_start_agree_on_a_name_that_no_other_start_has() -> None:
    store = dist.HashStore()
    first, second = agreed(store, 3), agreed(store, 3)
    assert len(set(first)) == len(set(second)) == 1 and first[0] and first[0] != second[0]


def test_ranks_prove_the_secret_to_each_other() -> None:
    store = dist.HashStore()
    names = agreed(store, 3, secret=b"the secret of this job")
    assert len(set(names)) == 1 and names[0]
    assert all(b"the secret" not in store.get(f"greeting/{rank}") for rank in (1, 2))


def test_a_rank_with_another_secret_is_kept_out_and_named() -> None:
    store = dist.HashStore()
    store.set("greeting/1", f"word {proof(b'another secret', 'greeting', 1, 2, 'word')}")
    with pytest.raises(InputError, match="1 of 2 ranks joined; what came as rank 1 does not fit the secret of this job"):
        meeting._agreed_name(store, 0, 2, address(0.3), b"the secret of this job")
    assert not store.check(["welcome/word"])


def test_a_stranger_cannot_join_by_writing_that_a_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr("meshwright.train.meeting.uuid.uuid4", lambda: SimpleNamespace(hex="guessed"))
    for rank in (1, 2):
        store.set(f"joined/guessed/{rank}", "yes")
    with pytest.raises(InputError, match="1 of 3 ranks joined"):
        meeting._agreed_name(store, 0, 3, address(0.3), b"the secret of this job")


def test_an_answer_in_the_name_of_rank_0_without_the_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr("meshwright.train.meeting.uuid.uuid4", lambda: SimpleNamespace(hex="word"))
    store.set("welcome/word", f"name {proof(b'another secret', 'welcome', 1, 2, 'word', 'name')}")
    with pytest.raises(InputError, match="the answer in the name of rank 0 does not fit the secret"):
        meeting._agreed_name(store, 1, 2, address(0.3), b"the secret of this job")


def test_a_flood_of_greetings_is_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MOST_STRANGERS", 5)
    store, number = dist.HashStore(), iter(range(10**6))
    monkeypatch.setattr(meeting.time, "sleep", lambda _: store.set("greeting/1", f"rubbish {next(number)}"))
    with pytest.raises(InputError, match="more than 5 greetings do not fit the secret of this job"):
        meeting._agreed_name(store, 0, 2, address(20.0), b"the secret of this job")


def test_a_greeting_of_an_earlier_start_is_nobody_who_joined() -> None:
    store = dist.HashStore()
    store.set("greeting/1", f"word {proof(b'', 'greeting', 1, 2, 'word')}")  # of a rank that has died
    with pytest.raises(InputError, match="1 of 2 ranks joined"):
        meeting._agreed_name(store, 0, 2, address(0.3))


def test_a_rank_whose_greeting_nobody_answers_gives_up_in_time() -> None:
    with pytest.raises(InputError, match=r"did not meet within 0\.3 s: rank 0 did not answer"):
        meeting._agreed_name(dist.HashStore(), 1, 2, address(0.3))


def test_time_that_is_over_leaves_a_moment() -> None:
    assert Address(host="h", port=1, timeout_s=1.0, until_s=time.monotonic() - 9.0).left_s == 0.1
    assert 4.0 < address(5.0).left_s <= 5.0


@pytest.mark.parametrize(
    "reason, what",
    [
        ("The server socket has failed: EADDRINUSE", "port {port} is taken"),
        ("Timed out; 3/8 clients joined.\nmore", "the ranks did not meet within 5 s: 3 of 8 ranks joined"),
        ("something\nelse", "the ranks did not meet within 5 s: something"),
        ("", "the ranks did not meet within 5 s: no reason given"),
    ],
)
def test_the_reason_is_told_as_far_as_torch_gives_one(reason: str, what: str) -> None:
    there = address()
    error = meeting._not_met(reason, there)
    assert error.what == what.format(port=there.port) and error.where == f"127.0.0.1:{there.port}"


def test_what_torch_writes_meanwhile_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), meeting._silence():
        os.write(2, b"[W socket.cpp] nobody there")
        raise ZeroDivisionError
    os.write(2, b"shown")
    assert capfd.readouterr().err == "shown"


@pytest.mark.long
def test_torchrun_does_not_try_wrong_input_again(plan_of_two: Path, tmp_path: Path) -> None:
    from torch.distributed.run import main as torchrun

    arguments = ["--nproc-per-node", "2", "--max-restarts", "3", "--master-port", str(free_port()), "--log-dir", str(tmp_path / "logs")]
    arguments += ["-m", "meshwright", "train", str(plan_of_two), "--layout", "dp=4,mbs=1", "--name", "a"]
    command = start(tmp_path, arguments, entry=torchrun)
    assert command.wait() == 1
    assert command.err.count("meshwright: the plan needs 4 ranks") == 2  # in the first attempt and the last one
    notes = [path.parent.parent.name for path in (tmp_path / "logs").rglob("error.json")]
    assert set(notes) == {f"attempt_{number}" for number in range(4)}
