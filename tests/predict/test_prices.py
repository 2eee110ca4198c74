"""What one layer, message, reduction or update costs: by hand on a machine of round numbers, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Experts, Model
from meshwright.describe.workload import Adapters, Workload
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.inputs import Inputs, inputs_of
from meshwright.predict.practice import ExpertConstants
from meshwright.predict.prices import Pricer
from meshwright.predict.software import Constants, software
from meshwright.predict.stages import Split, stage_layers

from .by_hand import CHIP, PLAIN

TOKENS, HIDDEN, FFN, VOCAB, LAYERS = 128, 64, 256, 1000, 4
MODEL = Model(
    name="tiny", num_layers=LAYERS, hidden=HIDDEN, ffn_hidden=FFN, num_heads=4, num_kv_heads=4, head_dim=16, vocab_size=VOCAB, gated=False
)
RATE = 0.95e12  # FLOP/s of products: what the best kernels reach
NODE_BYTES_PER_S, NODE_S = 1e9, 1e-6
FABRIC_BYTES_PER_S, FABRIC_S = 1e8, 5e-6
MACHINE = Cluster(
    name="two tiers",
    accelerator=CHIP,
    tiers=(
        Tier(name="node", link="", num_accelerators=4, num_installed=4, bytes_per_s=NODE_BYTES_PER_S, latency_s=NODE_S),
        Tier(name="fabric", link="", num_accelerators=64, num_installed=64, bytes_per_s=FABRIC_BYTES_PER_S, latency_s=FABRIC_S),
    ),
    accelerators_per_node=4,
)
WORKLOAD = Workload(name="w", model="", seq_len=TOKENS, global_batch=64, precision="bf16")
CONSTANTS = replace(PLAIN, eager_layer_s=2e-4)


def inputs(model: Model, cluster: Cluster, workload: Workload, log_factor: float = 0.0) -> Inputs:
    """The job as numbers, its compute at the speed of the reference release or slower by a factor."""
    bare = replace(software(), experts=ExpertConstants())
    return replace(inputs_of(Job(model, cluster, workload, bare)), log_factor=log_factor)


def prices(model: Model = MODEL, workload: Workload = WORKLOAD, constants: Constants = CONSTANTS, **layout: object) -> Pricer:
    """Prices of one layout on the machine of round numbers."""
    return Pricer(inputs(model, MACHINE, workload), Layouts.of([Layout(**layout)]), constants)  # type: ignore[arg-type]


def split(pp: int = 1, vp: int = 1) -> Split:
    return stage_layers(np.array([LAYERS]), np.array([pp]), np.array([vp]))


def product_s(rows: float, columns: float, inner: float, half: float = 100.0) -> float:
    """Seconds of a product: the rate, and what edges of tiles cost."""
    return 2 * rows * columns * inner / RATE * (1 + half * (1 / rows + 1 / columns + 1 / inner))


def test_a_layer_by_hand() -> None:
    layer = prices().layer()
    products_s = product_s(TOKENS, 192, 64) + product_s(TOKENS, 64, 64) + product_s(TOKENS, 256, 64) + product_s(TOKENS, 64, 256)
    attention_s = TOKENS * MODEL.attention_flops_per_token(TOKENS) / (RATE * 0.5)
    assert layer.matmul[0][0] == pytest.approx(products_s) and layer.matmul[1][0] == pytest.approx(2 * products_s)
    assert layer.weight_s[0] == pytest.approx(products_s)
    assert layer.attention[0][0] == pytest.approx(attention_s) and layer.attention[1][0] == pytest.approx(2.5 * attention_s)
    assert layer.memory[0][0] == pytest.approx(TOKENS * 2 * (10 * 64 + 2 * 192 + 2 * 256) / 1e9)
    assert layer.memory[1][0] == pytest.approx(TOKENS * 2 * (12 * 64 + 2 * 192 + 3 * 256) / 1e9)
    assert (layer.gaps[0][0], layer.gaps[1][0]) == pytest.approx((1e-4, 2e-4))
    assert layer.exposed_s(0)[0] == layer.exposed_s(1)[0] == 0.0
    assert layer.total_s(1)[0] == pytest.approx(sum(part[1][0] for part in (layer.matmul, layer.attention, layer.memory, layer.gaps)))


def test_without_cuda_graphs_the_host_is_in_every_layer() -> None:
    assert prices(cuda_graphs=False).layer().gaps[0][0] == pytest.approx(3e-4)


def test_a_release_slows_compute_and_not_the_wire() -> None:
    slow = Pricer(inputs(MODEL, MACHINE, WORKLOAD, np.log(2.0)), Layouts.of([Layout(tp=2)]), CONSTANTS)
    fast = prices(tp=2)
    assert slow.layer().compute_s(0)[0] == pytest.approx(2 * fast.layer().compute_s(0)[0])
    assert slow.tensor_s()[0] == fast.tensor_s()[0]


def test_the_head_and_the_embedding_by_hand() -> None:
    forward_s, backward_s = prices().head_s()
    projection_s, loss_s = product_s(TOKENS, VOCAB, HIDDEN, half=0.0), TOKENS * VOCAB * 8 / 1e9
    assert forward_s[0] == pytest.approx(projection_s + loss_s) and backward_s[0] == pytest.approx(2 * projection_s + loss_s)
    assert prices().embedding_s()[0] == pytest.approx(TOKENS * HIDDEN * 4 / 1e9)


@pytest.mark.parametrize("tp, share", [(1, 0.0), (2, 1 / 2), (4, 3 / 4)])
def test_tensor_traffic_is_four_gathers_of_the_hidden_states(tp: int, share: float) -> None:
    start_s = 9.5e-6 if tp > 1 else 0.0  # of each, whatever its size
    assert prices(tp=tp).tensor_s()[0] == pytest.approx(4 * (share * TOKENS * HIDDEN * 2 / NODE_BYTES_PER_S + start_s))


def test_overlapped_tensor_traffic_shows_a_tenth_or_what_outlasts_the_products() -> None:
    whole_s = prices(tp=2).tensor_s()[0]
    long, short = np.array([whole_s * 10]), np.array([whole_s / 2])
    hidden = prices(tp=2, overlap_tp=True)
    assert hidden.exposed_tensor_s((long, short)) == pytest.approx((0.1 * whole_s, 0.5 * whole_s))
    assert prices(tp=2, overlap_tp=False).exposed_tensor_s((long, short)) == pytest.approx((whole_s, whole_s))
    assert hidden.unhidden().exposed_tensor_s((long, short)) == pytest.approx((whole_s, whole_s))


def test_tensor_traffic_between_nodes_hides_behind_nothing() -> None:
    assert prices(tp=4, overlap_tp=True).hidden_tensor_share()[0] == 0.9
    assert prices(tp=8, overlap_tp=True).hidden_tensor_share()[0] == 0.0


def test_a_ring_hides_behind_attention_and_the_other_kinds_do_not() -> None:
    """Two context ranks hold 64 tokens each: 16,384 bytes of keys and values, 32,768 of queries too and outputs."""
    message_s = 64 * 2 * HIDDEN * 2 / NODE_BYTES_PER_S + NODE_S
    ring, no_attention = prices(cp=2, cp_kind="ring"), np.zeros(1)
    assert ring.context_s(no_attention) == pytest.approx((message_s, 2 * message_s))
    assert ring.context_s(np.array([message_s / 2])) == pytest.approx((message_s / 2, 0.75 * message_s))  # the backward hides 2.5 times it
    assert ring.context_s(np.array([1.0])) == (0.0, 0.0)
    assert ring.unhidden().context_s(np.array([1.0])) == pytest.approx((message_s, 2 * message_s))
    gathered_s = 64 * 2 * HIDDEN * 2 / NODE_BYTES_PER_S
    assert prices(cp=2, cp_kind="all-gather").context_s(np.array([1.0])) == pytest.approx((gathered_s, 2 * gathered_s))
    switched_s = 64 * 2 * 2 * HIDDEN * 2 / 2 / NODE_BYTES_PER_S  # half of it stays
    assert prices(cp=2, cp_kind="all-to-all").context_s(np.array([1.0])) == pytest.approx((switched_s, switched_s))


def test_tokens_travel_to_their_experts_and_back() -> None:
    """Each of 128 tokens visits two of four experts on two ranks: half of what is sent stays at home."""
    model = replace(MODEL, experts=Experts(num_experts=4, num_active=2, hidden=128))
    each_s = 2 * (TOKENS * 2 * HIDDEN * 2) / 2 / NODE_BYTES_PER_S
    often = Pricer(replace(inputs(model, MACHINE, WORKLOAD), sends_once=0.0), Layouts.of([Layout(dp=2, ep=2)]), CONSTANTS)
    assert often.expert_s() == pytest.approx((each_s, each_s))
    once_s = 0.75 * each_s  # three of four tokens have an expert on the other rank; none is sent there twice
    sent = Pricer(replace(inputs(model, MACHINE, WORKLOAD), sends_once=1.0), Layouts.of([Layout(dp=2, ep=2)]), CONSTANTS)
    assert sent.expert_s() == pytest.approx((once_s, once_s))
    own = Pricer(replace(inputs(model, MACHINE, WORKLOAD), own_exchange=1.0), Layouts.of([Layout(dp=2, ep=2)]), CONSTANTS)
    assert own.expert_s() == pytest.approx((once_s, once_s))
    assert prices(model).expert_s() == (0.0, 0.0) and prices(dp=2).expert_s() == (0.0, 0.0)


def test_our_trainer_computes_shared_experts_while_tokens_travel() -> None:
    model = replace(MODEL, experts=Experts(num_experts=4, num_active=2, hidden=128, num_shared=1))
    shared_s = product_s(TOKENS, 128, 64) + product_s(TOKENS, 64, 128)

    def exposed(recompute: str = "none", *, own: float = 1.0, hides: bool = True) -> tuple[float, float]:
        layouts = Layouts.of([Layout(dp=2, ep=2, recompute=recompute)])
        found = Pricer(replace(inputs(model, MACHINE, WORKLOAD), own_exchange=own), layouts, CONSTANTS)
        layer = (found if hides else found.unhidden()).layer()
        return float(layer.exposed_ep[0][0]), float(layer.exposed_ep[1][0])

    whole_s = exposed(hides=False)[0]
    hidden_s = [min(whole_s / 2, times * shared_s) for times in (1, 2)]
    assert hidden_s[0] > 0 and exposed() == pytest.approx((whole_s - hidden_s[0], whole_s - hidden_s[1]))
    again_s = whole_s / 2 - hidden_s[0]  # what returns from the experts is not sent again
    assert exposed("full") == pytest.approx((whole_s - hidden_s[0], whole_s - hidden_s[1] + again_s), abs=1e-15)
    assert exposed(own=0.0)[0] >= whole_s


def test_experts_products_have_the_rows_that_are_sent_to_them() -> None:
    """All four experts here: 64 of the 256 visits each."""
    model = replace(MODEL, experts=Experts(num_experts=4, num_active=2, hidden=128))
    attention_s = product_s(TOKENS, 192, 64) + product_s(TOKENS, 64, 64)
    experts_s = 4 * (product_s(64, 128, 64) + product_s(64, 64, 128))
    assert prices(model).layer().matmul[0][0] == pytest.approx(attention_s + experts_s)


@pytest.mark.parametrize("kind, again", [("none", ()), ("selective", ("attention",)), ("full", ("matmul", "attention", "memory", "gaps"))])
def test_recomputing_adds_forwards_to_the_backward(kind: str, again: tuple[str, ...]) -> None:
    plain, layer = prices().layer(), prices(recompute=kind).layer()
    for part in ("matmul", "attention", "memory", "gaps"):
        before, after = getattr(plain, part), getattr(layer, part)
        assert after[0] == before[0]
        assert after[1] == pytest.approx(before[1] + (before[0] if part in again else 0.0))
    assert layer.weight_s == plain.weight_s
    hiding_s = prices(recompute=kind).hiding_s(layer)  # what is done again hides nothing more
    assert (hiding_s[0][0], hiding_s[1][0]) == pytest.approx((plain.compute_s(0)[0], plain.compute_s(1)[0]))


def test_a_frozen_base_has_no_weight_gradients_and_few_parameters_to_train() -> None:
    adapters = replace(WORKLOAD, adapters=Adapters(rank=2, targets=("proj",)))
    frozen = prices(workload=adapters)
    assert frozen.layer().matmul[1] == pytest.approx(frozen.layer().matmul[0]) and frozen.layer().weight_s[0] == 0.0
    assert frozen.parameters(split())[0][0] == LAYERS * 2 * (HIDDEN + HIDDEN)


LAYER_PARAMETERS = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN


def test_parameters_of_the_fullest_rank() -> None:
    tables = VOCAB * HIDDEN
    assert prices().parameters(split())[0][0] == LAYERS * LAYER_PARAMETERS + 2 * tables
    assert prices(replace(MODEL, tied_embeddings=True)).parameters(split())[0][0] == LAYERS * LAYER_PARAMETERS + tables
    assert prices(tp=2).parameters(split())[0][0] == (LAYERS * LAYER_PARAMETERS + 2 * tables) / 2
    assert prices(pp=2).parameters(split(pp=2))[0][0] == 2 * LAYER_PARAMETERS + tables  # one of the two tables at each end


def test_a_message_crosses_the_slowest_tier_on_its_way() -> None:
    size = TOKENS * HIDDEN * 2
    assert prices(pp=2).message_s()[0] == pytest.approx(size / NODE_BYTES_PER_S + NODE_S)
    assert prices(pp=8).message_s()[0] == pytest.approx(size / FABRIC_BYTES_PER_S + FABRIC_S)
    assert prices(pp=2, tp=2).message_s()[0] == pytest.approx(size / 2 / NODE_BYTES_PER_S + NODE_S)
    assert prices().message_s()[0] == 0.0


def test_a_sender_stands_still_for_a_tenth_or_for_what_outlasts_its_chunk() -> None:
    message_s, chunk_s = np.array([1.0]), np.array([0.4])
    assert prices(pp=2).sent_s(message_s, 10 * message_s)[0] == pytest.approx(0.1)
    assert prices(pp=2).sent_s(message_s, chunk_s)[0] == pytest.approx(0.6)
    assert prices(pp=2, overlap_pp=False).sent_s(message_s, 10 * message_s)[0] == 1.0


@pytest.mark.parametrize(
    "zero, forward, num_forward, reduce, backward, num_backward",
    [
        (0, 0.0, 1, 2.0, 0.0, 1),  # an all-reduce: there and back
        (1, 1.0, 1, 1.0, 0.0, 1),
        (2, 1.0, 1, 1.0, 0.0, 32),  # of every micro-batch: 64 sequences over two replicas
        (3, 1.0, 32, 1.0, 1.0, 32),
    ],
)
def test_traffic_between_two_replicas_by_zero_stage(
    zero: int, forward: float, num_forward: int, reduce: float, backward: float, num_backward: int
) -> None:
    """Half of all gradients in 4 bytes, and half of all weights in 2, over a node's link."""
    parameters = LAYERS * LAYER_PARAMETERS + 2 * VOCAB * HIDDEN
    found = prices(dp=2, zero_stage=zero).between(split())
    gradients_s, weights_s = parameters * 4 / 2 / NODE_BYTES_PER_S, parameters * 2 / 2 / NODE_BYTES_PER_S
    assert found.forward_s[0] == pytest.approx(forward * weights_s) and found.num_forward[0] == num_forward
    assert found.reduce_s[0] == pytest.approx(reduce * gradients_s) and found.num_backward[0] == num_backward
    assert found.backward_s[0] == pytest.approx(backward * weights_s)
    assert found.gathered_s[0] == pytest.approx((forward * num_forward + backward * num_backward) * weights_s)
    assert found.reduced_s[0] == pytest.approx(reduce * num_backward * gradients_s)


