"""Expert layers against transformers' blocks, and against a plain definition, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from meshwright.describe.model import Experts, Model
from meshwright.describe.router import Router
from meshwright.train.model.experts import ExpertLayer
from meshwright.train.model.transformer import Transformer, feed_forward

MODEL = Model(
    name="small-experts",
    num_layers=2,
    hidden=16,
    ffn_hidden=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=64,
    experts=Experts(num_experts=8, num_active=2, hidden=24),
)
DEEPSEEK = Router(scores="sigmoid", scale=2.5, num_groups=4, num_chosen_groups=2, has_selection_bias=True)
GPT_OSS = Router(chooses_first=True, has_bias=True)


def with_experts(model: Model, **changes: object) -> Model:
    return replace(model, experts=replace(model.experts, **changes))


def layer_of(model: Model, seed: int = 0) -> ExpertLayer:
    """An expert layer with random weights."""
    layer = feed_forward(model, model.num_layers - 1)
    assert isinstance(layer, ExpertLayer)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return layer


def tensors_of(layer: ExpertLayer, model: Model) -> dict[str, torch.Tensor]:
    """Its tensors as a checkpoint names them, without the name of the layer."""
    whole = Transformer(model)
    whole.layers[str(model.num_layers - 1)].mlp = layer
    before = f"layers.{model.num_layers - 1}.mlp."
    return {name.removeprefix(before): tensor for name, tensor in whole.named_tensors() if name.startswith(before)}


def hidden_states(num_tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, num_tokens, MODEL.hidden, generator=torch.Generator().manual_seed(seed))


def plain(layer: ExpertLayer, model: Model, x: torch.Tensor) -> torch.Tensor:
    """What the layer computes, token by token and expert by expert."""
    held = tensors_of(layer, model)
    choice = layer.router(x)
    out = []
    for row, experts, weights in zip(x.flatten(0, 1), choice.experts.tolist(), choice.weights, strict=True):
        total = torch.zeros_like(row)
        for expert, weight in zip(experts, weights, strict=True):
            gate, up, down = (held[f"experts.{part}.weight"][expert] for part in ("gate", "up", "down"))
            total = total + weight * (down @ (F.silu(gate @ row) * (up @ row)))
        out.append(total)
    return torch.stack(out).view_as(x)


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_a_layer_equals_its_experts_one_by_one(num_tokens: int) -> None:
    layer, x = layer_of(MODEL), hidden_states(num_tokens)
    assert torch.allclose(layer(x), plain(layer, MODEL, x), atol=1e-5)


def test_gradients_equal_those_of_the_plain_definition() -> None:
    layer, x = layer_of(MODEL), hidden_states(9).requires_grad_()
    cotangent = hidden_states(9, seed=2)
    wanted = torch.autograd.grad(plain(layer, MODEL, x), [x, layer.router.weight], cotangent)
    found = torch.autograd.grad(layer(x), [x, layer.router.weight, *layer.experts.parameters()], cotangent)
    for one, other in zip(found, wanted, strict=False):
        assert torch.allclose(one, other, atol=1e-5)
    assert all(gradient.abs().max() > 0 for gradient in found)


def test_all_tokens_may_choose_the_same_experts() -> None:
    layer, x = layer_of(MODEL), hidden_states(5)
    with torch.no_grad():
        layer.router.weight.zero_()
    assert layer.router(x).experts.tolist() == [[0, 1]] * 10  # equal scores: the lower experts
    out = layer(x)
    out.sum().backward()
    assert torch.allclose(out, plain(layer, MODEL, x), atol=1e-5)
    gradient = layer.experts.gate_up.weight.grad.view(8, -1)
    assert [bool(row.abs().max() > 0) for row in gradient] == [True, True] + [False] * 6


def mixtral_block(model: Model) -> torch.nn.Module:
    from transformers.models.mixtral.configuration_mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    experts = model.experts
    config = MixtralConfig(
        hidden_size=model.hidden,
        intermediate_size=experts.hidden,
        num_local_experts=experts.num_experts,
        num_experts_per_tok=experts.num_active,
    )
    config._experts_implementation = "eager"
    return MixtralSparseMoeBlock(config)


def fill_like(block: torch.nn.Module, held: dict[str, torch.Tensor]) -> None:
    """Our tensors under transformers' names: gate and up of an expert below each other."""
    with torch.no_grad():
        block.gate.weight.copy_(held["router.weight"])
        block.experts.gate_up_proj.copy_(torch.cat((held["experts.gate.weight"], held["experts.up.weight"]), dim=1))
        block.experts.down_proj.copy_(held["experts.down.weight"])


def test_a_layer_equals_mixtrals_block_in_transformers() -> None:
    layer, x = layer_of(MODEL), hidden_states(30)
    block = mixtral_block(MODEL)
    fill_like(block, tensors_of(layer, MODEL))
    found = block(x)
    wanted = found[0] if isinstance(found, tuple) else found
    assert torch.allclose(layer(x), wanted, atol=1e-5)
