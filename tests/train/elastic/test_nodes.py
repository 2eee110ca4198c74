"""Several nodes, as the leading supervisor sees them: who may take part, and what is lost with a node."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from on_nodes import FACTS, OPENED, TWO, ended, leading, meeting, started

from meshwright.errors import InputError, TooFewNodesError
from meshwright.layout import Layout
from meshwright.train.elastic.member import BOUNDARY, READY, Member
from meshwright.train.elastic.nodes import Nodes
from meshwright.train.elastic.supervisor import Supervisor
from meshwright.train.health.signals import StopSignal
from meshwright.train.incidents import Incident
from meshwright.train.launch import Failure
from meshwright.train.membership import Membership

SEEN: list[Failure] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    SEEN.clear()
    yield
    while OPENED:
        OPENED.pop().close(1)


def judged(failure: Failure) -> Incident | str:
    SEEN.append(failure)
    return Incident(
        number=len(SEEN), reason=failure.reason, rank=failure.rank, step=3, message=failure.message, noticed_s=failure.noticed_s
    )


def supervised(
    nodes: Nodes, body: Callable[[Member], None], layout: Layout = TWO, turn: Callable[[Supervisor], None] | None = None
) -> tuple[int, Failure | None, int]:
    """Run the replicas; `turn` is called whenever the supervisor looks for requests."""
    nodes.meet()
    supervisor = Supervisor(layout, body, judged, lambda: turn(supervisor) if turn else None, stall_s=nodes.stall_s, nodes=nodes)
    code = 1
    try:
        code, failure = supervisor.run()
        return code, failure, supervisor.generation
    finally:
        supervisor.close()
        nodes.close(code)


def turned(nodes: Nodes, met: Callable[[], bool]) -> None:
    """Look after the nodes until something has come about."""
    until_s = time.monotonic() + 30.0
    while not met():
        assert time.monotonic() < until_s
        nodes.turn()
        time.sleep(0.01)


def until_generation(last: int) -> Callable[[Member], None]:
    """Train nothing: change whenever replicas come or go, and end with a generation."""

    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        announced = member.next(60.0)
        while announced is not None and announced.generation < last:
            while announced.generation == member.newest and not member.wants_change():
                time.sleep(0.01)
            if announced.generation == member.newest:
                member.say(BOUNDARY, "3")
            announced = member.next(60.0)

    return body


def killed_first(last: int) -> Callable[[Member], None]:
    """The same; the process of replica 1 that was started first kills itself once."""

    def body(member: Member) -> None:
        member.listen()
        member.say(READY)
        announced = member.next(60.0)
        if member.replica == 1 and announced is not None and announced.generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        while announced is not None and announced.generation < last:
            while announced.generation == member.newest and not member.wants_change():
                time.sleep(0.01)
            if announced.generation == member.newest:
                member.say(BOUNDARY, "3")
            announced = member.next(60.0)

    return body


def test_a_rank_that_dies_on_another_node_is_lost_and_starts_again_there() -> None:
    nodes, body = leading(), killed_first(2)
    other = started(nodes, 1, body)
    with ended(other):
        assert supervised(nodes, body) == (0, None, 2)
        other.join(20.0)
        assert other.exitcode == 0
    assert [(failure.reason, failure.rank) for failure in SEEN] == [("signal", 1)]


def test_a_node_that_is_killed_is_lost_at_once_and_joins_when_it_is_back() -> None:
    nodes, body = leading(), until_generation(2)
    others = [started(nodes, 1, body)]
    begun_s: list[float] = []

    def strike(supervisor: Supervisor) -> None:
        if not begun_s and all(group.is_ready for group in supervisor.members):
            begun_s.append(time.monotonic())
            others[0].kill()
            others[0].join()
        elif SEEN and len(others) == 1:
            others.append(started(nodes, 1, body))

    with ended(*others):
        assert supervised(nodes, body, turn=strike) == (0, None, 2)
        others[1].join(20.0)
        assert others[1].exitcode == 0
    (failure,) = SEEN
    assert (failure.reason, failure.from_outside) == ("node", True)
    assert failure.message.startswith("node 1 (127.0.0.1) is lost: its connection was")
    assert failure.noticed_s - begun_s[0] < nodes.stall_s


def test_a_node_that_does_not_answer_is_lost_after_the_limit() -> None:
    nodes, body = leading(stall_s=2.0), until_generation(1)
    other, begun_s = started(nodes, 1, body, 2.0), list[float]()

    def strike(supervisor: Supervisor) -> None:
        if not begun_s and all(group.is_ready for group in supervisor.members):
            assert other.pid is not None
            begun_s.append(time.monotonic())
            os.kill(other.pid, signal.SIGSTOP)

    with ended(other):
        assert supervised(nodes, body, turn=strike)[:2] == (0, None)
    (failure,) = SEEN
    assert failure.reason == "node" and "it has not answered for" in failure.message
    assert failure.noticed_s - begun_s[0] >= 1.0


def test_all_replicas_of_a_node_are_one_incident() -> None:
    nodes, body = leading(), until_generation(1)
    nodes.sizes = [1, 2]
    other = started(nodes, 1, body)

    def strike(supervisor: Supervisor) -> None:
        if not SEEN and all(group.is_ready for group in supervisor.members):
            other.kill()

    with ended(other):
        assert supervised(nodes, body, Layout(dp=3), strike) == (0, None, 1)
    assert len(SEEN) == 1


def test_a_replica_on_two_nodes_is_lost_with_one_of_them() -> None:
    """Replica 0 has a rank on either node, and so has replica 1: with node 1 all are lost, and the caller starts them again."""
    nodes, body = leading(), until_generation(1)
    nodes.sizes = [2, 2]
    other = started(nodes, 1, body)

    def strike(supervisor: Supervisor) -> None:
        if not SEEN and all(group.is_ready for group in supervisor.members):
            other.kill()

    layout = Layout(tp=2, dp=2, order=("dp", "tp", "cp", "pp"))
    with ended(other):
        code, failure, _ = supervised(nodes, body, layout, strike)
    assert code == 1 and failure is not None and failure.reason == "node"


def test_a_spare_takes_the_place_of_a_node_that_is_lost() -> None:
    nodes, body = leading(), until_generation(2)
    others = [started(nodes, 1, body), started(nodes, 2, body)]

    def strike(supervisor: Supervisor) -> None:
        if not SEEN and all(group.is_ready for group in supervisor.members) and len(nodes._nodes) == 2:
            others[0].kill()

    with ended(*others):
        assert supervised(nodes, body, turn=strike) == (0, None, 2)
        others[1].join(20.0)
        assert others[1].exitcode == 0
    assert len(SEEN) == 1


def test_sigterm_to_any_supervisor_lets_all_ranks_stop() -> None:
    def body(member: Member) -> None:
        stop = StopSignal()
        member.listen()
        member.say(READY)
        until_s = time.monotonic() + 60.0
        while not stop.is_asked:
            assert time.monotonic() < until_s
            time.sleep(0.01)

    nodes = leading()
    other = started(nodes, 1, body)

    def strike(supervisor: Supervisor) -> None:
        if all(group.is_ready for group in supervisor.members) and not supervisor._handing.asked:
            other.terminate()

    with ended(other):
        assert supervised(nodes, body, turn=strike)[:2] == (0, None)
        other.join(20.0)
        assert other.exitcode == 0


@pytest.mark.parametrize("times, code, is_saved", [(1, 130, True), (2, 130, False)])
def test_one_ctrl_c_that_reaches_all_nodes_lets_the_ranks_save_and_a_second_one_ends_them(times: int, code: int, is_saved: bool) -> None:
    def body(member: Member) -> None:
        stop = StopSignal()
        member.listen()
        member.say(READY)
        until_s = time.monotonic() + 60.0
        while not stop.is_asked:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        time.sleep(1.0 if times == 1 else 30.0)  # it saves

    nodes = leading(3)
    others = [started(nodes, number, body) for number in (1, 2)]
    sent: list[int] = []

    def strike(supervisor: Supervisor) -> None:
        if all(group.is_ready for group in supervisor.members) and len(sent) < times:
            sent.append(signal.SIGINT)
            for pid in (os.getpid(), *(other.pid for other in others)):
                assert pid is not None
                os.kill(pid, signal.SIGINT)

    with ended(*others):
        found, failure, _ = supervised(nodes, body, Layout(dp=3), strike)
    assert found == code and (failure is None) == is_saved and SEEN == []


def test_a_list_of_memberships_that_needs_a_node_which_is_away_ends_the_run_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    nodes, body = leading(), until_generation(1)
    other = started(nodes, 1, body)
    with ended(other):
        nodes.meet()
        other.kill()
        turned(nodes, lambda: not nodes.is_there(1))
        listed = [Membership(from_step=1, dp=1), Membership(from_step=4, dp=2)]
        supervisor = Supervisor(TWO, body, judged, lambda: None, listed, nodes=nodes)
        try:
            code, failure = supervisor.run()
        finally:
            supervisor.close()
    assert code == 1 and failure is not None and failure.message == "replica 1 must join now, and node 1 is not there"
    assert failure.message in capsys.readouterr().err


def test_nodes_that_would_train_another_run_end_the_start() -> None:
    nodes = leading()
    other = started(nodes, 1, lambda member: None, facts={**FACTS, "layout dp": "4"})
    with ended(other), pytest.raises(InputError) as raised:
        try:
            nodes.meet()
        finally:
            nodes.close(2)
            other.join(20.0)
    assert raised.value.what == "the nodes would not train the same run: node 1 has layout dp 4, node 0 has 2"
    assert other.exitcode == 2


def test_a_node_that_does_not_come_is_named() -> None:
    nodes = leading(3, timeout_s=1.0)
    with pytest.raises(TooFewNodesError) as raised:
        try:
            nodes.meet()
        finally:
            nodes.close(1)
    assert raised.value.what == "nodes 1, 2 of 3 did not come within 1 s"


def test_a_run_whose_replicas_cannot_start_again_because_nodes_are_away_ends_for_want_of_nodes() -> None:
    nodes, body = leading(), until_generation(1)
    other = started(nodes, 1, body)
    with ended(other):
        nodes.meet()
        other.kill()
        turned(nodes, lambda: not nodes.is_there(1))
        nodes.timeout_s = 0.5
        supervisor = Supervisor(Layout(pp=2), body, judged, lambda: None, nodes=nodes)
        with pytest.raises(TooFewNodesError):
            try:
                supervisor.run()
            finally:
                supervisor.close()


def test_a_second_supervisor_of_a_node_takes_the_place_of_the_first() -> None:
    nodes = leading(3)
    others = [started(nodes, 1, lambda member: None)]
    with ended(*others):
        turned(nodes, lambda: nodes.is_there(1))
        others.append(started(nodes, 1, lambda member: None))
        turned(nodes, lambda: not others[0].is_alive())
        assert others[0].exitcode == 2
        assert nodes.is_there(1) and not nodes.is_there(2)
        nodes.close(0)
        others[1].join(20.0)
        assert others[1].exitcode == 0


def test_strangers_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    nodes = leading()
    with socket.create_connection(("127.0.0.1", nodes._port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        other = started(nodes, 1, lambda member: None)
        with ended(other):
            nodes.meet()
            nodes.close(0)
            other.join(20.0)
            assert other.exitcode == 0
    assert "a connection from 127.0.0.1 was refused: it does not speak as a supervisor does" in capfd.readouterr().err


def test_many_strangers_cost_no_core_and_few_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.train.elastic.nodes.MOST_LINES", 2)
    nodes = leading()
    monkeypatch.setattr("meshwright.train.elastic.nodes.MOST_GUESTS", 3)
    strangers = [socket.create_connection(("127.0.0.1", nodes._port)) for _ in range(5)]
    turned(nodes, lambda: len(nodes._guests) == 3)
    assert nodes._listener is not None and nodes._listener.fileno() not in nodes.waitables()
    for stranger in strangers:
        stranger.close()
    turned(nodes, lambda: nodes._num_refused == 5)
    assert nodes._listener.fileno() in nodes.waitables()
    said = capfd.readouterr().err
    assert said.count("was refused:") == 2 and "2 connections were refused; the next ones are counted" in said


def test_a_port_that_becomes_free_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    nodes = Nodes([1, 1], "127.0.0.1", taken.getsockname()[1])
    ending = threading.Timer(1.0, taken.close)
    ending.start()
    nodes.open()
    ending.join()
    assert nodes.are_several and "another program listens at 127.0.0.1:" in capfd.readouterr().err
    nodes.close(0)


def test_a_taken_port_is_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.train.elastic.nodes.TAKEN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot wait for the other nodes"):
        Nodes([1, 1], "127.0.0.1", taken.getsockname()[1]).open()


def test_a_name_is_listened_for_at_all_addresses() -> None:
    named, numeric = Nodes([1, 1], "node0.cluster"), Nodes([1, 1], "127.0.0.2")
    assert (named.bind_host, named.store_host) == ("", "127.0.0.1")
    assert (numeric.bind_host, numeric.store_host) == ("127.0.0.2", "127.0.0.2")
    assert [numeric.position(rank) for rank in (0, 1)] == [0, 1] and not numeric.are_several


def test_a_node_whose_number_is_that_of_the_leader_is_refused() -> None:
    nodes = leading()
    other = started(nodes, 0, lambda member: None)
    with ended(other):
        turned(nodes, lambda: not other.is_alive())
        assert other.exitcode == 2 and meeting(nodes, 0).node == 0
