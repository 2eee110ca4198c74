"""What a row of measured runs leaves open, and what is assumed in its place."""

from __future__ import annotations

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import FitError, InputError
from meshwright.evidence.measured import check_degrees, check_runs, recipe, with_experts, with_room, with_stages
from meshwright.layout import Layout

DEEPSEEK, LLAMA_8B, LLAMA_70B = load_model("deepseek-v3"), load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
RACKS = load_cluster("gb200-nvl72-ndr").resized(256)
WORKLOAD = load_workload("pretrain-1t")


@pytest.mark.parametrize(
    "text, name",
    [("bf16", "bf16"), ("FP8-CS", "fp8-current"), ("fp8 (delayed)", "fp8"), ("fp4 (nvfp4)", "nvfp4"), ("FP8 rowwise", "fp8-rowwise")],
)
def test_a_precision_is_read_as_people_write_it(text: str, name: str) -> None:
    assert recipe(text) == name


@pytest.mark.parametrize("text", ["fp8 or bf16", "mxfp4", "int8"])
def test_a_precision_of_which_nobody_can_say_what_it_is_skips_the_row(text: str) -> None:
    with pytest.raises(InputError):
        recipe(text)


def test_layers_that_do_not_divide_leave_the_last_stage_with_the_rest() -> None:
    layout, assumed = with_stages(Layout(pp=4, vp=4, dp=64), DEEPSEEK)
    assert (layout.first_stage_layers, layout.last_stage_layers) == (16, 13)  # 16 + 16 + 16 + 13 = 61
    assert assumed == ("stages: 16 layers each, and 13 on the last",)
    even = Layout(pp=4, vp=2, dp=64)
    assert with_stages(even, LLAMA_8B) == (even, ())


def test_experts_that_nobody_placed_fill_a_scale_up_domain() -> None:
    layout, assumed = with_experts(Layout(pp=4, vp=4, dp=64), DEEPSEEK, RACKS, "")
    assert layout.ep == 64 and assumed == ("ep: 64, as many as a scale-up domain holds",)
    stated = Layout(pp=4, vp=4, dp=64, ep=8)
    assert with_experts(stated, DEEPSEEK, RACKS, "8") == (stated, ())
    dense = Layout(dp=256)
    assert with_experts(dense, LLAMA_8B, RACKS, "") == (dense, ())


def test_a_row_that_fits_recomputes_nothing_and_one_that_does_not_the_least_that_fits() -> None:
    cluster = load_cluster("dgx-h100-superpod").resized(64)
    layout, assumed = with_room(Layout(tp=2, dp=32), LLAMA_8B, cluster, WORKLOAD, "")
    assert layout.recompute == "none" and assumed == ("recompute: none",)
    layout, assumed = with_room(Layout(tp=4, pp=4, dp=4, micro_batch=4), LLAMA_70B, cluster, WORKLOAD, "")
    assert layout.recompute != "none" and "the least that fits" in assumed[0]
    stated = Layout(tp=4, pp=4, dp=4, micro_batch=4)
    assert with_room(stated, LLAMA_70B, cluster, WORKLOAD, "none") == (stated, ())


def test_a_row_that_fits_in_no_way_without_sharding_is_taken_to_shard() -> None:
    cluster = load_cluster("dgx-h100-superpod").resized(64)
    layout, assumed = with_room(Layout(dp=64), LLAMA_70B, cluster, WORKLOAD, "")
    assert layout.zero_stage == 3 and "nothing less fits" in assumed[0]


def test_what_predict_would_refuse_is_refused() -> None:
    cluster = load_cluster("dgx-h100-superpod").resized(64)
    check_runs(LLAMA_8B, cluster, WORKLOAD, Layout(tp=2, dp=32))
    with pytest.raises(InputError, match="attention heads"):
        check_runs(LLAMA_8B, cluster.resized(192), WORKLOAD, Layout(tp=3, dp=64))
    with pytest.raises(FitError, match="more memory than h100 has"):
        check_runs(LLAMA_70B, cluster, WORKLOAD, Layout(dp=64))


def test_degrees_fill_the_machine_and_make_up_the_batch() -> None:
    check_degrees(Layout(tp=2, dp=4), 8, 16, 4)
    with pytest.raises(InputError, match="is not the 16 accelerators"):
        check_degrees(Layout(tp=2, dp=4), 16, 16, 4)
    with pytest.raises(InputError, match="do not make up the global batch of 16"):
        check_degrees(Layout(tp=2, dp=4), 8, 16, 3)
