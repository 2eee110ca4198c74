"""Overlap is real: reductions leave before the backward ends, and what a rank waits for is booked on the axis that it waits on."""

from __future__ import annotations

import pytest
from expert_cases import DEEPSEEK, MIXTRAL
from on_experts import steps_with_rows_in_turn
from on_ranks import order_of_a_step, travels_of_a_step, waits_for_a_slow_rank, weights_of_a_step
from parity import LLAMA, WORKLOAD, joined, run_steps
from ranks import Pools

from meshwright.layout import parse_layout

SLEEP_S = 1.0


def last_product(order: list[str]) -> int:
    """Place of the last product of matrices, which is one of the backward's."""
    return max(i for i, what in enumerate(order) if what == "product")


@pytest.mark.parametrize(
    "text", ["dp=2,zero=0,mbs=4", "dp=2,zero=1,mbs=4", "dp=2,zero=2,mbs=2", "dp=2,zero=3,mbs=4", "dp=2,zero=1,mbs=1", "pp=2,dp=2,mbs=1"]
)
def test_gradients_leave_before_the_backward_ends(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    for order in pools.of(layout.num_ranks).run(order_of_a_step, LLAMA, WORKLOAD, layout):
        reductions = [i for i, what in enumerate(order) if what != "product"]
        assert reductions[0] < last_product(order)
        assert reductions[-1] > reductions[0]


def test_most_gradients_leave_before_the_backward_ends(pools: Pools) -> None:
    layout = parse_layout("dp=2,mbs=4")
    for order in pools.of(2).run(order_of_a_step, LLAMA, WORKLOAD, layout):
        early = [what for what in order[: last_product(order)] if what != "product"]
        late = [what for what in order[last_product(order) :] if what != "product"]
        assert early and len(early) + len(late) == len([what for what in order if what != "product"])
        assert len(early) >= 3


def test_sums_over_groups_that_share_a_state_leave_before_the_backward_ends(pools: Pools) -> None:
    for text in ("dp=4,zero=1,zero_ranks=2,mbs=2", "dp=4,zero=2,zero_ranks=2,mbs=2"):
        for order in pools.of(4).run(order_of_a_step, LLAMA, WORKLOAD, parse_layout(text)):
            across = [i for i, what in enumerate(order) if what == "all-reduce"]
            within = [i for i, what in enumerate(order) if what == "reduce-scatter"]
            assert len(across) == len(within) > 2
            assert len([i for i in across if i < last_product(order)]) >= 2  # each one bucket after its first sum


def test_layers_wait_for_their_own_weights_alone(pools: Pools) -> None:
    for text in ("dp=2,zero=1,mbs=4", "pp=2,dp=2,zero=2,mbs=2"):
        layout = parse_layout(text)
        for order in pools.of(layout.num_ranks).run(weights_of_a_step, LLAMA, WORKLOAD, layout):
            waits = [i for i, what in enumerate(order) if what == "weights"]
            assert len(waits) > 2
            assert order[0] == "weights" and order[waits[-1] - 1] == "product"
            assert "weights" in order[order.index("product") :]


def test_without_overlap_weights_are_waited_for_before_the_first_layer(pools: Pools) -> None:
    for order in pools.of(2).run(weights_of_a_step, LLAMA, WORKLOAD, parse_layout("dp=2,zero=1,mbs=4,overlap_dp=no")):
        assert "weights" not in order[order.index("product") :]
        assert order.count("weights") > 2


def test_without_overlap_gradients_wait_for_the_end(pools: Pools) -> None:
    layout = parse_layout("dp=2,mbs=4,overlap_dp=no")
    for order in pools.of(2).run(order_of_a_step, LLAMA, WORKLOAD, layout):
        assert min(i for i, what in enumerate(order) if what != "product") > last_product(order)


def travels(order: list[str]) -> list[int]:
    """Products of matrices between the moment when rows leave and that when they are waited for, for each time that they do."""
    found, words = [], " ".join(order).replace("leave leave", "leave").replace("wait wait", "wait").split()
    for place, what in enumerate(words):
        if what == "leave":
            found.append(words.index("wait", place) - place - 1)
    return found


@pytest.mark.parametrize("text, again", [("dp=2,ep=2,mbs=4", []), ("tp=2,ep=2,mbs=8", []), ("dp=2,ep=2,mbs=4,recompute=full", [2])])
def test_shared_experts_are_computed_while_tokens_and_gradients_travel(text: str, again: list[int], pools: Pools) -> None:
    num_layers = DEEPSEEK.num_layers - 1
    for order in pools.of(2).run(travels_of_a_step, DEEPSEEK, WORKLOAD, parse_layout(text)):
        # Forward, two products while tokens go to their experts. Backward, again the two if a layer is computed again, and the four of
        # their gradients while those of tokens return. While what experts made comes back, or its gradients go there, there are none.
        assert travels(order) == [2, 0] * num_layers + [0, *again, 4] * num_layers


def test_without_shared_experts_rows_are_waited_for_at_once(pools: Pools) -> None:
    for order in pools.of(2).run(travels_of_a_step, MIXTRAL, WORKLOAD, parse_layout("dp=2,ep=2,mbs=4")):
        assert travels(order) == [0] * 4 * MIXTRAL.num_layers


@pytest.mark.parametrize("text", ["dp=2,ep=2,mbs=2,zero=1", "tp=2,ep=2,mbs=4,recompute=full"])
def test_what_overlaps_changes_no_bit(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    found, wanted = (joined(pools.of(2).run(body, DEEPSEEK, WORKLOAD, layout, 3)) for body in (run_steps, steps_with_rows_in_turn))
    assert found.losses == wanted.losses and found.norms == wanted.norms
    for name, gradient in wanted.gradients.items():
        assert (found.gradients[name] == gradient).all(), name


@pytest.mark.parametrize(
    "text, slow_rank, waits",
    [
        ("tp=2,dp=2,mbs=4", 1, {0: "exposed_tp", 2: "exposed_dp", 3: "exposed_dp"}),
        ("cp=2,mbs=8", 0, {1: "exposed_cp"}),
        ("pp=2,mbs=8", 0, {1: "wait_pp"}),
        ("dp=2,zero=0,mbs=4", 1, {0: "exposed_dp"}),
        ("dp=2,zero=3,mbs=4", 0, {1: "exposed_dp"}),
    ],
)
def test_waiting_for_a_slow_rank_is_booked_on_the_axis_that_waits(text: str, slow_rank: int, waits: dict[int, str], pools: Pools) -> None:
    layout = parse_layout(text)
    found = pools.of(layout.num_ranks).run(waits_for_a_slow_rank, LLAMA, WORKLOAD, layout, slow_rank, SLEEP_S)
    for rank, part in waits.items():
        seconds = {name: s for name, s in found[rank].items() if name.startswith(("exposed_", "wait_pp"))}
        assert seconds[part] > SLEEP_S / 2  # some of it may pass before the wait, on a machine with few cores
        assert max(seconds, key=lambda name: seconds[name]) == part
        assert found[slow_rank].get(part, 0.0) < seconds[part]  # who is slow does not wait for itself
