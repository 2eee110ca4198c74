"""A chip of round numbers and constants that add nothing, so that a step can be worked out by hand."""

from __future__ import annotations

from meshwright.describe.hardware import Accelerator
from meshwright.predict.software import Constants

CHIP = Accelerator(
    name="by hand",
    vendor="NVIDIA",
    architecture="hopper",
    memory_bytes=1e9,
    memory_bytes_per_s=1e9,
    dense_flops_per_s={"bf16": 1e12},
    power_cap_w=1e12,  # no limit
)
PLAIN = Constants(
    hopper_fp8_pj=0.1,
    blackwell_fp8_pj=0.1,
    ultra_fp8_pj=0.1,
    blackwell_fp4_pj=0.1,
    hopper_attention=0.5,
    blackwell_attention=0.5,
    softmax_exponent=0.0,
    memory_efficiency=1.0,
    layer_s=1e-4,
    eager_layer_s=0.0,
    eager_chunk_s=0.0,
    tp_hidden=0.9,
    fabric_efficiency=1.0,
    hashed_efficiency=1.0,
    round_s=0.0,
    hopper_contention=0.0,
    blackwell_contention=0.0,
    chip_spread=0.0,
)
