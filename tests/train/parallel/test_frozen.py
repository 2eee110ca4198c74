"""Frozen weights beside adapters: they have storage, no gradient, and are not in the optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity import LLAMA, WORKLOAD, replica_of

from meshwright.describe.workload import Adapters
from meshwright.layout import Layout


@pytest.mark.parametrize("base", ["bf16", "fp8", "nf4"])
def test_frozen_weights_are_stored_and_not_optimized(base: str, world: None) -> None:
    workload = replace(WORKLOAD, adapters=Adapters(rank=2, targets=("q", "o"), base=base))
    with replica_of(LLAMA, workload, Layout(micro_batch=8)) as (replica, _):
        (chunk,) = replica.stage.chunks
        layer = chunk.blocks()[0].attention.qkv
        assert (layer.few_bits is None) == (base == "bf16") and (layer.weight is None) == (base != "bf16")
        frozen = [parameter for parameter in chunk.parameters() if not parameter.requires_grad]
        assert frozen and all(parameter.device.type == "cpu" and torch.isfinite(parameter).all() for parameter in frozen)
        names = {piece.name for piece in replica.state()}
        assert all(name.endswith((".lora_a", ".lora_b")) for name in names) and len(names) == 3 * 4 * 2 * 2
