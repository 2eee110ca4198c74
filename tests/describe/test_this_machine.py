"""This machine: its processors measured, or its GPUs as nvidia-smi names them."""

import time

import pytest

from meshwright.describe import this_machine
from meshwright.errors import InputError

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
    start = time.perf_counter()
    cluster = this_machine.this_machine()
    assert time.perf_counter() - start < 5  # meant to be under one second on an idle machine
    device = cluster.accelerator
    assert cluster.num_accelerators == 1
    assert device.architecture == "cpu"
    assert device.memory_bytes > 1e8
    assert device.memory_bytes_per_s > 1e8
    assert device.peak_flops_per_s("bf16") > 1e8
    assert "measured on this machine" in device.sources["default"].text


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
    with pytest.raises(InputError, match="unlike GPUs: NVIDIA H100, NVIDIA H200"):
        this_machine.this_machine()


def test_a_tool_that_fails_means_no_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert this_machine.gpu_names() == []
