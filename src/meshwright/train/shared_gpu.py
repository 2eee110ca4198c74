"""Several NCCL ranks on one GPU: to check that a layout for many GPUs trains correctly, not to measure how fast it is.

NCCL refuses two ranks on one GPU before version 2.30; later versions allow it if a setting says so. The kernels of the ranks must run at
the same time: otherwise a kernel that waits for another rank would wait for ever. NVIDIA's MPS (Multi-Process Service) makes this possible.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from meshwright.errors import InputError, argument

LEAST_VERSION = (2, 30)
USUAL_PIPE = "/tmp/nvidia-mps"  # where MPS listens by default
SETTINGS = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # reductions in a switch need one GPU for each rank
    "NCCL_MAX_CTAS": "2",  # all communicators of a rank together must leave room for the kernels of the others
}


def loaded_nccl() -> tuple[int, int, int] | None:
    """The version of the NCCL library that this process uses; None if it has none. Torch must be loaded before."""
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        number = ctypes.c_int()
        if library.ncclGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def check_sharing(version: tuple[int, int, int] | None, environment: Mapping[str, str]) -> None:
    """Raise an error if ranks cannot share a GPU here: NCCL is missing or too old, or MPS is not running."""
    where = argument("ranks_per_gpu")
    if version is None:
        raise InputError("this torch has no NCCL", where=where, fix="install a build of torch for CUDA")
    if version[:2] < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise InputError(
            f"several ranks on one GPU need NCCL {least} or later, and this process has loaded {'.'.join(map(str, version))}",
            where=where,
            fix=f"pip install --target nccl 'nvidia-nccl-cu13>={least}' (cu12 for CUDA 12), "
            "and put LD_PRELOAD=nccl/nvidia/nccl/lib/libnccl.so.2 before the command",
        )
    pipe = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or USUAL_PIPE)
    if not (pipe / "control").exists():
        raise InputError(
            f"several ranks on one GPU need NVIDIA's MPS, and no MPS daemon listens in {pipe}",
            where=where,
            fix="start it: nvidia-cuda-mps-control -d (and end it afterwards: echo quit | nvidia-cuda-mps-control)",
        )


def allow_sharing(environment: MutableMapping[str, str]) -> None:
    """Tell NCCL that ranks share GPUs. Settings of the user are kept."""
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)
