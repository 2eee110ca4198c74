"""Which layers are compiled: on a GPU all layers that contain no collective and postpone no gradients."""

from __future__ import annotations

import warnings

import torch

from meshwright.layout import Layout
from meshwright.train.model.transformer import Transformer


def compiles(layout: Layout, device: torch.device) -> bool:
    """Whether the layers of a rank of this layout are compiled on this device.

    Tensor and context parallelism wait for other ranks inside a layer, and a zero-bubble schedule keeps gradients for later. Both are side
    effects, which a compiled graph must not have. On a processor, compiling takes longer than the small runs that are made there.
    """
    puts_off = layout.is_zero_bubble
    return device.type == "cuda" and layout.tp == 1 and layout.cp == 1 and not puts_off


def compile_layers(chunk: Transformer) -> None:
    """Compile each layer separately. All layers have the same shapes, so one compilation is enough for all.

    The compiler recommends TF32 for products in fp32. Runs in fp32 are compared digit by digit, so they keep full precision.
    """
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    for block in chunk.blocks():
        block.compiled = torch.compile(block.plain, fullgraph=True, dynamic=False)
