"""This machine: its processors measured, or its GPUs as nvidia-smi names them."""

import os
import subprocess
import sys

import pytest

from meshwright.describe import this_machine
from meshwright.errors import InputError, MeshwrightError

SMI = """#!/bin/sh
case "$1" in
nvlink) printf '%b' "{nvlink}" ;;
*) printf '%b' "{names}" ;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi that says what the test wants on the path."""

    def install(names, nvlink=""):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(SMI.format(names=names, nvlink=nvlink))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_a_processor_is_measured(monkeypatch):
    monkeypatch.setattr(this_machine, "gpu_names", list)
    cluster = this_machine.this_machine()
    device = cluster.accelerator
    assert cluster.num_accelerators == 1
    assert device.architecture == "cpu"
    assert device.memory_bytes > 1e8
    assert device.memory_bytes_per_s > 1e8
    assert device.peak_flops_per_s("bf16") > 1e8
    assert "measured on this machine" in device.sources["default"].text


@pytest.fixture
def measured_anew(tmp_path, monkeypatch):
    """Nothing measured before, and nothing that the test measures is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    this_machine.core_speed.cache_clear()
    yield
    this_machine.core_speed.cache_clear()


def test_two_commands_see_the_same_speed_until_it_is_old(measured_anew, monkeypatch, tmp_path):
    speeds = iter([5e10, 7e10, 9e10])
    monkeypatch.setattr(this_machine, "core_speed_now", lambda: this_machine.CoreSpeed(flops_per_s=next(speeds), bytes_per_s=2e10))
    seen = []
    for damage in (None, None, "{", '{"processor": "another", "time_s": 0}'):
        if damage is not None:
            (tmp_path / "meshwright" / "core-speed.json").write_text(damage)
        this_machine.core_speed.cache_clear()  # as a process of its own would
        seen.append(this_machine.core_speed().flops_per_s)
    assert seen == [5e10, 5e10, 7e10, 9e10]
    monkeypatch.setattr(this_machine, "SPEED_LASTS_S", 0.0)
    this_machine.core_speed.cache_clear()
    with pytest.raises(StopIteration):
        this_machine.core_speed()


def test_a_processor_is_measured_once_in_a_process(measured_anew, monkeypatch):
    started = []

    def run(command, env, **_):
        started.append((command, env))
        return subprocess.CompletedProcess(command, 0, '{"flops_per_s": 5e10, "bytes_per_s": 2e10}')

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(this_machine, "num_cores_at_once", lambda: 1.5)
    first, second = (this_machine._of_processor().accelerator for _ in range(2))
    assert first == second and len(started) == 1
    assert (first.peak_flops_per_s("bf16"), first.memory_bytes_per_s) == (7.5e10, 2e10)
    assert {started[0][1][name] for name in this_machine.BLAS_THREADS} == {"1"}


def test_a_measurement_that_hangs_or_breaks_is_reported_with_its_last_words(measured_anew, monkeypatch, tmp_path):
    monkeypatch.setattr(this_machine, "CORE_SPEED", tmp_path / "speed.py")
    monkeypatch.setattr(this_machine, "MOST_S", 1.0)
    for end in ("import time; time.sleep(9)", "raise SystemExit(3)"):
        (tmp_path / "speed.py").write_text(f"import sys\nprint('no numpy', 'here', file=sys.stderr, flush=True)\n{end}")
        with pytest.raises(MeshwrightError, match=r"could not be measured: .* no numpy here"):
            this_machine.core_speed()


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('nonsense')", "print('{}')"])
def test_a_measurement_that_fails_says_how_to_see_why(measured_anew, monkeypatch, tmp_path, program):
    (tmp_path / "speed.py").write_text(program)
    monkeypatch.setattr(this_machine, "CORE_SPEED", tmp_path / "speed.py")
    with pytest.raises(MeshwrightError, match="could not be measured") as caught:
        this_machine.core_speed()
    assert f"{sys.executable} -P" in caught.value.fix


def test_hardware_threads_of_one_core_multiply_as_one_and_a_quota_holds(monkeypatch, tmp_path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(this_machine, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(this_machine, "QUOTA", tmp_path / "cpu.max")
    assert this_machine.num_cores_at_once() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert this_machine.num_cores_at_once() == 2
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert this_machine.num_cores_at_once() == 1.5
    monkeypatch.setattr(this_machine, "TOPOLOGY", tmp_path / "none")  # where nothing says which threads share a core, each counts
    (tmp_path / "cpu.max").unlink()
    assert this_machine.num_cores_at_once() == 4


def test_gpus_with_nvlink(nvidia_smi):
    nvidia_smi("NVIDIA H100 80GB HBM3\\n" * 8, "GPU 0: NVIDIA H100\\n" + "".join(f"\\t Link {i}: 26.562 GB/s\\n" for i in range(18)))
    cluster = this_machine.this_machine()
    assert (cluster.accelerator.name, cluster.num_accelerators) == ("h100", 8)
    assert cluster.tiers[0].bytes_per_s == pytest.approx(18 * 26.562e9)


def test_gpus_without_nvlink(nvidia_smi):
    nvidia_smi("NVIDIA GeForce RTX 4090\\nNVIDIA GeForce RTX 4090\\n")
    cluster = this_machine.this_machine()
    assert (cluster.accelerator.name, cluster.num_accelerators, cluster.tiers[0].link) == ("rtx-4090", 2, "pcie-4")


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_names_as_nvidia_smi_spells_them(reported, name):
    assert this_machine.catalogue_name(reported) == name


def test_an_unknown_gpu_is_an_error(nvidia_smi):
    nvidia_smi("NVIDIA Tesla K80\\n")
    with pytest.raises(InputError, match="'NVIDIA Tesla K80' is not in the catalogue"):
        this_machine.this_machine()


def test_unlike_gpus_are_an_error(nvidia_smi):
    nvidia_smi("NVIDIA H100\\nNVIDIA H200\\n")
    with pytest.raises(InputError, match="different GPUs: NVIDIA H100, NVIDIA H200"):
        this_machine.this_machine()


def test_a_tool_that_fails_means_no_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert this_machine.gpu_names() == []
