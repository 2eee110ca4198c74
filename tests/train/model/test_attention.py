"""Attention of a layer: windows by layer, and latent heads of any widths against their definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity import ATTENTIONS, LLAMA
from torch.nn.functional import scaled_dot_product_attention

from meshwright.train.model import attention as attention_module
from meshwright.train.model.attention import LATENT_EPSILON, Context, LatentAttention, Reach, attend, attention_of, takes_narrow_values
from meshwright.train.model.rotary import Rotary
from meshwright.train.model.transformer import Transformer


def filled(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def test_each_layer_has_its_own_window() -> None:
    model = replace(LLAMA, window=6, num_windowed_layers=2)
    assert [block.attention.window for block in Transformer(model).blocks()] == [6, 0, 6, 0]
    later = replace(model, windowed_layers=(2, 3))
    assert [block.attention.window for block in Transformer(later, range(1, 4)).blocks()] == [0, 6, 6]


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    assert [Reach(window=6).within(tokens) for tokens in (5, 6, 7)] == [0, 0, 6]


@pytest.mark.parametrize("keeps_values_narrow", [False, True])
@pytest.mark.parametrize("name", ["latent", "direct"])
def test_latent_heads_by_their_definition(name: str, keeps_values_narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def attend_and_note(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: object, **named: object) -> torch.Tensor:
        seen.append(value.shape[-1])
        return scaled_dot_product_attention(query, key, value, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(attention_module, "takes_narrow_values", lambda *_: keeps_values_narrow)  # as on a GPU
    monkeypatch.setattr(attention_module.F, "scaled_dot_product_attention", attend_and_note)
    model = replace(ATTENTIONS[name], window=0, num_windowed_layers=0, windowed_layers=(), attention_sinks=False)
    latent, scaling = model.latent, model.rotary_scaling
    assert latent is not None and scaling is not None
    attention = filled(attention_of(model, 0))
    assert isinstance(attention, LatentAttention)
    x = torch.randn(2, 9, model.hidden, generator=torch.Generator().manual_seed(4))
    rotation = Rotary(model)(torch.arange(9), torch.float32)

    def normed(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return y / (y.square().mean(dim=-1, keepdim=True) + LATENT_EPSILON).sqrt() * weight

    def turned(y: torch.Tensor) -> torch.Tensor:
        angles = torch.complex(rotation[0][:, 0, : latent.rope_dim // 2], rotation[1][:, 0, : latent.rope_dim // 2])
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * angles[:, None]).flatten(-2)

    with torch.no_grad():
        if latent.query_rank:
            queries = normed(x @ attention.q_down.weight.T, attention.q_down_norm.weight) @ attention.q_up.weight.T
        else:
            queries = x @ attention.q.weight.T
        down = x @ attention.kv_down.weight.T
        up = normed(down[..., : latent.key_value_rank], attention.kv_down_norm.weight) @ attention.kv_up.weight.T
        still, rotary = queries.unflatten(-1, (model.num_heads, -1)).split([latent.nope_dim, latent.rope_dim], dim=-1)
        keys, values = up.unflatten(-1, (model.num_heads, -1)).split([latent.nope_dim, latent.value_dim], dim=-1)
        shared = turned(down[..., None, latent.key_value_rank :]).expand(-1, -1, model.num_heads, -1)
        scores = torch.einsum("bthd,bshd->bhts", torch.cat((still, turned(rotary)), dim=-1), torch.cat((keys, shared), dim=-1))
        scores = scores * (latent.nope_dim + latent.rope_dim) ** -0.5 * scaling.score_factor
        weights = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), float("-inf")).softmax(dim=-1)
        expected = torch.einsum("bhts,bshd->bthd", weights, values).flatten(-2) @ attention.o.weight.T
        found = attention(x, Context(positions=torch.arange(9)), rotation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert seen == [latent.value_dim if keeps_values_narrow else attention.width]


def test_values_stay_narrow_where_torchs_own_kernels_attend_on_a_gpu() -> None:
    heads = torch.empty(1, 8, 2, 16, device="meta")
    positions = torch.arange(8)

    class OnGpu:
        """What is asked of queries, without a GPU."""

        is_cuda, shape, dtype, device = True, heads.shape, torch.bfloat16, heads.device

    query: torch.Tensor = OnGpu()  # type: ignore[assignment]
    assert takes_narrow_values(query, query, Context(positions=positions))
    assert not takes_narrow_values(query, query, Context(positions=positions, documents=torch.zeros(1, 8)))
    assert not takes_narrow_values(query, query, Context(positions=positions), Reach(window=4))
    assert not takes_narrow_values(query, query, Context(positions=positions), Reach(sinks=torch.zeros(2)))
    assert not takes_narrow_values(torch.zeros(1, 8, 2, 16), heads, Context(positions=positions))


def test_documents_without_runs_are_a_mistake_of_the_caller() -> None:
    heads = [torch.zeros(1, 4, 1, 8)] * 3
    documents = Context(positions=torch.arange(4), documents=torch.zeros(1, 4))
    with pytest.raises(AssertionError, match="brings their runs"):
        attend(*heads, documents, Reach(window=2))
