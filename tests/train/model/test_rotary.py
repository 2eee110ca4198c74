"""YaRN's frequencies and magnitudes against transformers'; Llama 3's are tested with the transformer."""

from __future__ import annotations

import pytest
import torch

from meshwright.describe.load import load_model
from meshwright.describe.model import LatentAttention, Model, RotaryScaling
from meshwright.train.kernels.layer_functions import rotate
from meshwright.train.model.rotary import Rotary, rotary_frequencies

STATED = {
    "gpt-oss": {"factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "deepseek": {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0},
    "uneven": {
        "factor": 7.5,
        "original_max_position_embeddings": 512,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "stated": {"factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 1.25},
}


def ours_of(stated: dict) -> RotaryScaling:
    return RotaryScaling(
        kind="yarn",
        factor=stated["factor"],
        original_positions=stated["original_max_position_embeddings"],
        low_turns=stated.get("beta_slow", 1.0),
        high_turns=stated.get("beta_fast", 32.0),
        truncates=stated.get("truncate", True),
        mscale=stated.get("mscale", 0.0),
        mscale_all_dim=stated.get("mscale_all_dim", 0.0),
        stated_magnitude=stated.get("attention_factor", 0.0),
    )


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("theta", [10000.0, 150000.0])
def test_yarn_is_that_of_transformers(name: str, theta: float) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "yarn", "rope_theta": theta, **STATED[name]}
    config = transformers.LlamaConfig(rope_parameters=rope, head_dim=64, max_position_embeddings=131072)
    expected, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    scaling = ours_of(STATED[name])
    torch.testing.assert_close(rotary_frequencies(64, theta, scaling), expected, rtol=1e-6, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude)


def test_scores_of_deepseek_grow_with_the_square_of_the_scale() -> None:
    scaling = load_model("deepseek-v3").rotary_scaling
    assert scaling is not None
    assert scaling.score_factor == pytest.approx((0.1 * 3.6888794541139363 + 1) ** 2)  # log(40)
    assert scaling.magnitude == 1.0


def test_latent_heads_turn_by_their_rotary_part_alone() -> None:
    latent = LatentAttention(query_rank=0, key_value_rank=4, nope_dim=8, rope_dim=6, value_dim=8)
    model = Model(name="m", num_layers=1, hidden=8, ffn_hidden=8, num_heads=2, num_kv_heads=2, head_dim=8, vocab_size=8, latent=latent)
    cosine, sine = Rotary(model)(torch.arange(3), torch.float32)
    assert cosine.shape == sine.shape == (3, 1, 6)


@pytest.mark.parametrize(("offset", "bound"), [(64, 1e-5), (8000, 2e-3)])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b"])
def test_positions_count_as_differences_so_a_packed_sample_may_begin_anywhere(name: str, offset: int, bound: float) -> None:
    """Attention of a sample whose positions begin at 0, and at the place that it has in a pack: the same, up to the rounding of angles."""
    rotary, generator = Rotary(load_model(name)), torch.Generator().manual_seed(4)
    heads = torch.randn(2, 1, 40, 2, load_model(name).head_dim, generator=generator)

    def scores(first: int) -> torch.Tensor:
        query, key = (rotate(x, *rotary(torch.arange(first, first + 40), torch.float32)) for x in heads)
        return torch.einsum("btnd,bsnd->bnts", query, key) / heads.shape[-1] ** 0.5

    assert float((scores(offset) - scores(0)).abs().max()) < bound
