"""How long a report takes: `python benchmarks/report.py` prints a dated table.

A made trace of 430,000 events in the form of torch.profiler, plain and compressed, each read in a process of its own so that its peak
memory is known; and the page of a made run of 10,000 steps.

2026-11-15, 2 cores x86_64 with other work on them, Python 3.11.7, numpy 2.4.6:
  trace of 430,000 events, 109 MB: 6.46 s, 51 MiB at most
  trace of 430,000 events, 8 MB packed: 6.84 s, 52 MiB at most
  page of 10,000 steps: 0.68 s, 52 kB
"""

from __future__ import annotations

import gzip
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter
from meshwright.report.facts import facts_of_runs
from meshwright.report.page.run_page import run_page

NUM_EVENTS, NUM_STEPS = 430_000, 10_000
KINDS = (  # name, category, process, stream, longest in us, share of the events
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", "kernel", 0, 7, 8.0, 0.40),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", 0, 20, 40.0, 0.10),
    ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 0, 7, 5.0, 0.05),
    ("aten::mm", "cpu_op", 999, 999, 5.0, 0.45),
)
READ = """
import sys, time
from pathlib import Path
started_s = time.perf_counter()
from meshwright.record.profile import profile_of
profile_of((Path(sys.argv[1]),))
took_s = time.perf_counter() - started_s
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # getrusage would count the parent before exec
print(f"{took_s:.2f} s, {int(peak.split()[1]) / 1024:.0f} MiB at most")
"""


def write_trace(path: Path) -> None:
    """Write the made trace."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(len(KINDS), NUM_EVENTS, p=[kind[-1] for kind in KINDS]).tolist()
    starts, shares = np.cumsum(10 * rng.random(NUM_EVENTS)).round(3).tolist(), rng.random(NUM_EVENTS).tolist()
    with open(path, "w") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0}, "traceEvents": [\n')
        for number, (kind, start, share) in enumerate(zip(kinds, starts, shares, strict=True)):
            name, category, process, stream, longest, _ = KINDS[kind]
            details = {"External id": number, "correlation": number, "stream": stream, "grid": [1, 2, 3], "block": [128, 1, 1]}
            event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": stream, "ts": start, "dur": round(share * longest, 3)}
            file.write(json.dumps({**event, "args": details}) + (",\n" if number + 1 < NUM_EVENTS else "\n"))
        file.write('], "traceName": "made"}\n')


def write_run(runs: Path) -> Path:
    """Write the made run."""
    rng = np.random.default_rng(0)
    header = RunHeader(name="made", kind="trained", seed=0, num_ranks=8, machine="made", sequence_length=128)
    with RunWriter.create(runs, header) as writer:
        times = (0.5 * (1 + 0.01 * rng.standard_normal(NUM_STEPS))).tolist()
        writer.steps(
            StepRecord(step=n, samples=16 * n, loss=8 / n**0.2, grad_norm=1.0, step_s=step_s, parts_s={"compute": step_s})
            for n, step_s in enumerate(times, start=1)
        )
        writer.finish("finished")
    return runs / "made"


def main() -> None:
    """Print the table."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        write_trace(plain)
        packed = plain.with_suffix(".json.gz")
        packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
        for path in (plain, packed):
            printed = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True).stdout.strip()
            print(f"  trace of {NUM_EVENTS:,} events, {path.stat().st_size / 1e6:.0f} MB{' packed' if path is packed else ''}: {printed}")
        run = write_run(Path(folder))
        started_s = time.perf_counter()
        page = run_page(facts_of_runs([run]))
        print(f"  page of {NUM_STEPS:,} steps: {time.perf_counter() - started_s:.2f} s, {len(page.encode()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
