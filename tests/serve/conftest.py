"""Runs to look at, a client that needs no socket, and a server that has one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

PARTS_S = {"compute": 0.7, "exposed_dp": 0.2, "bubble": 0.1}


def record(step: int, step_s: float = 1.0, loss: float | None = None) -> StepRecord:
    """A step whose loss falls, and whose parts add up."""
    parts_s = {part: share * step_s for part, share in PARTS_S.items()}
    return StepRecord(step=step, samples=8 * step, loss=10 / step if loss is None else loss, grad_norm=1.0, step_s=step_s, parts_s=parts_s)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def plan_bytes(racks_plan: Path) -> bytes:
    return racks_plan.read_bytes()


Writer = Callable[..., RunWriter]


@pytest.fixture
def new_run(runs: Path) -> Iterator[Writer]:
    """Writes a new run of so many steps, and leaves it open."""
    opened = []

    def write(name: str, num_done: int = 0, plan: bytes | None = None, **header: Any) -> RunWriter:
        defaults = {"kind": "trained", "seed": 1, "num_ranks": 256, "machine": "a test", "sequence_length": 128}
        writer = RunWriter.create(runs, RunHeader(name=name, **{**defaults, **header}), plan)
        writer.event("start", 0)
        writer.steps(record(step) for step in range(1, num_done + 1))
        opened.append(writer)
        return writer

    yield write
    for writer in opened:
        writer.close()


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def asked(app: Any, method: str, path: str, headers: dict[str, str] | None = None, host: str = "127.0.0.1:8420") -> Answer:
    """The answer of an ASGI application, without a socket between."""
    raw = [(b"host", host.encode()), *((key.lower().encode(), value.encode("latin-1")) for key, value in (headers or {}).items())]
    bare, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": bare,
        "raw_path": bare.encode("latin-1", "replace"),
        "query_string": query.encode(),
        "headers": raw,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8420),
        "root_path": "",
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    found = {key.decode().lower(): value.decode("latin-1") for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves an application on a free port of this machine, and says where."""
    import uvicorn

    running: list[tuple[Any, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread, listener))
        deadline_s = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join()
        listener.close()
