"""What torchtitan does not run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stack_jobs import JOBS

from meshwright.layout import parse_layout
from meshwright.plan.stack import refusals


@pytest.mark.parametrize(
    "layout, why",
    [
        ("cp=2,dp=16,cp_kind=all-to-all", "has no context parallelism by all-to-all"),
        ("pp=8,dp=4,schedule=1f1b,order=tp-cp-dp-pp,mbs=2", "at least as many micro-batches as stages"),
        ("dp=32,zero=1", "which is ZeRO 2"),
    ],
)
def test_what_it_does_not_run_is_said_with_the_reason(layout: str, why: str) -> None:
    assert why in refusals(JOBS["dense"], parse_layout(layout))["torchtitan"]


def test_a_vocabulary_that_does_not_divide_is_not_padded_here() -> None:
    job = replace(JOBS["dense"], model=replace(JOBS["dense"].model, vocab_size=128_255))
    refused = refusals(job, parse_layout("tp=2,dp=16"))
    assert "does not pad a vocabulary, and 128255 entries do not divide by tp" in refused["torchtitan"]
    assert all("vocabulary" not in refused.get(name, "") for name in ("meshwright", "megatron", "megatron-bridge"))
