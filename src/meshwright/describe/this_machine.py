"""The machine this runs on, as a cluster: its NVIDIA GPUs where `nvidia-smi` finds known ones, else its processors.

Nothing is looked up for a processor: a short multiplication and a copy are timed on the spot, on one core (`core_speed`), and all cores
are taken to multiply as fast. That is more than many cores manage together, whose clocks fall when all work.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import accelerator, link, plain
from meshwright.describe.source import Source
from meshwright.errors import InputError, MeshwrightError
from meshwright.files import write_whole
from meshwright.units import GB, MICROSECOND

NAME = "this-machine"
SPEED_LASTS_S = 6 * 3600.0  # that a measured speed is used for: machines are shared, and clocks change
CORE_SPEED = Path(__file__).with_name("core_speed.py")
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
MOST_S = 60.0  # for a measurement that takes half a second on an idle machine
TOPOLOGY, QUOTA = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup/cpu.max")
CORE_W = 10.0  # of a core at work: server processors take 350 W for 32 to 64 of them; an assumption
LOOPBACK_COPIES = 4  # into and out of the socket, at both ends
LOOPBACK_S = 100 * MICROSECOND  # a message between two processes that share cores: an assumption


def this_machine() -> Cluster:
    """This machine as a cluster of one node."""
    gpus = gpu_names()
    return _of_gpus(gpus) if gpus else _of_processor()


def emulated_racks(num_racks: int, ranks_per_rack: int) -> Cluster:
    """This machine's processors, divided among processes that act as accelerators in racks.

    Each process counts as an even share of cores, memory and memory bandwidth. Both networks are the loopback of this machine, in which
    bytes are copied about four times (an assumption). The emulation shows which traffic goes where, but not the speeds of a real cluster.
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
            f"this machine has different GPUs: {', '.join(sorted(set(gpus)))}",
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
    cores, speed, at_once = num_cores(), core_speed(), num_cores_at_once()
    flops_per_s, bytes_per_s = speed.flops_per_s * at_once, speed.bytes_per_s
    words = f"an fp32 numpy multiplication on one core, times {at_once:g}, and a copy, by processor time"
    source = Source(f"measured on this machine: {words}", _today())
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


def num_cores_at_once() -> float:
    """Cores that can multiply at the same time: hardware threads of one core count once, and no more than the container's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(num_cores())
    siblings = {_first_line(TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in allowed}
    quota, _, period = _first_line(QUOTA).partition(" ")
    return min(float(len(siblings)), int(quota) / int(period)) if quota.isdigit() and period.isdigit() else float(len(siblings))


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSpeed:
    """What one core does in a second of its own."""

    flops_per_s: float
    bytes_per_s: float  # read and written together, by a copy


@cache
def core_speed() -> CoreSpeed:
    """One core's speed, measured once in a few hours: between two commands it should be the same, or the same layout has two prices."""
    from meshwright.describe.profile import cache_folder

    path, processor = cache_folder() / "core-speed.json", processor_name()
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["processor"] == processor and 0 <= time.time() - kept["time_s"] < SPEED_LASTS_S:
            return CoreSpeed(flops_per_s=float(kept["flops_per_s"]), bytes_per_s=float(kept["bytes_per_s"]))
    speed = core_speed_now()
    with suppress(OSError):  # a cache that cannot be written is no reason to stop
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"processor": processor, "time_s": time.time(), **asdict(speed)}))
    return speed


def core_speed_now() -> CoreSpeed:
    """One core's speed now, by a program of its own, in which BLAS has one thread."""
    environment = os.environ | dict.fromkeys(BLAS_THREADS, "1") | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # -P: the folder of the program has modules of its own that must not stand in for the standard library's.
    command = [sys.executable, "-P", str(CORE_SPEED)]
    try:
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MOST_S, check=True).stdout
        return CoreSpeed(**json.loads(printed))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        written = getattr(error, "stderr", None) or ""
        last_line = (written.decode(errors="replace") if isinstance(written, bytes) else written).strip().rpartition("\n")[2]
        raise MeshwrightError(
            f"the speed of this machine's processor could not be measured: {error}{' ' + last_line if last_line else ''}",
            where=NAME,
            fix=f"run {sys.executable} -P {CORE_SPEED} to see why, or describe the machine in a TOML file",
        ) from error


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
