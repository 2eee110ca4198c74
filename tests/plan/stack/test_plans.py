"""What is planned for a stack it runs: by its own rules, by its exporter and, for meshwright, by the trainer own check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stack_jobs import JOBS

from meshwright.layout import AXES, Layouts
from meshwright.plan.export import exported
from meshwright.plan.noise import plan_noise
from meshwright.plan.plan import plan_of
from meshwright.plan.search import num_unusual, search
from meshwright.plan.stack import STACKS, asked_of, candidates, runs_on
from meshwright.plan.stack.own import check_trainable
from meshwright.predict.footprint import spare_bytes
from meshwright.predict.placement import tiers_of
from meshwright.predict.prediction import predict


def able(name: str) -> list[tuple[str, str]]:
    return [(name, stack.name) for stack in candidates(JOBS[name])]


@pytest.mark.parametrize("name, stack", [pair for name in JOBS for pair in able(name)])
def test_every_plan_for_a_stack_is_legal_and_the_stack_runs_it(name: str, stack: str) -> None:
    one = JOBS[name]
    found = one.search(keep=12, stack=stack)
    assert found
    for forecast in found:
        one.check(forecast.layout)
        assert stack in runs_on(forecast.job, forecast.layout)
        assert STACKS[stack].differences(asked_of(one), forecast.layout) == []
        if kind := STACKS[stack].export:
            assert exported(plan_of(forecast), kind)
        else:
            check_trainable(one.model, one.workload, forecast.layout)


@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "deepspeed"])
def test_a_pruned_search_for_a_stack_counts_every_layout_once_and_finds_the_best(name: str, stack: str) -> None:
    one, chosen = JOBS[name], STACKS[stack]
    pruned, everything = (search(one, keep=5, prune=prune, stack=chosen) for prune in (True, False))
    assert pruned.layouts[0] == everything.layouts[0]
    assert pruned.num_legal == everything.num_legal


def test_layouts_that_differ_in_the_name_of_their_order_alone_are_one() -> None:
    one = JOBS["rack"]
    layouts = search(one, keep=300).layouts
    seen = {
        (replace(layout, zero_stage=1, recompute="none", order=AXES), tuple(tiers_of(layout, one.cluster).items())) for layout in layouts
    }
    assert len(seen) == len(layouts)


def test_equal_plans_stand_by_memory_to_spare_then_by_unusual_choices() -> None:
    one, noise = JOBS["dense"], plan_noise()
    plain, found = search(one, keep=20), search(one, keep=20, noise=noise)
    fastest, equal = plain.step_s[0], found.layouts[: found.num_equal]
    assert found.num_equal > 1 and all(step_s <= fastest * (1 + noise) for step_s in found.step_s[: found.num_equal])
    assert all(step_s > fastest * (1 + noise) for step_s in found.step_s[found.num_equal :])
    rows = Layouts.of(equal)
    chip = one.cluster.accelerator
    spare = np.minimum(spare_bytes(predict(one, rows).memory, chip) // (chip.memory_bytes / 10), 2)
    order = list(zip(-spare, num_unusual(rows, one.cluster), strict=True))
    assert order == sorted(order)
