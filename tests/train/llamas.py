"""Small models with random weights, for folders that transformers reads and writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.describe.model import Experts, LatentAttention, Model, RotaryScaling
from meshwright.describe.router import Router
from meshwright.train.interop.huggingface import named_tensors
from meshwright.train.model.attention import Context
from meshwright.train.model.transformer import Transformer

MODEL = Model(
    name="small",
    num_layers=2,
    hidden=32,
    ffn_hidden=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=300,
    rotary_theta=5e5,
    rotary_scaling=RotaryScaling(factor=8.0, original_positions=64, low_turns=1.0, high_turns=4.0),
    norm_epsilon=1e-5,
)
QWEN3 = replace(MODEL, qk_norm=True, rotary_scaling=None, rotary_theta=1e6)
LATENT = replace(
    MODEL,
    num_kv_heads=4,
    head_dim=12,
    latent=LatentAttention(query_rank=20, key_value_rank=16, nope_dim=8, rope_dim=6, value_dim=12),
    rotary_scaling=RotaryScaling(
        kind="yarn", factor=4.0, original_positions=32, low_turns=1.0, high_turns=32.0, mscale=1.0, mscale_all_dim=0.8
    ),
)
MIXTRAL = replace(MODEL, rotary_scaling=None, rotary_theta=1e6, experts=Experts(num_experts=4, num_active=2, hidden=48))
QWEN3_MOE = replace(
    QWEN3,
    num_layers=3,
    experts=Experts(num_experts=6, num_active=3, hidden=20, num_dense_layers=1, router=Router(renormalizes=False)),
)
DEEPSEEK_V3 = replace(
    LATENT,
    num_layers=3,
    experts=Experts(
        num_experts=8,
        num_active=3,
        hidden=20,
        num_shared=2,
        num_dense_layers=1,
        router=Router(scores="sigmoid", has_selection_bias=True, scale=2.5, num_groups=4, num_chosen_groups=2),
    ),
)
GPT_OSS = replace(
    MODEL,
    num_layers=3,
    biases=True,
    attention_sinks=True,
    window=7,
    num_windowed_layers=2,
    windowed_layers=(0, 2),
    rotary_scaling=RotaryScaling(kind="yarn", factor=32.0, original_positions=64, low_turns=1.0, high_turns=32.0, truncates=False),
    experts=Experts(num_experts=5, num_active=2, hidden=48, activation_limit=7.0, router=Router(chooses_first=True, has_bias=True)),
)
TIED = replace(MODEL, tied_embeddings=True)


def weights_of(model, seed=0):
    """Random whole tensors by our names."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) * 0.2 for name, tensor in named_tensors(model).items()}


def filled(source, model):
    """All tensors, each read whole."""
    whole = {name: torch.empty(tensor.shape) for name, tensor in named_tensors(model).items()}
    for name, tensor in whole.items():
        source.fill(name, tensor.shape, (0,) * tensor.dim(), tensor)
    return whole


def our_logits(model, weights, tokens):
    transformer = Transformer(model)
    with torch.no_grad():
        for name, tensor in transformer.named_tensors():
            tensor.copy_(weights[name])
        return transformer.head.logits(transformer.hidden(tokens, Context(positions=torch.arange(tokens.shape[1]))))


FAMILIES_OF_ATTENTION = [
    pytest.param(MODEL, id="Llama"),
    pytest.param(replace(MODEL, qkv_biases=True), id="Qwen2"),
    pytest.param(replace(QWEN3, norm_epsilon=1e-6), id="Qwen3"),
    pytest.param(replace(QWEN3, window=9, num_windowed_layers=1, windowed_layers=(1,)), id="Qwen3, window in one layer"),
    pytest.param(replace(MODEL, rotary_scaling=None, window=7, num_windowed_layers=2), id="Mistral"),
    pytest.param(LATENT, id="DeepSeek-V3, dense"),
    pytest.param(replace(LATENT, latent=replace(LATENT.latent, query_rank=0, interleaved=False)), id="latent, direct queries"),
]
FAMILIES_OF_EXPERTS = [
    pytest.param(MIXTRAL, id="Mixtral"),
    pytest.param(replace(MIXTRAL, window=9, num_windowed_layers=2), id="Mixtral, window"),
    pytest.param(QWEN3_MOE, id="Qwen3-MoE"),
    pytest.param(DEEPSEEK_V3, id="DeepSeek-V3"),
    pytest.param(GPT_OSS, id="gpt-oss"),
]
VARIANTS = [
    *FAMILIES_OF_ATTENTION,
    *FAMILIES_OF_EXPERTS,
    pytest.param(TIED, id="tied"),
    pytest.param(replace(MODEL, rotary_scaling=None, rotary_theta=1e4), id="Llama 2"),
    pytest.param(replace(MODEL, attention_biases=True), id="attention biases"),
    pytest.param(replace(MODEL, biases=True), id="all biases"),
]
