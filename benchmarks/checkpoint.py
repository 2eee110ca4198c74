"""What a checkpoint costs the training: `python benchmarks/checkpoint.py [FOLDER]` prints a dated table (under a minute, 3 GB of disk).

The same state is saved by a call that returns when it counts, and by one that copies it and writes behind the training's back. The stall is
what the training waits for; what a copy behind it takes from the compute is not counted. FOLDER says which disk to measure; without it a
temporary one is used.

2026-11-15, 16 cores x86_64 and one H200, Python 3.12.3, torch 2.11.0+cu130:
  503 MB of state on cpu, 5 saves each, median (best to worst)
  synchronous save: the training waits         0.9314 s  (0.8674 to 1.0046)     0.54 GB/s
  asynchronous save: the training waits        0.0259 s  (0.0175 to 0.1735)    19.42 GB/s
  the copy too behind a step of compute        0.0007 s  (0.0005 to 0.0008)   704.52 GB/s
  asynchronous save: written behind it         0.7551 s  (0.7259 to 0.8737)     0.67 GB/s
  stall: 1/36 of the synchronous save
  503 MB of state on cuda, 5 saves each, median (best to worst)
  synchronous save: the training waits         1.2748 s  (0.7511 to 1.3066)     0.39 GB/s
  asynchronous save: the training waits        0.0094 s  (0.0094 to 0.0098)    53.41 GB/s
  asynchronous save: written behind it         0.7685 s  (0.7422 to 0.7873)     0.65 GB/s
  stall: 1/135 of the synchronous save
  load, hashes verified, from the page cache   0.5737 s  (0.5737 to 0.5737)     0.88 GB/s

2026-11-15, 2 cores x86_64 shared with other work (load 11), Python 3.11.7, torch 2.13.0+cpu:
  503 MB of state on cpu, 5 saves each, median (best to worst)
  synchronous save: the training waits         2.3895 s  (1.8163 to 2.4770)     0.21 GB/s
  asynchronous save: the training waits        0.4751 s  (0.3599 to 0.6880)     1.06 GB/s
  the copy too behind a step of compute        0.0006 s  (0.0005 to 0.0008)   775.61 GB/s
  asynchronous save: written behind it         2.4197 s  (1.2466 to 3.2034)     0.21 GB/s
  stall: 1/5 of the synchronous save
  load, hashes verified, from the page cache   4.5444 s  (4.5444 to 4.5444)     0.11 GB/s
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from meshwright.train.checkpoint import AsyncSaver, Keep, Piece, load, newest, verify

NUM_RUNS = 5
WIDTH, NUM_LAYERS = 2048, 10  # 500 MB in weights and two moments of Adam, fp32


def state(device: str) -> list[Piece]:
    """The pieces of a rank that holds everything."""
    kinds = ("weights", "adam_mean", "adam_square")
    shape = (WIDTH, WIDTH)
    names = [f"{kind}/layers.{layer}.weight" for kind in kinds for layer in range(NUM_LAYERS)]
    return [Piece(name=name, shape=shape, start=(0, 0), tensor=torch.randn(shape, device=device)) for name in names]


def compute(device: str) -> None:
    """Stand for forward and backward: matrix products for about a second on a slow machine."""
    left = torch.randn(WIDTH, WIDTH, device=device)
    end_s = time.perf_counter() + 1.0
    while time.perf_counter() < end_s:
        left @ left


def row(words: str, times_s: list[float], num_bytes: int) -> str:
    """One line: the median with the best and the worst, and the rate."""
    middle_s = statistics.median(times_s)
    return f"  {words:<42} {middle_s:8.4f} s  ({min(times_s):.4f} to {max(times_s):.4f}) {num_bytes / middle_s / 1e9:8.2f} GB/s"


def measure(folder: Path, device: str) -> None:
    """Print the times of saves and loads of one state."""
    pieces = state(device)
    num_bytes = sum(piece.tensor.nbytes for piece in pieces)
    print(f"  {num_bytes / 1e6:.0f} MB of state on {device}, {NUM_RUNS} saves each, median (best to worst)")
    with AsyncSaver(folder, keep=Keep(last=1)) as saver:
        saver.prepare(pieces)
        now, behind, alongside = [], [], []
        for number in range(NUM_RUNS):
            now.append(saver.save_now(3 * number, pieces, {}).raise_if_failed())
            saver.save(3 * number + 1, pieces, {})
            behind.append(saver.wait()[-1].raise_if_failed())
            saver.save_alongside(3 * number + 2, pieces, {})
            compute(device)
            saver.before_update()
            alongside.append(saver.wait()[-1].raise_if_failed())
    print(row("synchronous save: the training waits", [report.stall_s for report in now], num_bytes))
    print(row("asynchronous save: the training waits", [report.stall_s for report in behind], num_bytes))
    print(row("the copy too behind a step of compute", [report.stall_s for report in alongside], num_bytes))
    print(row("asynchronous save: written behind it", [report.write_s + report.commit_s for report in behind], num_bytes))
    for words, reports in (("stall", behind), ("stall with the copy behind compute", alongside)):
        ratio = statistics.median(report.stall_s for report in now) / statistics.median(report.stall_s for report in reports)
        print(f"  {words}: 1/{ratio:.0f} of the synchronous save")
    path = newest(folder).path
    start_s = time.perf_counter()
    verify(path)
    verified_s = time.perf_counter()
    load(path, pieces, names={piece.name for piece in pieces})
    print(row("verify, from the page cache", [verified_s - start_s], num_bytes))
    print(row("load, hashes verified, from the page cache", [time.perf_counter() - verified_s], num_bytes))


def main() -> None:
    machine = f"{os.cpu_count()} cores {platform.machine()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, torch {torch.__version__}:")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
            measure(Path(folder) / device, device)


if __name__ == "__main__":
    main()
