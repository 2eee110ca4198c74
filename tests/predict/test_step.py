"""The closed form of a step: one worked by hand, and laws over real layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.job import Job
from meshwright.layout import ORDERS, Layout, Layouts, parse_layout
from meshwright.predict import software as sw
from meshwright.predict.inputs import EXPERT, Inputs, inputs_of
from meshwright.predict.software import software
from meshwright.predict.stages import stage_layers
from meshwright.predict.step import PARTS, StepParts, price

from .by_hand import CHIP, PLAIN

CONSTANTS = software("v5.1").constants
PRETRAIN = load_workload("pretrain-1t")
H100, GB200 = load_cluster("dgx-h100-superpod"), load_cluster("azure-gb200-128")
CLUSTERS = {"h100": (H100, "fp8"), "gb200": (GB200, "nvfp4"), "a100": (load_cluster("a100-200g"), "bf16")}
MODELS = {name: load_model(name) for name in ("llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b")}


def reference_inputs(model: Model, cluster: Cluster, workload: Workload) -> Inputs:
    """The job as numbers, with compute at the speed of the reference release: what is worked by hand here has no release."""
    return replace(inputs_of(Job(model, cluster, workload, "v6.0")), log_factor=0.0)


def priced(layout: Layout, model: str = "llama-3.1-70b", cluster: str = "h100", batch: int = 0, **changes: object) -> StepParts:
    machine, precision = CLUSTERS[cluster]
    workload = replace(PRETRAIN, precision=precision, global_batch=batch or 8 * layout.pp * layout.dp * layout.micro_batch)
    asked = reference_inputs(MODELS[model], machine.resized(layout.num_ranks), workload)
    return price(replace(asked, **changes), Layouts.of([layout]), CONSTANTS)


def step_s(layout: Layout, **given: object) -> float:
    return float(priced(layout, **given).step_s[0])  # type: ignore[arg-type]


TINY = Model(name="tiny", num_layers=2, hidden=64, ffn_hidden=256, num_heads=4, num_kv_heads=4, head_dim=16, vocab_size=1000, gated=False)
ALONE = Cluster(
    name="alone",
    accelerator=CHIP,
    tiers=(Tier(name="node", link="none", num_accelerators=1, num_installed=1, bytes_per_s=1.0, latency_s=1.0),),
    accelerators_per_node=1,
)


def test_a_step_of_a_tiny_model_on_one_chip():
    workload = Workload(name="w", model="", seq_len=128, global_batch=3, precision="bf16")
    parts = price(reference_inputs(TINY, ALONE, workload), Layouts.of([Layout()]), PLAIN).seconds
    tokens, rate = 128, 0.95 * 1e12

    def product_s(columns: int, inner: int, half: float = 100.0) -> float:
        return 2 * tokens * columns * inner / rate * (1 + half * (1 / tokens + 1 / columns + 1 / inner))

    products_s = product_s(192, 64) + product_s(64, 64) + product_s(256, 64) + product_s(64, 256)
    attention_s = tokens * TINY.attention_flops_per_token(128) / (rate * 0.5)
    forward_bytes, backward_bytes = 2 * (10 * 64 + 2 * 192 + 2 * 256), 2 * (12 * 64 + 2 * 192 + 3 * 256)
    layer_s = 3 * products_s + 3.5 * attention_s + tokens * (forward_bytes + backward_bytes) / 1e9 + 3e-4
    head_s = 3 * product_s(1000, 64, half=0.0) + 2 * tokens * 1000 * 8 / 1e9
    embedding_s = 2 * tokens * 64 * 4 / 1e9
    parameters = 2 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 1000 * 64
    assert parts["compute"][0] == pytest.approx(3 * (2 * layer_s + head_s + embedding_s))
    assert parts["optimizer"][0] == pytest.approx((30 + 12) * parameters / 1e9)
    assert parts["overhead"][0] == sw.STEP_S
    assert all(parts[part][0] == 0.0 for part in PARTS if part not in ("compute", "optimizer", "overhead"))


def test_adapters_leave_out_the_weight_gradients():
    """Of a frozen base a backward has one product where pre-training has two."""
    parts = {}
    for name in ("pretrain-1t", "mlperf-llama2-70b-lora"):
        workload = replace(load_workload(name), seq_len=8192, global_batch=8, precision="bf16")
        asked = reference_inputs(load_model("llama-2-70b"), H100.resized(8), workload)
        parts[name] = price(asked, Layouts.of([Layout(tp=8)]), replace(CONSTANTS, layer_s=0.0, chip_spread=0.0))
    trained, frozen = parts["pretrain-1t"].seconds, parts["mlperf-llama2-70b-lora"].seconds
    assert 2 / 3 < frozen["compute"][0] / trained["compute"][0] < 0.85
    assert frozen["optimizer"][0] < trained["optimizer"][0] / 100


@st.composite
def jobs(draw):
    name = draw(st.sampled_from(sorted(MODELS)))
    tp, cp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4, 8]))
    vp = draw(st.sampled_from([1, 2, 4])) if pp > 1 else 1
    if not stage_layers(MODELS[name].num_layers, pp, vp).legal:
        pp, vp = 1, 1
    dp = draw(st.sampled_from([1, 2, 8, 32]))
    layout = Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=vp,
        dp=dp,
        ep=draw(st.sampled_from([1, 8])) if name.startswith("mixtral") and dp >= 8 else 1,
        micro_batch=draw(st.sampled_from([1, 2])),
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        cp_kind=draw(st.sampled_from(["ring", "all-gather", "all-to-all"])),
        order=draw(st.sampled_from(ORDERS)),
        overlap_tp=draw(st.booleans()),
        overlap_pp=draw(st.booleans()),
        overlap_dp=draw(st.booleans()),
        cuda_graphs=draw(st.booleans()),
    )
    return {"layout": layout, "model": name, "cluster": draw(st.sampled_from(sorted(CLUSTERS)))}


law = settings(deadline=None, max_examples=60)


@law
@given(jobs())
def test_parts_add_up_to_the_step_and_none_is_negative(job):
    parts = priced(**job)
    assert set(parts.seconds) == set(PARTS)
    total_s = float(parts.step_s[0])
    assert total_s == pytest.approx(sum(float(parts.seconds[part][0]) for part in PARTS))
    assert all(float(parts.seconds[part][0]) >= -1e-9 * total_s for part in PARTS)


@law
@given(jobs(), st.integers(1, 8))
def test_more_micro_batches_never_shorten_the_step(job, more):
    per_round = job["layout"].dp * job["layout"].micro_batch
    few, many = (step_s(**job, batch=per_round * job["layout"].pp * count) for count in (1, 1 + more))
    assert few < many


@law
@given(jobs())
def test_recomputing_never_shortens_the_step(job):
    times_s = [step_s(**{**job, "layout": replace(job["layout"], recompute=kind)}) for kind in ("none", "selective", "full")]
    assert times_s == sorted(times_s)


@law
@given(jobs())
def test_sharding_more_never_communicates_less(job):
    exposed_s = [float(priced(**{**job, "layout": replace(job["layout"], zero_stage=z)}).seconds["exposed_dp"][0]) for z in (1, 2, 3)]
    assert exposed_s[0] <= exposed_s[1] * (1 + 1e-12) + 1e-12
    assert exposed_s[0] <= exposed_s[2] * (1 + 1e-12) + 1e-12


@law
@given(jobs())
def test_doubling_every_bandwidth_never_lengthens_the_step(job):
    machine, precision = CLUSTERS[job["cluster"]]
    asked = reference_inputs(MODELS[job["model"]], machine, replace(PRETRAIN, precision=precision))
    faster = {"tier_bytes_per_s": 2 * asked.tier_bytes_per_s, "memory_bytes_per_s": 2 * asked.memory_bytes_per_s}
    assert step_s(**job, **faster) <= step_s(**job) * (1 + 1e-12)


@law
@given(jobs(), st.floats(0.01, 1.0))
def test_slower_software_never_shortens_the_step(job, slower):
    assert step_s(**job, log_factor=slower) >= step_s(**job) * (1 - 1e-12)


@law
@given(jobs())
def test_hiding_traffic_never_lengthens_the_step(job):
    shown = replace(job["layout"], overlap_tp=False, overlap_pp=False)
    assert step_s(**{**job, "layout": replace(shown, overlap_tp=True)}) <= step_s(**{**job, "layout": shown}) * (1 + 1e-12)


@law
@given(st.lists(jobs(), min_size=2, max_size=5))
def test_many_layouts_of_one_job_are_priced_as_one_by_one(several):
    rows = [job["layout"] for job in several if job["model"] == several[0]["model"]]
    asked = reference_inputs(MODELS[several[0]["model"]], GB200, replace(PRETRAIN, precision="fp8", global_batch=2048))
    together = price(asked, Layouts.of(rows), CONSTANTS)
    alone = [price(asked, Layouts.of([row]), CONSTANTS) for row in rows]
    for part in PARTS:
        np.testing.assert_allclose(together.seconds[part], [float(one.seconds[part][0]) for one in alone], rtol=1e-9, atol=1e-9)


def test_an_axis_of_one_exposes_nothing():
    parts = priced(parse_layout("tp=8,dp=4"), batch=64).seconds
    assert parts["exposed_cp"][0] == parts["exposed_pp"][0] == parts["exposed_ep"][0] == parts["bubble"][0] == 0.0
    assert parts["exposed_tp"][0] > 0 and parts["exposed_dp"][0] > 0


def test_a_pipeline_has_a_bubble_that_micro_batches_thin_out():
    layout = parse_layout("tp=8,pp=4,dp=4")
    shares = []
    for batch in (16, 64, 256):
        parts = priced(layout, batch=batch)
        shares.append(float(parts.seconds["bubble"][0] / parts.step_s[0]))
    assert shares == sorted(shares, reverse=True) and shares[-1] > 0


def test_a_pipeline_across_the_fabric_waits_longer_for_messages():
    inside, across = (parse_layout(f"tp=4,pp=8,dp=8,order={order}") for order in ("tp-cp-pp-dp", "tp-cp-dp-pp"))
    near, far = (priced(layout, cluster="gb200").seconds["exposed_pp"][0] for layout in (inside, across))
    assert 0 < near < far


def test_storage_that_cannot_keep_up_shows_as_data():
    layout = parse_layout("tp=8")
    free = priced(layout, batch=64)
    assert free.seconds["data"][0] == 0.0
    bytes_read = 64 * PRETRAIN.seq_len * 4
    starved = priced(layout, batch=64, storage_bytes_per_s=bytes_read / (2 * float(free.step_s[0])))
    assert float(starved.step_s[0]) == pytest.approx(2 * float(free.step_s[0]))
    assert float(starved.seconds["data"][0]) == pytest.approx(float(free.step_s[0]))


def test_the_slowest_of_more_chips_sets_the_pace():
    layout = parse_layout("tp=8")
    alone, many = (priced(layout, num_accelerators=count).seconds["compute"][0] for count in (8, 8192))
    spread = CONSTANTS.chip_spread * (np.sqrt(2 * np.log(8192)) - np.sqrt(2 * np.log(8)))
    assert many / alone == pytest.approx(1 + spread)


def test_recomputing_all_costs_a_forward_of_flops():
    model, layout = MODELS["llama-3.1-70b"], parse_layout("tp=8,recompute=full")
    attention = model.attention_flops_per_token(PRETRAIN.seq_len)
    full = model.num_layers * (2 * model.layer_matrix_parameters_per_token + attention)
    assert priced(layout).recomputed_flops[0] == pytest.approx(full)
    assert priced(replace(layout, recompute="selective")).recomputed_flops[0] == pytest.approx(model.num_layers * attention)
    assert priced(replace(layout, recompute="none")).recomputed_flops[0] == 0.0
    # Of 2 x 8192 + 2 x 1024 + 3 x 28672 columns, all 8192 deep or wide: keys, attention's output and the MLP's second inner product.
    share = (1024 + 8192 + 28672) / (2 * 8192 + 2 * 1024 + 3 * 28672)
    products = model.num_layers * 2 * model.layer_matrix_parameters_per_token
    assert priced(replace(layout, recompute="ops")).recomputed_flops[0] == pytest.approx(share * products)


def test_every_second_checkpointing_takes_the_time_of_what_it_repeats():
    # Each product by itself: one in the backward pass more, of the 3 that a weight has without.
    layout = parse_layout("tp=1,cp=1,pp=1,dp=1,mbs=1")
    for name in ("llama-3.1-70b", "gpt-3-175b"):
        none, ops = (priced(replace(layout, recompute=kind), model=name).layer for kind in ("none", "ops"))
        moved_s = float(none.memory[0][0])  # the elementwise kernels of the forward again
        share = (float(ops.matmul[1][0] - none.matmul[1][0]) - moved_s) / float(none.matmul[0][0])
        assert share == pytest.approx({"llama-3.1-70b": 37888 / 104448, "gpt-3-175b": 0.5}[name], abs=0.005)


OVERLAPPED = Layout(tp=8, micro_batch=1, overlap_tp=True)


def exposed_and_whole(priced: StepParts, axis: str) -> tuple[float, float]:
    return float(priced.seconds[f"exposed_{axis}"][0]), float(priced.carried().seconds[axis][0])


def on(machine: Cluster, layout: Layout, precision: str = "bf16", batch: int = 32, model: str = "llama-3.1-8b") -> StepParts:
    workload = replace(PRETRAIN, precision=precision, global_batch=batch)
    return price(reference_inputs(MODELS[model], machine, workload), Layouts.of([layout]), CONSTANTS)


def node(gb_per_s: float, num_accelerators: int = 8) -> Cluster:
    """One node whose links reach so much."""
    inner = replace(H100.tiers[0], bytes_per_s=gb_per_s * 1e9, num_accelerators=num_accelerators)
    return replace(H100, tiers=(inner,))


def test_products_hide_tensor_traffic_within_a_node():
    exposed_s, whole_s = exposed_and_whole(on(node(450), OVERLAPPED), "tp")
    assert exposed_s == pytest.approx((1 - CONSTANTS.tp_hidden) * whole_s)


@given(
    gb_per_s=st.floats(0.5, 2000), tp=st.sampled_from([2, 4, 8]), model=st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b"])
)
@settings(max_examples=40, deadline=None)
def test_no_layer_is_shorter_than_its_tensor_traffic(gb_per_s, tp, model):
    machine = node(gb_per_s, tp)
    layout = replace(OVERLAPPED, tp=tp)
    hidden, plain = on(machine, layout, model=model), on(machine, replace(layout, overlap_tp=False), model=model)
    layer, whole_s = hidden.pricer.layer(), hidden.pricer.tensor_s()
    for way in (0, 1):
        assert layer.exposed_tp[way] + layer.matmul[way] >= whole_s * (1 - 1e-12)
        assert (1 - CONSTANTS.tp_hidden) * whole_s * (1 - 1e-12) <= layer.exposed_tp[way] <= whole_s
    assert hidden.step_s <= plain.step_s
    assert hidden.step_s >= hidden.carried().seconds["tp"]


def test_no_tensor_traffic_hides_across_a_network():
    """Two nodes of eight, tensor groups of one from each: overlap asked for or not is the same step, and all traffic is exposed."""
    layout = Layout(tp=2, dp=8, order=("cp", "pp", "dp", "tp"), overlap_tp=True)
    exposed_s, whole_s = exposed_and_whole(on(H100.resized(16), layout), "tp")
    assert exposed_s == whole_s > 0
    assert on(H100.resized(16), layout).step_s == on(H100.resized(16), replace(layout, overlap_tp=False)).step_s
    exposed_s, whole_s = exposed_and_whole(on(H100.resized(16), replace(layout, order=("tp", "cp", "pp", "dp"))), "tp")
    assert exposed_s == pytest.approx((1 - CONSTANTS.tp_hidden) * whole_s)


def test_without_graphs_a_message_is_exposed_where_tensor_traffic_overlaps():
    """One hardware queue for all launches: kernels wait behind a message. A CUDA graph needs no such queue."""
    layout = Layout(tp=2, pp=4, dp=2, overlap_tp=True)
    exposed = {
        (graphs, overlap): exposed_and_whole(on(H100.resized(16), replace(layout, cuda_graphs=graphs, overlap_tp=overlap)), "pp")
        for graphs in (False, True)
        for overlap in (False, True)
    }
    assert all(shown_s < whole_s / 2 for key, (shown_s, whole_s) in exposed.items() if key != (False, True))
    shown_s, whole_s = exposed[False, True]
    assert shown_s == pytest.approx(whole_s)


def test_a_hashed_fabric_slows_messages_by_the_share_of_time_in_use():
    """Flows collide while several are on their way: messages between stages are too rare for what rings between replicas suffer."""
    layout = Layout(pp=4, dp=4, order=("tp", "cp", "dp", "pp"))
    fabric = H100.tiers[-1]
    steps = {}
    for routing in ("adaptive", "hashed"):
        machine = replace(H100.resized(16), tiers=(*H100.resized(16).tiers[:-1], replace(fabric, num_accelerators=16, routing=routing)))
        steps[routing] = on(machine, layout)
    slower = float(steps["hashed"].message_s[0] / steps["adaptive"].message_s[0])
    assert 1 < slower < 1 / CONSTANTS.hashed_efficiency


def test_a_rack_of_several_nodes_is_one_domain():
    layout = Layout(tp=8, dp=2, overlap_tp=True)  # trays of four
    exposed_s, whole_s = exposed_and_whole(on(GB200.resized(16), layout, "mxfp8"), "tp")
    assert exposed_s < whole_s / 2


@pytest.mark.parametrize("gbit_per_s", [1, 10, 100, 800])
@pytest.mark.parametrize("vp", [1, 4])
def test_no_step_is_shorter_than_its_messages_between_stages(gbit_per_s, vp):
    lan = replace(H100.tiers[-1], num_accelerators=8, num_installed=8, bytes_per_s=gbit_per_s * 1.25e8)
    machine = replace(H100, tiers=(lan,), accelerators_per_node=1)
    priced = on(machine, Layout(pp=8, vp=vp, micro_batch=1), batch=64)
    exposed_s, whole_s = exposed_and_whole(priced, "pp")
    assert priced.step_s[0] >= whole_s
    assert sw.PP_EXPOSED * whole_s <= exposed_s * (1 + 1e-12) and exposed_s < whole_s


def test_ranks_beyond_the_key_value_heads_take_as_long_as_with_a_head_each():
    model, layout = MODELS["llama-3.1-70b"], Layout(tp=16, cp=2, dp=2)  # 8 key-value heads
    steps = [
        float(price(reference_inputs(shapes, H100.resized(64), PRETRAIN), Layouts.of([layout]), CONSTANTS).step_s[0])
        for shapes in (model, replace(model, num_kv_heads=16))
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1e-12)


MOE = Layout(dp=64, ep=8, micro_batch=1)


def imbalanced(imbalance: float, layout: Layout = MOE) -> StepParts:
    return priced(layout, model="mixtral-8x7b", expert_imbalance=imbalance)


def test_the_busiest_rank_takes_as_much_longer_for_its_experts_as_it_gets_more_tokens():
    even, uneven = imbalanced(1.0), imbalanced(1.5)
    assert uneven.carried().seconds["ep"][0] == pytest.approx(1.5 * even.carried().seconds["ep"][0])
    asked = reference_inputs(MODELS["mixtral-8x7b"], H100.resized(64), replace(PRETRAIN, precision="fp8", global_batch=512))
    dense = price(replace(asked, matrix_count=np.where(asked.matrix_cut == EXPERT, 0.0, asked.matrix_count)), Layouts.of([MOE]), CONSTANTS)
    products = [float(found.layer.matmul[0][0]) for found in (dense, even, uneven)]
    assert products[2] - products[0] == pytest.approx(1.5 * (products[1] - products[0]))
    assert uneven.layer.attention[0][0] == even.layer.attention[0][0] and uneven.step_s[0] > even.step_s[0]


def test_no_rank_gets_more_than_all_tokens():
    alone, two = replace(MOE, ep=1), replace(MOE, ep=2)
    assert imbalanced(4.0, alone).step_s[0] == imbalanced(1.0, alone).step_s[0]
    assert imbalanced(4.0, two).step_s[0] == imbalanced(2.0, two).step_s[0] > imbalanced(1.0, two).step_s[0]
