"""Memory: six bytes for a trained parameter at the least, half a byte for a frozen one; an H100 has 80 GB."""

from __future__ import annotations

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.room import check


@pytest.mark.parametrize("gpus, expected", [(75, "consistent"), (74, "implausible"), (8, "implausible"), (1024, "consistent")])
def test_a_trillion_parameters_need_6000_gb(gpus: int, expected: str) -> None:
    assert verdicts(check, parameters=1e12, accelerator="h100", gpus=gpus) == {"memory": expected}


def test_a_frozen_base_needs_less() -> None:
    assert verdicts(check, model="llama-2-70b", accelerator="h100", gpus=1) == {"memory": "implausible"}  # 414 GB
    assert verdicts(check, benchmark="llama2_70b_lora", accelerator="h100", gpus=1) == {"memory": "consistent"}  # 34 GB


def test_the_arithmetic_shows_both_sides() -> None:
    lines = statements(check, parameters=1e12, accelerator="h100", gpus=8)["memory"].arithmetic
    assert "x 6 bytes, the least in use = 6,000 GB" in lines[0] and "640 GB" in lines[1]


@pytest.mark.parametrize("missing", ["parameters", "accelerator", "gpus"])
def test_nothing_is_stated_where_model_or_machine_is_not_known(missing: str) -> None:
    facts = {"parameters": 1e12, "accelerator": "h100", "gpus": 8}
    del facts[missing]
    assert verdicts(check, **facts) == {}
