"""Mixtures of experts: the same loss, gradients, loads, balance losses and biases whatever the layout, against one process.

`make test` runs `COVERING`; `make test-all` adds every factorisation of 1, 2, 4 and 8 ranks with every expert degree and accumulation, and
products of schedules, ZeRO stages, kinds of context parallelism and recompute. Tolerances are those of `test_parity`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from expert_cases import COVERING, MATRIX, MODELS, PRODUCTS, SHORT, TRAININGS, Case
from parity import WORKLOAD, Steps, differences, joined, run_steps
from ranks import Pools

from meshwright.layout import Layout

Reference = Callable[[Case], Steps]

NUM_STEPS = 5
FEWER_STEPS = 2  # of eight ranks in the covering set


@pytest.fixture(scope="module")
def reference(pools: Pools) -> Reference:
    """The run of one process that takes the whole batch at once, computed once for each model and workload."""
    found: dict[object, Steps] = {}

    def run(case: Case) -> Steps:
        key = (case.shapes.name, case.shapes.num_layers, case.short)
        if key not in found:
            whole = Layout(micro_batch=case.workload.global_batch)
            found[key] = joined(pools.of(1).run(run_steps, case.shapes, case.workload, whole, NUM_STEPS, False, case.training))
        return found[key]

    return run


def departures(case: Case, num_steps: int, pools: Pools, reference: Reference) -> list[str]:
    """Where the run of a case departs from that of one process."""
    ranks = pools.of(case.layout.num_ranks)
    found = joined(ranks.run(run_steps, case.shapes, case.workload, case.layout, num_steps, False, case.training))
    return differences(found, reference(case).first(num_steps))


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert departures(case, NUM_STEPS if case.layout.num_ranks < 8 else FEWER_STEPS, pools, reference) == []


@pytest.mark.long
@pytest.mark.parametrize("case", [*MATRIX, *PRODUCTS], ids=str)
def test_every_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert departures(case, NUM_STEPS, pools, reference) == []


def test_runs_differ_enough_that_parity_compares_something(reference: Reference) -> None:
    for name in MODELS:
        steps = reference(Case(Layout(), name))
        assert len(set(steps.losses)) == NUM_STEPS
        assert len({routing.loads for layers in steps.routing for routing in layers}) > NUM_STEPS
        assert all(routing.entropy > 0 for layers in steps.routing for routing in layers)
    biased = reference(Case(Layout(), "deepseek")).routing
    assert biased[0][0].bias_norm == 0 < biased[-1][0].bias_norm
    assert any(min(routing.loads) == 0 for layers in reference(Case(Layout(), "deepseek", short=True)).routing for routing in layers)


def test_every_family_has_a_balance() -> None:
    assert TRAININGS.keys() == MODELS.keys()
    assert SHORT.seq_len < WORKLOAD.seq_len