def test_states_shared_within_a_node_are_summed_between_nodes() -> None:
    """Eight replicas, four of a node share a state: a quarter of the gradients is summed over the two nodes, there and back."""
    parameters = LAYERS * LAYER_PARAMETERS + 2 * VOCAB * HIDDEN
    inside_s = parameters * 4 * 3 / 4 / NODE_BYTES_PER_S
    across_s = 2 * (parameters / 4) * 4 / 2 / FABRIC_BYTES_PER_S
    assert prices(dp=8, zero_ranks=4).between(split()).reduce_s[0] == pytest.approx(inside_s + across_s)


PIPED = {"pp": 2, "vp": 2, "dp": 2}  # two chunks a stage: what one of them sends may hide behind the other


def test_what_is_not_overlapped_between_replicas_is_all_exposed() -> None:
    alone, over, cut = prices(**PIPED, overlap_dp=False), prices(**PIPED), split(pp=2, vp=2)
    between = alone.between(cut)
    whole_s = between.gathered_s + between.reduced_s
    assert alone.data_parallel_s(cut, alone.layer()) == pytest.approx(whole_s)
    assert over.unhidden().data_parallel_s(cut, over.layer()) == pytest.approx(whole_s)
    assert over.data_parallel_s(cut, over.layer()) == pytest.approx(whole_s / 2)  # a chunk's share hides whole: compute lasts longer


