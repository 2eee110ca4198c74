"""Memory, memory errors, disk and versions of a host."""

from __future__ import annotations

import os
import time

import pytest

from meshwright.doctor import host
from meshwright.doctor.host import disk_rates, host_ecc, host_memory, host_versions
from meshwright.units import MEGA


def test_memory_is_what_the_kernel_counts(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24680948 kB\nMemFree:  1 kB\nMemAvailable:   22000000 kB\nHugePages_Total:       0\n")
    found = host_memory(meminfo)
    assert (found.total_bytes, found.available_bytes) == (24680948 * 1024, 22000000 * 1024)


def test_this_machine_has_memory():
    found = host_memory()
    assert 0 < found.available_bytes <= found.total_bytes


def test_memory_errors_are_added_over_controllers_and_none_where_nobody_counts(tmp_path):
    assert host_ecc(tmp_path) is None
    for name, count in (("mc0", "0\n"), ("mc1", "2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ue_count").write_text(count)
    assert host_ecc(tmp_path) == 2


def test_a_disk_is_written_and_read_and_nothing_stays(tmp_path):
    found = disk_rates(tmp_path / "runs" / "not yet there", size_bytes=1 << 20)
    assert found.folder == str(tmp_path) and found.free_bytes > 0
    assert found.write_bytes_per_s > 0 and found.read_bytes_per_s > 0
    assert os.listdir(tmp_path) == []


def test_a_slow_disk_is_measured_as_slow_in_the_same_time(tmp_path, monkeypatch):
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (time.sleep(0.4), fsync(fd))[1])
    monkeypatch.setattr(host, "DISK_S", 0.5)
    found = disk_rates(tmp_path)
    assert found.write_bytes_per_s < 21 * MEGA  # 8 MiB in 0.4 s or more
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fails_raises_and_leaves_nothing(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        disk_rates(tmp_path)
    assert os.listdir(tmp_path) == []


def test_versions_are_those_of_this_python():
    import platform

    found = host_versions()
    assert found["python"] == platform.python_version() and {"kernel", "torch", "meshwright"} <= found.keys()
