"""How long many ranks take to meet and to agree, by their number: `python benchmarks/rendezvous.py [--ranks N]... [--out FILE]`.

Each rank is a thread with a connection of its own to one store, as a rank of a run has it. Connections are made before the clock starts.
All ranks share this machine's cores and one interpreter, so real ranks are hardly slower. `meet` is what ranks of a launcher do first: each
writes a word and waits for the answer of rank 0 (`train.meeting`). `agree` is one decision of rank 0 that all others wait for
(`train.launch.agreed`); a run has about six. `beat` is one report of every rank to its watchdog. The rule is a straight line through the
times, by least squares: seconds = fixed + each x ranks.

`--processes N` starts N real processes that only meet: each connects, proves the secret of the job (`closed meeting`), and compares the
facts of its run with those of rank 0 (`agreement`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from meshwright.train.agreement import agree
from meshwright.train.launch import Place, agreed
from meshwright.train.meeting import Address, _agreed_name

SIZES = (8, 32, 128, 512)
TIMEOUT_S = 300.0
REPEATS = 3
NOTE = json.dumps({"rank": 0, "beat": 1, "step": 100, "doing": "a step", "waits": ["all-reduce", "dp", "0:8:1"]})
SECRET = b"the secret of this benchmark"
FACTS = {f"fact {number}": "as on every rank" for number in range(400)}  # as many as a real job has
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


def _member(rank: int, num_ranks: int, port: int, gates: Sequence[Any]) -> None:
    """One process: it connects, then meets, then agrees; all begin each part together."""
    patience = timedelta(seconds=TIMEOUT_S)
    store: dist.Store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=patience, wait_for_workers=False)
    address = Address(host="127.0.0.1", port=port, timeout_s=TIMEOUT_S, until_s=time.monotonic() + TIMEOUT_S)
    gates[0].wait(TIMEOUT_S)
    name = _agreed_name(store, rank, num_ranks, address, SECRET)
    gates[1].wait(TIMEOUT_S)
    under = dist.PrefixStore(f"start/{name}", store)
    place = Place(rank=rank, num_ranks=num_ranks, local_rank=rank, num_local_ranks=num_ranks, store=under, secret=SECRET, name=name)
    agree(place, FACTS)
    gates[2].wait(TIMEOUT_S)


def processes(num_ranks: int) -> dict[str, float]:
    """Seconds in which so many processes meet with a secret, and agree on their facts."""
    forks = multiprocessing.get_context("fork")  # torch is loaded once, for all
    gates = [forks.Barrier(num_ranks + 1) for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = [forks.Process(target=_member, args=(rank, num_ranks, port, gates), daemon=True) for rank in range(num_ranks)]
    for member in members:
        member.start()
    times = []
    for gate in gates:
        gate.wait(TIMEOUT_S)
        times.append(time.monotonic())
    for member in members:
        member.join(TIMEOUT_S)
    if any(member.exitcode for member in members):
        raise SystemExit(f"{sum(member.exitcode != 0 for member in members)} of {num_ranks} processes failed")
    return {"closed meeting": times[1] - times[0], "agreement": times[2] - times[1]}


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
    parser.add_argument("--processes", type=int, action="append", help="numbers of real processes that only meet and agree")
    given = parser.parse_args(words)
    for size in given.processes or ():
        found_s = processes(size)
        print(f"{size} processes: " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in found_s.items()), flush=True)
    if given.processes:
        return 0
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
