"""The energy that the GPUs of a run have used, from their own counters.

A thread reads the counters a few times per second, so that no step waits for them; a step asks for the energy between two times. NVML comes
with the driver and is called directly. Counters of another machine cannot be read, so a run on several machines has no meter.
"""

from __future__ import annotations

import ctypes
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch

PERIOD_S = 0.1  # NVML updates its counters about this often
LIBRARY = "libnvidia-ml.so.1"
MILLI = 1e-3

Read = Callable[[], float]


class Meter:
    """Joules by time, from a counter that only grows. Times are those of the monotonic clock."""

    def __init__(self, read: Read, period_s: float = PERIOD_S) -> None:
        self._read, self._period_s = read, period_s
        self._times: list[float] = []
        self._joules: list[float] = []
        self._lock, self._done, self._failed = threading.Lock(), threading.Event(), False
        self._sample()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def between(self, start_s: float, end_s: float) -> float | None:
        """Joules between two times; None if there was no reading. Call it in order: earlier readings are dropped."""
        with self._lock:
            if self._failed or len(self._times) < 2 or start_s < self._times[0]:
                return None
            drawn = self._at(end_s) - self._at(start_s)
            before = max(bisect_right(self._times, start_s) - 1, 0)
            if before < len(self._times) - 2:  # two are kept, because they give the present power
                del self._times[:before], self._joules[:before]
        return max(drawn, 0.0)

    def _at(self, moment_s: float) -> float:
        """The counter at a time: interpolated between two readings, or extrapolated from the last two."""
        i = min(max(bisect_right(self._times, moment_s), 1), len(self._times) - 1)
        (t0, t1), (j0, j1) = self._times[i - 1 : i + 1], self._joules[i - 1 : i + 1]
        return j0 + (j1 - j0) * (moment_s - t0) / (t1 - t0)

    def _run(self) -> None:
        while not self._done.wait(self._period_s):
            try:
                self._sample()
            except OSError:  # a GPU that is no longer there: later steps have no reading, and the run continues
                self._failed = True
                return

    def _sample(self) -> None:
        joules, now_s = self._read(), time.monotonic()
        with self._lock:
            if not self._times or now_s > self._times[-1]:
                self._times.append(now_s)
                self._joules.append(joules)

    def stop(self) -> None:
        """Stop reading."""
        self._done.set()
        self._thread.join()


def gpu_name(device: torch.device) -> str:
    """How NVML knows a GPU; empty if this torch does not say, or it is none."""
    if device.type != "cuda":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def gpu_meter(gpus: Sequence[str]) -> Meter | None:
    """A meter of these GPUs of this machine, by `gpu_name`; None if they have no counter that can be read."""
    if not gpus or not all(gpus):
        return None
    try:
        return Meter(nvml_reader(ctypes.CDLL(LIBRARY), sorted(set(gpus))))
    except (OSError, AttributeError):
        return None


def nvml_reader(library: Any, uuids: Sequence[str]) -> Read:
    """A function that returns the joules of these GPUs since their driver was loaded; it raises OSError if NVML refuses."""
    _checked(library.nvmlInit_v2())
    handles = []
    for uuid in uuids:
        handle = ctypes.c_void_p()
        _checked(library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
        handles.append(handle)

    def read() -> float:
        total = 0
        for handle in handles:
            millijoules = ctypes.c_ulonglong()
            _checked(library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)))
            total += millijoules.value
        return total * MILLI

    return read


def _checked(code: int) -> None:
    if code != 0:
        raise OSError(f"NVML answers {code}")
