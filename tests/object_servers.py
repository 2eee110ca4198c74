"""Real servers of object storage for tests, and a proxy of ours that puts faults between them and a client.

S3 is moto's server (PyPI). Azure is Azurite (npm), where it is installed: `npm install azurite`, and its program in the PATH or named by
AZURITE. Each test gets a bucket of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from meshwright.storage import Remote

START_S = 120.0
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public, of every Azurite
HOP = ("connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection")


@dataclass(frozen=True)
class ObjectServer:
    """A server, what a client's environment must have to use it, and how a bucket is made."""

    port: int
    scheme: str
    variables: Callable[[int], dict[str, str]]  # for a client that reaches it at this port
    make: Callable[[str], None]

    def place(self, patience_s: float = 20.0) -> Remote:
        """A new and empty place, in a bucket of its own."""
        bucket = f"test-{uuid.uuid4().hex[:12]}"
        self.make(bucket)
        return Remote.at(f"{self.scheme}://{bucket}/runs", patience_s)


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _started(command: list[str], port: int, folder: str) -> subprocess.Popen[bytes]:
    with open(f"{folder}/log.txt", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return process
        except OSError:
            time.sleep(0.05)
    process.kill()
    process.wait()
    pytest.fail(f"{command[0]} did not start: {Path(folder, 'log.txt').read_text()[-500:]}")


def s3_variables(port: int) -> dict[str, str]:
    """The environment of a client of moto's server."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


@contextmanager
def moto_running() -> Iterator[ObjectServer]:
    """moto's server, until the block ends."""
    port = _port()
    with tempfile.TemporaryDirectory() as folder:
        process = _started([sys.executable, "-m", "moto.server", "-p", str(port)], port, folder)

        def make(bucket: str) -> None:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT"), timeout=30).close()

        yield ObjectServer(port, "s3", s3_variables, make)
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[ObjectServer]:
    """moto's server for all tests."""
    pytest.importorskip("moto", reason="moto's server is in the extra `test`")
    pytest.importorskip("obstore", reason="obstore is in the extra `storage`")
    with moto_running() as server:
        yield server


@pytest.fixture
def s3(moto_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """moto's server, and this process as a client of it."""
    for name, value in moto_server.variables(moto_server.port).items():
        monkeypatch.setenv(name, value)
    return moto_server


def azure_variables(port: int) -> dict[str, str]:
    """The environment of a client of Azurite."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}",
    }


def _make_container(port: int, container: str) -> None:
    """Make a container by a request that is signed with the account's key, as Azure asks for it."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + lines + f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{container}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{signature}"
    url = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}/{container}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()


def azurite_program() -> str | None:
    """The program of Azurite, if there is one."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


@contextmanager
def azurite_running() -> Iterator[ObjectServer]:
    """Azurite, until the block ends."""
    port = _port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--blobPort", str(port), "--skipApiVersionCheck", "--silent", "--disableTelemetry", "--location", folder]
        process = _started([azurite_program() or "azurite-blob", *options], port, folder)
        yield ObjectServer(port, "az", azure_variables, lambda container: _make_container(port, container))
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[ObjectServer]:
    """Azurite for all tests, where it is installed."""
    pytest.importorskip("obstore", reason="obstore is in the extra `storage`")
    if not azurite_program():
        pytest.skip("Azurite is not installed (npm install azurite), or not named by AZURITE")
    with azurite_running() as server:
        yield server


@pytest.fixture
def azure(azurite_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """Azurite, and this process as a client of it."""
    for name, value in azurite_server.variables(azurite_server.port).items():
        monkeypatch.setenv(name, value)
    return azurite_server


@dataclass
class Faults:
    """What the proxy does to requests, one after the other; a client that tries again meets the next."""

    latency_s: float = 0.0
    is_dead: bool = False  # connections are refused at once
    answers: list[int | str] = field(
        default_factory=list
    )  # a status instead of an answer, "reset", "truncate" or "pass": each is used once
    only: str = ""  # which method the answers apply to; empty: every one
    kill_at: int = 0  # the number of the request at which `victim` is killed; 0: never
    kills_after: bool = False  # once the server has answered, and not before it is asked
    victim: int = 0
    num_requests: int = 0
    log: list[str] = field(default_factory=list)


class FaultProxy:
    """A proxy before one server, on a port of its own."""

    def __init__(self, upstream: int) -> None:
        self.faults = Faults()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                proxy.serve(self, upstream)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

            def log_message(self, *arguments: object) -> None:
                """Nothing: the log is in the faults."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, address: object) -> None:
                """Nothing: a client that was killed closes its connections."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def serve(self, request: BaseHTTPRequestHandler, upstream: int) -> None:
        """Pass one request on, or not."""
        faults = self.faults
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            faults.num_requests += 1
            number = faults.num_requests
            faults.log.append(f"{request.command} {urlsplit(request.path).path}")
            is_meant = bool(faults.answers) and faults.only in ("", request.command)
            answer = faults.answers.pop(0) if is_meant and not faults.is_dead else None
        time.sleep(faults.latency_s)
        if number == faults.kill_at and not faults.kills_after:
            self._kill(request)
            return
        if faults.is_dead or answer == "reset":
            _cut(request)
        elif isinstance(answer, int):
            _send(request, answer, {"Content-Length": "0"}, b"")
        else:
            self._pass_on(request, upstream, body, number, is_short=answer == "truncate")

    def _pass_on(self, request: BaseHTTPRequestHandler, upstream: int, body: bytes, number: int, *, is_short: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        connection.request(request.command, request.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        back = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        if request.command != "HEAD":
            back = {name: value for name, value in back.items() if name.lower() != "content-length"} | {"Content-Length": str(len(data))}
        connection.close()
        if number == self.faults.kill_at:
            self._kill(request)
            return
        _send(request, answer.status, back, data[: len(data) // 2] if is_short else data)
        if is_short:
            _cut(request)

    def _kill(self, request: BaseHTTPRequestHandler) -> None:
        os.kill(self.faults.victim, signal.SIGKILL)
        _cut(request)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _send(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], data: bytes) -> None:
    request.send_response_only(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)
    request.wfile.flush()


def _cut(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True
    request.connection.close()


@pytest.fixture
def proxy(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before moto's server, and this process as a client of the proxy."""
    started = FaultProxy(s3.port)
    for name, value in s3.variables(started.port).items():
        monkeypatch.setenv(name, value)
    yield started
    started.close()
