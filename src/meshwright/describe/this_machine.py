"""The machine this runs on, as a cluster: its NVIDIA GPUs where `nvidia-smi` finds known ones, else its processors.

Nothing is looked up for a processor: a short multiplication and a copy are timed on the spot.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import accelerator, link, plain
from meshwright.describe.source import Source
from meshwright.errors import InputError
from meshwright.units import GB, MICROSECOND

NAME = "this-machine"
MEASURE_S = 0.1  # for each of the two measurements
MATRIX = 512
COPY_BYTES = 64_000_000
CORE_W = 10.0  # of a core at work: server processors take 350 W for 32 to 64 of them; an assumption
LOOPBACK_COPIES = 4  # into and out of the socket, at both ends
LOOPBACK_S = 100 * MICROSECOND  # a message between two processes that share cores: an assumption


def this_machine() -> Cluster:
    """This machine as a cluster of one node."""
    gpus = gpu_names()
    return _of_gpus(gpus) if gpus else _of_processor()


def emulated_racks(num_racks: int, ranks_per_rack: int) -> Cluster:
    """This machine's processors shared out among processes that stand for accelerators in racks.

    Each process counts as an even share of cores, memory and memory bandwidth. Both networks are this machine's loopback, through which
    bytes are copied about four times on their way (an assumption): what the emulation keeps of a cluster is which traffic goes where.
    """
    whole, cores = _of_processor(), num_cores()
    chip, num_ranks = whole.accelerator, num_racks * ranks_per_rack
    share = replace(
        chip,
        name=f"1/{num_ranks} of {chip.name}",
        power_cap_w=cores * CORE_W / num_ranks,
        memory_bytes=chip.memory_bytes / num_ranks,
        memory_bytes_per_s=chip.memory_bytes_per_s / num_ranks,
        dense_flops_per_s={precision: rate / num_ranks for precision, rate in chip.dense_flops_per_s.items()},
    )
    rack = Tier(
        name="rack",
        link="loopback",
        num_accelerators=ranks_per_rack,
        num_installed=ranks_per_rack,
        bytes_per_s=chip.memory_bytes_per_s / num_ranks / LOOPBACK_COPIES,
        latency_s=LOOPBACK_S,
    )
    tiers = (rack, replace(rack, name="fabric", num_accelerators=num_ranks, num_installed=num_ranks))
    return replace(whole, name=f"{NAME}-{num_racks}x{ranks_per_rack}", accelerator=share, tiers=tiers, accelerators_per_node=ranks_per_rack)


def gpu_names() -> list[str]:
    """Names that `nvidia-smi` reports, one for each GPU; none where there is no such tool or it fails."""
    return [line.strip() for line in _nvidia_smi("--query-gpu=name", "--format=csv,noheader") if line.strip()]


def nvlink_bytes_per_s() -> float:
    """Bytes per second each way over all NVLinks of the first GPU; 0 where it has none."""
    speeds = [re.search(r"Link \d+: ([\d.]+) GB/s", line) for line in _nvidia_smi("nvlink", "--status", "--id=0")]
    return sum(float(speed[1]) for speed in speeds if speed) * GB


def _nvidia_smi(*arguments: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        found = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.splitlines()


def catalogue_name(gpu: str) -> str:
    """The catalogue's spelling of what nvidia-smi calls a GPU: 'NVIDIA H100 80GB HBM3' is 'h100'.

    The longest known run of words counts, so that 'NVIDIA H200 NVL' is not taken for an H200.
    """
    words = [word for word in plain(gpu).split("-") if word not in ("nvidia", "geforce", "generation")]
    for length in range(len(words), 0, -1):
        try:
            return accelerator("-".join(words[:length])).name
        except InputError:
            continue
    raise InputError(
        f"this machine's GPU {gpu!r} is not in the catalogue",
        where=NAME,
        fix="describe the machine in a TOML file with its own [accelerator] table",
    )


def _of_gpus(gpus: list[str]) -> Cluster:
    if len(set(gpus)) > 1:
        raise InputError(
            f"this machine has unlike GPUs: {', '.join(sorted(set(gpus)))}",
            where=NAME,
            fix="hide all but one kind with CUDA_VISIBLE_DEVICES, or describe the machine in a TOML file",
        )
    device = accelerator(catalogue_name(gpus[0]))
    nvlink = nvlink_bytes_per_s() if len(gpus) > 1 else 0.0
    port = link("nvlink-4") if nvlink else link("pcie-4")
    words = "NVLink bandwidth as nvidia-smi reports it" if nvlink else f"no NVLink, {port.name} assumed"
    tier = Tier(
        name="node",
        link="nvlink" if nvlink else port.name,
        num_accelerators=len(gpus),
        num_installed=len(gpus),
        bytes_per_s=nvlink or port.bytes_per_s,
        latency_s=port.latency_s,
    )
    source = Source(f"nvidia-smi on this machine; {words}", _today())
    return Cluster(name=NAME, accelerator=device, tiers=(tier,), accelerators_per_node=len(gpus), sources={"default": source})


def _of_processor() -> Cluster:
    cores = num_cores()
    flops_per_s = multiply_flops_per_s()
    bytes_per_s = copy_bytes_per_s()
    source = Source(f"measured on this machine: a {MATRIX} x {MATRIX} fp32 numpy multiplication and a copy, {cores} cores", _today())
    device = Accelerator(
        name=f"{processor_name()}, {cores} cores",
        vendor=platform.machine() or "unknown",
        architecture="cpu",
        memory_bytes=memory_bytes(),
        memory_bytes_per_s=bytes_per_s,
        # Processors without matrix units multiply bf16 no faster than fp32: one measured rate for both.
        dense_flops_per_s={"tf32": flops_per_s, "bf16": flops_per_s},
        power_cap_w=math.nan,
        sources={"default": source},
    )
    tier = Tier(name="node", link="memory", num_accelerators=1, num_installed=1, bytes_per_s=bytes_per_s, latency_s=MICROSECOND)
    return Cluster(name=NAME, accelerator=device, tiers=(tier,), accelerators_per_node=1, sources={"default": source})


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def multiply_flops_per_s() -> float:
    """FLOP/s of a square fp32 multiplication, all cores, best of a few."""
    a = np.ones((MATRIX, MATRIX), dtype=np.float32)
    out = np.empty_like(a)
    return 2.0 * MATRIX**3 / _best_s(lambda: np.matmul(a, a, out=out))


def copy_bytes_per_s() -> float:
    """Bytes per second that a copy reads and writes together, best of a few."""
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    return 2.0 * COPY_BYTES / _best_s(lambda: np.copyto(target, source))


def _best_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest repetition within `MEASURE_S`, after one to warm up."""
    work()
    best = math.inf
    end = time.perf_counter() + MEASURE_S
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def memory_bytes() -> float:
    """Bytes of main memory."""
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")


def processor_name() -> str:
    """The processor's name as the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def _today() -> str:
    return datetime.date.today().isoformat()
