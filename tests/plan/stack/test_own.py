"""What the trainer does not run: it refuses by the same rules."""

from __future__ import annotations

import pytest
from stack_jobs import JOBS

from meshwright.errors import InputError
from meshwright.layout import Layout, parse_layout
from meshwright.plan.stack import refusals
from meshwright.plan.stack.own import PRECISIONS, check_trainable


@pytest.mark.parametrize(
    "layout, why",
    [
        ("dp=32", "does not say how to train"),
    ],
)
def test_what_it_does_not_run_is_said_with_the_reason(layout: str, why: str) -> None:
    assert why in refusals(JOBS["dense"], parse_layout(layout))["meshwright"]


def test_the_trainer_has_the_precisions_that_its_rules_name() -> None:
    pytest.importorskip("torch")
    from meshwright.train.replica import NUMBERS

    assert tuple(NUMBERS) == PRECISIONS


def test_no_mixture_of_experts_is_planned_for_the_trainer() -> None:
    with pytest.raises(InputError, match="the trainer cannot run qwen3-30b-a3b with experts"):
        JOBS["experts"].search(stack="meshwright")
    with pytest.raises(InputError, match="cannot run qwen3-30b-a3b with experts"):
        check_trainable(JOBS["experts"].model, JOBS["experts"].workload, Layout())
