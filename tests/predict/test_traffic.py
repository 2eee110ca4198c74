"""What a rank sends: numbers worked by hand, and laws. The trainer's own process groups are counted in tests/train/test_traffic.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, Model
from meshwright.describe.workload import Adapters, Workload
from meshwright.layout import AXES, CP_KINDS, RECOMPUTE, Layout, parse_layout
from meshwright.predict.traffic import EXCHANGE, MESSAGE, Flow, Step, Visit, even_visits, flows, is_counted_whole, sent_bytes, sent_on

SMALL = Model(name="small", num_layers=4, hidden=8, ffn_hidden=16, num_heads=4, num_kv_heads=2, head_dim=2, vocab_size=32)
JOB = Workload(name="job", model="", seq_len=16, global_batch=8)  # bf16

law = settings(deadline=None, max_examples=80)


def sent(text: str, stage: int = 0, model: Model = SMALL, workload: Workload = JOB) -> dict[str, tuple[float, int]]:
    """Bytes and messages of every axis that sends."""
    found = flows(Step(model, workload, parse_layout(text), stage))
    return {axis: sent_on(axis, found) for axis in AXES if sent_on(axis, found)[1]}


def of(what: str, axis: str, text: str, stage: int = 0, model: Model = SMALL) -> list[Flow]:
    """The flows of one name."""
    return [flow for flow in flows(Step(model, JOB, parse_layout(text), stage)) if (flow.axis, flow.what) == (axis, what)]


def test_a_rank_sends_its_share_of_a_collective() -> None:
    assert sent_bytes("all-gather", 800, 4) == sent_bytes("reduce-scatter", 800, 4) == sent_bytes("all-to-all", 800, 4) == 600
    assert sent_bytes("all-reduce", 800, 4) == 1200
    assert sent_bytes(MESSAGE, 800, 4) == 800


def test_one_rank_sends_nothing() -> None:
    assert sent("mbs=1") == {}


def test_tensor_parallelism() -> None:
    # Hidden states of a micro-batch: 16 tokens x 8 x 2 bytes = 256, of which a rank of two sends 128. 8 micro-batches x 4 layers x 10,
    # and 4 for the ends; of the loss 16 and 2 x 16 numbers in fp32, all-reduced: 64 + 128. Norms: 9 of 8 numbers in fp32, 288.
    num_bytes = 8 * (4 * 10 + 4) * 128 + 8 * (64 + 128) + 288
    assert sent("tp=2") == {"tp": (num_bytes, 8 * (4 * 10 + 4) + 8 * 2 + 1)}


def test_recomputing_a_layer_scatters_once_more_and_gathers_what_is_gathered_again_anyway() -> None:
    more = [sent(f"tp=2,recompute={kind}")["tp"] for kind in ("none", "selective", "full")]
    assert more[1] == more[0]
    assert more[2] == (more[0][0] + 8 * 4 * 128, more[0][1] + 8 * 4)


@pytest.mark.parametrize(
    "kind, num_bytes, num_messages",
    [
        # On four ranks two sequences have 8 tokens here, and their keys and values 2 x 8 x 4 x 2 = 128 bytes; 4 micro-batches x 4 layers.
        ("ring", 16 * 3 * (128 + 128 + 128), 16 * 9),  # three hops each of keys and values forward, backward, and of gradients
        ("all-gather", 16 * 2 * 3 * 128, 16 * 2),
        ("all-to-all", 16 * 2 * 0.75 * (128 + 64 + 64 + 128), 16 * 8),  # queries, keys, values, output; both ways
    ],
)
def test_context_parallelism(kind: str, num_bytes: float, num_messages: int) -> None:
    assert sent(f"cp=4,mbs=2,cp_kind={kind}")["cp"] == (num_bytes, num_messages)


def test_pipeline_stages_send_what_their_neighbours_need() -> None:
    message = 2 * 16 * 8 * 2  # two sequences
    assert [sent("pp=4,mbs=2", stage)["pp"] for stage in range(4)] == [
        (4 * message, 4),
        (8 * message, 8),
        (8 * message, 8),
        (4 * message, 4),
    ]
    # With two chunks the last stage sends the first chunk on, and the first stage its second chunk's gradient back.
    assert [sent("pp=2,vp=2,mbs=2", stage)["pp"] for stage in range(2)] == [(12 * message, 12), (12 * message, 12)]


def test_a_tied_table_is_exchanged_by_the_ends_of_a_pipeline() -> None:
    tied = replace(SMALL, tied_embeddings=True)
    assert [len(of("tied table", "pp", "pp=4", stage, tied)) for stage in range(4)] == [1, 0, 0, 1]
    assert of("tied table", "pp", "pp=4,tp=2,dp=2", 0, tied)[0].payload_bytes == 32 * 8 // 2 // 2 * 4  # cut by tp, then by ZeRO 1
    assert of("tied table", "pp", "tp=2,dp=2", 0, tied) == []


# A layer has 8 x (8 + 4 + 4) + 8 x 8 = 192 weights in attention, 3 x 8 x 16 = 384 in the MLP and 16 in norms.
PARAMETERS = 4 * 592 + 2 * 32 * 8 + 8


@pytest.mark.parametrize(
    "text, per_parameter",
    [
        ("dp=2,zero=0", 4),  # an all-reduce: half twice, in fp32
        ("dp=2,zero=1", 2 + 1),  # half of fp32 gradients, half of bf16 weights
        ("dp=2,zero=2", 4 * 2 + 1),  # gradients of each of four micro-batches
        ("dp=2,zero=3", 4 * (2 + 2 * 1)),  # weights for each forward and each backward too
    ],
)
def test_replicas_by_zero_stage(text: str, per_parameter: float) -> None:
    assert SMALL.num_parameters == PARAMETERS
    assert sent(text)["dp"][0] == per_parameter * PARAMETERS


def test_groups_that_each_hold_a_state_sum_their_shards() -> None:
    # Four replicas in groups of two: half of the gradients scattered, the other half's sum all-reduced with the other group.
    assert sent("dp=4,zero_ranks=2")["dp"][0] == (2 + 1 + 0.5 * 4) * PARAMETERS
    assert {flow.num_ranks for flow in of("gradients across groups", "dp", "dp=4,zero_ranks=2")} == {2}


def test_context_parallel_ranks_are_replicas_too() -> None:
    assert sent("cp=2,zero=1")["dp"] == sent("dp=2,zero=1")["dp"]


def test_shards_are_padded() -> None:
    odd = replace(SMALL, hidden=7)
    assert sum(flow.payload_bytes * flow.count for flow in of("weights", "dp", "dp=4", 0, odd)) > 2 * odd.num_parameters


def test_fp32_doubles_what_is_sent_in_bf16() -> None:
    wide = replace(JOB, precision="fp32")
    assert sent("pp=2", workload=wide)["pp"][0] == 2 * sent("pp=2")["pp"][0]
    assert sent("dp=2,zero=0", workload=wide) == sent("dp=2,zero=0")  # gradients are summed in fp32 either way


@pytest.mark.parametrize("name", ["llama-3.1-405b", "gpt-3-175b", "mixtral-8x7b", "deepseek-v3"])
def test_models_are_counted_whole_unless_adapters_are_trained(name: str) -> None:
    assert is_counted_whole(load_model(name), JOB)
    assert not is_counted_whole(load_model(name), replace(JOB, adapters=Adapters(rank=4, targets=("qkv",))))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A layout that SMALL and JOB can have."""
    tp, cp, pp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    dp, micro_batch = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (8, 1), (1, 8)]))
    vp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    zero, kind, recompute = draw(st.integers(0, 3)), draw(st.sampled_from(CP_KINDS)), draw(st.sampled_from(RECOMPUTE))
    return Layout(tp=tp, cp=cp, pp=pp, vp=vp, dp=dp, micro_batch=micro_batch, zero_stage=zero, cp_kind=kind, recompute=recompute)


