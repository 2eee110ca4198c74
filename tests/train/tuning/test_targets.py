"""Names of matrices: PEFT's, short ones and kinds; an unknown name gives the nearest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parity import GPT, LLAMA

from meshwright.errors import InputError
from meshwright.train.tuning.targets import matrix_named

ALL = ("q", "k", "v", "o", "gate", "up", "down")


def test_targets_by_every_name() -> None:
    assert matrix_named("all-linear", LLAMA) == ALL
    assert matrix_named("all-linear", replace(GPT)) == tuple(name for name in ALL if name != "gate")
    assert matrix_named("model.layers.0.self_attn.q_proj", LLAMA) == matrix_named("q", LLAMA) == ("q",)
    assert matrix_named("qkv", LLAMA) == ("q", "k", "v") and matrix_named("proj", LLAMA) == ("o",)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(InputError, match="no linear layer of small-llama is named 'q_prj'") as found:
        matrix_named("q_prj", LLAMA)
    assert "q_proj" in found.value.fix
    with pytest.raises(InputError, match="no linear layer of small-gpt is named 'gate_proj'"):
        matrix_named("gate_proj", GPT)