def test_what_is_hidden_between_replicas_is_paid_by_its_contention() -> None:
    costly, free, cut = prices(constants=replace(CONSTANTS, hopper_contention=0.5), **PIPED), prices(**PIPED), split(pp=2, vp=2)
    between = free.between(cut)
    open_s = free.data_parallel_s(cut, free.layer())
    hidden_s = between.gathered_s + between.reduced_s - open_s
    assert hidden_s[0] > 0
    assert costly.data_parallel_s(cut, costly.layer()) == pytest.approx(open_s + 0.5 * hidden_s)
    assert costly.data_parallel_s(cut, costly.layer(), contended=False) == pytest.approx(open_s)


def test_one_bucket_without_a_pipeline_has_nothing_to_hide_behind() -> None:
    between = prices(dp=2).between(split())
    assert prices(dp=2).data_parallel_s(split(), prices(dp=2).layer()) == pytest.approx(between.gathered_s + between.reduced_s)


def test_an_update_moves_thirty_bytes_of_a_shard_and_twelve_of_everything() -> None:
    parameters = LAYERS * LAYER_PARAMETERS + 2 * VOCAB * HIDDEN
    assert prices(dp=4, zero_stage=0).optimizer_s(split())[0] == pytest.approx(42 * parameters / 1e9)
    assert prices(dp=4, zero_stage=1).optimizer_s(split())[0] == pytest.approx((30 / 4 + 12) * parameters / 1e9)
    assert prices(dp=4, zero_stage=1, zero_ranks=2).optimizer_s(split())[0] == pytest.approx((30 / 2 + 12) * parameters / 1e9)


