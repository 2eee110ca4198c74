"""A rank's reading: what it contains, and that a part that fails or hangs costs only itself."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sick import GPU, VERSIONS

from meshwright.describe.this_machine import CoreSpeed, num_cores_at_once
from meshwright.doctor import node
from meshwright.doctor.host import DiskRates, HostMemory
from meshwright.doctor.node import GpuSpeed, Here, Sources, device_name, take_reading

HERE = Here(node="here")


def speed(local_rank, look) -> GpuSpeed:
    try:
        busy = look()
    except OSError:
        busy = None
    return GpuSpeed(flops_per_s=7e14, copy_bytes_per_s=4.2e12, busy=busy)


def sources(**changes) -> Sources:
    """A node of one H200."""
    values = {
        "gpu_names": lambda: ["NVIDIA H200"],
        "gpu": lambda device: GPU,
        "gpu_users": lambda device: (),
        "gpu_speed": speed,
        "core_speed": lambda: CoreSpeed(flops_per_s=1e11, bytes_per_s=2e10),
        "memory": lambda: HostMemory(total_bytes=1e12, available_bytes=9e11),
        "ecc": lambda: 0,
        "disk": lambda folder: DiskRates(folder=str(folder), write_bytes_per_s=2e9, read_bytes_per_s=5e9, free_bytes=1e12),
        "versions": lambda: {"torch": "2.13.0"},
        "gpu_versions": lambda: {"nccl": "2.30.4"},
    }
    return Sources(**{**values, **changes})


def read(here: Here = HERE, **changes):
    return take_reading(here, sources(**changes), lambda what: None)


def test_a_node_with_a_gpu():
    found = read()
    assert (found.node, found.num_gpus, found.gpu, found.busy_gpu) == ("here", 1, GPU, GPU)
    assert (found.flops_per_s, found.copy_bytes_per_s) == (7e14, 4.2e12)
    assert found.versions == {"torch": "2.13.0", "nccl": "2.30.4", "driver": VERSIONS["driver"]}
    assert (found.disk_write_bytes_per_s, found.available_bytes, found.failed) == (2e9, 9e11, {})


def test_a_gpu_at_work_is_looked_at_several_times():
    looks = iter([(345e6, 0x1), (1545e6, 0x0), (1500e6, 0x4)])

    def gpu(device):
        clock_hz, slowdowns = (345e6, 0x1) if not started else next(looks)
        return replace(GPU, clock_hz=clock_hz, slowdowns=slowdowns)

    started = []
    found = read(gpu=gpu, gpu_speed=lambda rank, look: started.append(1) or speed(rank, look))
    assert (found.gpu.clock_hz, found.busy_gpu.clock_hz, found.busy_gpu.slowdowns) == (345e6, 1545e6, 0x5)


def test_a_node_without_has_the_speed_of_its_cores():
    found = read(gpu_names=list)
    assert found.gpu is None and found.num_gpus == 0
    assert (found.flops_per_s, found.copy_bytes_per_s) == (1e11 * num_cores_at_once(), 2e10)


def test_the_better_of_two_tries_counts_for_cores():
    speeds = iter([CoreSpeed(flops_per_s=1e11, bytes_per_s=2e10), CoreSpeed(flops_per_s=5e10, bytes_per_s=3e10)])
    found = read(gpu_names=list, core_speed=lambda: next(speeds))
    assert (found.flops_per_s, found.copy_bytes_per_s) == (1e11 * num_cores_at_once(), 3e10)


def test_what_a_node_has_once_its_first_rank_reads():
    found = read(Here(node="here", rank=5, local_rank=1))
    assert (found.gpu, found.disk_write_bytes_per_s, found.memory_bytes) == (GPU, None, None)


def broken(*args):
    raise OSError("Input/output error\nand more")


@pytest.mark.parametrize(
    "change, what",
    [
        ("gpu", "the driver"),
        ("gpu_users", "processes on the GPU"),
        ("gpu_speed", "GPU speed"),
        ("memory", "memory"),
        ("disk", "disk"),
        ("ecc", "memory errors"),
        ("versions", "versions"),
        ("gpu_versions", "GPU libraries"),
    ],
)
def test_a_part_that_fails_is_noted_and_the_rest_is_read(change, what):
    found = read(**{change: broken})
    assert found.failed == {what: "Input/output error"}
    assert found.num_gpus == 1


def test_a_part_that_hangs_is_noted_and_the_rest_is_read(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(node, "DISK_S", 0.05)
    found = read(disk=lambda folder: release.wait())
    release.set()
    assert found.failed == {"disk": "it took longer than 0 s"} and found.flops_per_s == 7e14


def test_parts_share_one_time_limit(monkeypatch):
    monkeypatch.setattr(node, "READINGS_S", 0.0)
    found = read()
    assert set(found.failed.values()) == {"other parts took all the time"}


@pytest.mark.parametrize(
    "visible, local_rank, name", [(None, 2, "2"), ("4,5", 1, "5"), ("GPU-aa, GPU-bb", 0, "GPU-aa"), ("4", 3, "3"), ("", 0, "0")]
)
def test_a_ranks_gpu_as_the_driver_knows_it(visible, local_rank, name):
    assert device_name(local_rank, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == name