@law
@given(layouts())
def test_an_axis_of_one_rank_sends_nothing(layout: Layout) -> None:
    for stage in range(layout.pp):
        axes = {flow.axis for flow in flows(Step(SMALL, JOB, layout, stage))}
        assert axes == {axis for axis in ("tp", "cp", "pp") if getattr(layout, axis) > 1} | ({"dp"} if layout.dp * layout.cp > 1 else set())


@law
@given(layouts())
def test_messages_sent_through_the_pipeline_are_messages_received(layout: Layout) -> None:
    assume(layout.pp > 1)
    total = sum(sent_on("pp", flows(Step(SMALL, JOB, layout, stage)))[1] for stage in range(layout.pp))
    assert total == 2 * layout.num_micro_batches(JOB.global_batch) * (layout.pp * layout.vp - 1)


@law
@given(layouts(), st.integers(1, 5000))
def test_buckets_change_messages_and_padding_alone(layout: Layout, most: int) -> None:
    assume(layout.zero_stage < 3 and layout.dp * layout.cp > 1)
    few, many = (sent_on("dp", flows(Step(SMALL, JOB, layout, 0, size))) for size in (10**9, most))
    assert many[1] >= few[1]
    assert few[0] <= many[0] + 1e-6 or layout.zero_stage > 0
    assert many[0] == pytest.approx(few[0], rel=0.25)


