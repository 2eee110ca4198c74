"""One process of a replica: what it hears, and how it is cut off."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from datetime import timedelta
from multiprocessing import Pipe

import pytest
import torch.distributed as dist
from small_run import free_port

from meshwright.layout import Layout
from meshwright.train.elastic.member import CHANGE, GENERATION, Announcement, Member, abort_communicators, cut_connections


def test_an_announcement_is_read_as_it_was_written() -> None:
    announced = Announcement(generation=3, replicas=(2, 0), reason="lost", incident={"number": 1, "step_times_s": {}})
    assert Announcement.from_json(announced.to_json()) == announced


def member(replica: int, seat: int, num_seats: int) -> Member:
    return Member(
        replica=replica, seat=seat, num_seats=num_seats, port=1, secret=b"", began_s=0.0, local_rank=0, num_sharing=1, heard=None, said=None
    )  # type: ignore[arg-type]


def test_errors_that_a_rank_survives() -> None:
    one = member(0, 0, 1)
    assert one.survives(RuntimeError("Connection closed by peer"))
    assert not one.survives(RuntimeError("shapes do not match"))
    one.newest = 5
    assert one.survives(RuntimeError("shapes do not match"))
    assert not one.survives(KeyboardInterrupt())


@pytest.mark.parametrize("order", [("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp")])
def test_the_ranks_of_a_generation_are_all_different(order: tuple[str, ...]) -> None:
    layout = Layout(tp=2, pp=2, dp=3, order=order)
    inner = Layout(tp=2, pp=2, order=order)
    ranks = {layout.rank({**inner.coordinate(seat), "dp": index}) for index in range(3) for seat in range(4)}
    assert ranks == set(range(12))


def test_a_thread_that_waits_for_a_connection_is_woken_and_a_listener_stays() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as ours, listener.accept()[0] as theirs:
            received: list[bytes] = []
            waiting = threading.Thread(target=lambda: received.append(ours.recv(1)))
            waiting.start()
            cut_connections()
            waiting.join(10.0)
            assert received == [b""]
            assert theirs.recv(1) == b""
        socket.create_connection(listener.getsockname()).close()


def test_connections_to_a_port_are_spared_and_listeners_only_if_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours, listener.accept()[0]:
        cut_connections(spared_port=ours.getpeername()[1])
        assert ours.send(b"1") == 1
        cut_connections()
        with pytest.raises(BrokenPipeError):
            ours.send(b"1")
        cut_connections(listening=True)
        with pytest.raises(OSError, match="Invalid argument"):
            listener.accept()


def announced(number: int) -> Announcement:
    return Announcement(generation=number, replicas=(0,), reason="lost")


def test_a_rank_that_reaches_the_store_late_comes_to_the_newest_generation_soon() -> None:
    """Torch would try again to reach a store to which a connection is cut, and wait longer each time."""
    port, (told, ours), (theirs, _end) = free_port(), Pipe(), Pipe()
    host = os.fork()
    if not host:
        store = dist.TCPStore("127.0.0.1", port, None, True, timedelta(seconds=30.0), False)
        while store:
            signal.pause()
    one = Member(
        replica=0,
        seat=0,
        num_seats=1,
        port=port,
        secret=b"",
        began_s=0.0,
        local_rank=0,
        num_sharing=1,
        heard=ours,
        said=theirs,
    )
    try:
        dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=30.0), False)  # it is there
        threading.Thread(target=one._listen, daemon=True).start()
        told.send((GENERATION, announced(0).to_json()))
        first = one.next(10.0)
        os.kill(host, signal.SIGSTOP)
        threading.Timer(0.3, told.send, ((GENERATION, announced(1).to_json()),)).start()
        threading.Timer(1.5, os.kill, (host, signal.SIGCONT)).start()
        begun_s = time.monotonic()
        assert first is not None
        with pytest.raises(RuntimeError, match="newer generation") as caught:
            one.place(first, Layout())
        assert one.survives(caught.value) and time.monotonic() - begun_s < 2.2
        newest = one.next(10.0)
        assert newest == announced(1) and one.place(newest, Layout()).rank == 0
    finally:
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)


@pytest.mark.parametrize("backend, is_aborted", [("nccl", True), ("gloo", False), (None, False)])
def test_communicators_are_aborted_on_gpus_only(monkeypatch: pytest.MonkeyPatch, backend: str | None, is_aborted: bool) -> None:
    aborted: list[bool] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: backend is not None)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: aborted.append(True))
    assert (abort_communicators(), aborted) == (is_aborted, [True] * is_aborted)


def test_a_rank_that_waits_to_hear_who_leaves_notices_a_newer_generation() -> None:
    one = member(0, 0, 1)
    one._hear(CHANGE, "[2]")
    assert one.leaving() == [2]
    one._hear(GENERATION, Announcement(generation=1, replicas=(0,), reason="lost").to_json())  # it takes back the change
    with pytest.raises(RuntimeError, match="newer generation") as caught:
        one.leaving()
    assert one.survives(caught.value)
