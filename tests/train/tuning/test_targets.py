"""Names of matrices: PEFT's, short ones and kinds; an unknown name gives the nearest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from expert_cases import DEEPSEEK, MIXTRAL
from parity import ATTENTIONS, GPT, LLAMA

from meshwright.errors import InputError
from meshwright.train.tuning.targets import matrix_named

ALL = ("q", "k", "v", "o", "gate", "up", "down")


def test_targets_by_every_name() -> None:
    assert matrix_named("all-linear", LLAMA) == ALL
    assert matrix_named("all-linear", replace(GPT)) == tuple(name for name in ALL if name != "gate")
    assert matrix_named("model.layers.0.self_attn.q_proj", LLAMA) == matrix_named("q", LLAMA) == ("q",)
    assert matrix_named("qkv", LLAMA) == ("q", "k", "v") and matrix_named("proj", LLAMA) == ("o",)


def test_a_model_has_its_own_matrices() -> None:
    latent = ATTENTIONS["latent"]
    assert matrix_named("qkv", latent) == ("q_down", "q_up", "kv_down", "kv_up")
    assert matrix_named("q_a_proj", latent) == ("q_down",) and matrix_named("kv_a_proj_with_mqa", latent) == ("kv_down",)
    assert matrix_named("qkv", ATTENTIONS["direct"]) == ("q", "kv_down", "kv_up")
    assert matrix_named("all-linear", MIXTRAL) == ("q", "k", "v", "o")
    assert matrix_named("all-linear", DEEPSEEK) == ("q", "k", "v", "o")  # though the first layer is dense, and others have shared experts
    for name in ("gate_proj", "mlp"):
        with pytest.raises(InputError, match=f"adapters beside '{name}' of small-mixtral: .* beside attention only") as found:
            matrix_named(name, MIXTRAL)
        assert "q_proj" in found.value.fix


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(InputError, match="no linear layer of small-llama is named 'q_prj'") as found:
        matrix_named("q_prj", LLAMA)
    assert "q_proj" in found.value.fix
    with pytest.raises(InputError, match="no linear layer of small-gpt is named 'gate_proj'"):
        matrix_named("gate_proj", GPT)
