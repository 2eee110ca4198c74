"""Bytes per second between two ranks, pair by pair, in rounds in which no rank has two partners."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.train.launch import Place

PAYLOAD_BYTES = {"cuda": 2**27, "cpu": 2**22}  # each way: on a GPU this takes 0.3 ms over NVLink, 3 ms over a port of 400 Gbit/s
TRIES = 5  # the best counts: a slow try may be caused by another program, not by the pair
PATIENCE_S = 600.0  # of the process group: the code that waits for a pair has a shorter limit, and names the pair

Round = Sequence[tuple[int, int]]  # pairs that exchange at the same time
Exchange = Callable[[torch.Tensor, torch.Tensor, int], None]  # sent, received, partner


class Timed:
    """The results of this rank so far, and the partner it is waiting for: another thread may read them."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}  # bytes per second each way, by partner; only for pairs in which this rank is the first
        self.waits_for: int | None = None
        self.joined = False  # whether a process group was made for it


def run_rounds(place: Place, rounds: Sequence[Round], timed: Timed, *, on_gpus: bool, exchange: Exchange | None = None) -> None:
    """Time this rank's pairs into `timed`; if there is no process group, make one. Every rank calls it with the same rounds."""
    device = torch.device("cuda", place.local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)  # each thread has its own current device
    if not dist.is_initialized():
        join_world(place, device)
        timed.joined = True
    time_pairs(rounds, place.rank, device, timed, exchange or swap)


def join_world(place: Place, device: torch.device) -> None:
    """Make a process group of all ranks, so that they can exchange tensors."""
    is_gpu = device.type == "cuda"
    if not is_gpu and place.num_local_ranks == place.num_ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo looks up the name of the host, which fails on many laptops
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=place.store,
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=timedelta(seconds=PATIENCE_S),
        device_id=device if is_gpu else None,
    )


def swap(sent: torch.Tensor, received: torch.Tensor, partner: int) -> None:
    """Send to a partner and receive from it at the same time."""
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, partner), dist.P2POp(dist.irecv, received, partner)])
    for work in works:
        work.wait()
    if sent.is_cuda:
        torch.cuda.synchronize(sent.device)


def time_pairs(rounds: Sequence[Round], rank: int, device: torch.device, timed: Timed, exchange: Exchange = swap) -> None:
    """Time this rank's pairs into `timed`. Every rank calls it with the same rounds."""
    sent = torch.zeros(PAYLOAD_BYTES[device.type], dtype=torch.uint8, device=device)
    received = torch.zeros_like(sent)
    for pairs in rounds:
        dist.barrier()
        pair = next((pair for pair in pairs if rank in pair), None)
        if pair is None:
            continue
        first, second = pair
        timed.waits_for = second if rank == first else first
        seconds = _best_s(exchange, sent, received, timed.waits_for)
        if rank == first:
            timed.rates[second] = max(timed.rates.get(second, 0.0), sent.numel() / seconds)
        timed.waits_for = None


def _best_s(exchange: Exchange, sent: torch.Tensor, received: torch.Tensor, partner: int) -> float:
    exchange(sent, received, partner)  # the first exchange makes the connection
    times = []
    for _ in range(TRIES):
        started_s = time.perf_counter()
        exchange(sent, received, partner)
        times.append(time.perf_counter() - started_s)
    return min(times)


def leave_world() -> None:
    """Undo `join_world`."""
    dist.destroy_process_group()
