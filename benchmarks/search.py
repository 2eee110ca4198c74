"""How fast the planner searches: `python benchmarks/search.py` prints dated tables (a few minutes; `--quick` for the first rows).

Rates count fully priced legal layouts: memory and step time, from making the columns to ranking them. Pruned ones are not counted.
Seconds are of CPU time on one core, which other work on the machine does not change; wall time stands beside them.

RESULTS
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.plan.search import Found, search

# Calculon (caa4b11) in its own search, one core of the machine that also measured our first rows, 2026-11-15.
CALCULON_LAYOUTS_PER_S = 128


@dataclass(frozen=True, slots=True)
class Job:
    """A search to time."""

    model: str
    cluster: str
    workload: str
    num_gpus: int
    batch: int
    prune: bool = True
    precision: str = ""

    def search(self) -> Found:
        workload = replace(load_workload(self.workload), global_batch=self.batch)
        if self.precision:
            workload = replace(workload, precision=self.precision)
        return search(load_model(self.model), load_cluster(self.cluster).resized(self.num_gpus), workload, prune=self.prune)


RECORD = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", 8192, 1024)
RATES = (
    replace(RECORD, num_gpus=512, batch=64, prune=False),
    Job("qwen3-30b-a3b", "hgx-h200-ndr", "pretrain-1t", 16, 8, prune=False),
    Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", 64, 64, prune=False),
)
SIZES = (512, 2048, 8192, 32_768, 131_072)
MODELS = (
    Job("llama-3.1-8b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
    Job("llama-3.1-70b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
    RECORD,
    Job("deepseek-v3", "azure-gb200-128", "pretrain-15t", 8192, 1024, precision="mxfp8"),
    Job("qwen3-235b-a22b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
)


def measured(job: Job) -> str:
    """One line: CPU and wall seconds, layouts priced, pruned and unfit, the rate, and the peak memory of the process."""
    job.search()  # the first search of a process also reads the catalogue and the constants
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    found = job.search()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    rate = found.num_layouts / cpu_s
    return (
        f"{job.model:<16} {job.num_gpus:>7,} {cpu_s:6.2f} s cpu {wall_s:6.2f} s wall {found.num_layouts:>9,} priced {found.num_pruned:>10,} pruned "
        f"{found.num_unfit:>9,} unfit {rate:>8,.0f}/s {peak_mb:5.0f} MB  best {found.step_time_s[0]:.3f} s"
    )


def in_own_process(job: Job) -> str:
    """The same line from a process of its own, so that its peak memory is the search's."""
    fields = (job.model, job.cluster, job.workload, job.num_gpus, job.batch, int(job.prune), job.precision)
    command = [sys.executable, __file__, "--one", *map(str, fields)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        model, cluster, workload, num_gpus, batch, prune, precision = arguments[1:]
        print(measured(Job(model, cluster, workload, int(num_gpus), int(batch), prune == "1", precision)))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, one core:")
    rates = [in_own_process(job) for job in RATES]
    print("  everything priced, nothing pruned:", *rates, sep="\n    ")
    slowest = min(float(line.split("/s")[0].split()[-1].replace(",", "")) for line in rates)
    print(f"    the slowest is {slowest / CALCULON_LAYOUTS_PER_S:,.0f} times Calculon's {CALCULON_LAYOUTS_PER_S} layouts a second")
    print("  the record machine, everything open:", in_own_process(RECORD), sep="\n    ")
    if "--quick" in arguments:
        return
    print("  growth with accelerators, 8 to a sequence:", sep="\n")
    for size in SIZES:
        print("   ", in_own_process(replace(RECORD, num_gpus=size, batch=size // 8)), flush=True)
    print("  over models:")
    for job in MODELS:
        print("   ", in_own_process(job), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
