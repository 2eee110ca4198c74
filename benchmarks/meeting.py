"""Times what it costs that ranks prove their secret, agree, and prove that they share the run folder: processes that only meet.

python benchmarks/meeting.py [NUM_RANKS]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from meshwright.train import meeting
from meshwright.train.agreement import agree, check_shared
from meshwright.train.launch import Place

USUAL_RANKS = 64  # more on a machine with more cores: each rank is a process
LIMIT_S = 300.0
FACTS = {f"code of file {number}.py": f"{number:012x}" for number in range(420)} | {f"workload.{number}": "1" for number in range(100)}


def meet(rank: int, num_ranks: int, port: int, folder: str, results: object) -> None:
    """One rank: it meets the others, agrees with them, and sees what rank 0 writes."""
    store = dist.TCPStore("127.0.0.1", port, num_ranks, False, timedelta(seconds=LIMIT_S))
    address = meeting.Address(host="127.0.0.1", port=port, timeout_s=LIMIT_S, until_s=time.monotonic() + LIMIT_S)
    secret = b"the secret of this benchmark"
    marks_s = [time.monotonic()]
    name = meeting._agreed_name(store, rank, num_ranks, address, secret)
    marks_s.append(time.monotonic())
    place = Place(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=rank,
        num_local_ranks=num_ranks,
        store=dist.PrefixStore(f"start/{name}", store),
        secret=secret,
        name=name,
    )
    agree(place, FACTS)
    marks_s.append(time.monotonic())
    check_shared(place, Path(folder))
    marks_s.append(time.monotonic())
    if rank == 0:
        results.put(marks_s)  # type: ignore[attr-defined]
    store.add("over", 1)
    while rank == 0 and store.add("over", 0) < num_ranks:
        time.sleep(0.01)
    os._exit(0)


def main() -> None:
    """Print the seconds of each part, as rank 0 sees them."""
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else USUAL_RANKS
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")  # torch is loaded once
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=meet, args=(rank, num_ranks, server.port, folder, results)) for rank in range(num_ranks)]
        started_s = time.monotonic()
        for process in ranks:
            process.start()
        begun_s, met_s, agreed_s, shared_s = results.get()
        for process in ranks:
            process.join()
    print(f"{num_ranks} processes on {os.cpu_count()} cores, started within {begun_s - started_s:.1f} s before rank 0 met")
    print(f"met, each with a proof of the secret  {met_s - begun_s:8.3f} s")
    print(f"agreed on {len(FACTS)} facts                  {agreed_s - met_s:8.3f} s")
    print(f"proved that the folder is shared      {shared_s - agreed_s:8.3f} s")


if __name__ == "__main__":
    main()
