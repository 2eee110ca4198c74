"""Slices of a model: the trainer's own step on a few layers, taken apart into what a layer costs and what the ends do."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import CPU, TINY

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, LatentAttention
from meshwright.describe.profile import load_profile
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError
from meshwright.train.measure import slices
from meshwright.train.replica import NUMBERS


def test_a_slice_is_layers_and_ends_of_the_trainers_own_step(world):
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16, packed=True)
    found = slices.slice_of(cut, CPU, layers=(1, 3), rounds=2)
    assert found.num_layers == (1, 3) and found.number_format == "fp32" and found.rows == 32
    assert found.num_parameters == (TINY.cut_to(1).num_parameters, TINY.cut_to(3).num_parameters)
    assert found.layer_s > 0 and found.ends_s > 0 and min(found.updates_s) > 0
    assert found.layer_saved_bytes == 0  # nobody counts a processor's


def test_layers_are_cut_only_where_the_trainer_can_cut_them():
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16)
    assert not replace(cut, tp=2).refusal and not replace(cut, pp=2, seq_len=15).refusal
    assert "tokens" in replace(cut, tp=2, seq_len=15).refusal
    assert "key-value heads" in replace(cut, tp=2, model=replace(TINY, num_heads=6, num_kv_heads=3)).refusal
    narrow = replace(TINY, ffn_hidden=48)
    assert "the width of the keys on a rank is 8" in replace(cut, tp=2, precision="fp8-current", model=narrow).refusal


def test_a_slice_in_a_hurry_takes_the_fewest_rounds(monkeypatch, world):
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16)
    blocks = []
    inner = slices._timed_on_cores
    monkeypatch.setattr(slices, "_timed_on_cores", lambda runner, count: [blocks.append(runner.num_layers), inner(runner, count)][1])
    slices.slice_of(cut, CPU, layers=(1, 2), within_s=0.0)
    assert blocks == [1, 2] * slices.FEWEST_ROUNDS
    blocks.clear()
    slices.slice_of(cut, CPU, layers=(1, 2))
    assert blocks == [1, 2] * slices.ROUNDS


@pytest.mark.parametrize("precision", [name for name, numbers in NUMBERS.items() if not getattr(numbers, "fp8", False)])
def test_every_precision_of_the_trainer_has_a_slice(precision, world):
    cut = slices.Cut(model=TINY, precision=precision, micro_batch=1, seq_len=16, recompute="full")
    assert slices.slice_of(cut, CPU, layers=(1, 2), rounds=1).precision == precision


def times(*blocks: float, update_s: float = 0.0) -> slices._Times:
    return slices._Times([block + update_s for block in blocks], [update_s] * len(blocks))


def made(few_s: slices._Times, more_s: slices._Times, few: slices.Memory = slices.Memory(), more: slices.Memory = slices.Memory()):  # noqa: B008
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16)
    runners = [SimpleNamespace(num_layers=count, num_parameters=1000 * count) for count in (2, 6)]
    return slices._slice(cut, runners, [few_s, more_s], [few, more])


def test_a_layer_is_the_difference_and_the_ends_are_what_is_left() -> None:
    # 2 layers in 1 s, 6 in 2 s: a layer takes 0.25 s, the ends 0.5 s; updates are apart
    found = made(times(1.0, update_s=0.1), times(2.0, update_s=0.3))
    assert (found.layer_s, found.ends_s, *found.steps_s) == pytest.approx((0.25, 0.5, 1.0, 2.0))
    assert found.updates_s == pytest.approx((0.1, 0.3)) and found.num_parameters == (2000, 6000)


def test_the_median_of_rounds_counts() -> None:
    assert made(times(1.0, 1.0, 50.0), times(2.0, 2.0, 0.1)).layer_s == pytest.approx(0.25)


def test_on_a_disturbed_machine_the_larger_step_is_the_witness() -> None:
    found = made(times(3.0), times(2.8))
    assert found.layer_s == pytest.approx(2.8 / 7) and found.ends_s == pytest.approx(2.8 / 7) and found.ends_s > 0
    assert made(times(0.0), times(8.0)).ends_s == 1e-9  # never nothing: a profile holds positive times


def test_bytes_that_layers_keep_are_the_difference_when_the_head_begins() -> None:
    # 320 and 720 bytes when the head begins: 100 a layer; 750 at most while it runs: 150 at the ends; 12 bytes a parameter stay
    few, more = slices.Memory(24_000.0, 320.0, 350.0, 350.0), slices.Memory(72_000.0, 720.0, 750.0, 750.0)
    found = made(times(1.0), times(2.0), few, more)
    assert (found.layer_saved_bytes, found.ends_bytes, found.state_bytes_per_parameter) == (100.0, 150.0, 12.0)
    assert (found.layer_state_bytes, found.ends_state_bytes, found.work_bytes) == (12_000.0, 0.0, 0.0)
    assert made(times(1.0), times(2.0), more, few).layer_saved_bytes == 0.0


def test_a_peak_in_the_backward_shows_what_a_layer_takes_there() -> None:
    # gradients in fp32 of the head and of 6 layers of 1,000 parameters, and of one that is left what it keeps
    gradients = 4 * (96 * 32 + 6 * 1000)
    more = slices.Memory(72_000.0, 720.0, 750.0, gradients + 100.0 + 5e4)
    assert made(times(1.0), times(2.0), slices.Memory(24_000.0, 320.0, 350.0, 350.0), more).work_bytes == pytest.approx(5e4)


def test_as_many_layers_are_taken_as_fit() -> None:
    cut = slices.Cut(model=TINY, precision="bf16", micro_batch=2, seq_len=16)
    assert slices.layers_that_fit(cut, 1e12) == (slices.FEW, slices.MORE)
    found = {slices.layers_that_fit(cut, room)[1] for room in (2.3e8, 1.5e8)}
    assert min(found) >= 2
    with pytest.raises(InputError, match="one and two layers of tiny need more memory than"):
        slices.layers_that_fit(cut, 1e5)


def test_fewer_layers_of_a_larger_model_fit() -> None:
    pairs = {}
    for name in ("qwen3-30b-a3b", "llama-3.1-8b"):
        cut = slices.Cut(model=load_model(name), precision="bf16-pure", micro_batch=1, seq_len=8192)
        pairs[name] = slices.layers_that_fit(cut, 0.85 * 141e9), slices.layers_that_fit(cut, 0.85 * 80e9)
    assert pairs["llama-3.1-8b"] == ((2, 12), (2, 12)) and pairs["qwen3-30b-a3b"][0][1] >= 10 > pairs["qwen3-30b-a3b"][1][1] > 2


MIXTURE = replace(TINY, experts=Experts(num_experts=4, num_active=2, hidden=16, num_shared=1, num_dense_layers=1))
LATENT = LatentAttention(query_rank=0, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=8)


@pytest.mark.parametrize("model", [MIXTURE, replace(MIXTURE, latent=LATENT), replace(TINY, latent=LATENT)])
def test_slices_of_experts_leave_leading_dense_layers_out(model, world) -> None:
    cut = slices.Cut(model=model, precision="fp32", micro_batch=2, seq_len=16)
    found = slices.slice_of(cut, CPU, layers=(1, 2), rounds=1)
    alike = cut.alike
    assert found.num_parameters == (alike.cut_to(1).num_parameters, alike.cut_to(2).num_parameters)
    assert found.latent == model.latent and (found.experts is None or found.experts.num_dense_layers == 0)
    assert profile_with(found).slices_of(model, "fp32") == [found]


def profile_with(cut):
    """A profile that has this slice."""
    card = load_profile(Path(__file__).parents[2] / "fixtures" / "profile_of_a_card.json")
    return replace(card, slices=(cut,))


@pytest.mark.parametrize(("base", "dropout", "recompute"), [("bf16", 0.0, "none"), ("nf4", 0.1, "mlp"), ("fp8", 0.0, "full")])
def test_slices_beside_a_frozen_base_count_what_is_trained(base, dropout, recompute, world) -> None:
    pairs = Adapters(rank=4, targets=("q", "v", "down"), base=base, dropout=dropout)
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16, adapters=pairs, recompute=recompute)
    found = slices.slice_of(cut, CPU, layers=(1, 2), rounds=1)
    per_layer = 4 * ((32 + 32) + (32 + 16) + (64 + 32))
    assert found.num_parameters == (per_layer, 2 * per_layer) and found.adapters == pairs and found.recompute == recompute
    assert profile_with(found).slices_of(TINY, "fp32", "", pairs) == [found] and not profile_with(found).slices_of(TINY, "fp32")
    assert f"adapters of rank 4 and {base} base" in cut.words


def test_rounds_go_on_until_the_time_is_over_and_at_least_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(slices, "_timed_on_cores", lambda runner, count: (1.0, 0.5))
    monkeypatch.setattr(slices.time, "perf_counter", lambda: float(next(now)))
    for until_s, rounds in ((-1.0, slices.FEWEST_ROUNDS), (math.inf, 9)):
        (found,) = slices._in_turn([SimpleNamespace()], CPU, 9, until_s)
        assert found.steps_s == [1.0] * rounds and found.updates_s == [0.5] * rounds


def test_a_slice_in_words() -> None:
    cut = slices.Cut(model=TINY, precision="bf16", micro_batch=2, seq_len=16)
    assert cut.words == "tiny in bf16, 2 x 16 tokens"
    assert replace(cut, recompute="full", tp=2, pp=2).words == "tiny in bf16, 2 x 16 tokens, full recompute, tp=2, pp=2"


def test_stages_have_as_many_micro_batches_so_that_a_ranks_work_is_that_of_one() -> None:
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=16, pp=4)
    assert cut.workload.global_batch == 8 and cut.layout.num_micro_batches(8) == 4 and cut.layout.num_ranks == 4
    assert (cut.layout.zero_stage, cut.workload.precision, cut.workload.packed) == (0, "fp32", False)


@pytest.mark.parametrize("packed", [False, True])
def test_random_batches_are_the_same_for_all_who_ask(packed: bool) -> None:
    cut = slices.Cut(model=TINY, precision="fp32", micro_batch=2, seq_len=17, packed=packed)
    one, other = (slices.random_batch(cut, CPU) for _ in range(2))
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.labels, other.labels) and one.tokens.shape == (2, 17)
    assert one.tokens.min() >= 0 and one.tokens.max() < TINY.vocab_size
    assert (one.context.documents is None) != packed
    if packed:
        assert one.context.documents.tolist() == [[0] * 8 + [1] * 9] * 2  # two documents to a sequence


@pytest.mark.parametrize(("precision", "number_format"), [("fp32", "fp32"), ("bf16-pure", "bf16"), ("fp8-current", "fp8")])
def test_number_formats_are_those_of_the_recipes(precision: str, number_format: str) -> None:
    assert slices.number_format(precision) == number_format and slices.runs(precision)
    assert not slices.runs("nvfp4")
