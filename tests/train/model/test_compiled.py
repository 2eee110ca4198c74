"""Layers are compiled on a GPU, unless a rank waits for others inside a layer or puts gradients off."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from meshwright.layout import parse_layout
from meshwright.train.model.compiled import compile_layers, compiles


@pytest.mark.parametrize(
    "layout, expected",
    [
        ("dp=1", True),
        ("dp=4,zero=3", True),
        ("pp=2,vp=2", True),
        ("tp=2", False),
        ("cp=2", False),
        ("pp=2,schedule=zero-bubble", False),
        ("dp=2,schedule=zero-bubble", True),  # without a pipeline nothing is put off
    ],
)
def test_which_layouts_are_compiled(layout: str, expected: bool) -> None:
    assert compiles(parse_layout(layout), torch.device("cuda")) is expected
    assert compiles(parse_layout(layout), torch.device("cpu")) is False


def test_the_compilers_advice_on_tf32_does_not_reach_the_user() -> None:
    compile_layers(SimpleNamespace(blocks=lambda: ()))  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled.", UserWarning, stacklevel=1)
    assert seen == []
