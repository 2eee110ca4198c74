"""What a host has, GPU or not: memory, its errors, a disk, versions of software."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meshwright.units import MIB

MEMINFO, EDAC = Path("/proc/meminfo"), Path("/sys/devices/system/edac/mc")
DISK_BYTES = int(64 * MIB)  # enough that a disk's own cache and the cost of a call count little, and a healthy disk takes a second at most
CHUNK_BYTES = int(8 * MIB)  # each is made safe (fsync) before the next: a slow disk must not be given all of it at once
DISK_TRIES = 2  # the better one counts: another job may write at the moment
DISK_S = 4.0  # for one try each way: a slower disk writes less, and its rate is known all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of main memory, and how many of them a new program can have."""

    total_bytes: float
    available_bytes: float


def host_memory(meminfo: Path = MEMINFO) -> HostMemory:
    """Main memory as the kernel counts it."""
    sizes = {}
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name] = float(words[0]) * 1024
    return HostMemory(total_bytes=sizes["MemTotal"], available_bytes=sizes["MemAvailable"])


def host_ecc(folder: Path = EDAC) -> int | None:
    """Memory errors of the host that could not be corrected, since it was started; None where the kernel does not count them."""
    counts = [int(path.read_text(encoding="ascii")) for path in sorted(folder.glob("mc*/ue_count"))]
    return sum(counts) if counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """What a disk does, and how much room it has."""

    folder: str
    write_bytes_per_s: float
    read_bytes_per_s: float
    free_bytes: float


def disk_rates(folder: Path, size_bytes: int = DISK_BYTES) -> DiskRates:
    """Rates of the disk below a folder, or below the nearest folder above it that exists: written until it is safe, then read back.

    The file has no name from its first moment on, so that nothing stays behind however this ends. Its blocks in the page cache are dropped
    before they are read; a file system that keeps them all the same shows the speed of the cache.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    chunk = os.urandom(CHUNK_BYTES)  # some disks compress
    tries = []
    for _ in range(DISK_TRIES):
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            tries.append((_write(file.fileno(), chunk, size_bytes), _read(file.fileno())))
    writes, reads = zip(*tries, strict=True)
    room = os.statvfs(place)
    return DiskRates(
        folder=str(place), write_bytes_per_s=max(writes), read_bytes_per_s=max(reads), free_bytes=float(room.f_bavail) * room.f_frsize
    )


def _write(fd: int, chunk: bytes, size_bytes: int) -> float:
    """Bytes a second until they are on the disk; it writes less than asked where that takes too long."""
    written, started_s = 0, time.perf_counter()
    while written < size_bytes and time.perf_counter() - started_s < DISK_S:
        written += os.write(fd, chunk)
        os.fsync(fd)
    return written / max(time.perf_counter() - started_s, 1e-9)


def _read(fd: int) -> float:
    """Bytes a second of what was written."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    found, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < DISK_S and (part := os.read(fd, CHUNK_BYTES)):
        found += len(part)
    return found / max(time.perf_counter() - started_s, 1e-9)


def host_versions() -> dict[str, str]:
    """Versions of what every node has: Python, the kernel, torch and meshwright. Nothing is imported for it."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("torch", "meshwright"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
