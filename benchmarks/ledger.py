"""What a ledger and a budget cost: `python benchmarks/ledger.py` prints a dated table.

2026-11-15, 2 cores x86_64 that others used too, Python 3.11.7; processor time:
  reading 10000 steps           291.1 ms
  their ledger                   59.9 ms, 1000 entries
  its CSV                         8.5 ms
  a budget, of every step        0.26 us
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.ledger import Budget, ledger_csv, ledger_of_run, read_rate
from meshwright.record.entries import PARTS, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter
from meshwright.train.health.limit import Limit

NUM_STEPS = 10_000
EVALUATE_EVERY = 50
NUM_CHECKS = 200_000


def main() -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}; processor time")
    with TemporaryDirectory() as folder:
        path = write(Path(folder))
        run = read_run(path)
        ledger = ledger_of_run(run, None)
        print(f"  reading {NUM_STEPS} steps        {1e3 * best_s(lambda: read_run(path)):8.1f} ms")
        print(f"  their ledger               {1e3 * best_s(lambda: ledger_of_run(run, None)):8.1f} ms, {len(ledger.entries)} entries")
        print(f"  its CSV                    {1e3 * best_s(lambda: ledger_csv(ledger)):8.1f} ms")
    budget = Budget(usd=Decimal(10**9), rate=read_rate("1USD/h"), num_gpus=8)
    limit = Limit(budget, time.monotonic(), 0.1)
    print(f"  a budget, of every step    {1e6 * best_s(lambda: check(limit)) / NUM_CHECKS:8.2f} us")


def write(runs: Path) -> Path:
    """A run of many steps with evaluations."""
    header = RunHeader(name="many", kind="trained", seed=0, num_ranks=8, machine="none")
    with RunWriter.create(runs, header) as writer:
        writer.event("start", 0, 0.0, price=read_rate("2.5USD/h").to_json())
        parts = dict.fromkeys(PARTS, 0.1)
        writer.steps(StepRecord(step=i, samples=i, loss=1.0, grad_norm=1.0, step_s=1.0, parts_s=parts) for i in range(1, NUM_STEPS + 1))
        for number, step in enumerate(range(EVALUATE_EVERY, NUM_STEPS + 1, EVALUATE_EVERY), 1):
            writer.event("evaluation", step, step + 2.0 * number, seconds=2.0, loss=1.0)
        return writer.folder


def check(limit: Limit) -> None:
    """What the loop does for a budget in a step, many times."""
    for _ in range(NUM_CHECKS):
        limit.wants_stop()
        limit.saw(0.1, ())


def best_s(call: Callable[[], object], times: int = 5) -> float:
    """Least processor time of a few calls."""
    taken = []
    for _ in range(times):
        started_s = time.process_time()
        call()
        taken.append(time.process_time() - started_s)
    return min(taken)


if __name__ == "__main__":
    main()
