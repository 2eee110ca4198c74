"""Counts of parameters and FLOPs: by hand on small shapes, and against what the models' makers publish."""

from dataclasses import replace

import pytest

from meshwright.describe.load import load_model, names
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.errors import InputError

SMALL = Model(name="small", num_layers=2, hidden=8, ffn_hidden=20, num_heads=4, num_kv_heads=2, head_dim=2, vocab_size=10)


def test_a_small_model_by_hand():
    attention = 8 * (8 + 2 * 4) + 8 * 8  # queries, keys and values, output
    mlp = 3 * 8 * 20
    norms = 2 * 8
    assert SMALL.num_parameters == 2 * (attention + mlp + norms) + 10 * 8 + 8 + 10 * 8
    assert SMALL.num_active_parameters == SMALL.num_parameters


def test_tied_embeddings_are_counted_once():
    assert SMALL.num_parameters - replace(SMALL, tied_embeddings=True).num_parameters == 10 * 8


def test_biases_by_hand():
    qkv = replace(SMALL, qkv_biases=True).num_parameters - SMALL.num_parameters
    four = replace(SMALL, attention_biases=True).num_parameters - SMALL.num_parameters
    every = replace(SMALL, biases=True).num_parameters - SMALL.num_parameters
    assert qkv == 2 * (8 + 4 + 4)
    assert four == 2 * (8 + 4 + 4 + 8)
    assert every == 2 * (8 + 4 + 4 + 8 + 20 + 20 + 8)


def test_experts_by_hand():
    model = replace(SMALL, experts=Experts(num_experts=4, num_active=2, hidden=6, num_shared=1, num_dense_layers=1))
    expert = 3 * 8 * 6
    moe_layer = (4 + 1) * expert + 8 * 4
    assert model.num_parameters == SMALL.num_parameters - 3 * 8 * 20 + moe_layer
    assert model.num_active_parameters == model.num_parameters - 2 * expert


def test_idle_experts_take_their_biases_with_them():
    model = replace(SMALL, biases=True, experts=Experts(num_experts=4, num_active=1, hidden=6))
    idle = 3 * (3 * 8 * 6 + 2 * 6 + 8)
    assert model.num_parameters - model.num_active_parameters == 2 * idle


def test_latent_attention_by_hand():
    latent = LatentAttention(query_rank=5, key_value_rank=3, nope_dim=2, rope_dim=1, value_dim=2)
    model = replace(SMALL, latent=latent)
    queries = 8 * 5 + 5 * 4 * 3
    keys_values = 8 * (3 + 1) + 3 * 4 * (2 + 2)
    assert model.attention_matrix_parameters == queries + keys_values + 4 * 2 * 8


def test_flops_by_hand():
    attention = 8 * (8 + 2 * 4) + 8 * 8
    layer = 2 * (attention + 3 * 8 * 20) + 2 * (8 + 8) * 16 / 2  # a token attends to half of 16 tokens on average
    assert SMALL.flops_per_token(16) == 3 * (2 * layer + 2 * 10 * 8)


def test_a_window_shortens_attention():
    windowed = replace(SMALL, window=4, num_windowed_layers=1)
    assert windowed.attended_tokens(16) == (4 - 4 * 4 / 32 + 8) / 2
    assert windowed.attended_tokens(2) == 1  # shorter than the window: as if there were none


def test_heads_must_share_keys_evenly():
    with pytest.raises(InputError, match="cannot share 3 key-value heads evenly"):
        replace(SMALL, num_kv_heads=3)


# What the makers publish, in billions; the tolerance is the rounding of their figure.
PUBLISHED = {
    "gpt-3-175b": (174.6, 0.001),  # Brown et al., 50,257 tokens; the padded vocabulary adds 0.01
    "llama-2-7b": (6.738, 0.0005),
    "llama-2-13b": (13.016, 0.0005),
    "llama-2-70b": (68.977, 0.0005),
    "llama-3.1-8b": (8.03, 0.0005),
    "llama-3.1-70b": (70.554, 0.0005),
    "llama-3.1-405b": (405.853, 0.0005),
    "llama-3.2-1b": (1.236, 0.0005),
    "llama-3.2-3b": (3.213, 0.0005),
    "deepseek-v2": (236, 0.005),
    "deepseek-v3": (671, 0.001),
    "gpt-oss-20b": (20.91, 0.0005),
    "gpt-oss-120b": (116.83, 0.0005),
    "qwen3-30b-a3b": (30.5, 0.002),
    "qwen3-235b-a22b": (235, 0.001),
    "mixtral-8x7b": (46.7, 0.001),
    "mixtral-8x22b": (140.6, 0.001),
    "nemotron-8b": (8.54, 0.005),  # NVIDIA's model card
    "megatron-22b": (22, 0.005),
    "mt-nlg-530b": (530, 0.005),
    "megatron-1t": (1008, 0.001),
    # llm-foundry's own benchmark table (scripts/train/benchmarking/README.md)
    "mpt-760m": (0.760, 0.002),
    "mpt-1b": (1.315, 0.002),
    "mpt-7b": (6.659, 0.002),
    "mpt-30b": (29.975, 0.002),
}
NOT_PUBLISHED = {
    "llama-2m",
    "gpt-3-5b",
    "nemotron-22b",
    "mpt-125m",
    "mpt-350m",
    "mpt-3b",
    "mpt-13b",
    "mpt-70b",
}  # ours, and configurations without a stated count

# Makers differ on whether the token embedding, a look-up, is active: OpenAI and DeepSeek leave it out.
PUBLISHED_ACTIVE = {
    "gpt-oss-20b": (3.61, 0.001, False),
    "gpt-oss-120b": (5.13, 0.001, False),
    "deepseek-v3": (36.7, 0.003, False),
    "deepseek-v2": (21, 0.02, True),
    "mixtral-8x7b": (12.9, 0.002, True),
    "mixtral-8x22b": (39.1, 0.002, True),
    "qwen3-30b-a3b": (3.3, 0.02, True),
    "qwen3-235b-a22b": (22, 0.01, True),
}


def test_every_model_of_the_catalogue_has_a_published_count():
    assert {*PUBLISHED, *NOT_PUBLISHED} == set(names("models"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name):
    billions, tolerance = PUBLISHED[name]
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_active_parameters_as_published(name):
    billions, tolerance, with_embedding = PUBLISHED_ACTIVE[name]
    model = load_model(name)
    count = model.num_active_parameters - (0 if with_embedding else model.embedding_parameters)
    assert count / 1e9 == pytest.approx(billions, rel=tolerance)


def test_gpt_3_flops_as_published():
    """Brown et al. (table D.1) put 3.14e23 FLOPs on 300 G tokens: six a parameter, attention not counted."""
    model = load_model("gpt-3-175b")
    without_attention = model.flops_per_token(2048) - 3 * model.num_layers * model.attention_flops_per_token(2048)
    assert without_attention * 300e9 == pytest.approx(3.14e23, rel=0.005)


def test_llama_405b_flops_as_published():
    """The Llama 3 paper reports 3.8e25 FLOPs on 15.6 T tokens."""
    assert 6 * load_model("llama-3.1-405b").num_parameters * 15.6e12 == pytest.approx(3.8e25, rel=0.005)
