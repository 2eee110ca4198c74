"""What a hardware profile says of a job, and steps priced by it: slices come back as taken, and the rest follows from what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.cost.layers import layer_time
from meshwright.cost.measured import ends_time, product_s
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.describe.profile import WAYS, GroupedTime, MadeTime, Profile, load_profile
from meshwright.describe.workload import Adapters, Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.measured import Frozen, format_of, measured
from meshwright.predict.prediction import on_one_device, parts, predict
from meshwright.predict.software import on_profile, software
from meshwright.predict.step import PARTS

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODEL = load_model("llama-3.1-8b")
GB = 1e9


@pytest.fixture
def card() -> Profile:
    return load_profile(FIXTURES / "profile_of_a_card.json")


@pytest.fixture
def cores() -> Profile:
    return load_profile(FIXTURES / "profile_of_cores.json")


def step(profile: Profile, **asked: object) -> dict:
    question = {"precision": "bf16-pure", "seq_len": 8192, "batch": 1, **asked}
    return on_one_device(MODEL, profile, **question)


def test_a_step_at_the_slices_batch_is_its_layers_its_ends_and_the_update(card):
    # 32 layers of 20 ms, ends of 40 ms; 1 ms and 10 ps a parameter to update 8.03 B
    prediction = step(card)
    assert prediction["parts_s"]["compute"] == pytest.approx(32 * 0.02 + 0.04)
    assert prediction["parts_s"]["optimizer"] == pytest.approx(1e-3 + 8.03e9 * 1e-11, rel=1e-3)
    assert prediction["step_s"] == pytest.approx(sum(prediction["parts_s"].values())) and set(prediction["parts_s"]) == set(PARTS)


def test_twice_the_sequences_compute_twice_as_long_where_rates_are_one(card):
    once, twice = step(card), step(card, batch=2)
    assert twice["parts_s"]["compute"] == pytest.approx(2 * once["parts_s"]["compute"])
    assert twice["parts_s"]["optimizer"] == once["parts_s"]["optimizer"]


def test_shorter_sequences_save_attention_alone(card):
    long, short = step(card), step(card, batch=2, seq_len=4096)
    seen = measured(MODEL, replace(load_workload("pretrain-1t"), precision="bf16-pure"), card)
    saved_s = 32 * seen.layer.factor * 3.5 * (2 * 32 * 8192**2 * 128 / 500e12) / 2
    assert long["step_s"] - short["step_s"] == pytest.approx(saved_s)


def test_recompute_adds_the_forward_without_its_last_product(card):
    plain, again = step(card), step(card, recompute="full")
    added_s = again["step_s"] - plain["step_s"]
    assert 32 * 0.02 / 5 < added_s < 32 * 0.02 / 3
    some = step(card, recompute="selective")["step_s"] - plain["step_s"]
    assert 0 < some < added_s


def test_micro_batches_are_added_up(card):
    assert step(card, batch=2, micro_batch=1)["parts_s"]["compute"] == pytest.approx(2 * step(card)["parts_s"]["compute"])


def test_memory_is_what_stays_what_layers_keep_and_the_loss(card):
    # 6 bytes a parameter, 32 layers of 1 GB, 3 GB at the loss
    assert step(card)["peak_memory_bytes"] == pytest.approx(6 * 8.03e9 + 35 * GB, rel=1e-3)
    hidden = 2 * 4096 * 8192
    assert step(card, batch=2)["peak_memory_bytes"] == pytest.approx(6 * 8.03e9 + 67 * GB + 4 * hidden, rel=1e-3)


def test_recompute_keeps_inputs_and_one_layer_and_peaks_when_gradients_are_there(card):
    # all but the table's gradient in bf16, a layer's input, one layer rebuilt, and the backward's own tensors
    hidden, inner = 2 * 4096 * 8192, 2 * 2 * 14336 * 8192
    grown = 2 * (8.03e9 - 128256 * 4096)
    expected = 6 * 8.03e9 + grown + hidden + 1 * GB + inner + hidden
    assert step(card, recompute="full")["peak_memory_bytes"] == pytest.approx(expected, rel=5e-3)


def test_a_model_without_slices_takes_the_others_correction_and_says_so(card):
    other = load_model("llama-2-7b")
    prediction = on_one_device(other, card, precision="bf16", seq_len=8192, batch=1)
    assert not prediction["from_slices"] and 0 < prediction["step_s"] < 2
    stack = on_profile(software(), card)
    cluster = load_cluster("hgx-h200-ndr").resized(8)
    wide = predict(Job(other, cluster, load_workload("pretrain-1t"), stack), Layouts.of([Layout(dp=8)])).interval
    assert wide.high == pytest.approx(1.16) and "no slice of llama-2-7b" in wide.note


def test_on_many_cards_compute_is_the_profiles_and_traffic_as_before(card):
    cluster, workload = load_cluster("hgx-h200-ndr").resized(8), replace(load_workload("pretrain-1t"), precision="bf16-pure")
    layouts = Layouts.of([Layout(dp=8), Layout(tp=8), Layout(tp=2, pp=2, dp=2)])
    prediction = predict(Job(MODEL, cluster, workload, on_profile(software(), card)), layouts)
    plain = predict(Job(MODEL, cluster, workload), layouts)
    assert (prediction.parts["exposed_tp"] == plain.parts["exposed_tp"]).all()
    assert np.isfinite(prediction.step_s).all() and (prediction.step_s > 0).all()
    assert (prediction.memory.peak_bytes == plain.memory.peak_bytes).all()


@pytest.mark.parametrize("name, fault", [("mixtral-8x7b", "no products in fp8"), ("llama-3.1-8b", "no products in fp8")])
def test_what_a_profile_cannot_price_is_refused(name, fault, card):
    with pytest.raises(InputError, match=fault):
        on_one_device(load_model(name), card, precision="fp8-current", seq_len=8192, batch=1)


def on_cores(profile: Profile, layout: Layout):
    model, workload = load_model("llama-2m"), load_workload("python-stdlib")
    return predict(Job(model, load_cluster("this-machine-2x4"), workload, on_profile(software(), profile)), Layouts.of([layout]))


def test_a_pipeline_on_shared_cores_takes_the_work_of_all_its_stages(cores):
    # Ranks that wait leave their cores to the others: 2 micro-batches of 4 layers and the ends, spread over 2 stages.
    whole = on_cores(cores, Layout(pp=1, dp=8, micro_batch=2))
    piped = on_cores(cores, Layout(pp=2, dp=4, micro_batch=4, overlap_pp=True))
    work_s = (4 * 0.09 + 0.09) / 2
    busy_s = piped.parts["compute"][0] + piped.parts["bubble"][0]
    assert busy_s == pytest.approx(work_s, rel=0.05) and piped.parts["bubble"][0] > 0
    assert whole.parts["bubble"][0] == 0


def test_tensor_parallel_exchanges_cost_what_they_were_timed_at(cores):
    # of each of 2 micro-batches: 4 layers x 8 collectives of 2 ms, and the ends' 4 + 2
    prediction = on_cores(cores, Layout(tp=2, dp=4, micro_batch=4))
    num_micro_batches = int(prediction.detail.num_micro_batches[0])
    assert prediction.parts["exposed_tp"][0] == pytest.approx(num_micro_batches * (4 * 8 + 6) * 2e-3)


def shared(profile: Profile, **changes: object) -> Profile:
    return replace(profile, shared_slices=(replace(profile.slices[-1], **changes),))


# A layer of 4 sequences takes 10 ms whatever its size and 80 ms for its work, the ends likewise; every collective 2 ms.
CUT_S = 0.01 + 0.08 / 2
WHOLE_S = 0.09


def steps_of(layer_s: float, ends_s: float) -> tuple[float, float]:
    return 2 * layer_s + ends_s, 4 * layer_s + ends_s


def test_a_layer_cut_over_ranks_takes_what_its_slice_took(cores):
    # 8 collectives a layer and 4 at the ends cost twice what they were timed at, 2 more at the ends and the step's sum do not
    seen = shared(cores, tp=2, steps_s=steps_of(CUT_S + 2 * 8 * 2e-3, CUT_S + (2 * 4 + 2 + 1) * 2e-3))
    prediction = on_cores(seen, Layout(tp=2, dp=4, micro_batch=4))
    num_micro_batches = int(prediction.detail.num_micro_batches[0])
    assert prediction.parts["exposed_tp"][0] == pytest.approx(num_micro_batches * (2 * (4 * 8 + 4) + 2) * 2e-3)
    alone = Layout(dp=8, micro_batch=2)
    assert on_cores(seen, alone).step_s[0] == on_cores(cores, alone).step_s[0]


@pytest.mark.parametrize("changes", [{"steps_s": steps_of(0.01, 0.01)}, {"steps_s": steps_of(1.0, 1.0), "recompute": "full"}])
def test_exchanges_in_a_layer_cost_what_they_do_by_themselves_where_no_slice_tells_more(changes, cores):
    layout = Layout(tp=2, dp=4, micro_batch=4)
    other = shared(cores, tp=2, **changes)
    assert on_cores(other, layout).parts["exposed_tp"][0] == on_cores(cores, layout).parts["exposed_tp"][0]


def test_a_pipeline_costs_what_stages_took_together(cores):
    # a tenth more than 2 or 4 layers, the ends, two messages a stage; and the step's sum
    layout = Layout(pp=2, dp=4, micro_batch=4, overlap_pp=True)
    dearer = shared(cores, pp=2, steps_s=tuple(1.1 * (work_s + 4 * 2e-3) + 2e-3 for work_s in steps_of(WHOLE_S, WHOLE_S)))
    before, after = on_cores(cores, layout).parts, on_cores(dearer, layout).parts
    for part in ("compute", "bubble", "exposed_pp"):
        assert after[part][0] == pytest.approx(1.1 * before[part][0]), part
    assert after["exposed_dp"][0] == before["exposed_dp"][0]
    alone = Layout(dp=8, micro_batch=2)
    assert on_cores(dearer, alone).step_s[0] == on_cores(cores, alone).step_s[0]
    roomy = {"num_cores": 16}  # a core for each: the slice's step then has its bubble in it, which is priced by itself
    assert on_cores(replace(dearer, **roomy), layout).step_s[0] == on_cores(replace(cores, **roomy), layout).step_s[0]


def test_what_one_models_slices_do_not_tell_anothers_do(cores):
    seen = shared(cores, tp=2, steps_s=steps_of(1.0, 1.0))
    dealt = replace(seen.slices[-1], pp=2)
    foreign = replace(seen.shared_slices[0], hidden=384)
    both = replace(seen, shared_slices=(dealt, foreign))
    layout = Layout(tp=2, dp=4, micro_batch=4)
    assert on_cores(both, layout).parts["exposed_tp"][0] > on_cores(cores, layout).parts["exposed_tp"][0]


def test_a_layer_without_a_gate_is_corrected_as_what_it_is(cores):
    # the same seconds for less work: a layer of that kind comes back as it was seen, whichever kind it is
    model = replace(load_model("llama-2m"), gated=False)
    plain = replace(cores, slices=tuple(replace(cut, gated=False) for cut in cores.slices))
    layouts = Layouts.of([Layout(dp=8, micro_batch=4)])
    workload = replace(load_workload("python-stdlib"), global_batch=32)
    prediction = predict(Job(model, load_cluster("this-machine-2x4"), workload, on_profile(software(), plain)), layouts)
    assert prediction.parts["compute"][0] == pytest.approx(4 * 0.09 + 0.09, rel=0.05)


def test_more_processes_on_the_same_cores_take_longer(cores):
    few = on_cores(replace(cores, num_processes=16), Layout(dp=8, micro_batch=2)).parts["compute"][0]
    assert on_cores(cores, Layout(dp=8, micro_batch=2)).parts["compute"][0] == pytest.approx(2 * few)


def says(profile: Profile, model: str = "llama-3.1-8b", precision: str = "bf16-pure"):
    return measured(load_model(model), replace(load_workload("pretrain-1t"), precision=precision), profile)


def test_rates_are_work_over_seconds(card):
    # products at 700 TFLOP/s; attention at 500, its backward 2.5 times the work
    rates = says(card).rates
    for way in WAYS:
        shapes, flops_per_s = rates.products[way]
        assert shapes.shape == (3, 3) and flops_per_s == pytest.approx([700e12] * 3)
    for shapes, flops_per_s in rates.attention:
        assert shapes.tolist() == [[32, 64], [8192, 4096], [128, 128]] and flops_per_s == pytest.approx([500e12] * 2)


def test_norms_and_activations_share_their_bytes_evenly(card):
    # a byte of each: 1 / 2 + 1 / 6 = 2 / 3 of a second for 2 bytes
    mixed = replace(card, norm_bytes_per_s=2.0, activation_bytes_per_s=6.0)
    assert says(mixed).rates.elementwise_bytes_per_s == pytest.approx(3.0)


def test_only_products_of_the_jobs_number_format_count(card):
    doubled = tuple(replace(p, number_format="fp8", seconds=p.seconds / 2) for p in card.products)
    both = replace(card, products=card.products + doubled)
    assert says(both).rates.products["forward"][1] == pytest.approx([700e12] * 3)
    assert says(both, precision="fp8-current").rates.products["forward"][1] == pytest.approx([1400e12] * 3)


def test_corrections_take_composed_seconds_to_those_of_the_slices(card):
    seen = says(card)
    layer_s = float(layer_time(seen.kinds[0][1], 1, 8192, seen.rates).total_s)
    ends_s = sum(float(way) for way in ends_time(4096, 128256, 8192, 8192, 1.0, seen.rates))
    assert (seen.layer.of(layer_s), seen.ends.of(ends_s)) == (pytest.approx(0.02), pytest.approx(0.04))


def test_slices_with_recompute_correct_layers_that_compute_the_same_again(card):
    again = replace(card, slices=(*card.slices, *(replace(cut, recompute="full", layer_s=0.03) for cut in card.slices)))
    for recompute, layer_s in (("none", 0.02), ("full", 0.03)):
        assert step(again, recompute=recompute)["parts_s"]["compute"] == pytest.approx(32 * layer_s + 0.04)
    assert step(again, recompute="selective")["step_s"] == pytest.approx(step(card, recompute="selective")["step_s"])
    only = replace(card, slices=tuple(replace(cut, recompute="full", layer_s=0.03) for cut in card.slices))
    assert step(only, recompute="full")["parts_s"]["compute"] == pytest.approx(32 * 0.03 + 0.04)
    assert says(only).layer.factor == pytest.approx(says(only).again["full"].factor)  # better than no correction at all


def test_fixed_seconds_of_a_layer_that_is_computed_again_come_back(cores):
    # on cores a layer of 4 sequences took 90 ms, 10 of them whatever its size; with all computed again 130, 20 of them
    again = tuple(replace(cut, recompute="full", layer_s=0.02 + 0.11 * cut.micro_batch / 4) for cut in cores.slices)
    workload, profile = replace(load_workload("python-stdlib"), global_batch=32), replace(cores, slices=again)
    job = Job(load_model("llama-2m"), load_cluster("this-machine-2x4"), workload, on_profile(software(), profile))
    seen = predict(job, Layouts.of([Layout(dp=8, micro_batch=4, recompute="full")]))
    assert sum(seen.detail.layer.total_s(way)[0] for way in (0, 1)) == pytest.approx(0.13)


def test_another_models_slices_correct_where_the_models_own_are_missing(card):
    seen, own = says(card, "llama-2-7b"), says(card)
    assert seen.slices == () and len(own.slices) == 1
    assert (seen.layer, seen.ends) == (own.layer, own.ends)


def test_rows_of_logits_are_those_timed_for_the_vocabulary_or_the_most_of_any(card):
    heads = [replace(p, rows=2048) for p in card.products if p.columns == 128256]
    others = [p for p in card.products if p.columns != 128256]
    small = replace(card, products=(*others, *heads))
    assert (says(small).block_rows, says(small, "llama-2-7b").block_rows) == (2048, 8192)


def test_what_passes_between_operations_is_as_wide_as_its_format(card, cores):
    assert (says(card).element_bytes, says(cores, "llama-2m", "fp32").element_bytes) == (2.0, 4.0)


def test_factors_are_1_where_no_slice_was_shared(card, cores):
    for seen in (says(card), says(cores, "llama-2m", "fp32")):
        assert (seen.tensor, seen.pipeline) == (1.0, 1.0)


def test_the_middle_of_several_shared_slices_is_their_geometric_mean(cores):
    once, fourfold = (
        replace(cores.slices[-1], tp=2, steps_s=steps_of(CUT_S + n * 8 * 2e-3, CUT_S + (n * 4 + 2 + 1) * 2e-3)) for n in (1, 4)
    )
    assert says(replace(cores, shared_slices=(once, fourfold)), "llama-2m", "fp32").tensor == pytest.approx(2.0)


@pytest.mark.parametrize("way", WAYS)
def test_products_without_one_of_their_gradients_price_nothing(way, card):
    lame = replace(card, products=tuple(p for p in card.products if p.way != way))
    with pytest.raises(InputError, match="no products in bf16, only in none") as caught:
        says(lame)
    assert "meshwright measure --model llama-3.1-8b --precision bf16-pure" in caught.value.fix


def test_experts_and_a_profile_without_attention_are_refused(card):
    with pytest.raises(InputError, match="no products of experts in bf16, only in none") as caught:
        says(card, "mixtral-8x7b")
    assert "meshwright measure --model mixtral-8x7b --precision bf16-pure" in caught.value.fix
    with pytest.raises(InputError, match="no products in bf16"):
        says(replace(card, attentions=()))


@pytest.mark.parametrize(("precision", "name"), [("fp32", "fp32"), ("bf16-pure", "bf16"), ("fp8-current", "fp8")])
def test_formats_have_the_names_of_profiles(precision, name):
    assert format_of(precision) == name


def test_a_frozen_base_moves_what_its_adapters_and_its_weights_of_few_bits_need():
    model, pairs = load_model("llama-3.1-8b"), Adapters(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"))
    found = Frozen.of(model, pairs, 2.0)
    qkv, into = 4096 + 2 * 1024, 2 * 14336
    reads, writes = (4096, 4096, 4096, 14336), (qkv, 4096, into, 4096)
    assert found.token_bytes == (2.0 * (sum(reads) + 2 * sum(writes)), 2.0 * (3 * sum(reads) + 2 * sum(writes)))
    assert found.made_bytes == 0.0
    elements = sum(read * written for read, written in zip(reads, writes, strict=True))
    assert Frozen.of(model, replace(pairs, base="fp8"), 2.0).made_bytes == 3.0 * elements
    assert Frozen.of(model, replace(pairs, base="nf4"), 2.0).made_bytes == pytest.approx((4.125 / 8 + 2.0) * elements)
    assert Frozen.of(model, replace(pairs, targets=("q",)), 2.0).token_bytes[0] == 2.0 * (4096 + 2 * qkv)


def test_adapters_cost_less_than_all_weights_and_recomputing_more_than_none(card):
    model, cluster = load_model("llama-3.1-8b"), load_cluster("azure-gb200-128").resized(1)
    whole = Workload(name="w", model="", seq_len=2048, global_batch=4, precision="bf16")
    pairs = Adapters(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"))

    def step_s(adapters: Adapters | None, recompute: str = "none") -> float:
        job = Job(model, cluster, replace(whole, adapters=adapters), on_profile(software(), card))
        return float(parts(job, Layouts.of([Layout(micro_batch=4, zero_stage=0, recompute=recompute)])).step_s[0])

    assert step_s(pairs) < 0.8 * step_s(None)
    assert step_s(pairs) < step_s(replace(pairs, base="nf4")) < step_s(replace(pairs, base="fp8"))
    assert step_s(pairs) < step_s(pairs, "mlp") < step_s(pairs, "full") < step_s(None, "full")


MIXTURE = replace(
    MODEL,
    name="mixture",
    num_layers=5,
    experts=Experts(num_experts=16, num_active=2, hidden=2048, num_shared=1, num_dense_layers=1),
    latent=LatentAttention(query_rank=0, key_value_rank=512, nope_dim=96, rope_dim=32, value_dim=96),
)


def with_experts(card: Profile, **changes: object) -> Profile:
    """The card, which has multiplied 16 experts at 400 TFLOP/s, and whose slice is of layers with experts."""
    sides = ((4096, 4096), (4096, 2048))
    grouped = [
        GroupedTime(number_format="bf16", way=way, num_groups=16, rows=rows, columns=c, inner=i, seconds=2.0 * rows * c * i / 400e12)
        for rows in (8192, 16384)
        for c, i in sides
        for way in WAYS
    ]
    alike = replace(MIXTURE.experts, num_dense_layers=0)
    cut = replace(card.slices[0], model="mixture", latent=MIXTURE.latent, experts=alike, **{"layer_s": 0.05, **changes})
    return replace(card, grouped=tuple(grouped), slices=(cut,))


def mixture_step(profile: Profile, model: Model = MIXTURE, **asked: object) -> dict:
    return on_one_device(model, profile, **{"precision": "bf16-pure", "seq_len": 8192, "batch": 1, **asked})


def test_a_job_of_the_slices_shape_takes_its_layers_with_experts(card):
    alike = replace(MIXTURE, experts=replace(MIXTURE.experts, num_dense_layers=0))
    found = mixture_step(with_experts(card), alike)
    assert found["from_slices"] and found["parts_s"]["compute"] == pytest.approx(5 * 0.05 + 0.04)


def test_leading_dense_layers_are_priced_from_kernels_with_the_same_correction(card):
    profile = with_experts(card)
    seen = measured(MIXTURE, replace(load_workload("pretrain-1t"), precision="bf16-pure"), profile)
    (share, dense), (_, routed) = seen.kinds
    dense_s, routed_s = (float(layer_time(work, 1, 8192, seen.rates).total_s) for work in (dense, routed))
    assert share == 1 / 5 and seen.layer.factor == pytest.approx(0.05 / routed_s)
    found = mixture_step(profile)
    assert found["parts_s"]["compute"] == pytest.approx(4 * 0.05 + dense_s * 0.05 / routed_s + 0.04)


def test_experts_are_updated_too(card):
    assert mixture_step(with_experts(card))["parts_s"]["optimizer"] == pytest.approx(1e-3 + 1e-11 * MIXTURE.num_parameters, rel=1e-3)


def test_computing_experts_again_leaves_no_product_out(card):
    plain, again = (mixture_step(with_experts(card), recompute=kind)["step_s"] for kind in ("none", "full"))
    seen = measured(MIXTURE, replace(load_workload("pretrain-1t"), precision="bf16-pure"), with_experts(card))
    forward_s = sum(
        share * float(time.matmul[0] + time.attention[0] + time.memory[0])
        for share, work in seen.kinds
        for time in [layer_time(work, 1, 8192, seen.rates)]
    )
    assert again - plain == pytest.approx(5 * forward_s * seen.layer.factor)


def test_more_expert_ranks_send_tokens_and_compute_as_much(card):
    cluster = load_cluster("hgx-h200-ndr").resized(8)
    workload = replace(load_workload("pretrain-1t"), precision="bf16-pure", global_batch=8)
    job = Job(MIXTURE, cluster, workload, on_profile(software(), with_experts(card)))
    layouts = Layouts.of([Layout(dp=8, micro_batch=1), Layout(dp=8, ep=8, micro_batch=1)])
    found = predict(job, layouts)
    assert found.parts["exposed_ep"][0] == 0 < found.parts["exposed_ep"][1]
    assert found.parts["compute"][1] == pytest.approx(found.parts["compute"][0], rel=0.1)


def test_a_slice_that_recomputes_what_nobody_knows_is_refused(card):
    strange = replace(card, slices=(replace(card.slices[0], recompute="Full"),))
    with pytest.raises(InputError, match="recompute 'Full'"):
        measured(MODEL, replace(load_workload("pretrain-1t"), precision="bf16-pure"), strange)


@pytest.mark.parametrize("num_shared", [0, 1])
def test_shared_experts_are_computed_while_tokens_are_on_their_way(card, num_shared):
    """Half of the traffic is the way to the experts, and the products of shared experts hide as much of it as they last."""
    model = replace(MIXTURE, experts=replace(MIXTURE.experts, num_shared=num_shared))
    workload = replace(load_workload("pretrain-1t"), precision="bf16-pure", global_batch=8)
    job = Job(model, load_cluster("hgx-h200-ndr").resized(8), workload, on_profile(software(), with_experts(card)))
    pricer = predict(job, Layouts.of([Layout(dp=8, ep=8, micro_batch=1)])).detail.pricer
    for way, (whole_s, exposed_s) in enumerate(zip(pricer.expert_s(), pricer.layer().exposed_ep, strict=True)):
        products = [product_s(8192, columns, inner, pricer.m.rates) for columns, inner in ((4096, 4096), (4096, 2048))]
        lasts_s = sum(one[0] if way == 0 else one[1] + one[2] for one in products) * pricer.m.layer.factor * num_shared
        assert exposed_s[0] == pytest.approx(whole_s[0] - min(whole_s[0] / 2, float(np.squeeze(lasts_s))), rel=1e-6)


PAIRS = Adapters(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"))


def tuned_step(card: Profile, adapters: Adapters, **layout: object):
    workload = Workload(name="w", model="", seq_len=8192, global_batch=1, precision="bf16-pure", adapters=adapters)
    job = Job(MODEL, load_cluster("azure-gb200-128").resized(1), workload, on_profile(software(), card))
    return predict(job, Layouts.of([Layout(micro_batch=1, zero_stage=0, **layout)]))


def test_slices_with_adapters_price_jobs_with_such_adapters_and_no_others(card):
    tuned = replace(
        card.slices[0], adapters=PAIRS, layer_s=0.014, ends_s=0.03, num_parameters=(2_000_000, 6_000_000), updates_s=(1e-3, 2e-3)
    )
    both = replace(card, slices=(*card.slices, tuned))
    other = replace(PAIRS, base="nf4")
    assert tuned_step(both, PAIRS).parts["compute"][0] == pytest.approx(32 * 0.014 + 0.03)
    assert tuned_step(both, replace(PAIRS, alpha=4.0)).parts["compute"][0] == pytest.approx(32 * 0.014 + 0.03)  # a factor costs nothing
    assert tuned_step(both, other).step_s[0] == pytest.approx(tuned_step(card, other).step_s[0])
    assert step(both) == step(card)
    assert tuned_step(both, PAIRS).parts["optimizer"][0] == pytest.approx(tuned.update_s(MODEL_PAIRS), rel=1e-3)


MODEL_PAIRS = 32 * 16 * (3 * 4096 + 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 14336))  # of adapters of rank 16 on all matrices


def test_slices_with_adapters_alone_correct_other_jobs(card):
    tuned = replace(card, slices=(replace(card.slices[0], adapters=PAIRS, layer_s=0.014),))
    assert not step(tuned)["from_slices"] and step(tuned)["step_s"] == pytest.approx(step(card)["step_s"], rel=0.3)


def test_weights_of_few_bits_take_what_they_were_timed_at(card):
    elements = 4096 * (6144 + 4096 + 3 * 14336)
    timed = MadeTime(base="nf4", number_format="bf16", rows=4096, columns=4096, seconds=4096 * 4096 * 1e-12)
    bf16, nf4 = (tuned_step(replace(card, made=(timed,)), replace(PAIRS, base=base)).parts["compute"][0] for base in ("bf16", "nf4"))
    factor = says(card).layer.factor
    assert nf4 - bf16 == pytest.approx(32 * 2 * elements * 1e-12 * factor)
