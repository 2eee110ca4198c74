"""One rank's reading of its node: each part has a time limit, and one that fails is noted with its reason.

What is read comes from functions in `Sources`, so that a test can put a sick node in the place of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

from meshwright.describe.this_machine import CoreSpeed, core_speed_now, gpu_names, num_cores_at_once
from meshwright.doctor import nvidia
from meshwright.doctor.host import DiskRates, HostMemory, disk_rates, host_ecc, host_memory, host_versions
from meshwright.doctor.limit import within
from meshwright.doctor.reading import Gpu, Reading

LOOKS = 3  # at a GPU while it multiplies
CORE_TRIES = 2  # the better one counts: a neighbour on the same core slows a try, and nothing makes it faster
READINGS_S = 25.0  # for all parts together: loading torch before, and clocks and pairs after, share a minute with them
# Seconds for each part. A healthy node takes far less; what hangs must leave time for the rest.
SHORT_S, DISK_S, CORES_S, GPU_S = 5.0, 14.0, 10.0, 16.0
TOOL_S = nvidia.ANSWER_S + 1.0  # the tool's own limit ends it first, so that it does not stay behind

Result = TypeVar("Result")
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpeed:
    """What a GPU does, and how the driver describes it meanwhile."""

    flops_per_s: float
    copy_bytes_per_s: float
    busy: Gpu | None


def gpu_speed(local_rank: int, look: Callable[[], Gpu | None]) -> GpuSpeed:
    """Rates of one GPU by torch; `look` is called while it multiplies."""
    from meshwright.train.measure.card import card_speed

    flops_per_s, copy_bytes_per_s, busy = card_speed(local_rank, look)
    return GpuSpeed(flops_per_s=flops_per_s, copy_bytes_per_s=copy_bytes_per_s, busy=busy)


def gpu_versions() -> dict[str, str]:
    """The NCCL that this process has loaded, the one that torch was built with, and torch's CUDA."""
    from meshwright.train.measure.card import card_versions

    return card_versions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a reading comes from: this machine, unless a test says otherwise."""

    gpu_names: Callable[[], list[str]] = gpu_names
    gpu: Callable[[str], Gpu] = nvidia.gpu
    gpu_users: Callable[[str], tuple[str, ...]] = nvidia.gpu_users
    gpu_speed: Callable[[int, Callable[[], Gpu | None]], GpuSpeed] = gpu_speed
    core_speed: Callable[[], CoreSpeed] = core_speed_now
    memory: Callable[[], HostMemory] = host_memory
    ecc: Callable[[], int | None] = host_ecc
    disk: Callable[[Path], DiskRates] = disk_rates
    versions: Callable[[], dict[str, str]] = host_versions
    gpu_versions: Callable[[], dict[str, str]] = gpu_versions
    now: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Where a rank is, and what it should look at."""

    node: str
    rank: int = 0
    local_rank: int = 0
    device: str = "0"  # this rank's GPU as nvidia-smi knows it
    folder: Path = Path("runs")


def device_name(local_rank: int, environment: Mapping[str, str]) -> str:
    """A rank's GPU as nvidia-smi knows it: an index or a UUID, where CUDA_VISIBLE_DEVICES may have renumbered them."""
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[local_rank] if local_rank < len(visible) else str(local_rank)


class _Reader:
    """Takes parts of a reading one by one, and keeps why a part failed."""

    def __init__(self, report: Report, until_s: float) -> None:
        self.report, self.until_s, self.failed = report, until_s, dict[str, str]()

    def __call__(self, what: str, limit_s: float, work: Callable[[], Result]) -> Result | None:
        """The part, or None where it failed."""
        self.report(what)
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            self.failed[what] = "other parts took all the time"
            return None
        try:
            return within(min(limit_s, left_s), work)
        except Exception as error:  # whatever a driver or a disk does: the rest of the node is still to be read
            lines = str(error).strip().splitlines()
            self.failed[what] = lines[0] if lines else type(error).__name__
            return None


def take_reading(here: Here, sources: Sources, report: Report) -> Reading:
    """This rank's reading."""
    started_s = time.monotonic()
    read = _Reader(report, started_s + READINGS_S)
    names = read("GPUs", TOOL_S, sources.gpu_names) or []
    reading = Reading(node=here.node, rank=here.rank, local_rank=here.local_rank, num_gpus=len(names))
    reading = replace(reading, versions=read("versions", SHORT_S, sources.versions) or {})
    if names:
        reading = replace(reading, **_of_gpu(here, sources, read, reading.versions))
    if reading.is_first:
        reading = replace(reading, **_of_host(here, sources, read, has_gpus=bool(names)))
    return replace(reading, failed=read.failed, took_s=time.monotonic() - started_s)


def _of_gpu(here: Here, sources: Sources, read: _Reader, versions: Mapping[str, str]) -> dict[str, Any]:
    """The GPU of this rank, first as it was found and then at work."""
    gpu = read("the driver", TOOL_S, lambda: sources.gpu(here.device))
    users = read("processes on the GPU", TOOL_S, lambda: sources.gpu_users(here.device)) or ()
    speed = read("GPU speed", GPU_S, lambda: sources.gpu_speed(here.local_rank, lambda: _looks(lambda: sources.gpu(here.device))))
    more = read("GPU libraries", SHORT_S, sources.gpu_versions) or {}
    driver = {"driver": gpu.driver} if gpu and gpu.driver else {}
    return {
        "gpu": gpu,
        "gpu_users": users,
        "busy_gpu": speed.busy if speed else None,
        "flops_per_s": speed.flops_per_s if speed else None,
        "copy_bytes_per_s": speed.copy_bytes_per_s if speed else None,
        "versions": {**versions, **more, **driver},
    }


def _looks(look: Callable[[], Gpu]) -> Gpu:
    """A GPU at work, looked at several times: its highest clock, and all reasons why it was not higher.

    The driver samples both: at a moment without work the power cap is no reason, and the clock may still be low.
    """
    seen = [look() for _ in range(LOOKS)]
    clocks = [one.clock_hz for one in seen if one.clock_hz is not None]
    reasons = [one.slowdowns for one in seen if one.slowdowns is not None]
    return replace(seen[-1], clock_hz=max(clocks, default=None), slowdowns=reduce(or_, reasons) if reasons else None)


def _of_host(here: Here, sources: Sources, read: _Reader, *, has_gpus: bool) -> dict[str, Any]:
    """What a node has once."""
    memory = read("memory", SHORT_S, sources.memory)
    disk = read("disk", DISK_S, lambda: sources.disk(here.folder))
    speed = None if has_gpus else read("core speed", CORES_S, lambda: _best_core(sources.core_speed))
    found = {
        "memory_bytes": memory.total_bytes if memory else None,
        "available_bytes": memory.available_bytes if memory else None,
        "ecc_uncorrected": read("memory errors", SHORT_S, sources.ecc),
        "disk_folder": disk.folder if disk else str(here.folder),
        "disk_write_bytes_per_s": disk.write_bytes_per_s if disk else None,
        "disk_read_bytes_per_s": disk.read_bytes_per_s if disk else None,
        "disk_free_bytes": disk.free_bytes if disk else None,
    }
    if speed:
        found |= {"flops_per_s": speed.flops_per_s * num_cores_at_once(), "copy_bytes_per_s": speed.bytes_per_s}
    return found


def _best_core(measure: Callable[[], CoreSpeed]) -> CoreSpeed:
    tries = [measure() for _ in range(CORE_TRIES)]
    return CoreSpeed(flops_per_s=max(one.flops_per_s for one in tries), bytes_per_s=max(one.bytes_per_s for one in tries))
