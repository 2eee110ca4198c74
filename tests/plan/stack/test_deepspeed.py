"""What DeepSpeed does not run."""

from __future__ import annotations

import pytest
from stack_jobs import JOBS

from meshwright.layout import parse_layout
from meshwright.plan.stack import refusals


@pytest.mark.parametrize(
    "layout, why",
    [
        ("tp=2,dp=16,cuda_graphs=no", "keeps activations whole"),
        ("pp=2,dp=16,zero=2,schedule=1f1b", "has no pipeline with ZeRO 2"),
    ],
)
def test_what_it_does_not_run_is_said_with_the_reason(layout: str, why: str) -> None:
    assert why in refusals(JOBS["dense"], parse_layout(layout))["deepspeed"]
