"""How fast the planner searches: `python benchmarks/search.py` prints dated tables (a few minutes; `--quick` for the first rows).

Rates count fully priced legal layouts: memory and step time, from making the columns to ranking them. Pruned ones are not counted.
Seconds are of CPU time on one core, which other work on the machine does not change; wall time stands beside them.

2026-11-15, AMD EPYC virtual machine, Python 3.11.7, one core:
  everything priced, nothing pruned:
    llama-3.1-405b      512  2.54 s cpu  2.56 s wall   851,242 priced          0 pruned 432,242 unfit 335,763/s  76 MB  best 1.105 s
    llama-3.1-8b         64  0.85 s cpu  1.02 s wall   299,365 priced          0 pruned  15,095 unfit 354,243/s  80 MB  best 0.597 s
    the slowest is 2,623 times Calculon's 128 layouts a second
  the record machine, everything open:
    llama-3.1-405b    8,192  0.71 s cpu  0.71 s wall    84,462 priced  4,711,548 pruned 291,594 unfit 119,268/s  80 MB  best 1.159 s
  growth with accelerators, 8 to a sequence:
    llama-3.1-405b      512  0.30 s cpu  0.32 s wall    38,642 priced  1,091,352 pruned 153,490 unfit 129,361/s  73 MB  best 1.105 s
    llama-3.1-405b    2,048  0.37 s cpu  0.38 s wall    54,148 priced  2,659,582 pruned 196,294 unfit 144,775/s  75 MB  best 1.120 s
    llama-3.1-405b    8,192  0.67 s cpu  0.69 s wall    84,462 priced  4,711,548 pruned 291,594 unfit 125,614/s  80 MB  best 1.159 s
    llama-3.1-405b   32,768  0.92 s cpu  0.93 s wall   122,156 priced  6,324,858 pruned 384,706 unfit 133,335/s  86 MB  best 1.219 s
    llama-3.1-405b  131,072  1.12 s cpu  1.17 s wall   170,886 priced  6,876,522 pruned 509,136 unfit 152,047/s  89 MB  best 1.305 s
  over models:
    llama-3.1-8b      8,192  0.27 s cpu  0.29 s wall    57,200 priced  2,091,328 pruned       0 unfit 208,912/s  76 MB  best 0.064 s
    llama-3.1-70b     8,192  0.38 s cpu  0.41 s wall    87,824 priced  3,098,656 pruned  23,304 unfit 229,765/s  77 MB  best 0.392 s
    llama-3.1-405b    8,192  0.62 s cpu  0.63 s wall    84,462 priced  4,711,548 pruned 291,594 unfit 135,364/s  80 MB  best 1.159 s
    deepseek-v3       8,192  0.21 s cpu  0.22 s wall    49,063 priced    290,168 pruned  60,369 unfit 228,337/s  89 MB  best 0.421 s
    qwen3-235b-a22b   8,192  3.83 s cpu  3.85 s wall 1,312,054 priced 35,247,048 pruned 254,978 unfit 342,924/s 203 MB  best 0.267 s
"""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from meshwright.describe.load import load_workload
from meshwright.job import Job
from meshwright.plan.search import Found, search

# Calculon (caa4b11) in its own search, on one core, 2026-11-15.
CALCULON_LAYOUTS_PER_S = 128
NUM_RUNS = 3  # of which the fastest counts


@dataclass(frozen=True, slots=True)
class Case:
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
        return search(Job(self.model, self.cluster, workload, gpus=self.num_gpus), prune=self.prune)


RECORD = Case("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", 8192, 1024)
RATES = (
    replace(RECORD, num_gpus=512, batch=64, prune=False),
    Case("qwen3-30b-a3b", "hgx-h200-ndr", "pretrain-1t", 16, 8, prune=False),
    Case("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", 64, 64, prune=False),
)
SIZES = (512, 2048, 8192, 32_768, 131_072)
MODELS = (
    Case("llama-3.1-8b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
    Case("llama-3.1-70b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
    RECORD,
    Case("deepseek-v3", "azure-gb200-128", "pretrain-15t", 8192, 1024, precision="mxfp8"),
    Case("qwen3-235b-a22b", "azure-gb200-128", "pretrain-15t", 8192, 1024),
)


def measured(case: Case) -> str:
    """One line: CPU and wall seconds, layouts priced, pruned and unfit, the rate, and the peak memory of the process."""
    found = case.search()  # the first search of a process also reads the catalogue and the constants
    times_s = []
    for _ in range(NUM_RUNS):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        case.search()
        times_s.append((time.process_time() - cpu_s, time.perf_counter() - wall_s))
    cpu_s, wall_s = min(times_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    counts = (
        f"{found.num_layouts:>9,} priced {found.num_pruned:>10,} pruned {found.num_unfit:>7,} unfit {found.num_layouts / cpu_s:>7,.0f}/s"
    )
    return (
        f"{case.model:<15} {case.num_gpus:>7,} {cpu_s:5.2f} s cpu {wall_s:5.2f} s wall {counts} {peak_mb:3.0f} MB  "
        f"best {found.step_s[0]:.3f} s"
    )


def in_own_process(case: Case) -> str:
    """The same line from a process of its own, so that its peak memory is the search's."""
    fields = (case.model, case.cluster, case.workload, case.num_gpus, case.batch, int(case.prune), case.precision)
    command = [sys.executable, __file__, "--one", *map(str, fields)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        model, cluster, workload, num_gpus, batch, prune, precision = arguments[1:]
        print(measured(Case(model, cluster, workload, int(num_gpus), int(batch), prune == "1", precision)))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, one core:")
    rates = [in_own_process(case) for case in RATES]
    print("  everything priced, nothing pruned:", *rates, sep="\n    ")
    slowest = min(float(line.split("/s")[0].split()[-1].replace(",", "")) for line in rates)
    print(f"    the slowest is {slowest / CALCULON_LAYOUTS_PER_S:,.0f} times Calculon's {CALCULON_LAYOUTS_PER_S} layouts a second")
    print("  the record machine, everything open:", in_own_process(RECORD), sep="\n    ")
    if "--quick" in arguments:
        return
    print("  growth with accelerators, 8 to a sequence:")
    for size in SIZES:
        print("   ", in_own_process(replace(RECORD, num_gpus=size, batch=size // 8)), flush=True)
    print("  over models:")
    for case in MODELS:
        print("   ", in_own_process(case), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
