"""Bytes by hand: small shapes, each term worked out beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost import memory
from meshwright.cost.pipeline import peak_in_flight
from meshwright.describe.recipe import recipe

BF16 = recipe("bf16")
FP8 = replace(BF16, input_bytes=1.0)


def test_attention_saves_norm_queries_keys_values_output_and_statistics():
    # norm in and out 2 x 2 x 8; Q 8, K 2, V 2, output 8 in bf16; one fp32 for each of 4 heads
    assert memory.attention_saved_bytes(8, 2, 8, 8, 4, BF16) == 32 + 2 * 20 + 16
    assert memory.attention_saved_bytes(8, 2, 8, 8, 4, FP8) == 24 + 2 * 20 + 16


def test_the_projection_shares_its_input_with_attention_in_bf16_only():
    assert memory.projection_input_bytes(8, BF16) == 0
    assert memory.projection_input_bytes(8, FP8) == 8


def test_latent_attention_saves_its_low_rank_vectors_too():
    # norm 2 x 2 x 8; ranks (4 + 2 + 1) in bf16, and (4 + 2) again after their norms; Q and K 6, V and output 4; 2 heads
    assert memory.latent_saved_bytes(8, 4, 2, 1, 6, 4, 2, BF16) == 32 + 14 + 12 + 2 * 20 + 8


def test_mlp_saves_norm_preactivations_and_product():
    assert memory.mlp_saved_bytes(8, 24, 2, BF16) == 32 + 3 * 2 * 24
    assert memory.mlp_saved_bytes(8, 24, 1, BF16) == 32 + 2 * 2 * 24
    assert memory.mlp_saved_bytes(8, 24, 2, FP8) == 24 + 2 * 2 * 24 + 24


def test_experts_save_one_copy_of_the_token_for_each_expert_it_visits():
    # norm 2 x 2 x 8, router 3 x 4 x 16; shared 3 x 2 x 6; twice: input 2 x 8 and 3 x 2 x 4
    assert memory.experts_saved_bytes(8, 16, 2, 4, 6, 2, BF16) == 32 + 192 + 36 + 2 * (16 + 24)


@pytest.mark.parametrize(
    "pp, vp, num_micro_batches, stage, expected",
    [
        (1, 1, 4, 0, 1),
        (8, 1, 32, 0, 8),
        (8, 1, 32, 7, 1),
        (8, 1, 3, 0, 3),  # fewer micro-batches than stages
        (8, 8, 288, 0, 71),  # 2 x 7 later stages, 7 rounds of 8, and one
        (8, 8, 288, 7, 57),
        (4, 2, 4, 0, 8),  # a step of 4 micro-batches through 2 chunks is no more than 8
    ],
)
def test_chunks_in_flight(pp, vp, num_micro_batches, stage, expected):
    assert peak_in_flight(num_micro_batches, pp, vp, stage) == expected


def test_interleaving_holds_a_little_more_than_1f1b():
    pp, vp = 8, np.array([1, 2, 4, 8])
    share = peak_in_flight(1000, pp, vp, 0) / vp
    assert share[0] == 8
    np.testing.assert_allclose(share[1:], pp * (1 + (pp - 1) / (pp * vp[1:])), rtol=0.02)  # the closed form, give or take 1 / vp


def test_loss_on_one_rank():
    # logits 2 x 10 x 100, placeholder 2 x 100 x 8, and input, output, gradient of the norm's output: 3 x 2 x 10 x 8
    assert memory.loss_bytes(10, 8, 100, 1.0, replace(BF16, logit_bytes=2.0)) == 2000 + 1600 + 480


def test_loss_gathers_with_tensor_parallelism():
    # logits and placeholder halved; three halves of 160, and twice 160 whole
    assert memory.loss_bytes(10, 8, 100, 2.0, replace(BF16, logit_bytes=2.0)) == 1000 + 800 + 240 + 320


def test_an_unfused_loss_keeps_logits_and_softmax():
    assert memory.loss_bytes(100, 8, 100, 1.0, BF16) == 6 * 100 * 100 + 2 * 2 * 100 * 8
    assert memory.loss_bytes(10, 8, 100, 1.0, BF16, trained=False) == 6 * 1000 + 320


def test_gathering_weights_never_takes_more_than_keeping_them():
    whole = memory.gathered_bytes(100.0, 30.0, 2.0, 1.0)
    shards = memory.gathered_bytes(100.0, 30.0, 2.0, np.array([1.0, 2.0, 10.0, 100.0]))
    np.testing.assert_allclose(shards, [200, 160, 80, 62])
    assert whole == 200


def test_workspaces_are_32_mib_each():
    assert memory.workspace_bytes(grouped=False) == 3 * 2**25
    assert memory.workspace_bytes(grouped=True) == 7 * 2**25


def test_backward_holds_the_gradients_of_what_it_undoes():
    assert memory.mlp_backward_bytes(8, 24, 2, BF16) == 2 * (48 + 8)
    assert memory.experts_backward_bytes(8, 2, 4, 2, BF16) == 2 * (8 + 2 * (16 + 8))
