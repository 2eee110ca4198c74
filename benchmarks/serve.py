"""What the live page costs a training step: `python benchmarks/serve.py` prints a dated table.

A real run of two ranks on two cores goes on while the page is, in turn, not asked, polled by a client as a browser polls it (once a second,
from another machine as it were), and open in Chromium on the same cores. Turns of a few seconds are interleaved, and steps of a turn are
compared with those of the same round in which nobody asked, so that what else the machine does falls on all alike. Told are the median over
rounds of the ratio of step times, its 95 % interval by bootstrap over rounds, and the processor time of `meshwright serve` itself, which
other load does not disturb.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

TURN_S = 3.0
NUM_ROUNDS = 24
NAME = "measured"
PLAN = ("llama-2m", "this-machine", "python-stdlib", "--gpus", "2", "--batch", "2", "--layout", "dp=2", "--no-explain", "--keep", "1")

Turn = AbstractContextManager[None]


def main() -> None:
    """Print the table."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}")
    print(f"  load before: {os.getloadavg()[0]:.1f} processes want a core")
    with TemporaryDirectory() as folder:
        long_run(Path(folder))
    with TemporaryDirectory() as folder:
        compare(Path(folder))


def compare(runs: Path) -> None:
    """Train, and print what each way of looking costs."""
    with training(runs), serving(runs) as (server, port), browser() as page:
        wait_for(lambda: num_steps(runs) >= 5)
        ways: dict[str, Callable[[], Turn]] = {"nobody asks": nobody, "polled": lambda: polled(port)}
        if page is not None:
            ways["Chromium open"] = lambda: browsed(page, port)
        rounds = [{way: turn(runs, server, look()) for way, look in ways.items()} for _ in range(NUM_ROUNDS)]
    for way in ways:
        show(way, [(one[way], one["nobody asks"]) for one in rounds])


def turn(runs: Path, server: psutil.Process, look: Turn) -> tuple[float, float]:
    """Median step time of one turn, and the seconds of a core that the server took in it."""
    with look:
        before, used_s = num_steps(runs), sum(server.cpu_times()[:2])
        end_s = time.monotonic() + TURN_S
        while time.monotonic() < end_s or num_steps(runs) < before + 3:
            time.sleep(0.1)
        return float(np.median(step_times_s(runs)[before + 1 :])), sum(server.cpu_times()[:2]) - used_s


