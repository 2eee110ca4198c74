"""The same loss, gradients and norms whatever the layout: runs over gloo ranks against the run of one process.

Which subset runs where:

- `make test` runs `COVERING`: about twenty layouts, mostly of four ranks, two of eight and one of sixteen (three steps). Every value of
  every option (schedule, ZeRO stage, kind of context parallelism, recompute, model, packing, rank order, ...) appears together with
  every axis that it can appear with; `test_covering_set_has_every_pair` says so.
- `make test-all` adds `MATRIX`: every factorisation of 1, 2, 4 and 8 ranks into (dp, pp, cp, tp), each with every schedule, ZeRO stage
  and kind of context parallelism that is legal there; 2 x 2 x 2 x 2 = 16 ranks likewise; and on few ranks the full products of
  schedules x ZeRO, kinds x ZeRO, kinds x schedules and kinds x recompute, and all 24 rank orders.

Ten steps are taken, in fp32. Losses must agree to 1e-5 relative, every gradient of the first step to 1e-5 of its largest entry or 1e-7
of the global norm, and the norm of the first step to 1e-5. Later norms to 1e-4: after an update the weights differ by roundings.
The reference is one process that takes the whole batch at once, once for each model and workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from layout_cases import (
    ATTENDING,
    COPIES,
    COVERING,
    MATRIX,
    PADDINGS,
    SIXTEEN,
    Case,
    factorisations,
)
from parity import ATTENTIONS, MODELS, WORKLOAD, Steps, differences, joined, run_dealt, run_steps
from ranks import Pools

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import AXES, CP_KINDS, Layout, parse_layout

Reference = Callable[[Model, Workload], Steps]

NUM_STEPS = 10
FEWER_STEPS = 3  # of many ranks in the covering set; the matrix takes all ten with as many ranks


@pytest.fixture(scope="module")
def reference(pools: Pools) -> Reference:
    """The run of one process, computed once for each model and workload."""

    found: dict[str, Steps] = {}

    def run(model: Model, workload: Workload) -> Steps:
        key = str(asdict(model)) + str(asdict(workload))
        if key not in found:
            whole = Layout(micro_batch=workload.global_batch)
            found[key] = joined(pools.of(1).run(run_steps, model, workload, whole, NUM_STEPS))
        return found[key]

    return run


def found_and_wanted(case: Case, num_steps: int, pools: Pools, reference: Reference) -> tuple[Steps, Steps]:
    """What the ranks of a case found, and what one process did."""
    wanted = reference(case.shapes, case.workload)
    found = joined(pools.of(case.layout.num_ranks).run(run_steps, case.shapes, case.workload, case.layout, num_steps))
    return found, wanted.first(num_steps)


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    num_steps = NUM_STEPS if case.layout.num_ranks < 8 else FEWER_STEPS
    assert differences(*found_and_wanted(case, num_steps, pools, reference)) == []


@pytest.mark.parametrize("layout", ["dp=2", "dp=2,pp=2,vp=2", "dp=2,pp=2,schedule=zero-bubble", "dp=2,cp=2,zero=1", "dp=2,tp=2"])
def test_an_uneven_deal_of_micro_batches_equals_one_process(layout: str, pools: Pools, reference: Reference) -> None:
    model, parsed = MODELS["llama"], parse_layout(layout)
    deals = [(4, 4), (2, 6), (7, 1), (4, 4)]
    of_ranks = pools.of(parsed.num_ranks).run(run_dealt, model, WORKLOAD, parsed, deals)
    wanted = reference(model, WORKLOAD)
    assert all(found == of_ranks[0] for found in of_ranks)
    assert [loss for loss, _ in of_ranks[0]] == pytest.approx(wanted.losses[: len(deals)], rel=1e-5)
    assert [norm for _, norm in of_ranks[0]] == pytest.approx(wanted.norms[: len(deals)], rel=1e-4)


def test_sixteen_ranks_on_four_axes_equal_one_process(pools: Pools, reference: Reference) -> None:
    assert differences(*found_and_wanted(SIXTEEN, FEWER_STEPS, pools, reference)) == []


@pytest.mark.parametrize("case", COPIES, ids=str)
def test_ranks_that_hold_the_same_key_value_head_equal_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert differences(*found_and_wanted(case, FEWER_STEPS, pools, reference)) == []


@pytest.mark.parametrize("case", ATTENDING, ids=str)
def test_norms_windows_sinks_and_latent_vectors_equal_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert differences(*found_and_wanted(case, FEWER_STEPS, pools, reference)) == []


@pytest.mark.long
@pytest.mark.parametrize("model", ATTENTIONS)
@pytest.mark.parametrize("text", [f"tp=2,cp=2,mbs=4,cp_kind={kind}" for kind in CP_KINDS] + ["cp=4,mbs=2,cp_kind=ring", "dp=2,pp=2,mbs=1"])
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
def test_every_attention_on_every_axis_equals_one_process(model: str, text: str, packed: bool, pools: Pools, reference: Reference) -> None:
    if model == "few-norms" and "all-to-all" in text:
        pytest.skip("two key-value heads do not divide over four ranks")
    assert differences(*found_and_wanted(Case(parse_layout(text), model, packed), NUM_STEPS, pools, reference)) == []


@pytest.mark.parametrize("case", PADDINGS, ids=str)
def test_a_vocabulary_that_does_not_divide_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    """Gradients are compared as whole tensors, so padding is in none of them; ten steps, so that it would show if padding changed."""
    assert differences(*found_and_wanted(case, NUM_STEPS, pools, reference)) == []


@pytest.mark.long
@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_every_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert differences(*found_and_wanted(case, NUM_STEPS, pools, reference)) == []


def test_losses_fall_so_that_parity_compares_something(reference: Reference) -> None:
    for model in MODELS.values():
        steps = reference(model, WORKLOAD)
        assert len(set(steps.losses)) == NUM_STEPS
        assert all(np.abs(gradient).max() > 0 for gradient in steps.gradients.values())


BF16 = replace(WORKLOAD, precision="bf16")
BF16_TOLERANCE = 2.0**-8 * 4  # a few roundings to eight bits: hidden states, weights and gradients are all rounded


@pytest.mark.parametrize("text", ["tp=2,pp=2,mbs=2", "cp=2,dp=2,zero=3,mbs=2", "dp=2,zero=2,recompute=full"])
def test_bf16_stays_near_fp32(text: str, pools: Pools, reference: Reference) -> None:
    layout, wanted = parse_layout(text), reference(MODELS["llama"], WORKLOAD)
    found = joined(pools.of(layout.num_ranks).run(run_steps, MODELS["llama"], BF16, layout, 3))
    assert found.losses == pytest.approx(wanted.losses[:3], rel=BF16_TOLERANCE)
    assert found.norms[0] == pytest.approx(wanted.norms[0], rel=BF16_TOLERANCE)
    for name, gradient in wanted.gradients.items():
        apart = np.linalg.norm(found.gradients[name] - gradient) / np.linalg.norm(gradient)
        assert apart < 0.1, f"{name} is {apart:.3f} of its norm apart"


WHOLE_BF16 = replace(BF16, packed=False)  # every label counts, so that gradients are divided by a power of two, which keeps their bits


def share_beyond_bf16(gradient: np.ndarray) -> float:
    """Share of the entries that bf16 could not hold."""
    bits = np.ascontiguousarray(gradient).view(np.uint32) & 0xFFFF
    return float(np.mean(bits[gradient != 0] != 0))


@pytest.mark.parametrize("text", ["mbs=1", "dp=2,zero=0", "dp=2,zero=2", "dp=2,zero=3", "pp=2,schedule=zero-bubble"])
def test_gradients_of_bf16_micro_batches_are_added_in_fp32(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    found = joined(pools.of(layout.num_ranks).run(run_steps, MODELS["llama"], WHOLE_BF16, layout, 1))
    # Some sums need no more bits, above all where few micro-batches have a token; in bf16 none would have them.
    assert {name: share for name, g in found.gradients.items() if (share := share_beyond_bf16(g)) < 0.25} == {}


def test_the_gradient_of_one_bf16_micro_batch_has_the_resolution_of_bf16(pools: Pools) -> None:
    found = joined(pools.of(1).run(run_steps, MODELS["llama"], WHOLE_BF16, Layout(micro_batch=8), 1))
    assert max(map(share_beyond_bf16, found.gradients.values())) == 0


def axes_of(layout: Layout) -> set[str]:
    """Axes of more than one rank."""
    return {axis for axis in AXES if getattr(layout, axis) > 1}


def traits(case: Case) -> set[tuple[object, ...]]:
    """What a case is an example of."""
    layout = case.layout
    found: set[tuple[object, ...]] = {
        ("model", case.model),
        ("packed", case.packed),
        ("recompute", layout.recompute),
        ("overlap_dp", layout.overlap_dp),
        ("accumulates", layout.num_micro_batches(WORKLOAD.global_batch) > 1),
        *(("axis", axis) for axis in axes_of(layout)),
    }
    if layout.pp > 1:
        found.add(("schedule", "1f1b" if (layout.schedule, layout.vp) == ("interleaved", 1) else layout.schedule, min(layout.vp, 2)))
    if layout.cp > 1:
        found.add(("kind", layout.cp_kind))
    if layout.dp * layout.cp > 1:
        found.add(("zero", layout.zero_stage, layout.zero_ranks > 0))
    return found


def pairs(case: Case) -> set[tuple[object, ...]]:
    """Axes with the traits that stand beside them; shared states beside tp or pp take eight ranks, and are left to the matrix."""
    found = {(axis, *trait) for axis in axes_of(case.layout) for trait in traits(case)}
    return {pair for pair in found if not (pair[0] in ("tp", "pp") and pair[1] == "zero" and pair[3])}


def test_covering_set_has_every_pair() -> None:
    covered = set().union(*map(pairs, [*COVERING, SIXTEEN]))
    assert set().union(*map(pairs, MATRIX)) - covered == set()


def test_matrix_has_every_factorisation_with_every_option() -> None:
    cases = [*MATRIX, *COVERING]
    for num_ranks in (1, 2, 4, 8):
        for dp, pp, cp, tp in factorisations(num_ranks):
            mine = [c.layout for c in cases if (c.layout.dp, c.layout.pp, c.layout.cp, c.layout.tp) == (dp, pp, cp, tp)]
            assert mine
            assert pp == 1 or {layout.schedule for layout in mine} >= {"1f1b", "zero-bubble"}
            assert pp in (1, 8) or {(layout.schedule, layout.vp) for layout in mine} >= {("interleaved", 2), ("zero-bubble", 2)}
            assert cp == 1 or {layout.cp_kind for layout in mine} == set(CP_KINDS)
            assert dp * cp == 1 or {layout.zero_stage for layout in mine if not layout.zero_ranks} == {0, 1, 2, 3}
            assert dp * cp < 4 or {layout.zero_stage for layout in mine if layout.zero_ranks} == {1, 2, 3}
