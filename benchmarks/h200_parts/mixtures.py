"""Mixtures of experts that are measured: as many layers as fit on one H200 with bf16 states, and the same families tiny for dry runs."""

from __future__ import annotations

from dataclasses import replace

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.describe.router import Router

# 16 of 48 layers: 10.6 billion parameters, 85 GB of bf16 weights, gradients and moments, and 20 to 30 GB of activations at 8,192 tokens.
QWEN = replace(load_model("qwen3-30b-a3b"), name="qwen3-30b-a3b-16-layers", num_layers=16)
# The shapes of DeepSeek-V2-Lite, which torchtitan calls 16B: 15.7 billion parameters, 126 GB of states.
DEEPSEEK = Model(
    name="deepseek-16b",
    num_layers=27,
    hidden=2048,
    ffn_hidden=10944,
    num_heads=16,
    num_kv_heads=16,
    head_dim=192,
    vocab_size=102400,
    rotary_theta=10000.0,
    norm_epsilon=1e-5,
    latent=LatentAttention(query_rank=0, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    experts=Experts(num_experts=64, num_active=6, hidden=1408, num_shared=2, num_dense_layers=1, router=Router(renormalizes=False)),
)
TINY_QWEN = replace(
    QWEN,
    name="tiny-qwen3-experts",
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=512,
    experts=Experts(num_experts=8, num_active=2, hidden=32),
)
TINY_DEEPSEEK = replace(
    DEEPSEEK,
    name="tiny-deepseek",
    num_layers=3,
    hidden=64,
    ffn_hidden=128,
    num_heads=4,
    num_kv_heads=4,
    head_dim=24,
    vocab_size=512,
    latent=LatentAttention(query_rank=0, key_value_rank=32, nope_dim=16, rope_dim=8, value_dim=16),
    experts=replace(DEEPSEEK.experts, num_experts=8, num_active=2, hidden=32),
)
MIXTURES = {model.name: model for model in (QWEN, DEEPSEEK, TINY_QWEN, TINY_DEEPSEEK)}
TINY_OF = {QWEN.name: TINY_QWEN.name, DEEPSEEK.name: TINY_DEEPSEEK.name}
SIZES = {QWEN.name: "Qwen3-30B-A3B, 16 of 48 layers", DEEPSEEK.name: "DeepSeek-style 16B"}
