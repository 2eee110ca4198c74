"""Where a kernel of Triton can run: on a GPU, or by Triton's interpreter on a processor (TRITON_INTERPRET=1 pytest tests/train/kernels)."""

from __future__ import annotations

import os
from importlib import import_module

import pytest
import torch

OPERATORS = ("layer_kernels", "fp8_kernels", "scores_kernel")  # modules whose kernels are operators of torch


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device to call kernels on; a test that asks for it is skipped where there is none."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    for name in OPERATORS:  # torch knows no interpreted kernel, and need not: they are called at once
        monkeypatch.setattr(import_module(f"meshwright.train.kernels.{name}"), "wrap_triton", lambda kernel: kernel)
    return torch.device("cpu")


@pytest.fixture
def is_interpreted(kernel_device: torch.device) -> bool:
    """Whether kernels run element by element on a processor: then only small ones are quick."""
    return kernel_device.type == "cpu"