def show(way: str, pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    """Print one line."""
    step_s = np.array([taken[0] for taken, _ in pairs])
    ratios = step_s / np.array([alone[0] for _, alone in pairs])
    rng = np.random.default_rng(0)
    low, high = np.percentile([np.median(rng.choice(ratios, len(ratios))) for _ in range(5000)], [2.5, 97.5])
    share = 100 * sum(taken[1] for taken, _ in pairs) / (TURN_S * len(pairs))
    words = f"{np.median(step_s) * 1e3:6.1f} ms a step  ratio {np.median(ratios):.3f} ({low:.3f} to {high:.3f})"
    print(f"  {way:14} {words}  server {share:.2f} % of a core", flush=True)


@contextmanager
def nobody() -> Iterator[None]:
    """Let the run go on alone."""
    yield


@contextmanager
def polled(port: int) -> Iterator[None]:
    """Ask as the page of one run asks: once a second, for what is new."""
    is_over = threading.Event()

    def poll() -> None:
        connection, query = http.client.HTTPConnection("127.0.0.1", port), ""
        while not is_over.wait(1.0):
            answer = asked(connection, f"/api/runs/{NAME}?{query}")
            steps = answer["steps"]
            query = f"life={answer['life']}&after={steps['rows']}&bucket={steps['bucket']}&events={answer['num_events']}"
        connection.close()

    thread = threading.Thread(target=poll)
    thread.start()
    yield
    is_over.set()
    thread.join()


@contextmanager
def browsed(page: Any, port: int) -> Iterator[None]:
    """Have the page open in a browser that draws on this machine's own cores."""
    page.goto(f"http://127.0.0.1:{port}/#/run/{NAME}")
    page.wait_for_selector(".tiles")
    yield
    page.goto("about:blank")


@contextmanager
def browser() -> Iterator[Any]:
    """A page of Chromium, or None where it or its driver is missing."""
    path = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened.new_page()
        opened.close()


def long_run(runs: Path) -> None:
    """Print what a run of 100,000 steps takes to open, and to follow."""
    from meshwright.record.entries import PARTS, StepRecord
    from meshwright.record.header import RunHeader
    from meshwright.record.writer import RunWriter

    parts_s = {part: 0.1 for part in PARTS}
    header = RunHeader(name=NAME, kind="trained", seed=0, num_ranks=8, machine="none")
    with RunWriter.create(runs, header) as writer:
        writer.steps(StepRecord(step=i, samples=i, loss=1 / i, grad_norm=1.0, step_s=1.0, parts_s=parts_s) for i in range(1, 100_001))
        with serving(runs) as (_, port):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            start_s, shares = time.monotonic(), []
            while not shares or shares[-1] < 1:
                answer = asked(connection, f"/api/runs/{NAME}")
                shares.append(answer["share_read"])
            opened_s = time.monotonic() - start_s
            size = len(json.dumps(answer))
            writer.step(StepRecord(step=100_001, samples=100_001, loss=1.0, grad_norm=1.0, step_s=1.0, parts_s=parts_s))
            time.sleep(0.3)
            steps = answer["steps"]
            start_s = time.monotonic()
            again = asked(
                connection,
                f"/api/runs/{NAME}?life={answer['life']}&after={steps['rows']}&bucket={steps['bucket']}&events={answer['num_events']}",
            )
            took_s = time.monotonic() - start_s
    print(
        f"  100,000 steps: read in {opened_s:.1f} s ({len(shares)} answers on the way), {size / 1e3:.0f} kB; "
        f"one step more: {took_s * 1e3:.0f} ms, {len(json.dumps(again)) / 1e3:.1f} kB"
    )


def asked(connection: http.client.HTTPConnection, path: str) -> dict:
    """The server's answer."""
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


@contextmanager
def training(runs: Path) -> Iterator[None]:
    """A small Llama in training with small batches, until the block ends."""
    plan = runs / "plan.json"
    subprocess.run([sys.executable, "-m", "meshwright", "plan", *PLAN, "--out", str(plan)], check=True, stdout=subprocess.DEVNULL)
    entry = json.loads(plan.read_text())
    entry["workload"]["training"] |= {"target_loss": 0.0, "most_samples": 1e7}  # no end before ours
    plan.write_text(json.dumps(entry))
    command = [sys.executable, "-m", "meshwright", "train", str(plan), "--runs", str(runs), "--name", NAME, "--no-save"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def serving(runs: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A server of its own; its process and its port."""
    command = [sys.executable, "-u", "-m", "meshwright", "serve", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("page"))
            port = int(line.split()[1].rsplit(":", 1)[1].rstrip("/"))
            wait_for(lambda: can_reach(port))
            yield psutil.Process(process.pid), port
        finally:
            process.terminate()


def can_reach(port: int) -> bool:
    """Whether the server answers."""
    try:
        asked(http.client.HTTPConnection("127.0.0.1", port), "/api/runs")
    except OSError:
        return False
    return True


def wait_for(is_so: Callable[[], bool], most_s: float = 120.0) -> None:
    """Wait until it is so."""
    end_s = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.1)


def step_times_s(runs: Path) -> list[float]:
    """Times of all steps so far."""
    path = runs / NAME / "steps.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line)["step_s"] for line in lines]


def num_steps(runs: Path) -> int:
    """Steps so far."""
    return len(step_times_s(runs))


if __name__ == "__main__":
    main()
