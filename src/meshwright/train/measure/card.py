"""One GPU in a few seconds: a large product, a copy, and the libraries that torch has loaded for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from meshwright.train.measure.clock import Work, mean_s, release, synchronize
from meshwright.train.measure.kernels import copy_bytes_per_s, product
from meshwright.train.shared_gpu import loaded_nccl

SIDE = {"cuda": 8192, "cpu": 512}  # rows of a square product: on a GPU, large enough to reach its power cap
PRODUCT_S, COPY_S = 0.6, 0.2
QUEUED = 50  # products between two readings of the clock: about 80 ms on an H200

Seen = TypeVar("Seen")


def card_speed(number: int, look: Callable[[], Seen]) -> tuple[float, float, Seen | None]:
    """FLOP/s of a bf16 product, bytes per second of a copy (read and written), and what `look` returns while the GPU multiplies."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU that it can use: its CUDA does not fit the driver, or the GPU is hidden")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return speed_on(device, look)


def speed_on(device: torch.device, look: Callable[[], Seen]) -> tuple[float, float, Seen | None]:
    """The same on any device."""
    side = SIDE[device.type]
    work = product("forward", side, side, side, "bf16", device)
    seen = busy_while(work, device, look)
    flops_per_s = 2.0 * side**3 / mean_s(work, device, PRODUCT_S)
    del work
    release(device)
    return flops_per_s, copy_bytes_per_s(device, COPY_S), seen


def busy_while(work: Work, device: torch.device, look: Callable[[], Seen]) -> Seen | None:
    """What `look` returns while the device repeats `work`; None if it fails. The work begins earlier, because clocks need time to rise."""
    seen: list[Seen] = []

    def try_look() -> None:
        try:
            seen.append(look())
        except OSError:
            return

    for _ in range(2):
        _queue(work, device)
    looking = threading.Thread(target=try_look, name="meshwright-look", daemon=True)
    looking.start()
    while looking.is_alive():
        _queue(work, device)
    return seen[0] if seen else None


def _queue(work: Work, device: torch.device) -> None:
    for _ in range(QUEUED if device.type == "cuda" else 1):
        work()
    synchronize(device)


def card_versions() -> dict[str, str]:
    """The NCCL that this process has loaded (`nccl`), the one that torch was built with, and torch's CUDA."""
    found = {}
    if loaded := loaded_nccl():
        found["nccl"] = ".".join(map(str, loaded))
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["torch's nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
