"""The socket: bound, in use, and closed."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from meshwright.errors import InputError
from meshwright.serve.server import bound, next_free_port


def test_a_port_in_use_is_an_error_that_names_a_free_one():
    with bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use") as caught:
            bound("127.0.0.1", port)
        free = int(caught.value.fix.removeprefix("give --port "))
        assert free == next_free_port("127.0.0.1", port)
        bound("127.0.0.1", free).close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "nowhere.invalid", "x" * 300])
def test_an_address_that_is_not_this_machine_s_is_an_error(host):
    with pytest.raises(InputError, match=r"address|listen") as caught:
        bound(host, 0)
    assert caught.value.where == "--host"


@pytest.fixture
def started(runs):
    """A server of its own, as a user starts it."""
    command = [sys.executable, "-u", "-m", "meshwright", "serve", str(runs), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        while not line.startswith("page"):
            line = server.stdout.readline()
            assert line, server.stderr.read()
        yield server, int(line.split()[1].rsplit(":", 1)[1].rstrip("/"))
    finally:
        server.kill()
        server.communicate()


def answered(port: int) -> http.client.HTTPConnection:
    deadline_s = time.monotonic() + 20
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/api/runs")
            assert connection.getresponse().read().startswith(b"{")
            return connection
        except ConnectionError:
            connection.close()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_ctrl_c_ends_it_cleanly_with_readers_connected(started, new_run):
    new_run("first", 3)
    server, port = started
    reader = answered(port)  # kept alive
    idle = socket.create_connection(("127.0.0.1", port))
    half = socket.create_connection(("127.0.0.1", port))
    half.sendall(b"GET / HTTP/1.1\r\nHost: ")
    os.kill(server.pid, signal.SIGINT)
    out, err = server.communicate(timeout=10)
    assert (server.returncode, err) == (0, "meshwright: the page is closed\n")
    assert "Traceback" not in out
    for connection in (reader, idle, half):
        connection.close()


def test_a_real_server_says_no_more_of_itself_than_it_must(started):
    _, port = started
    reader = answered(port)
    reader.request("GET", "/nothing")
    answer = reader.getresponse()
    assert answer.status == 404
    assert answer.getheader("server") is None
    reader.close()