MIXTURE = replace(SMALL, experts=Experts(num_experts=4, num_active=2, hidden=6, num_dense_layers=1))


def test_an_exchange_of_rows_sends_what_goes_to_others() -> None:
    assert sent_bytes(EXCHANGE, 800, 4) == 800


def test_expert_parallelism_sends_what_tokens_chose() -> None:
    # Three layers with experts and four micro-batches of one sequence: 12 runs. Of each, 5 rows leave and 7 come; a row has 8 numbers in
    # bf16, and 2 weights and 2 experts in fp32. Forward: 5 rows and labels leave and 7 rows go back; backward the other way.
    layout, visits = parse_layout("dp=2,ep=2"), (Visit(5, 7),) * 12
    num_bytes, num_messages = sent_on("ep", flows(Step(MIXTURE, JOB, layout, visits=visits)))
    numbers = 2 * 2 * 8 / 2
    assert num_bytes == 12 * (numbers + 5 * (16 + 16) + 7 * 16 + 7 * (16 + 16) + 5 * 16)
    assert num_messages == 12 * 7


def test_recomputing_a_layer_sends_tokens_again_but_not_what_comes_back() -> None:
    assert MIXTURE.experts is not None
    shared = replace(MIXTURE, experts=replace(MIXTURE.experts, num_shared=1))
    visits = (Visit(5, 7),) * 12
    for model in (MIXTURE, shared):
        plain, again = (
            sent_on("ep", flows(Step(model, JOB, parse_layout(f"dp=2,ep=2,recompute={kind}"), visits=visits)))[0]
            for kind in ("none", "full")
        )
        assert again - plain == 12 * (2 * 2 * 8 / 2 + 5 * (16 + 16))


@pytest.mark.parametrize("ep, expected", [(2, 16 * (1 - 1 / 6)), (4, 3 * 16 * (1 - 3 / 6))])
def test_even_visits_are_the_mean_of_random_choices(ep: int, expected: float) -> None:
    # A token's two experts of four miss a rank that holds two of them in one of six pairs, and one that holds one in three of six.
    found = even_visits(Step(MIXTURE, JOB, parse_layout(f"dp={ep},ep={ep}")))
    assert found == (Visit(round(expected), round(expected)),) * (3 * 8 // ep)


def test_a_token_goes_to_every_part_of_its_experts() -> None:
    # Two of four experts, each on two ranks: five of six tokens want the two ranks of the others, and all but so many the one beside.
    each = round(16 / 2 * 3 * 5 / 6)
    assert even_visits(Step(MIXTURE, JOB, parse_layout("dp=2,tp=2,ep=2,etp=2")))[0] == Visit(each, each)


@pytest.mark.parametrize("text, ranks", [("dp=2,ep=2", set()), ("dp=4,ep=2", {2}), ("dp=2,tp=2,ep=2,zero=0", {2}), ("dp=2,tp=2", {4})])
def test_routed_experts_are_reduced_over_the_ranks_that_hold_the_same(text: str, ranks: set[int]) -> None:
    size = 4 // parse_layout(text).ep * 6 * 8  # of the down projections that a rank holds
    found = [flow for flow in flows(Step(MIXTURE, JOB, parse_layout(text), bucket_parameters=1)) if flow.what == "gradients"]
    assert {flow.num_ranks for flow in found if flow.payload_bytes == 4 * size} == ranks
