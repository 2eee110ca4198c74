"""A model small enough to be measured in tests."""

from __future__ import annotations

import torch

from meshwright.describe.model import Model

CPU = torch.device("cpu")
TINY = Model(name="tiny", num_layers=8, hidden=32, ffn_hidden=64, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=96)
