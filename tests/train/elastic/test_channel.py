"""The connection between two supervisors: who may speak, and what is done with messages of others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshwright.train.elastic import channel
from meshwright.train.elastic.channel import LENGTH, Channel, Guest, Refused, joined

SECRET, OTHER = b"0123456789abcdef", b"fedcba9876543210"


OPENED: list[Channel] = []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found
    while OPENED:
        OPENED.pop()._connection.close()


def accepted(listener: socket.socket, secret: bytes) -> tuple[int, Channel]:
    """What the leading supervisor makes of the next connection."""
    connection, (address, _) = listener.accept()
    guest, until_s = Guest(connection, address, secret), time.monotonic() + 20.0
    try:
        while (found := guest.channel()) is None:
            assert time.monotonic() < until_s
            time.sleep(0.005)
    except Refused:
        connection.close()
        raise
    return found


def both(listener: socket.socket, ours: bytes = SECRET, theirs: bytes = SECRET) -> tuple[Channel, Channel]:
    """The two ends of a channel: that of the leading supervisor, and that of node 3."""
    found: list[Channel | Refused] = []

    def join() -> None:
        try:
            found.append(joined("127.0.0.1", listener.getsockname()[1], 3, theirs, 20.0))
        except Refused as error:
            found.append(error)

    joining = threading.Thread(target=join)
    joining.start()
    try:
        number, leading = accepted(listener, ours)
    finally:
        joining.join()
    (other,) = found
    assert isinstance(other, Channel) and number == 3
    OPENED.extend((leading, other))
    return leading, other


def heard(end: Channel, count: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """The next messages."""
    found: list[tuple[str, dict[str, Any]]] = []
    until_s = time.monotonic() + 20.0
    while len(found) < count and not end.ended:
        assert time.monotonic() < until_s
        found += end.heard()
        time.sleep(0.005)
    return found


def test_messages_come_in_order_in_both_directions(listener: socket.socket) -> None:
    leading, other = both(listener)
    for number in range(3):
        leading.say("start", number=number)
    other.say("facts", facts={"what": "x" * 200_000})
    while not (leading.flush() and other.flush()):
        heard(leading, 0)
    assert heard(other, 3) == [("start", {"number": number}) for number in range(3)]
    assert heard(leading) == [("facts", {"facts": {"what": "x" * 200_000}})]
    leading.say("over", code=0)
    leading.close(5.0)
    assert heard(other) == [("over", {"code": 0})]
    assert heard(other) == [] and other.ended == "its connection was closed"


@pytest.mark.parametrize("ours, theirs", [(SECRET, OTHER), (SECRET, b""), (b"", SECRET)])
def test_who_has_another_secret_is_refused(listener: socket.socket, ours: bytes, theirs: bytes) -> None:
    with pytest.raises(Refused, match="it does not have the secret of this job"):
        both(listener, ours, theirs)


def test_a_leader_without_the_secret_learns_nothing(listener: socket.socket) -> None:
    """Somebody else listens at the address: what the node says to it is no message of the job."""
    got: list[bytes] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(f"{channel.HELLO} {'0' * 32}\n".encode())
            got.append(connection.recv(4096))
            connection.sendall(b"1" * 64 + b"\n")
            got.append(connection.recv(4096))

    answering = threading.Thread(target=answer)
    answering.start()
    with pytest.raises(Refused, match="does not have the secret of this job"):
        joined("127.0.0.1", listener.getsockname()[1], 1, SECRET, 20.0)
    answering.join()
    assert len(got[0].split()) == 3 and got[1] == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x00" * 600,
        b"1 2\n",
        b"0x1 word proof\n",
        b"99999999 word proof\n",
        b"1 word 0000\n",
        b"",
    ],
)
def test_other_programs_are_refused(listener: socket.socket, sent: bytes) -> None:
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        with pytest.raises(Refused):
            accepted(listener, SECRET)


def test_who_says_nothing_is_refused_after_a_while(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HELLO_S", 0.2)
    with socket.create_connection(listener.getsockname()), pytest.raises(Refused, match="did not say which node"):
        accepted(listener, SECRET)


def repeated(data: bytes) -> bytes:
    return data + data


def changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def far_too_long(data: bytes) -> bytes:
    return LENGTH.pack(1 << 31) + data


@pytest.mark.parametrize("tampered, count", [(repeated, 1), (changed, 0), (far_too_long, 0)])
def test_messages_that_were_tampered_with_end_the_channel(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, tampered: Callable[[bytes], bytes], count: int
) -> None:
    leading, other = both(listener)
    whole = Channel._sealed
    monkeypatch.setattr(Channel, "_sealed", lambda self, plain: tampered(whole(self, plain)))
    leading.say("end", number=1)
    leading.flush()
    assert heard(other, 2) == [("end", {"number": 1})] * count
    assert other.ended in ("a message was not from a supervisor of this job", "a message was far too long")


def test_a_message_is_not_valid_in_the_other_direction(listener: socket.socket) -> None:
    leading, _ = both(listener)
    sealed = leading._sealed(b'["end", {}]')
    leading._coming += sealed  # as if it had been sent back
    assert leading.heard() == [] and leading.ended == "a message was not from a supervisor of this job"


def test_nothing_can_be_read_on_the_way(listener: socket.socket) -> None:
    leading, _ = both(listener)
    assert b"the secret of the ranks" not in leading._sealed(b'["start", {"secret": "the secret of the ranks"}]')
