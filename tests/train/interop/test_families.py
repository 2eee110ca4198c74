"""Which family's folder holds a model, what is said where none does, and ten training steps against transformers and AdamW."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from llamas import DEEPSEEK_V3, FAMILIES_OF_ATTENTION, FAMILIES_OF_EXPERTS, GPT_OSS, LATENT, MIXTRAL, MODEL, QWEN3, QWEN3_MOE, weights_of

from meshwright.describe.model import Model
from meshwright.describe.router import Router
from meshwright.errors import InputError
from meshwright.train.interop.families import config_of_shapes, family_of
from meshwright.train.interop.huggingface_save import save_huggingface
from meshwright.train.model.attention import Context
from meshwright.train.model.transformer import Transformer

NUM_STEPS = 10


@pytest.mark.parametrize(
    "model, family",
    [
        (MODEL, "llama"),
        (replace(MODEL, qkv_biases=True), "qwen2"),
        (QWEN3, "qwen3"),
        (replace(MODEL, window=4, num_windowed_layers=2), "mistral"),
        (LATENT, "deepseek_v3"),
        (DEEPSEEK_V3, "deepseek_v3"),
        (MIXTRAL, "mixtral"),
        (QWEN3_MOE, "qwen3_moe"),
        (GPT_OSS, "gpt_oss"),
    ],
)
def test_the_blocks_decide_the_family(model: Model, family: str) -> None:
    assert family_of(model).model_type == family
    assert config_of_shapes(model, context=8)["model_type"] == family


@pytest.mark.parametrize(
    "change, what",
    [
        ({"window": 4, "num_windowed_layers": 1}, "windows in some layers only"),
        ({"attention_sinks": True}, "attention sinks"),
        ({"qk_norm": True, "biases": True}, "biases everywhere, which qwen3 does not have"),
        ({"qkv_biases": True, "attention_biases": True}, "biases of attention, which qwen2 does not have"),
    ],
)
def test_what_no_family_holds_is_named_with_the_families(change: dict, what: str) -> None:
    with pytest.raises(InputError) as caught:
        family_of(replace(MODEL, **change))
    assert what in caught.value.what
    assert "llama, mistral, " in caught.value.fix


@pytest.mark.parametrize(
    "model, what",
    [
        (replace(MIXTRAL, experts=replace(MIXTRAL.experts, num_shared=1)), "num_shared = 1, which is 0 in mixtral"),
        (
            replace(MIXTRAL, experts=replace(MIXTRAL.experts, router=Router(scores="sigmoid"))),
            "scores = 'sigmoid', which is 'softmax' in mixtral",
        ),
        (replace(GPT_OSS, experts=replace(GPT_OSS.experts, router=Router())), "chooses_first = False, which is True in gpt_oss"),
        (replace(QWEN3_MOE, window=3, num_windowed_layers=1), "experts, and windows in some layers only"),
        (replace(GPT_OSS, experts=None), "attention sinks, and no experts"),
    ],
)
def test_experts_that_a_family_does_not_have(model: Model, what: str) -> None:
    with pytest.raises(InputError) as caught:
        family_of(model)
    assert what in caught.value.what


def batch_of(step: int) -> torch.Tensor:
    return torch.randint(MODEL.vocab_size, (4, 33), generator=torch.Generator().manual_seed(step))


def our_losses(model: Model, weights: dict[str, torch.Tensor]) -> list[float]:
    transformer = Transformer(model)
    transformer.requires_grad_()
    for name, tensor in transformer.named_tensors():
        tensor.copy_(weights[name])
    context = Context(positions=torch.arange(32))

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return transformer(tokens[:, :-1], context, tokens[:, 1:]) / tokens[:, 1:].numel()

    return stepped(transformer, loss)


def their_losses(folder: object) -> list[float]:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = theirs(tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return stepped(theirs, loss)


def stepped(module: torch.nn.Module, loss_of: object) -> list[float]:
    """The loss of each step of AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-6)
    losses = []
    for step in range(NUM_STEPS):
        loss = loss_of(batch_of(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("model", FAMILIES_OF_ATTENTION + FAMILIES_OF_EXPERTS)
def test_ten_steps_are_those_of_transformers(model: Model, tmp_path) -> None:
    weights = weights_of(model)
    save_huggingface(tmp_path / "small", model, weights, context=512, dtype=torch.float32)
    assert our_losses(model, weights) == pytest.approx(their_losses(tmp_path / "small"), rel=1e-5)
