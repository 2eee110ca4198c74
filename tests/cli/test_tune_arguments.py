"""Options of tune: adapters in words, and options that a run keeps."""

from __future__ import annotations

import math

import pytest

from meshwright.cli.tune_arguments import Tuning, adapters_of
from meshwright.describe.load import load_model
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError

LLAMA = load_model("llama-2m")


def test_adapters_in_words() -> None:
    assert adapters_of(Tuning(full=True), LLAMA) is None
    every = ("q", "k", "v", "o", "gate", "up", "down")
    assert adapters_of(Tuning(), LLAMA) == Adapters(rank=16, targets=every, alpha=32.0)
    found = adapters_of(Tuning(lora="r=4,targets=v_proj,q_proj,dropout=0.1,rslora=yes", base="nf4"), LLAMA)
    assert found == Adapters(rank=4, targets=("q", "v"), alpha=8.0, dropout=0.1, rank_stabilised=True, base="nf4")
    assert adapters_of(Tuning(lora="targets=q_proj+o_proj"), LLAMA) == Adapters(rank=16, targets=("q", "o"), alpha=32.0)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("r", "r has no value"),
        ("r=0", "a rank of 0"),
        ("rslora=maybe", "rslora is 'maybe'"),
        ("size=4", "is named 'size'"),
        ("alpha=x", "alpha is 'x'"),
        ("r=2.5", "a rank of 2.5"),
        ("r=nan", "a rank of nan"),
        ("r=2,alpha=4,r=4", "r is given twice"),
        ("targets=q_proj,r=2,targets=v_proj", "targets is given twice"),
    ],
)
def test_wrong_words_are_refused(lora: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapters_of(Tuning(lora=lora), LLAMA)


def test_options_that_do_not_go_together() -> None:
    numbers = ({"epochs": 0.0}, {"epochs": math.nan}, {"epochs": math.inf}, {"learning_rate": 0.0}, {"learning_rate": math.nan})
    for wrong in ({"full": True, "lora": "r=4"}, {"base": "int3"}, *numbers):
        with pytest.raises(InputError):
            Tuning(**wrong)  # type: ignore[arg-type]


def test_a_run_keeps_plain_values() -> None:
    kept = Tuning(adapter="here").kept()
    assert kept["tune_adapter"].startswith("/") and kept["tune_adapter"].endswith("/here")
    assert all(isinstance(value, str | int | float | None) for value in kept.values())