REAL = load_cluster("dgx-h100-superpod")
LLAMA = load_model("llama-3.1-70b")
JOB = replace(load_workload("pretrain-1t"), precision="bf16", global_batch=512)


def real_prices(layouts: list[Layout]) -> Pricer:
    return Pricer(inputs(LLAMA, REAL, JOB), Layouts.of(layouts), software("v5.1").constants)


def test_more_tensor_ranks_never_compute_a_layer_slower_and_never_send_less() -> None:
    found = real_prices([Layout(tp=tp) for tp in (1, 2, 4, 8)])
    assert np.all(np.diff(found.layer().compute_s(0)) < 0) and np.all(np.diff(found.layer().compute_s(1)) < 0)
    assert np.all(np.diff(found.tensor_s()) > 0)


def test_more_replicas_never_reduce_faster_and_never_update_slower() -> None:
    layouts = [Layout(tp=8, dp=dp) for dp in (1, 2, 4, 8, 16, 32)]
    found, cut = real_prices(layouts), stage_layers(np.full(6, LLAMA.num_layers), np.ones(6, dtype=int))
    between = found.between(cut)
    assert np.all(np.diff(between.reduce_s) > 0) and np.all(np.diff(between.forward_s) > 0)
    assert np.all(np.diff(found.optimizer_s(cut)) < 0)


