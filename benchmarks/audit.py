"""How long an audit takes: a log of 430 kB with thousands of lines that only clear caches, and every row of the table as a claim.

python benchmarks/audit.py
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshwright.audit.claim import claim_of
from meshwright.audit.judge import judge
from meshwright.audit.runs import read_run
from meshwright.audit.submissions import submissions

LOG_BYTES = 430_000
NUM_TIMES = 5


def line(time_ms: int, key: str, value: object = None, **metadata: object) -> str:
    """One line of a log."""
    entry = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(entry)}\n"


def made_log() -> str:
    """A whole log of 324 steps, filled up to its size with the cache_clear lines that every node of a large machine writes."""
    settings = {"submission_benchmark": "llama31_405b", "global_batch_size": 1024, "max_sequence_length": 8192}
    head = [line(1_770_000_000_000, key, value) for key, value in settings.items()]
    head += [line(1_770_000_500_000, "init_stop"), line(1_770_000_500_000, "run_start"), line(1_770_000_500_000, "block_start")]
    steps = [
        line(1_770_000_500_000 + 1271 * i, "tracked_stats", {"train_step_time": 1.27 + i % 7 / 1e3}, step=1024 * i) for i in range(1, 325)
    ]
    stop = 1_770_000_500_000 + 1271 * 325
    tail = [line(stop, "eval_start", samples_count=331776), line(stop, "eval_accuracy", 5.58), line(stop + 2900, "eval_stop")]
    tail += [line(stop + 2900, "run_stop", status="success")]
    rest = "".join([*head, *steps, *tail])
    fill = line(1_770_000_000_000, "cache_clear", True, file="train.py", lineno=1)
    return fill * ((LOG_BYTES - len(rest)) // len(fill)) + rest


def best_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several times."""
    times = []
    for _ in range(NUM_TIMES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def judge_all() -> int:
    """Judge every row of the table that is on a known accelerator; how many there are."""
    rows = [row for row in submissions() if row.chip and row.minutes > 0]
    for row in rows:
        facts = {"benchmark": row.benchmark, "accelerator": row.accelerator, "gpus": row.gpus, "minutes": row.minutes, "round": row.round}
        judge(claim_of(facts, row.name))
    return len(rows)


def main() -> None:
    """Measure and print."""
    text = made_log()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result_0.txt"
        path.write_text(text)
        run = read_run(path)
        assert run.is_whole and run.num_steps == 324, run.problem
        seconds = best_s(lambda: read_run(path))
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print(f"log of {len(text) / 1e3:.0f} kB, {text.count('cache_clear'):,} cache_clear lines: {seconds * 1e3:.0f} ms")
    num_claims = judge_all()
    print(f"{num_claims} claims: {best_s(judge_all) / num_claims * 1e3:.1f} ms each")


if __name__ == "__main__":
    main()
