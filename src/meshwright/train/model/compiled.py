"""Which layers are compiled: on a GPU all whose arithmetic holds no collective and puts nothing off."""

from __future__ import annotations

import warnings

import torch

from meshwright.layout import Layout
from meshwright.train.model.transformer import Transformer


def compiles(layout: Layout, device: torch.device) -> bool:
    """Whether the layers of a rank of this layout are compiled on this device.

    Tensor and context parallelism wait for other ranks inside a layer, and a zero-bubble schedule keeps gradients for later: both are
    side effects that a compiled graph may not have. On a processor compiling takes longer than the small runs made there.
    """
    puts_off = layout.is_zero_bubble
    return device.type == "cuda" and layout.tp == 1 and layout.cp == 1 and not puts_off


def compile_layers(chunk: Transformer) -> None:
    """Compile each layer for itself: all have the same shapes, so that one compilation serves them all.

    The compiler advises TF32 where a product is in fp32. Runs in fp32 are there to be compared digit by digit, so they keep full precision.
    """
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    for block in chunk.blocks():
        block.compiled = torch.compile(block.plain, fullgraph=True, dynamic=False)
