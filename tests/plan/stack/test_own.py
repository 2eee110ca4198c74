"""What the trainer does not run: it refuses by the same rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stack_jobs import JOBS

from meshwright.describe.load import load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.router import Balance
from meshwright.describe.workload import Adapters, Training, Workload
from meshwright.errors import InputError
from meshwright.job import Job
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


EXPERTS = JOBS["experts"]
TRAINED = replace(EXPERTS.workload, training=Training(learning_rate=1e-3))


def test_a_mixture_of_experts_is_planned_for_the_trainer() -> None:
    best = Job(EXPERTS.model, EXPERTS.cluster, TRAINED).search(stack="meshwright")
    layouts = [forecast.layout for forecast in best]
    assert any(layout.ep > 1 for layout in layouts)
    for layout in layouts:
        check_trainable(EXPERTS.model, TRAINED, layout)


@pytest.mark.parametrize(
    "workload, why",
    [
        (replace(TRAINED, training=Training(learning_rate=1e-3, balance=Balance(bias_rate=1e-3))), "whose router has none"),
        (
            replace(TRAINED, adapters=Adapters(rank=8, targets=("q", "down"))),
            "finds no matrix of qwen3-30b-a3b for each of the targets q, down",
        ),
    ],
)
def test_what_experts_do_not_run_with_is_said(workload: Workload, why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_trainable(EXPERTS.model, workload, Layout())


def test_experts_run_in_fp8_where_their_width_allows_it() -> None:
    narrow = replace(TRAINED, precision="fp8-current")
    check_trainable(EXPERTS.model, narrow, Layout())
    assert EXPERTS.model.experts is not None
    odd = replace(EXPERTS.model, experts=replace(EXPERTS.model.experts, hidden=760))
    with pytest.raises(InputError, match="multiples of 16; the width of an expert is 760"):
        check_trainable(odd, narrow, Layout())


@pytest.mark.parametrize(
    "text, why",
    [("dp=3,ep=3", "expert degree 3 does not divide 128 experts"), ("dp=2,ep=4", "expert degree 4 does not divide dp x cp x tp = 2")],
)
def test_a_degree_that_does_not_divide_is_one_message(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_trainable(EXPERTS.model, replace(TRAINED, global_batch=12), parse_layout(text))


def test_the_example_of_experts_is_trainable() -> None:
    folder = Path(__file__).parents[3] / "examples" / "experts"
    model, workload = load_model(folder / "model.toml"), load_workload(folder / "workload.toml")
    assert model.experts is not None and workload.training is not None and workload.training.balance.bias_rate > 0
    check_trainable(model, workload, parse_layout("dp=4,tp=2,ep=2,mbs=2"))


@pytest.mark.parametrize(
    "model, workload, why",
    [
        (
            replace(load_model("llama-3.1-8b"), num_prediction_layers=1, num_positions=8192),
            TRAINED,
            "prediction layers and learned positions",
        ),
        (
            replace(load_model("llama-3.1-8b"), num_prediction_layers=1),
            replace(TRAINED, adapters=Adapters(rank=8, targets=("q",))),
            "adapts models without prediction layers, and llama-3.1-8b has 1",
        ),
    ],
)
def test_what_prediction_layers_do_not_run_with_is_said(model: Model, workload: Workload, why: str) -> None:
    check_trainable(replace(model, num_positions=0), replace(workload, adapters=None), Layout())
    with pytest.raises(InputError, match=why):
        check_trainable(model, workload, Layout())
