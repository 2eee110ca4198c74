"""Connections: silent ones go, and shut nobody out."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("uvicorn")
import uvicorn

from meshwright.serve import crowd
from meshwright.serve.server import bound

LONG = b"x" * (16 << 20)  # more than buffers on the way hold


async def app(scope, receive, send):
    """A short answer, or at /long one that takes a reader."""
    body = LONG if scope["path"] == "/long" else b"here"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch) -> Iterator[int]:
    """A server with room for ten, where silence ends after half a second."""
    monkeypatch.setattr(crowd, "MAX_CONNECTIONS", 10)
    monkeypatch.setattr(crowd, "SILENT_S", 0.5)
    config = uvicorn.Config(app, http=crowd.crowd_protocol(), ws="none", lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with bound("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def is_answered(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/")
    return connection.getresponse().read() == b"here"


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_more_silent_connections_than_there_is_room_for_shut_nobody_out(port):
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(port)) for _ in range(40)]
        for connection in silent[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for _ in range(3):
            asker = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            stack.callback(asker.close)
            assert is_answered(asker)
        assert all(map(is_closed, silent[:20]))


def test_one_who_asks_stays_and_one_who_asked_for_nothing_goes(port):
    with ExitStack() as stack:
        asker = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        stack.callback(asker.close)
        for _ in range(5):
            for _ in range(4):
                stack.enter_context(connected(port))
            assert is_answered(asker)
        assert asker.sock is not None


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_silence_half_a_request_and_an_answer_that_is_not_taken_end(port, sent):
    with connected(port) as connection:
        connection.sendall(sent)
        start_s, taken = time.monotonic(), 0
        time.sleep(1.0)
        try:
            while chunk := connection.recv(1 << 20):
                taken += len(chunk)
        except ConnectionError:
            pass
        assert taken < len(LONG)
        assert time.monotonic() - start_s < 5


def test_a_request_a_byte_at_a_time_does_not_count_as_asking(port):
    with connected(port) as connection:
        start_s = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - start_s < 5:
                connection.sendall(b"G" if time.monotonic() - start_s < 0.01 else b"E")
                time.sleep(0.1)
