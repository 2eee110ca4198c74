"""Small models with random weights, for folders that transformers reads and writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.describe.model import Model, RotaryScaling
from meshwright.train.interop.huggingface import named_tensors
from meshwright.train.model.transformer import Context, Transformer

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


VARIANTS = [
    pytest.param(MODEL, id="untied"),
    pytest.param(TIED, id="tied"),
    pytest.param(replace(MODEL, rotary_scaling=None, rotary_theta=1e4), id="Llama 2"),
    pytest.param(replace(MODEL, attention_biases=True), id="attention biases"),
    pytest.param(replace(MODEL, biases=True), id="all biases"),
    pytest.param(replace(MODEL, qkv_biases=True), id="Qwen2"),
]
