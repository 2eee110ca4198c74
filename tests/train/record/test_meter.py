"""The meter: joules between two moments, from counters that are read behind the training; NVML is played."""

from __future__ import annotations

import ctypes
import time
from itertools import pairwise

import pytest
import torch

from meshwright.train.record.meter import LIBRARY, Meter, gpu_meter, gpu_name, nvml_reader


class Counter:
    """A machine that draws 300 W, by the clock."""

    def __init__(self) -> None:
        self.start_s = time.monotonic()
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return 300.0 * (time.monotonic() - self.start_s)


class Nvml:
    """Two GPUs with counters in millijoules; one that is not there is an error, as NVML has it."""

    def __init__(self) -> None:
        self.joules = {b"GPU-a": 5.0, b"GPU-b": 7.5}
        self.handles: dict[int, bytes] = {}

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: ctypes._Pointer) -> int:
        if uuid not in self.joules:
            return 6
        number = len(self.handles) + 1
        self.handles[number] = uuid
        handle._obj.value = number
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, found: ctypes._Pointer) -> int:
        found._obj.value = int(self.joules[self.handles[handle.value]] * 1e3)
        return 0


def test_steps_in_a_row_have_all_the_joules_between_them() -> None:
    counter = Counter()
    meter = Meter(counter, period_s=0.01)
    try:
        moments = [time.monotonic()]
        for _ in range(20):
            time.sleep(0.02)
            moments.append(time.monotonic())
        time.sleep(0.05)
        found = [meter.between(start_s, end_s) for start_s, end_s in pairwise(moments)]
    finally:
        meter.stop()
    assert None not in found
    assert sum(found) == pytest.approx(300.0 * (moments[-1] - moments[0]), rel=0.05)
    assert counter.reads > 3


def test_what_nobody_saw_is_unknown_and_the_power_goes_on_behind_the_last_reading() -> None:
    counter = Counter()
    meter = Meter(counter, period_s=0.01)
    time.sleep(0.2)
    meter.stop()
    now_s = time.monotonic()
    assert meter.between(counter.start_s - 10, now_s) is None
    assert meter.between(now_s, now_s + 1.0) == pytest.approx(300.0, rel=0.1)


def test_a_counter_that_fails_ends_the_thread_and_not_the_run() -> None:
    answers = iter([1.0, 2.0])

    def read() -> float:
        try:
            return next(answers)
        except StopIteration:
            raise OSError("NVML answers 15") from None

    meter = Meter(read, period_s=0.01)
    meter._thread.join(10)
    assert not meter._thread.is_alive()
    now_s = time.monotonic()
    assert meter.between(now_s, now_s + 1) is None
    meter.stop()


def test_nvml_is_asked_for_every_gpu_in_millijoules() -> None:
    assert nvml_reader(Nvml(), ["GPU-a", "GPU-b"])() == 12.5
    with pytest.raises(OSError, match="NVML answers 6"):
        nvml_reader(Nvml(), ["GPU-c"])


def test_without_a_gpu_there_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        assert name == LIBRARY
        raise OSError("no such library")

    monkeypatch.setattr("meshwright.train.record.meter.ctypes.CDLL", missing)
    assert gpu_meter(["GPU-a"]) is None and gpu_meter(["GPU-a", ""]) is None and gpu_meter([]) is None


def test_a_gpu_has_the_name_that_nvml_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.train.record.meter.torch.cuda.get_device_properties", lambda i: type("Gpu", (), {"uuid": "a"}))
    assert (gpu_name(torch.device("cuda", 1)), gpu_name(torch.device("cpu"))) == ("GPU-a", "")
