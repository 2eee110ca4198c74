"""Memory of stages: a case by hand, laws that hold for every layout, and runs that really ran."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost import memory
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import load_model, load_workload
from meshwright.describe.model import Experts, Model
from meshwright.describe.workload import Adapters, Workload
from meshwright.errors import FitError, InputError
from meshwright.layout import Layout, Layouts
from meshwright.predict.footprint import MOMENTS, PARTS, check_fits, footprint, recipe_for, spare_bytes, stages
from meshwright.predict.parameters import chunks_of
from meshwright.units import GB, GIB

DENSE = Model(name="small", num_layers=8, hidden=512, ffn_hidden=1536, num_heads=8, num_kv_heads=4, head_dim=64, vocab_size=32000)
MIXED = replace(DENSE, name="mixed", experts=Experts(num_experts=16, num_active=2, hidden=512, num_shared=1, num_dense_layers=1))
LLAMA_405B = Model(
    name="405b", num_layers=126, hidden=16384, ffn_hidden=53248, num_heads=128, num_kv_heads=8, head_dim=128, vocab_size=128256
)
LLAMA_8B = replace(LLAMA_405B, name="8b", num_layers=32, hidden=4096, ffn_hidden=14336, num_heads=32)
LLAMA2_70B = replace(LLAMA_405B, name="70b", num_layers=80, hidden=8192, ffn_hidden=28672, num_heads=64, vocab_size=32000)
WORKLOAD = Workload(name="w", model="", seq_len=2048, global_batch=256)


def accelerator(name="h100", memory_bytes=80 * GB, formats=("bf16", "fp8")):
    return Accelerator(
        name=name,
        vendor="NVIDIA",
        architecture="hopper",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=1e12,
        dense_flops_per_s=dict.fromkeys(formats, 1e15),
        power_cap_w=700,
    )


def peak(model, layout, workload=WORKLOAD, recipe=None):
    return float(footprint(model, workload, Layouts.of([layout]), recipe).peak_bytes[0])


def test_one_accelerator_by_hand():
    priced = footprint(DENSE, WORKLOAD, Layouts.of([Layout()]))
    layer = 512 * (512 + 2 * 256) + 512 * 512 + 3 * 512 * 1536 + 2 * 512
    parameters = 8 * layer + 2 * 32000 * 512
    np.testing.assert_allclose(priced.weights[:, 0], 2 * parameters)
    np.testing.assert_allclose(priced.gradients[:, 0], 4 * parameters)
    np.testing.assert_allclose(priced.optimizer[:, 0], 12 * parameters)
    saved = 4 * 512 + 2 * (512 + 2 * 256 + 512) + 4 * 8 + 4 * 512 + 3 * 2 * 1536
    np.testing.assert_allclose(priced.activations[:, 0], 8 * 2048 * saved)
    np.testing.assert_allclose(priced.loss[:, 0], 6 * 2048 * 32000 + 2 * 2 * 2048 * 512)
    np.testing.assert_allclose(priced.buffers[:, 0], memory.workspace_bytes(grouped=False) + 2 * layer)
    assert MOMENTS[priced.moment[2, 0]] == "loss"


def test_first_stage_has_the_embedding_and_the_last_the_head():
    priced = footprint(DENSE, WORKLOAD, Layouts.of([Layout(pp=4, dp=2)]))
    layers = 2 * (DENSE.dense_layer_parameters + DENSE.small_parameters_per_layer)
    np.testing.assert_allclose(priced.weights[:, 0], [2 * (layers + 32000 * 512), 2 * layers, 2 * (layers + 32000 * 512)])
    np.testing.assert_allclose(priced.activations[:, 0] / priced.activations[2, 0], [4, 3, 1])


def test_tied_embeddings_are_counted_on_both_ends_of_a_pipeline():
    tied = replace(DENSE, tied_embeddings=True)
    alone, piped = (footprint(tied, WORKLOAD, Layouts.of([layout])) for layout in (Layout(), Layout(pp=2)))
    assert alone.weights[0, 0] == pytest.approx(2 * (tied.num_parameters - 512))
    assert piped.weights[2, 0] == piped.weights[0, 0]


def test_every_stage_of_a_layout_agrees_with_the_three_that_stand_for_all():
    layout = Layout(pp=8, vp=8, tp=8, cp=2, dp=4)
    workload = replace(WORKLOAD, seq_len=8192, global_batch=1152, precision="fp8")
    rows = stages(LLAMA_405B, workload, layout)
    priced = footprint(LLAMA_405B, workload, Layouts.of([layout]))
    assert [row.layers for row in rows] == [15, 16, 16, 16, 16, 16, 16, 15]
    for i, stage in enumerate((0, 1, 7)):
        assert rows[stage].peak_bytes == pytest.approx(priced.stage_peak_bytes[i, 0])
    assert max(rows, key=lambda row: row.peak_bytes).stage == priced.worst_stage[0] == 1
    for row in rows:
        assert sum(row.parts[part] for part in PARTS) == pytest.approx(row.peak_bytes)
    assert rows[-1].peak_at == "loss"


LAYOUTS = st.builds(
    lambda tp, cp, pp, dp, mbs, zero, recompute, cp_kind: Layout(
        tp=tp, cp=cp, pp=pp, dp=dp, micro_batch=mbs, zero_stage=zero, recompute=recompute, cp_kind=cp_kind
    ),
    *(st.sampled_from((1, 2, 4, 8)) for _ in range(4)),
    st.sampled_from((1, 2)),
    st.sampled_from((0, 1, 2, 3)),
    st.sampled_from(("none", "selective", "full")),
    st.sampled_from(("ring", "all-gather", "all-to-all")),
)
MODELS = st.sampled_from((DENSE, MIXED, replace(DENSE, gated=False, biases=True, layer_norm=True)))
PRECISIONS = st.sampled_from(("bf16", "fp8", "mxfp8", "nvfp4"))


@given(MODELS, LAYOUTS, PRECISIONS)
def test_a_higher_zero_stage_never_takes_more(model, layout, precision):
    workload = replace(WORKLOAD, precision=precision)
    peaks = [peak(model, replace(layout, zero_stage=zero), workload) for zero in (0, 1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)


@given(MODELS, LAYOUTS, PRECISIONS)
def test_recomputing_never_takes_more(model, layout, precision):
    workload = replace(WORKLOAD, precision=precision)
    kinds = [footprint(model, workload, Layouts.of([replace(layout, recompute=kind)])) for kind in ("full", "selective", "none")]
    saved = [kind.activations.max() for kind in kinds]
    assert saved == sorted(saved)
    peaks = [float(kind.peak_bytes[0]) for kind in kinds]
    assert peaks == sorted(peaks)


@given(MODELS, LAYOUTS, PRECISIONS)
def test_more_tensor_ranks_take_less(model, layout, precision):
    workload = replace(WORKLOAD, precision=precision)
    assert peak(model, replace(layout, tp=2 * layout.tp), workload) < peak(model, layout, workload)


@given(MODELS, LAYOUTS)
def test_the_parts_are_never_negative(model, layout):
    priced = footprint(model, WORKLOAD, Layouts.of([layout]))
    assert all((getattr(priced, part) >= 0).all() for part in PARTS)


def test_two_tensor_ranks_halve_what_is_split():
    one, two = (footprint(DENSE, WORKLOAD, Layouts.of([Layout(tp=tp)])) for tp in (1, 2))
    np.testing.assert_allclose(two.activations, one.activations / 2)
    np.testing.assert_allclose(two.weights, one.weights / 2, rtol=1e-3)  # norms are on both


def test_context_ranks_split_activations_and_share_the_optimizer():
    one, two = (footprint(DENSE, WORKLOAD, Layouts.of([Layout(cp=cp)])) for cp in (1, 2))
    np.testing.assert_allclose(two.activations, one.activations / 2)
    np.testing.assert_allclose(two.optimizer, one.optimizer / 2)
    np.testing.assert_allclose(two.weights, one.weights)


def test_the_busiest_expert_rank_needs_room_for_its_tokens():
    """By hand: of seven layers with experts, half as many tokens again at two routed experts, in bf16: input, gate, up, their product."""
    rows = Layouts.of([Layout(dp=8, ep=8), Layout(dp=8, ep=1), Layout(dp=8, ep=8, recompute="full")])
    even, uneven = (footprint(MIXED, replace(WORKLOAD, expert_imbalance=share), rows) for share in (1.0, 1.5))
    more = (uneven.activations - even.activations)[0]
    assert more[0] == pytest.approx(0.5 * 7 * 2048 * 2 * 2 * (512 + 3 * 512))
    assert more[1] == 0  # every rank has all experts
    assert more[2] == 0 and uneven.peak_bytes[2] >= even.peak_bytes[2]  # only inputs are kept, and rebuilt layers are larger
    all_tokens = footprint(MIXED, replace(WORKLOAD, expert_imbalance=100.0), rows)
    assert (all_tokens.activations - even.activations)[0, 0] == pytest.approx(14 * more[0])  # no rank gets more than all of them


def test_experts_are_split_over_expert_ranks_and_their_optimizer_over_the_rest():
    one, four = (footprint(MIXED, WORKLOAD, Layouts.of([Layout(dp=4, ep=ep)])) for ep in (1, 4))
    routed = 7 * 16 * MIXED.expert_parameters
    np.testing.assert_allclose(one.weights - four.weights, 2 * (routed - routed / 4))
    np.testing.assert_allclose(one.optimizer, four.optimizer)  # 4 shards of all, or all of a quarter


def test_many_layouts_cost_the_same_as_one_by_one():
    layouts = [Layout(tp=2, pp=4, dp=2), Layout(cp=2, dp=8, zero_stage=3), Layout(pp=8, recompute="full"), Layout(pp=2, vp=4)]
    together = footprint(MIXED, WORKLOAD, Layouts.of(layouts)).peak_bytes
    np.testing.assert_allclose(together, [peak(MIXED, layout) for layout in layouts])


def test_layers_that_do_not_divide_are_marked():
    priced = footprint(DENSE, WORKLOAD, Layouts.of([Layout(pp=4), Layout(pp=3)]))
    np.testing.assert_array_equal(priced.legal, [True, False])


def test_prediction_layers_stand_on_the_last_stage():
    predicting = replace(MIXED, num_prediction_layers=1)
    without, with_layer = (footprint(m, WORKLOAD, Layouts.of([Layout(pp=4)])) for m in (MIXED, predicting))
    np.testing.assert_array_equal(with_layer.layers - without.layers, [[0], [0], [1]])


def test_a_frozen_base_has_neither_gradients_nor_optimizer():
    tuned = replace(WORKLOAD, adapters=Adapters(rank=16, targets=("qkv", "proj")))
    priced = footprint(DENSE, tuned, Layouts.of([Layout()]))
    adapters = 8 * 16 * (512 + 1024 + 512 + 512)
    np.testing.assert_allclose(priced.gradients[0, 0], 4 * adapters)
    np.testing.assert_allclose(priced.weights[0, 0], 2 * (DENSE.num_parameters - 512 + adapters))
    assert priced.peak_bytes[0] < peak(DENSE, Layout())


def test_full_recompute_of_a_small_batch_peaks_in_the_backward_of_the_embedding():
    wide = replace(DENSE, vocab_size=512000)
    rows = stages(wide, WORKLOAD, Layout(pp=4, recompute="full"))
    assert rows[0].peak_at == "backward of the embedding"
    assert rows[1].peak_at == "first backward, warm-up over"


# Peaks that MLPerf Training submissions log (v5.0 and v5.1; LoRA of v5.0), read as GiB of PyTorch's allocator. All fp8.
BLACKWELL = accelerator("gb200", 186 * GB, ("bf16", "fp8", "fp4"))
LORA = Adapters(rank=16, targets=("qkv", "proj"))
LOGGED = [
    (LLAMA_405B, 1152, None, Layout(tp=8, cp=2, pp=8, vp=8, dp=4), accelerator(), 58.817),
    (LLAMA_405B, 1152, None, Layout(tp=8, cp=2, pp=8, vp=8, dp=16), accelerator(), 52.484),
    (LLAMA_405B, 1152, None, Layout(tp=4, cp=2, pp=8, vp=8, dp=8), accelerator("h200", 141 * GB), 109.067),
    (LLAMA_405B, 896, None, Layout(tp=4, cp=2, pp=8, vp=8, dp=8), BLACKWELL, 93.521),
    (LLAMA_8B, 64, None, Layout(tp=2, dp=64), accelerator(), 35.707),
    (LLAMA2_70B, 8, LORA, Layout(cp=2, dp=2), BLACKWELL, 134.243),
    (LLAMA2_70B, 9, LORA, Layout(cp=8, dp=9), BLACKWELL, 82.323),
]


@pytest.mark.parametrize("model, batch, adapters, layout, machine, logged_gib", LOGGED)
def test_real_runs_fit_and_their_first_stage_is_within_ten_percent(model, batch, adapters, layout, machine, logged_gib):
    workload = Workload(name="w", model="", seq_len=8192, global_batch=batch, precision="fp8", adapters=adapters)
    priced = footprint(model, workload, Layouts.of([layout]), recipe_for("fp8", machine))
    check_fits(priced, machine)
    assert priced.stage_peak_bytes[0, 0] / GIB == pytest.approx(logged_gib, rel=0.1)


def test_lora_on_one_node_stores_preactivations_in_fp8():
    workload = Workload(name="w", model="", seq_len=8192, global_batch=8, precision="fp8", adapters=LORA)
    stored = replace(recipe_for("fp8", BLACKWELL), preactivation_bytes=1.0)
    assert peak(LLAMA2_70B, Layout(dp=8), workload, stored) / GIB == pytest.approx(168.83, rel=0.05)


def test_a_layout_that_does_not_fit_says_by_how_much_and_where():
    workload = replace(WORKLOAD, seq_len=8192, global_batch=1152, precision="fp8")
    priced = footprint(LLAMA_405B, workload, Layouts.of([Layout(tp=4, cp=2, pp=8, vp=8, dp=8)]))
    spare = float(spare_bytes(priced, accelerator())[0])
    with pytest.raises(FitError) as caught:
        check_fits(priced, accelerator())
    assert f"{-spare:,.0f} bytes" in caught.value.what
    assert "on stage 1" in caught.value.what
    assert "activations" in caught.value.fix


def test_fp8_weights_need_one_copy_on_blackwell():
    assert recipe_for("fp8", accelerator()).weight_bytes == 2
    assert recipe_for("fp8", BLACKWELL).weight_bytes == 1
    with pytest.raises(InputError, match="no precision named"):
        recipe_for("fp9")


@pytest.mark.parametrize("tp", [1, 4, 8, 32])
def test_ranks_beyond_the_key_value_heads_hold_copies(tp):
    model, layout = LLAMA_405B, Layout(tp=tp, pp=9, recompute="selective")  # 8 key-value heads
    held = sum(parameter.size for parameter in chunks_of(model, layout, 1)[0].parameters)
    middle = stages(model, WORKLOAD, layout)[1]
    assert middle.weights_bytes == pytest.approx(recipe_for(WORKLOAD.precision).weight_bytes * held)
    own = stages(replace(model, num_kv_heads=max(tp, 8)), WORKLOAD, layout)[1]  # a head for each rank: the same on every one
    assert middle == own


@pytest.mark.parametrize("layout", [Layout(tp=4), Layout(tp=4, pp=2, zero_stage=1), Layout(tp=8, recompute="full")])
def test_a_vocabulary_that_does_not_divide_is_padded(layout):
    """A rank holds as many entries as if the vocabulary were the next one that divides: in tables, gradients and logits."""
    assert stages(replace(DENSE, vocab_size=31_997), WORKLOAD, layout) == stages(DENSE, WORKLOAD, layout)


def test_biases_of_copied_heads_are_copied():
    model = replace(DENSE, qkv_biases=True)
    own = stages(replace(model, num_kv_heads=8), WORKLOAD, Layout(tp=8, recompute="full"))
    assert stages(model, WORKLOAD, Layout(tp=8, recompute="full")) == own


@pytest.mark.parametrize(
    "model, batch, layout, rehearsed_gib",
    [  # benchmarks/rehearse.py on one H200, 2026-11-16
        ("llama-3.1-8b", 512, Layout(dp=64, micro_batch=1), 84.01),
        ("llama-3.2-1b", 8, Layout(micro_batch=2), 41.95),
    ],
)
def test_memory_of_our_own_trainer_is_what_a_rehearsed_rank_took(model, batch, layout, rehearsed_gib):
    workload = replace(load_workload("pretrain-1t"), global_batch=batch)
    own, others = (stages(load_model(model), workload, layout, is_own=is_own)[0] for is_own in (True, False))
    assert own.peak_bytes / GIB == pytest.approx(rehearsed_gib, rel=0.01)
    assert own.loss_bytes < others.loss_bytes  # logits of a block of rows at a time
    assert own.peak_at == "loss"


def test_our_own_trainer_keeps_the_sum_of_a_shard_beside_its_gradients_and_no_placeholders():
    layout = Layout(dp=8, micro_batch=1, zero_stage=1)
    own, others = (stages(DENSE, WORKLOAD, layout, is_own=is_own)[0] for is_own in (True, False))
    assert own.gradients_bytes == pytest.approx(others.gradients_bytes * (1 + 1 / 8))
    assert own.weights_bytes == others.weights_bytes and own.optimizer_bytes == others.optimizer_bytes
    alone = Layout(micro_batch=1)
    one, other = (stages(DENSE, WORKLOAD, alone, is_own=is_own)[0] for is_own in (True, False))
    assert one.gradients_bytes == other.gradients_bytes and one.buffers_bytes < other.buffers_bytes