def test_larger_micro_batches_take_longer_but_less_a_sequence() -> None:
    found = real_prices([Layout(tp=8, micro_batch=count) for count in (1, 2, 4)])
    each_s = found.layer().total_s(0) / np.array([1, 2, 4])
    assert np.all(np.diff(found.layer().total_s(0)) > 0) and np.all(np.diff(each_s) < 0)


def test_hiding_never_adds() -> None:
    layouts = [Layout(tp=4, cp=2, dp=2, overlap_tp=True, cp_kind=kind) for kind in ("ring", "all-gather", "all-to-all")]
    hidden, bare = real_prices(layouts), real_prices(layouts).unhidden()
    for axis, ways in hidden.layer().exposed.items():
        for way in (0, 1):
            assert np.all(ways[way] <= bare.layer().exposed[axis][way] + 1e-12), axis
    assert hidden.hides and not bare.hides


def test_ranks_beyond_the_key_value_heads_compute_and_hold_copies() -> None:
    few = replace(MODEL, num_kv_heads=2, ffn_hidden=64, gated=False)
    shared, copied = prices(few, tp=2), prices(few, tp=4)
    assert (float(shared.kv_dim[0]), float(copied.kv_dim[0])) == (32, 64)
    product = product_s(TOKENS, 16 + 2 * 16, HIDDEN) + product_s(TOKENS, HIDDEN, 16) + 2 * product_s(TOKENS, 16, HIDDEN)
    assert copied.layer().matmul[0][0] == pytest.approx(product, rel=1e-3)
    split = stage_layers(LAYERS, np.array([1]))
    own = prices(replace(few, num_kv_heads=4), tp=4)  # a head for each rank: the same on every one
    assert copied.parameters(split)[0] == pytest.approx(own.parameters(split)[0])
    assert copied.layer().total_s(1) == pytest.approx(own.layer().total_s(1))
