"""Kernels timed one by one: at the shapes of training, each once, with the bytes and the kernel that they had."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import CPU, TINY

from meshwright.describe.model import Experts, LatentAttention
from meshwright.describe.profile import WAYS
from meshwright.train.measure import kernels
from meshwright.train.model.attention import Context
from meshwright.train.model.transformer import Transformer


@pytest.mark.parametrize("way", WAYS)
def test_a_product_and_its_gradients_have_the_shapes_of_training(way):
    shape = kernels.product(way, 24, 16, 8, "fp32", CPU)().shape
    assert tuple(shape) == {"forward": (24, 16), "input": (24, 8), "weight": (16, 8)}[way]


def test_all_products_of_a_layer_and_of_the_head_are_timed_once():
    timed = kernels.products_s(TINY, 16, "fp32", CPU, 0.001)
    assert len(timed) == 3 * 5 and len({(p.way, p.columns, p.inner) for p in timed}) == 15
    assert {(p.columns, p.inner) for p in timed} == {(64, 32), (32, 32), (128, 32), (32, 64), (96, 32)} and all(
        p.seconds > 0 for p in timed
    )


@pytest.mark.parametrize("packed", [False, True])
def test_attention_is_timed_both_ways(packed):
    timed = kernels.attention_s(TINY, 2, 16, "fp32", CPU, 0.001, packed=packed)
    assert timed.forward_s > 0 and timed.backward_s > 0 and (timed.batch, timed.seq_len) == (2, 16)


@pytest.mark.parametrize(("number_format", "packed", "kernel"), [("bf16", False, "a package 4.5"), ("fp32", False, ""), ("bf16", True, "")])
def test_attention_names_the_kernel_that_it_ran_by(number_format, packed, kernel, monkeypatch):
    monkeypatch.setattr(kernels.flash_attention, "prepare", lambda *heads: "a package 4.5")
    assert kernels.attention_s(TINY, 1, 16, number_format, CPU, 0.001, packed=packed).kernel == kernel


def test_kernels_that_move_bytes_have_a_rate_each(monkeypatch):
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 2**16)
    rates = kernels.bytes_per_s(CPU, "fp32", 32, 0.001)
    assert set(rates) == {"copy", "norm", "activation", "loss", "optimizer"} and min(rates.values()) > 0
    assert not kernels.has_fp8(CPU)


@pytest.mark.parametrize(("gated", "inner"), [(True, 128), (False, 64)])
def test_products_of_a_layer_are_those_the_trainer_multiplies(gated: bool, inner: int) -> None:
    model = replace(TINY, gated=gated)
    assert kernels.layer_products(model) == {
        "qkv": (32 + 2 * 16, 32),  # 4 heads of 8, and 2 for keys and for values
        "projection": (32, 32),
        "mlp in": (inner, 32),
        "mlp out": (32, 64),
    }
    weights = {tuple(p.shape) for name, p in Transformer(model.cut_to(1)).named_parameters() if p.dim() == 2 and name.startswith("layers")}
    assert weights == set(kernels.layer_products(model).values())


@pytest.mark.parametrize("way", WAYS)
def test_products_are_those_of_their_definition(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    inner = kernels._normal
    monkeypatch.setattr(kernels, "_normal", lambda *given: [made.append(inner(*given)), made[-1]][1])
    found = kernels.product(way, 24, 16, 8, "fp32", CPU)()
    first, second = made
    x, w, g = torch.Size([24, 8]), torch.Size([16, 8]), torch.Size([24, 16])
    assert (first.shape, second.shape) == {"forward": (x, w), "input": (g, w), "weight": (g, x)}[way]
    wanted = {"forward": lambda: first @ second.T, "input": lambda: first @ second, "weight": lambda: first.T @ second}[way]()
    torch.testing.assert_close(found, wanted)


def test_the_heads_rows_are_those_of_one_block_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HEAD_ROWS", 8)
    timed = kernels.products_s(TINY, 16, "fp32", CPU, 0.0)
    assert {p.rows for p in timed if p.columns == TINY.vocab_size} == {8}
    assert {p.rows for p in timed if p.columns != TINY.vocab_size} == {16}


def test_rates_count_the_bytes_that_must_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    # every kernel takes a second: 2 x 4,096 bytes copied; 1,024 numbers of 4 bytes, 2, 5, 3 / 4 and 7 / 4 times
    monkeypatch.setitem(kernels.MOVED_BYTES, "cpu", 4096)
    ran = []
    monkeypatch.setattr(kernels, "seconds_of", lambda work, device, budget_s: [ran.append(work()), 1.0][1])
    rates = kernels.bytes_per_s(CPU, "fp32", 32, 0.5)
    assert rates == {"copy": 8192.0, "norm": 8192.0, "activation": 20480.0, "loss": 3072.0, "optimizer": 7168.0} and len(ran) == 5


def test_a_call_of_no_work_is_a_share_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "seconds_of", lambda work, device, budget_s: [work(), 2.0][1])
    assert kernels.launch_s(CPU) == 2.0 / kernels.NO_WORK_CALLS


def test_fp8_attention_is_timed_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    inner = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda q, k, v, context: [seen.append(q.dtype), inner(q, k, v, context)][1])
    assert kernels.attention_s(TINY, 1, 8, "fp8", CPU, 0.0).number_format == "fp8" and set(seen) == {torch.bfloat16}


def test_packed_attention_knows_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Context] = []
    inner = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda q, k, v, context: [seen.append(context), inner(q, k, v, context)][1])
    for packed in (False, True):
        kernels.attention_s(TINY, 2, 8, "fp32", CPU, 0.0, packed=packed)
        assert (seen[-1].documents is not None) == packed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", WAYS)
def test_fp8_products_have_the_same_shapes(way: str) -> None:
    device = torch.device("cuda")
    if not kernels.has_fp8(device):
        pytest.skip("this GPU does not multiply fp8")
    shape = kernels.product(way, 64, 32, 16, "fp8", device)().shape
    assert tuple(shape) == {"forward": (64, 32), "input": (64, 16), "weight": (32, 16)}[way]


MIXTURE = replace(TINY, experts=Experts(num_experts=4, num_active=2, hidden=16, num_shared=1, num_dense_layers=1))
LATENT = replace(TINY, latent=LatentAttention(query_rank=0, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=8))


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
def test_products_of_other_layers_are_those_the_trainer_multiplies(model) -> None:
    weights = {
        tuple(p.shape)
        for name, p in Transformer(model.cut_to(2)).named_parameters()
        if p.dim() == 2 and name.startswith("layers") and ".experts." not in name
    }
    assert weights == set(kernels.layer_products(model).values())


@pytest.mark.parametrize("way", WAYS)
def test_grouped_products_are_those_of_their_definition(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    inner = kernels._normal
    monkeypatch.setattr(kernels, "_normal", lambda *given: [made.append(inner(*given)), made[-1]][1])
    counts = torch.tensor([3, 0, 5])
    found = kernels.grouped_product(way, counts, 6, 4, "fp32", CPU)()
    first, second = made
    groups = list(zip(first.split([3, 0, 5]), second.split([3, 0, 5]) if way == "weight" else second, strict=True))
    if way == "weight":
        wanted = torch.stack([g.T @ x for g, x in groups])
    else:
        wanted = torch.cat([rows @ (w.T if way == "forward" else w) for rows, w in groups])
    torch.testing.assert_close(found, wanted)


def test_all_products_of_experts_are_timed_once() -> None:
    timed = kernels.grouped_products_s(MIXTURE, 16, "fp32", CPU, 0.001)
    assert {(p.way, p.num_groups, p.rows, p.columns, p.inner) for p in timed} == {
        (way, 4, 32, *sides) for way in WAYS for sides in ((32, 32), (32, 16))
    }
    assert all(p.seconds > 0 for p in timed) and kernels.grouped_products_s(TINY, 16, "fp32", CPU, 0.001) == []
    assert len(kernels.grouped_products_s(MIXTURE, 16, "fp8", CPU, 0.001)) == 6  # by the rounding that a processor emulates


def test_every_token_visits_as_many_experts() -> None:
    counts = kernels.visit_counts(Experts(num_experts=8, num_active=3, hidden=4), 1000, CPU)
    assert int(counts.sum()) == 3000 and len(counts) == 8 and int(counts.max()) <= 1000 and int(counts.max()) > int(counts.min())


def test_attention_of_latent_heads_is_timed_at_their_width() -> None:
    timed = kernels.attention_s(LATENT, 1, 8, "fp32", CPU, 0.001)
    assert (timed.num_heads, timed.num_kv_heads, timed.head_dim) == (4, 4, 12)


@pytest.mark.parametrize("base", ["fp8", "nf4"])
def test_weights_of_few_bits_are_made_in_the_format_of_the_products(base: str) -> None:
    timed = kernels.made_s(MIXTURE, base, "bf16", CPU, 0.001)
    assert {(one.rows, one.columns) for one in timed} == {
        pair for name, pair in kernels.layer_products(MIXTURE).items() if name != "router"
    }
    assert all(one.seconds > 0 and one.base == base for one in timed) and kernels.made_s(MIXTURE, "bf16", "bf16", CPU, 0.001) == []
