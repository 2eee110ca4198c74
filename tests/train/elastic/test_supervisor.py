"""The process that starts replicas, with replicas that do not train."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.train.elastic.member import BOUNDARY, COME, HANG, LOST, READY, UNCOVERED, Member, wait_for_all
from meshwright.train.elastic.supervisor import Supervisor, staying
from meshwright.train.health.signals import StopSignal
from meshwright.train.incidents import Incident
from meshwright.train.launch import Child, Failure, forked
from meshwright.train.membership import layout_with

TWO = Layout(dp=2)


def judged(failure: Failure) -> Incident | str:
    return Incident(number=1, reason=failure.reason, rank=failure.rank, step=3, message=failure.message, noticed_s=failure.noticed_s)


def supervised(
    body: Callable[[Member], None], judge: Callable[[Failure], Incident | str] = judged, stall_s: float = 10.0
) -> tuple[int, Failure | None, int]:
    supervisor = Supervisor(TWO, body, judge, lambda: None, stall_s=stall_s)
    try:
        return *supervisor.run(), supervisor.generation
    finally:
        supervisor.close()


def until_both_are_back(member: Member, faulty: Callable[[Member], None]) -> None:
    """Train nothing: fail in the first generation, change when asked to, and end with the third."""
    member.listen()
    member.say(READY)
    announced = member.next(30.0)
    while announced is not None and announced.generation < 2:
        if announced.generation == 0:
            faulty(member)
        while announced.generation == member.newest and not member.wants_change():
            time.sleep(0.01)
        if announced.generation == member.newest:
            member.say(BOUNDARY, "3")
        announced = member.next(30.0)
    assert announced is None or len(announced.replicas) == 2


def killed(member: Member) -> None:
    if member.replica == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def stopped(member: Member) -> None:
    if member.replica == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
    member.say(HANG, '{"text": "rank 1 hangs", "ranks": [1], "generation": 0}')


def raises(member: Member) -> None:
    if member.replica == 0:
        raise OverflowError("too much")


def crashes(member: Member) -> None:
    if member.replica == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize("faulty", [killed, stopped, raises])
def test_a_lost_replica_is_left_out_and_joins_again(faulty: Callable[[Member], None], capsys: pytest.CaptureFixture[str]) -> None:
    assert supervised(lambda member: until_both_are_back(member, faulty)) == (0, None, 2)
    assert "incident 1 at step 3" in capsys.readouterr().err


def comes_late(member: Member, after_s: float, last: int) -> None:
    """Connect anew in the first generation; replica 1 comes late to the second; end in the `last`."""
    member.listen()
    member.say(READY)
    announced = member.next(30.0)
    while announced is not None:
        if announced.generation == 1 and member.replica == 1:
            time.sleep(after_s)
        member.say(COME, str(announced.generation))
        if announced.generation == 0:
            member.say(LOST, "0 connection closed")
        if announced.generation == last:
            return
        while announced.generation == member.newest and not member.wants_change():
            time.sleep(0.01)
        if announced.generation == member.newest:
            member.say(BOUNDARY, "3")
        announced = member.next(30.0)


@pytest.mark.parametrize(
    ("after_s", "last", "told"),
    [(60.0, 3, "did not come to generation 1 within 2 s"), (1.2, 1, "rank 1 came to generation 1 after 1.")],
)
def test_a_rank_that_comes_late_to_a_generation_or_not_at_all_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after_s: float, last: int, told: str
) -> None:
    monkeypatch.setattr("meshwright.train.elastic.supervisor.COMING_S", 2.0)
    monkeypatch.setattr("meshwright.train.elastic.whereabouts.LATE_S", 0.5)
    kept: list[tuple[int, int]] = []

    def keep(generation: int, rank: int, stacks: str) -> str:
        assert "in comes_late" in stacks
        kept.append((generation, rank))
        return "stacks/a.txt"

    supervisor = Supervisor(TWO, lambda member: comes_late(member, after_s, last), judged, lambda: None, stall_s=1.0, kept=keep)
    try:
        assert supervisor.run() == (0, None)
    finally:
        supervisor.close()
    said = capsys.readouterr().err
    assert (supervisor.generation, kept) == (last, [(1, 1)])
    assert "in comes_late" in said and "(stacks/a.txt)" in said and told in said


class Fatal(dist.Store):
    """A store for which the process ends once it has written something: the address at which others reach it."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)
        os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, *arguments: Any) -> None:
        self._store.wait(*arguments)

    def clone(self) -> dist.Store:
        return self


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_waits_for_a_dead_one_to_connect_comes_to_the_next_generation(monkeypatch: pytest.MonkeyPatch, victim: int) -> None:
    """One of two gloo ranks waits for the other one to connect, and heard of nothing; which one it is depends on their addresses."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    reasons: list[str] = []

    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        announced = member.next(30.0)
        while announced is not None:
            with suppress(RuntimeError, ValueError):
                place = member.place(announced, layout_with(TWO, len(announced.replicas)))
                member.say(COME, str(announced.generation))
                wait_for_all(place)
                store = Fatal(place.store) if announced.generation == 0 and member.replica == victim else place.store
                dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.num_ranks)
                dist.barrier()
                if announced.generation == 2:
                    return
                while announced.generation == member.newest and not member.wants_change():
                    time.sleep(0.01)
                member.say(BOUNDARY, "3")
            if dist.is_initialized():
                dist.destroy_process_group()
            announced = member.next(30.0)

    begun_s = time.monotonic()
    found = supervised(body, lambda failure: reasons.append(failure.reason) or judged(failure))
    assert (*found, reasons) == (0, None, 2, ["signal"])
    assert time.monotonic() - begun_s < 14.0, "sooner than the supervisor would have ended it"


def test_a_lost_connection_without_a_death_connects_the_ranks_anew() -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        announced = member.next(30.0)
        assert announced is not None
        member.say(LOST, "0 connection closed")
        again = member.next(30.0)
        assert again is not None and again.replicas == announced.replicas

    assert supervised(body) == (0, None, 1)


def test_a_lost_state_ends_all_ranks() -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(UNCOVERED, "no copy")
        time.sleep(30.0)

    code, failure, _ = supervised(body)
    assert code == 1 and failure is not None and failure.message == "no copy"


def test_wrong_input_is_not_tried_again() -> None:
    def body(member: Member) -> None:
        raise InputError("a wrong value", where="here", fix="choose another")

    code, failure, _ = supervised(body)
    assert code == 2 and failure is not None and failure.reason == "input"


def test_a_fault_that_comes_again_ends_the_run() -> None:
    code, failure, _ = supervised(lambda member: until_both_are_back(member, killed), lambda failure: "it would fail again")
    assert code == 1 and failure is not None and failure.reason == "signal" and failure.rank == 1


def test_no_process_is_left(tmp_path: Path) -> None:
    supervisor = Supervisor(TWO, lambda member: until_both_are_back(member, killed), judged, lambda: None)
    supervisor.run()
    supervisor.close()
    assert supervisor._host is not None and not supervisor._host.is_alive()
    assert not any(child.process.is_alive() for child in supervisor._handing.children)


def test_a_signal_between_two_forks_reaches_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(member: Member) -> None:
        stop = StopSignal()
        member.listen()
        (tmp_path / f"ready {member.replica}").touch()
        until_s = time.monotonic() + 20.0
        while not stop.is_asked and time.monotonic() < until_s:
            time.sleep(0.01)
        (tmp_path / f"{'asked' if stop.is_asked else 'not asked'} {member.replica}").touch()

    def forked_with_a_signal(rank: int, *arguments: Any) -> Child:
        child = forked(rank, *arguments)
        while not (tmp_path / f"ready {rank}").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)  # it is blocked until the fork is registered
        return child

    monkeypatch.setattr("meshwright.train.elastic.supervisor.forked", forked_with_a_signal)
    assert supervised(body)[:2] == (0, None)
    assert {path.name for path in tmp_path.iterdir()} == {"ready 0", "ready 1", "asked 0", "asked 1"}


def test_a_run_that_was_asked_to_stop_is_not_started_again() -> None:
    def body(member: Member) -> None:
        member.listen()
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(20.0)  # it has no handler of its own, and is ended by the signal that it receives

    _, failure, _ = supervised(body)
    assert failure is not None and failure.reason == "interrupt"


def test_a_notice_to_all_processes_leaves_one_replica(capfd: pytest.CaptureFixture[str]) -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        announced = member.next(30.0)
        os.kill(os.getppid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        while announced is not None and announced.generation < 1:
            while announced.generation == member.newest and not member.wants_change():
                time.sleep(0.01)
            if announced.generation == member.newest:
                member.say(BOUNDARY, "3")
            announced = member.next(30.0)

    with staying():
        assert supervised(body) == (0, None, 1)
    said = capfd.readouterr().err
    assert "has notice to leave, and stays" in said and "SIGUSR1 changes nothing here" in said
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_the_death_of_a_replica_is_one_incident(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Failure] = []

    def judge(failure: Failure) -> Incident | str:
        seen.append(failure)
        return judged(failure)

    assert supervised(lambda member: until_both_are_back(member, stopped), judge)[0] == 0
    assert [failure.reason for failure in seen] == ["hang"]


def test_a_rank_that_crashes_says_where_and_its_stacks_are_kept() -> None:
    seen, kept = list[Failure](), list[tuple[int, int, str]]()

    def judge(failure: Failure) -> Incident | str:
        seen.append(failure)
        return judged(failure)

    def keep(generation: int, rank: int, stacks: str) -> str:
        kept.append((generation, rank, stacks))
        return "stacks/one.txt"

    body = partial(until_both_are_back, faulty=crashes)
    supervisor = Supervisor(TWO, body, judge, lambda: None, stall_s=10.0, kept=keep)
    try:
        assert supervisor.run() == (0, None)
    finally:
        supervisor.close()
    [failure], [(generation, rank, stacks)] = seen, kept
    assert (generation, rank) == (0, 1) and "in until_both_are_back" in stacks and " in crashes, " in failure.message
    assert failure.message.startswith("rank 1 was killed by SIGSEGV, in File ") and failure.message.endswith(" (stacks/one.txt)")


def test_the_last_replica_is_ended_when_it_is_stopped_though_no_rank_is_left_to_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        os.kill(os.getpid(), signal.SIGSTOP)

    begun_s = time.monotonic()
    code, failure, _ = supervised(body, stall_s=1.0)
    assert code == 1 and failure is not None and (failure.reason, failure.from_outside) == ("hang", True)
    assert failure.message.startswith(f"rank {failure.rank} was stopped by a signal, and not continued for ")
    assert f"meshwright: {failure.message}" in capsys.readouterr().err
    assert 1.0 <= failure.noticed_s - begun_s < 10.0


def test_a_newcomer_that_is_stopped_while_it_prepares_itself_is_replaced() -> None:
    seen: list[Failure] = []

    def judge(failure: Failure) -> Incident | str:
        seen.append(failure)
        return judged(failure)

    def body(member: Member) -> None:
        if [failure.reason for failure in seen] == ["signal"]:  # this process was forked after the first loss, and before the second
            os.kill(os.getpid(), signal.SIGSTOP)
        until_both_are_back(member, killed)

    assert supervised(body, judge, stall_s=1.0) == (0, None, 2)
    assert [(failure.reason, failure.rank) for failure in seen] == [("signal", 1), ("hang", 1)]


def test_a_rank_that_is_continued_in_time_is_not_lost() -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        if member.replica == 0:
            other = os.fork()
            if not other:
                time.sleep(0.7)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.waitpid(other, 0)
        time.sleep(1.5)

    assert supervised(body, stall_s=2.0) == (0, None, 0)


@pytest.mark.parametrize("limit, words", [("START_SILENCE_S", "gave no sign of life for"), ("READY_S", "was not ready")])
def test_a_process_that_hangs_outside_of_training_is_ended(monkeypatch: pytest.MonkeyPatch, limit: str, words: str) -> None:
    def body(member: Member) -> None:
        if limit == "READY_S":
            member.listen()
        time.sleep(60.0)

    monkeypatch.setattr(f"meshwright.train.elastic.group.{limit}", 1.0)
    _, failure, _ = supervised(body, stall_s=1.0)
    assert failure is not None and failure.reason == "hang" and words in failure.message and not failure.from_outside


def test_a_rank_that_has_ended_well_need_not_give_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        time.sleep(2.5 * member.replica)

    monkeypatch.setattr("meshwright.train.elastic.group.START_SILENCE_S", 1.0)
    assert supervised(body, stall_s=1.0) == (0, None, 0)
