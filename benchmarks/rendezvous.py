"""How long many ranks take to meet and to agree, by their number: `python benchmarks/rendezvous.py [--ranks N]... [--out FILE]`.

Each rank is a thread with a connection of its own to one store, as a rank of a run has it. Connections are made before the clock starts.
All ranks share this machine's cores and one interpreter, so real ranks are hardly slower. `meet` is what ranks of a launcher do first: each
writes a word and waits for the answer of rank 0 (`train.meeting`). `agree` is one decision of rank 0 that all others wait for
(`train.launch.agreed`); a run has about six. `beat` is one report of every rank to its watchdog. The rule is a straight line through the
times, by least squares: seconds = fixed + each x ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch.distributed as dist

from meshwright.train.launch import Place, agreed
from meshwright.train.meeting import Address, _agreed_name

SIZES = (8, 32, 128, 512)
TIMEOUT_S = 300.0
REPEATS = 3
NOTE = json.dumps({"rank": 0, "beat": 1, "step": 100, "doing": "a step", "waits": ["all-reduce", "dp", "0:8:1"]})
PARTS = ("meet", "agree", "beat")


def together(num_ranks: int, body: Callable[[int], object]) -> float:
    """Seconds from a common start until `body(rank)` is over on all ranks."""
    errors: list[BaseException] = []
    start = threading.Barrier(num_ranks + 1)

    def run(rank: int) -> None:
        start.wait()
        try:
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    start.wait()
    started_s = time.monotonic()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if errors:
        raise errors[0]
    return time.monotonic() - started_s


def measure(num_ranks: int) -> dict[str, float]:
    """Seconds of each part with so many ranks, the median of some repeats."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))
    patience = timedelta(seconds=TIMEOUT_S)
    stores = [dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=patience, wait_for_workers=False) for _ in range(num_ranks)]
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for repeat in range(REPEATS):
        under = [dist.PrefixStore(f"try{repeat}", store) for store in stores]
        address = Address(host="127.0.0.1", port=server.port, timeout_s=TIMEOUT_S, until_s=time.monotonic() + TIMEOUT_S)
        times["meet"].append(together(num_ranks, lambda rank, under=under, at=address: _agreed_name(under[rank], rank, num_ranks, at)))
        places = [
            Place(rank=rank, num_ranks=num_ranks, local_rank=rank, num_local_ranks=num_ranks, store=store)
            for rank, store in enumerate(under)
        ]
        times["agree"].append(together(num_ranks, lambda rank, places=places: agreed(places[rank], "what", lambda: "decided")))
        times["beat"].append(together(num_ranks, lambda rank, under=under: under[rank].set(f"rank/{rank}", NOTE)))
    return {part: statistics.median(found) for part, found in times.items()}


def line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """A fixed time and a time for each rank, by least squares."""
    if len(sizes) < 2:
        return seconds[0], 0.0
    fit = statistics.linear_regression(sizes, seconds)
    return fit.intercept, fit.slope


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print a table and the rule of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, action="append", help=f"numbers of ranks (default: {', '.join(map(str, SIZES))})")
    parser.add_argument("--out", type=Path, help="write the seconds here, as JSON")
    given = parser.parse_args(words)
    sizes = sorted(set(given.ranks or SIZES))
    found = {size: measure(size) for size in sizes}
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}\n")
    print("| ranks | " + " | ".join(PARTS) + " |\n| --- |" + " --- |" * len(PARTS))
    for size, times in found.items():
        print(f"| {size} | " + " | ".join(f"{1e3 * times[part]:.1f} ms" for part in PARTS) + " |")
    print()
    for part in PARTS:
        fixed_s, each_s = line(sizes, [found[size][part] for size in sizes])
        print(f"{part}: {1e3 * fixed_s:.1f} ms + {1e6 * each_s:.0f} us for each rank")
    if given.out:
        given.out.write_text(json.dumps({str(size): times for size, times in found.items()}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
