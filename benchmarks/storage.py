"""How fast checkpoints are verified, and stored and read again over HTTP: `python benchmarks/storage.py [--gigabytes 2] [--servers s3,az]`.

Verifying is timed on a sparse file, so that a disk does not count: every rank is a process with one thread and takes its part of the
blocks. The rate of a core is bytes by processor time, which other work on the machine changes little; the time by the clock is printed next
to it. Servers are moto's (S3, from PyPI) and Azurite (Azure, from npm; in the PATH or named by AZURITE), on this machine: what they take is
mostly their own time. moto reads a whole object for every part of it that is asked for, so the checkpoint has the shards of eight ranks.
docs/storage.md has the results.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from meshwright.storage import Remote
from meshwright.train.checkpoint import Piece, Saved, load, save, verify
from meshwright.train.checkpoint.manifest import Manifest, SavedFile, SavedPiece, SavedTensor, write_manifest
from meshwright.train.checkpoint.shard import BLOCK_BYTES, Written, lay_out

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
STATE_405B_BYTES = 405e9 * 12  # weights and two moments in fp32
NUMS_RANKS = (1, 2, 4)
TENSOR_BYTES = 64 << 20
SAVING_RANKS = 8


def sparse_checkpoint(folder: Path, num_bytes: int) -> Path:
    """A complete checkpoint of zeros that takes no room on the disk."""
    num_tensors = max(num_bytes // TENSOR_BYTES, 1)
    shape = (TENSOR_BYTES // 4,)
    zeros = torch.zeros(shape)
    layout = lay_out(Piece(name=f"weights/{number}", shape=shape, start=(0,), tensor=zeros) for number in range(num_tensors))
    path = folder / "step-00000001"
    path.mkdir()
    name = "shard-00000-of-00001.safetensors"
    head = len(layout.header).to_bytes(8, "little") + layout.header
    with open(path / name, "wb") as file:
        file.write(head)
        file.truncate(layout.file_bytes)
    written = Written(size_bytes=layout.file_bytes, blocks=tuple(_zero_hashes(head, layout.file_bytes)))
    piece = SavedPiece(file=0, start=(0,), shape=shape)
    tensors = {f"weights/{number}": SavedTensor(dtype="F32", shape=shape, pieces=(piece,)) for number in range(num_tensors)}
    saved = SavedFile(name=name, size_bytes=written.size_bytes, blocks=written.blocks)
    write_manifest(path, Manifest(step=1, attempt="benchmark", block_bytes=BLOCK_BYTES, scalars={}, files=(saved,), tensors=tensors))
    return path


def _zero_hashes(head: bytes, num_bytes: int) -> list[str]:
    whole = hashlib.sha256(bytes(BLOCK_BYTES)).hexdigest()
    last = hashlib.sha256(bytes((num_bytes - 1) % BLOCK_BYTES + 1)).hexdigest()
    first = hashlib.sha256(head.ljust(min(BLOCK_BYTES, num_bytes), b"\0")).hexdigest()
    num_blocks = -(-num_bytes // BLOCK_BYTES)
    return [first, *[whole] * (num_blocks - 2), *([last] if num_blocks > 1 else [])]


def _rank(path: str, rank: int, num_ranks: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.recv()
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    verify(Path(path), part=rank, num_parts=num_ranks, num_threads=1)
    pipe.send((time.perf_counter() - begun_s, time.process_time() - begun_cpu_s))


def time_ranks(path: Path, num_ranks: int) -> tuple[float, float]:
    """Seconds by the clock, and processor seconds of the busiest rank, until all have verified their parts."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_rank, args=(str(path), rank, num_ranks, theirs)))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.send("go")
    times = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return max(clock for clock, _ in times), max(cpu for _, cpu in times)


def measure_verifying(num_bytes: int) -> None:
    """Print what verifying takes with 1, 2 and 4 ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = sparse_checkpoint(Path(folder), num_bytes)
        for num_ranks in NUMS_RANKS:
            clock_s, cpu_s = time_ranks(path, num_ranks)
            rate = num_bytes / num_ranks / cpu_s
            minutes = STATE_405B_BYTES / rate / 60 / num_ranks
            print(
                f"  verify {num_bytes / 1e9:.1f} GB, {num_ranks} rank{'s' if num_ranks > 1 else ' '}: {clock_s:7.2f} s by the clock, "
                f"{cpu_s:6.2f} s of a core each, {rate / 1e9:.2f} GB/s a core; 405B at this rate: {minutes:.1f} min",
                flush=True,
            )


def save_by_ranks(place: Remote, pieces: list[Piece]) -> Saved:
    """Save a checkpoint as so many ranks do, each its share of the pieces; they are threads here."""
    count = min(SAVING_RANKS, len(pieces))

    def one(rank: int) -> Saved:
        return save(place, 1, pieces[rank::count], {}, rank=rank, num_ranks=count, token="benchmark", number=1, timeout_s=900.0)

    with ThreadPoolExecutor(count) as pool:
        return next(iter(pool.map(one, range(count))))


def measure_server(name: str, place: Remote, num_bytes: int) -> None:
    """Print what a save and a load of `num_bytes` take."""
    shape = (TENSOR_BYTES // 4,)
    values = torch.randn(shape)
    pieces = [Piece(name=f"weights/{number}", shape=shape, start=(0,), tensor=values) for number in range(num_bytes // TENSOR_BYTES)]
    begun_s = time.perf_counter()
    saved = save_by_ranks(place, pieces)
    took_s = time.perf_counter() - begun_s
    print(f"  {name}: saved {num_bytes / 1e9:.1f} GB in {took_s:.1f} s, {num_bytes / took_s / 1e6:.0f} MB/s", flush=True)
    into = [Piece(name=piece.name, shape=shape, start=(0,), tensor=torch.zeros(shape)) for piece in pieces]
    begun_s = time.perf_counter()
    load(saved.path, into, names={piece.name for piece in pieces})
    took_s = time.perf_counter() - begun_s
    is_same = all(torch.equal(piece.tensor, values) for piece in into)
    print(f"  {name}: loaded and verified in {took_s:.1f} s, {num_bytes / took_s / 1e6:.0f} MB/s; the same values: {is_same}", flush=True)


def main() -> None:
    """Measure, and print a dated table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--no-verify", action="store_true", help="only the servers")
    parser.add_argument("--servers", default="s3,az", help="which of s3 and az; an empty text: none")
    options = parser.parse_args()
    num_bytes = max(int(options.gigabytes * 1e9) // TENSOR_BYTES, 1) * TENSOR_BYTES
    load_1 = os.getloadavg()[0]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores {platform.machine()}, load {load_1:.0f}, torch {torch.__version__}:",
        flush=True,
    )
    if not options.no_verify:
        measure_verifying(num_bytes)
    from object_servers import azurite_running, moto_running

    for name, running in (("s3", moto_running), ("az", azurite_running)):
        if name in options.servers.split(","):
            with running() as server:
                os.environ.update(server.variables(server.port))
                measure_server({"s3": "moto", "az": "Azurite"}[name], server.place(patience_s=600.0), num_bytes)


if __name__ == "__main__":
    main()
