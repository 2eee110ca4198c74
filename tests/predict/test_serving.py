"""Serving memory: numbers worked by hand, laws, and what is refused."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.load import accelerator, load_model, names
from meshwright.errors import FitError, InputError
from meshwright.predict.serving import (
    WEIGHT_BYTES,
    Request,
    activation_bytes,
    check_fits,
    fewest,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    legal_degrees,
    serve_on,
    weight_bytes,
)

LLAMA_70B = load_model("llama-3.1-70b")
DEEPSEEK_V3 = load_model("deepseek-v3")
H200 = accelerator("h200")


def test_grouped_query_attention():
    # 2 (keys and values) x 80 layers x 8 heads x 128 wide x 2 bytes
    assert kv_bytes_per_token(LLAMA_70B, "bf16") == 2 * 80 * 8 * 128 * 2 == 327_680
    assert kv_bytes_per_token(LLAMA_70B, "fp8") == 163_840


def test_latent_attention():
    # 61 layers x (512 latent + 64 rotary) x 2 bytes: one vector for all 128 heads
    assert kv_bytes_per_token(DEEPSEEK_V3, "bf16") == 61 * 576 * 2 == 70_272


def test_windowed_layers_keep_their_window():
    # gpt-oss-120b: 18 of 36 layers look back 128 tokens; 8 heads of 64, keys and values, 2 bytes
    model = load_model("gpt-oss-120b")
    layer = 2 * 8 * 64 * 2
    assert kv_bytes_per_sequence(model, 8192, "bf16") == 18 * layer * 8192 + 18 * layer * 128
    assert kv_bytes_per_sequence(model, 100, "bf16") == 36 * layer * 100


@pytest.mark.parametrize("name", names("models"))
def test_on_one_accelerator_in_bf16_every_parameter_is_two_bytes(name):
    model = load_model(name)
    assert weight_bytes(model, "bf16") == 2 * model.num_parameters
    assert weight_bytes(model, "fp32") == 4 * model.num_parameters


def test_fp8_halves_the_matrices_alone():
    # 70B: embedding and output projection, 2 x 128,256 x 8,192, and 161 norms of 8,192 stay in bf16
    wide = 2 * 128_256 * 8_192 + 161 * 8_192
    assert weight_bytes(LLAMA_70B, "fp8") == (LLAMA_70B.num_parameters - wide) + 2 * wide


def test_all_experts_are_held():
    assert weight_bytes(DEEPSEEK_V3, "fp8") > 256 * 58 * 3 * 7168 * 2048


def test_key_value_projections_are_copied_beyond_their_heads():
    # Of 8 heads each of 16 ranks holds one: what 8 ranks hold of keys and values, and half of the rest
    matrices = 2 * 80 * 8192 * 2 * 1024
    assert weight_bytes(LLAMA_70B, "bf16", 16) - weight_bytes(LLAMA_70B, "bf16", 8) / 2 == pytest.approx(
        matrices / 16 + 161 * 8192, rel=1e-9
    )


def test_a_hand_worked_answer():
    # 70B in bf16: 141.1 GB leave no room for keys and values on one H200, whose driver reports 150.8 GB; two hold 70.6 GB each
    request = Request(model=LLAMA_70B, context=8192, concurrency=10)
    held = fewest(request, H200)
    assert held.tp == 2
    assert held.total_kv_bytes == 10 * 8192 * 327_680
    assert held.kv_bytes == held.total_kv_bytes / 2
    assert held.weight_bytes == pytest.approx(141.1e9 / 2, rel=1e-3)
    room = 143771 * 2**20 - 4e9 - held.weight_bytes - activation_bytes(LLAMA_70B, 8192, 2)
    assert held.max_concurrency == math.floor(room / (8192 * 327_680 / 2 + 4 * 128_256 / 2))


def test_the_latent_cache_stands_whole_on_every_accelerator():
    held = serve_on(Request(model=DEEPSEEK_V3, context=4096, precision="fp8"), H200, 8)
    assert held.kv_bytes == 4096 * 70_272


def test_degrees_divide_heads_and_widths():
    assert legal_degrees(LLAMA_70B) == [1, 2, 4, 8, 16, 32, 64]
    assert legal_degrees(load_model("gpt-oss-120b")) == [1, 2, 4, 8, 16, 32, 64]
    assert 3 not in legal_degrees(replace(LLAMA_70B, num_heads=96, num_kv_heads=8))


@given(st.integers(1, 200_000), st.integers(1, 500), st.sampled_from(sorted(WEIGHT_BYTES)))
def test_the_answer_fits_and_one_degree_less_does_not(context, concurrency, precision):
    request = Request(model=LLAMA_70B, context=context, concurrency=concurrency, precision=precision)
    try:
        held = fewest(request, H200)
    except FitError:
        assert all(serve_on(request, H200, tp).spare_bytes < 0 for tp in legal_degrees(LLAMA_70B))
        return
    assert held.spare_bytes >= 0 and held.max_concurrency >= concurrency
    assert all(serve_on(request, H200, tp).spare_bytes < 0 for tp in legal_degrees(LLAMA_70B) if tp < held.tp)
    full = replace(request, concurrency=held.max_concurrency)
    assert serve_on(full, H200, held.tp).spare_bytes >= 0
    assert serve_on(replace(full, concurrency=held.max_concurrency + 1), H200, held.tp).spare_bytes < 0


def test_a_miss_names_the_bytes_and_what_would_fit():
    # Beside weights (70.6 GB), reserve and working room 65.5 GB are left, and a sequence takes 21.5 GB on each
    request = Request(model=LLAMA_70B, context=131_072, concurrency=100)
    with pytest.raises(FitError, match=r"bytes\) more on each of 2 h200; 3 sequences of 131072 tokens would fit") as error:
        check_fits(serve_on(request, H200, 2), request, H200)
    assert "lower precision" in error.value.fix


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"precision": "fp7"}, "no precision named 'fp7'"),
        ({"kv_precision": "int4"}, "no kv_precision named 'int4'"),
        ({"context": 0}, "context is 0"),
        ({"concurrency": -1}, "concurrency is -1"),
        ({"model": load_model("gpt-3-175b"), "context": 4096}, "learned 2048 positions"),
    ],
)
def test_bad_requests(changes, what):
    with pytest.raises(InputError, match=what):
        Request(**{"model": LLAMA_70B, "context": 8192, **changes})


def test_a_degree_that_does_not_divide():
    with pytest.raises(InputError, match=r"tensor degree 3 does not divide llama-3\.1-70b") as error:
        serve_on(Request(model=LLAMA_70B, context=8192), H200, 3)
    assert error.value.fix == "choose tp from 1, 2, 4, 8, 16, 32, 64"
