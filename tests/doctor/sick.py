"""Nodes for tests: healthy ones, each defect put into one of them, and ranks that examine themselves with a defect."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.describe.cluster import Tier
from meshwright.describe.this_machine import CoreSpeed
from meshwright.doctor.expected import Expected
from meshwright.doctor.host import HostMemory, disk_rates, host_versions
from meshwright.doctor.node import Here, Sources
from meshwright.doctor.reading import Gathered, Gpu, Pair, Reading
from meshwright.units import GB, GIB, MEGA, TERA

SICK = 2  # the rank with the defect, where one has it
NUM_NODES = 4
PARTNER = 1  # of the slow pair's other end
NODE = Tier(name="node", link="nvlink-4", num_accelerators=1, num_installed=1, bytes_per_s=450 * GB, latency_s=1e-6)
FABRIC = Tier(name="fabric", link="ndr", num_accelerators=NUM_NODES, num_installed=NUM_NODES, bytes_per_s=50 * GB, latency_s=5e-6)
CARDS = Expected(
    words="plan of a test",
    needs_gpus=True,
    accelerator="h200",
    gpus_per_node=1,
    flops_per_s=989 * TERA,
    bytes_per_s=4800 * GB,
    gpu_memory_bytes=140 * GIB,
    power_cap_w=700.0,
    tiers=(NODE, FABRIC),
)
VERSIONS = {"python": "3.12.3", "kernel": "6.8.0", "torch": "2.13.0", "meshwright": "0.1.0", "nccl": "2.30.4", "driver": "580.65.06"}
GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    driver="580.65.06",
    memory_bytes=140.4 * GIB,
    used_bytes=0.5 * GIB,
    power_limit_w=700.0,
    ecc_uncorrected=0,
    rows_pending=False,
    rows_failed=False,
    clock_hz=345 * MEGA,
    max_clock_hz=1980 * MEGA,
    slowdowns=0x1,
)


def card_node(rank: int) -> Reading:
    """A healthy node of one H200, a little different from its neighbours."""
    spread = 1.0 + 0.01 * (rank % 3 - 1)
    return Reading(
        node=f"node{rank}",
        rank=rank,
        num_gpus=1,
        gpu=GPU,
        busy_gpu=replace(GPU, clock_hz=1500 * MEGA, slowdowns=0x4),
        flops_per_s=690 * TERA * spread,
        copy_bytes_per_s=4250 * GB * spread,
        memory_bytes=2000 * GIB,
        available_bytes=1900 * GIB,
        ecc_uncorrected=0,
        disk_folder="runs",
        disk_write_bytes_per_s=2 * GB * spread,
        disk_read_bytes_per_s=5 * GB * spread,
        disk_free_bytes=1000 * GB,
        clock_ahead_s=0.002 * spread,
        clock_error_s=0.001,
        versions=VERSIONS,
    )


def healthy(num_nodes: int = NUM_NODES) -> Gathered:
    """Healthy nodes, and the pairs between them."""
    pairs = [Pair(first=a, second=b, bytes_per_s=(44 + 0.3 * a) * GB) for a in range(num_nodes) for b in range(a + 1, num_nodes)]
    return Gathered(num_ranks=num_nodes, readings=tuple(map(card_node, range(num_nodes))), pairs=tuple(pairs))


def with_reading(gathered: Gathered, **changes: Any) -> Gathered:
    """The same with changes to the reading of the last rank, or of rank `SICK` where there are as many."""
    sick = min(SICK, gathered.num_ranks - 1)
    readings = tuple(replace(one, **changes) if one.rank == sick else one for one in gathered.readings)
    return replace(gathered, readings=readings)


def with_slow_pair(gathered: Gathered, factor: float = 0.3) -> Gathered:
    """The same with one slow pair."""
    slow = tuple(
        replace(one, bytes_per_s=one.bytes_per_s * factor) if {one.first, one.second} == {PARTNER, SICK} else one for one in gathered.pairs
    )
    return replace(gathered, pairs=slow)


# The eight defects: the check that must find each, and how it is put in.
DEFECTS: dict[str, tuple[str, Callable[[Gathered], Gathered]]] = {
    "a capped clock": ("GPU clock", partial(with_reading, busy_gpu=replace(GPU, clock_hz=1200 * MEGA, slowdowns=0x0))),
    "half the memory bandwidth": ("copy", partial(with_reading, copy_bytes_per_s=2125 * GB)),
    "memory already taken": ("GPU memory", partial(with_reading, gpu=replace(GPU, used_bytes=40 * GIB), gpu_users=("python (process 7)",))),
    "reported ECC errors": ("memory errors", partial(with_reading, gpu=replace(GPU, ecc_uncorrected=3))),
    "a slow disk": ("disk", partial(with_reading, disk_write_bytes_per_s=30 * MEGA)),
    "a skewed clock": ("clock", partial(with_reading, clock_ahead_s=7.5)),
    "one slow pair of ranks": ("pairs", with_slow_pair),
    "a wrong library version": ("versions", partial(with_reading, versions={**VERSIONS, "nccl": "2.21.5"})),
}
TOGETHER = ("a skewed clock", "one slow pair of ranks", "a wrong library version")  # that one node alone cannot show in these readings


def examine(defect: str, folder: str) -> str | None:
    """Run on a gloo rank: all ranks examine themselves as nodes of one rank each, one of them with a defect. Rank 0's answer as text."""
    import torch.distributed as dist

    from meshwright.doctor.gather import Network, gather
    from meshwright.train.launch import Place
    from meshwright.train.measure.pairs import swap

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore(f"doctor test {defect}", dist.distributed_c10d._get_default_store())
    place = Place(rank=rank, num_ranks=num_ranks, local_rank=0, num_local_ranks=1, store=store)
    is_sick = rank == SICK
    sources = Sources(
        gpu_names=list,
        core_speed=lambda: CoreSpeed(flops_per_s=1e11, bytes_per_s=2e10),
        memory=lambda: HostMemory(total_bytes=64 * GIB, available_bytes=(3 if is_sick and defect == "memory already taken" else 60) * GIB),
        ecc=lambda: 0,
        disk=lambda place: disk_rates(place, size_bytes=8 << 20),
        versions=lambda: {**host_versions(), **({"torch": "2.11.0"} if is_sick and defect == "a wrong library version" else {})},
        now=lambda: time.time() + (7.5 if is_sick and defect == "a skewed clock" else 0.0),
    )

    def exchange(sent: Any, received: Any, partner: int) -> None:
        if defect == "one slow pair of ranks" and {rank, partner} == {PARTNER, SICK}:
            time.sleep(0.25)
        swap(sent, received, partner)

    here = Here(node=f"node{rank}", rank=rank, folder=Path(folder))
    with _slow_disk(0.5 if is_sick and defect == "a slow disk" else 0.0):
        found = gather(place, here, sources, Network(exchange=exchange), lambda what: None)
    return found.to_text() if found else None


class _slow_disk:
    """Every write takes so much longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.fsync = seconds, os.fsync

    def __enter__(self) -> None:
        os.fsync = lambda fd: (time.sleep(self.seconds), self.fsync(fd))[1]

    def __exit__(self, *args: object) -> None:
        os.fsync = self.fsync
