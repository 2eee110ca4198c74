"""What Megatron-LM and Megatron-Bridge do not run."""

from __future__ import annotations

import pytest
from stack_jobs import JOBS

from meshwright.layout import parse_layout
from meshwright.plan.stack import refusals


@pytest.mark.parametrize(
    "layout, why",
    [
        ("pp=4,vp=2,dp=8", "the stages divide the micro-batches, and pp=4 does not"),  # 3 micro-batches
        ("pp=2,vp=2,dp=4,tp=4,schedule=zero-bubble", "has no zero-bubble schedule"),
        ("pp=2,tp=2,dp=8,order=pp-tp-cp-dp", "numbers ranks"),
        ("pp=2,dp=16,zero=3,schedule=1f1b,overlap_pp=no,order=tp-cp-dp-pp", "Megatron-FSDP"),
        ("pp=2,dp=16,schedule=1f1b,order=tp-cp-dp-pp", "more than one chunk per stage"),
    ],
)
def test_what_it_does_not_run_is_said_with_the_reason(layout: str, why: str) -> None:
    assert why in refusals(JOBS["dense"], parse_layout(layout))["megatron"]
