"""Which stack a plan is for where nobody says."""

from __future__ import annotations

import pytest

from meshwright.job import Job
from meshwright.plan.candidates import Fixed, fixed_by
from meshwright.plan.stack import ANY
from meshwright.plan.stack_choice import chosen_stack


@pytest.mark.parametrize(
    "parts, expected",
    [
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", ""), "megatron"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "nemo-26.04"), "bridge"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "torchtitan"), "torchtitan"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "fsdp"), "deepspeed"),
        (("llama-2-70b", "hgx-h200-ndr", "mlperf-llama2-70b-lora", ""), "bridge"),  # Megatron-LM has no adapters
        (("llama-2m", "this-machine", "python-stdlib", ""), "meshwright"),  # no other trains on a processor
    ],
)
def test_the_default_is_a_stack_that_can(parts: tuple[str, ...], expected: str) -> None:
    one = Job(*parts, profile="none")
    same, chosen = chosen_stack(one, "", Fixed())
    assert chosen.name == expected and same == one


def test_a_fixed_choice_is_planned_for_a_stack_that_has_it() -> None:
    one = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=32)
    assert chosen_stack(one, "", fixed_by("pp=2,vp=2,schedule=zero-bubble"))[1].name == "torchtitan"
    assert chosen_stack(one, "", fixed_by("pp=2,vp=1,schedule=zero-bubble"))[1] is ANY  # the trainer has it, and the workload no [training]
