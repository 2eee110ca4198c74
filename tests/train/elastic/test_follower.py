"""The supervisor of a node that does not lead, against a leading one that says what the test wants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from on_nodes import OPENED, ended, leading, meeting, started

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.elastic import follower
from meshwright.train.elastic.follower import _by_own_clock, follow, report_trouble
from meshwright.train.elastic.member import GENERATION, READY, Announcement, Member
from meshwright.train.elastic.nodes import STACKS, Nodes
from meshwright.train.elastic.pulse import crashed
from meshwright.train.launch import Child

ORDER: dict[str, Any] = {
    "replica": 1,
    "seat": 0,
    "num_seats": 1,
    "local_rank": 0,
    "num_sharing": 1,
    "port": 1,
    "secret": "00",
    "elapsed_s": 5.0,
}


@pytest.fixture(autouse=True)
def nothing_left() -> Any:
    yield
    while OPENED:
        OPENED.pop().close(1)


def turned(nodes: Nodes, met: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30.0
    while not met():
        assert time.monotonic() < until_s
        nodes.turn()
        time.sleep(0.01)


def living(member: Member) -> None:
    """A rank that says who it is, and lives until it is ended."""
    member.listen()
    member.say(READY, f"{os.getpid()} {member.replica} {member.local_rank} {member.host} {time.monotonic() - member.began_s >= 5.0}")
    time.sleep(60.0)


def words_of(nodes: Nodes, child: Child) -> tuple[str, str]:
    turned(nodes, child.end.poll)
    what, detail = child.end.recv()
    return what, detail


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_ranks_are_started_and_ended_as_the_leading_supervisor_says() -> None:
    nodes = leading()
    other = started(nodes, 1, living)
    with ended(other):
        nodes.meet()
        child, _ = nodes.start(1, 1, **ORDER)
        what, detail = words_of(nodes, child)
        pid, *rest = detail.split()
        assert (what, rest) == (READY, ["1", "0", "127.0.0.1", "True"])
        child.end_now()
        turned(nodes, lambda: is_gone(int(pid)))
        again, _ = nodes.start(1, 1, **ORDER)
        assert words_of(nodes, again)[1].split()[0] != pid
        again.process.terminate()  # it has no handler
        turned(nodes, lambda: not again.process.is_alive())
        assert again.process.exitcode == -signal.SIGTERM


def test_a_rank_is_asked_where_it_is_and_asked_again() -> None:
    nodes = leading()
    other = started(nodes, 1, living)
    with ended(other):
        nodes.meet()
        child, vitals = nodes.start(1, 1, **ORDER)
        words_of(nodes, child)
        assert not vitals.stacks.read()
        vitals.stacks.ask(None)
        turned(nodes, lambda: bool(vitals.stacks.read()))
        assert "in living" in vitals.stacks.read()
        vitals.stacks.ask(None)
        assert not vitals.stacks.read(), "the answer to the first question"
        turned(nodes, lambda: bool(vitals.stacks.read()))
        assert vitals.stacks.read().count("in living") == 1


def test_an_answer_that_comes_after_the_next_question_is_not_taken_for_its_own() -> None:
    nodes = leading()
    other = started(nodes, 1, living)
    with ended(other):
        nodes.meet()
        child, vitals = nodes.start(1, 1, **ORDER)
        words_of(nodes, child)
        vitals.stacks.ask(None)
        vitals.stacks.ask(None)
        [node] = nodes._nodes
        number = next(iter(node.processes))
        nodes._hear(node, STACKS, {"number": number, "question": 1, "text": "the first"}, None)
        assert not vitals.stacks.read()
        nodes._hear(node, STACKS, {"number": number, "question": 2, "text": "the second"}, None)
        assert vitals.stacks.read() == "the second"


def crashes_at_a_word(member: Member) -> None:
    """A rank that a fault ends when it is told anything."""
    member.stacks.start()
    member.say(READY)
    member.heard.recv()
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_rank_that_crashes_on_another_node_leaves_its_stacks() -> None:
    nodes = leading()
    other = started(nodes, 1, crashes_at_a_word)
    with ended(other):
        nodes.meet()
        child, vitals = nodes.start(1, 1, **ORDER)
        words_of(nodes, child)
        child.ask.send(("change", ""))
        turned(nodes, lambda: not child.process.is_alive())
        assert child.process.exitcode == -signal.SIGSEGV
        assert " in crashes_at_a_word" in crashed(vitals.stacks.read())


def test_no_rank_outlives_its_supervisor_or_the_leading_one() -> None:
    nodes = leading(stall_s=2.0)
    other = started(nodes, 1, living, 2.0, timeout_s=3.0)
    with ended(other):
        nodes.meet()
        child, _ = nodes.start(1, 1, **ORDER)
        pid = int(words_of(nodes, child)[1].split()[0])
        nodes._nodes[0].channel._connection.close()  # as if this process had ended, and nobody listens any more
        assert nodes._listener is not None
        nodes._listener.close()
        until_s = time.monotonic() + 20.0
        while not is_gone(pid) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert is_gone(pid)
        other.join(30.0)
        assert other.exitcode not in (None, 0)
        OPENED.clear()


def test_ranks_end_when_the_leading_supervisor_does_not_answer_and_the_node_joins_again() -> None:
    nodes = leading(stall_s=2.0)
    other = started(nodes, 1, living, 2.0)
    with ended(other):
        nodes.meet()
        child, _ = nodes.start(1, 1, **ORDER)
        pid = int(words_of(nodes, child)[1].split()[0])
        begun_s = time.monotonic()
        while not is_gone(pid):  # nothing is said to the node meanwhile
            assert time.monotonic() - begun_s < 20.0
            time.sleep(0.01)
        assert time.monotonic() - begun_s >= 1.0
        turned(nodes, lambda: bool(nodes.losses()))
        turned(nodes, lambda: nodes.is_there(1))


def test_sigusr1_is_handed_on_to_the_ranks_of_the_node() -> None:
    nodes = leading()
    other = started(nodes, 1, living)
    with ended(other):
        nodes.meet()
        child, _ = nodes.start(1, 1, **ORDER)
        words_of(nodes, child)
        assert other.pid is not None
        os.kill(other.pid, signal.SIGUSR1)
        assert words_of(nodes, child) == ("notice", "")


def test_a_leader_that_is_not_there_is_named() -> None:
    nodes = leading()
    there = meeting(nodes, 1, timeout_s=1.0)
    OPENED.pop().close(0)
    with pytest.raises(MeshwrightError, match="node 1 did not find the leading supervisor within 1 s: Connection refused"):
        follow(there, lambda terms: living, 10.0)


def test_what_one_node_finds_wrong_is_told_to_the_leading_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = leading()

    def report() -> int:
        report_trouble(meeting(nodes, 1), InputError("there is no corpus", where="/data", fix="copy it"))
        return 0

    monkeypatch.setattr("on_nodes.follow", lambda *_: report())
    other = started(nodes, 1, living)
    with ended(other), pytest.raises(InputError) as raised:
        nodes.meet()
    assert raised.value.what == "node 1 cannot start, and node 0 can: there is no corpus (/data)"


def test_times_are_those_of_the_own_clock() -> None:
    incident = {"noticed_s": 100.0, "number": 1}
    announced = Announcement(generation=2, replicas=(0,), reason="lost", incident=incident)
    what, text = _by_own_clock({"words": [GENERATION, announced.to_json()], "now_s": time.monotonic() - 1000.0})
    found = Announcement.from_json(text)
    assert what == GENERATION and found.incident is not None and found.incident["noticed_s"] == pytest.approx(1100.0, abs=1.0)
    assert _by_own_clock({"words": ["leave", ""], "now_s": 0.0}) == ("leave", "")
    assert follower.SHARE < 1.0  # a node must end its ranks before the others go on without them
