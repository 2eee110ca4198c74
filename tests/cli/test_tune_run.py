"""How tune chooses what it trains: the model, the batch, the rate, the plan."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from tuned import TUNED, write_data, write_model

from meshwright.cli.tune_arguments import Tuning
from meshwright.cli.tune_run import Given, choices_of, given_model, marker_of, plan_for, started_adapters, workload_of
from meshwright.errors import InputError
from meshwright.train.tuning.dataset import prepare


def wishes_of(**changes: object):
    from meshwright.cli.train_arguments import Wishes

    usual = dict(
        plan=None, layout="", steps=None, name="a", runs=Path("runs"), resume=False, corpus=None, start_from=None, seed=0, benchmark="",
        checkpoint_every=None, save=True, keep=3, keep_every=0, stall_timeout_s=10.0, grace_s=30.0, rendezvous_timeout_s=60.0,
        allow_changed=(), as_json=False, profile="none",
    )  # fmt: skip
    return Wishes(**{**usual, **changes})


def test_a_workload_goes_through_the_data_as_often_as_asked(tmp_path: Path) -> None:
    given = given_model(wishes_of(start_from=write_model(tmp_path / "model")))
    assert given.context == 256 and given.model.hidden == TUNED.hidden
    tuning = Tuning(epochs=2.5, lora="r=2")
    data = prepare(write_data(tmp_path), marker_of(given, "assistant"), choices_of(tuning, wishes_of(), given, None))
    workload = workload_of(tuning, given.model, data, None)
    assert len(data.train) == 22 and workload.global_batch == 16 and workload.training is not None
    assert workload.training.most_samples == 48 and workload.training.learning_rate == 5e-3
    rates = [workload_of(tuning, replace(given.model, hidden=width), data, None).training for width in (4096, 8192)]
    assert [training.learning_rate for training in rates if training] == [2e-4, 1e-4]
    assert workload.evaluation is not None and workload.evaluation.num_samples == 2
    assert workload_of(Tuning(full=True), given.model, data, None).training.learning_rate == 2e-5
    plan = plan_for(wishes_of(layout="tp=2,mbs=4"), given.model, workload, None)
    assert plan.layout.tp == 2 and plan.layout.num_ranks == 2


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        given_model(wishes_of(start_from=tmp_path))


def test_an_adapter_that_is_started_from_decides(tmp_path: Path) -> None:
    import torch

    from meshwright.describe.workload import Adapters
    from meshwright.train.interop.peft import named_pairs, save_peft

    adapters = Adapters(rank=2, targets=("q", "v"), alpha=6.0)
    pairs = {name: torch.zeros(tensor.shape) for name, tensor in named_pairs(TUNED, adapters).items()}
    save_peft(tmp_path / "adapter", TUNED, adapters, pairs, "elsewhere", {})
    started = Tuning(adapter=str(tmp_path / "adapter"), base="fp8")
    assert started_adapters(started, TUNED) == Adapters(rank=2, targets=("q", "v"), alpha=6.0, base="fp8")
    with pytest.raises(InputError, match="--lora asks for others"):
        started_adapters(Tuning(adapter=str(tmp_path / "adapter"), lora="r=4"), TUNED)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:

    folder = write_model(tmp_path / "model")
    with pytest.raises(InputError, match="the tokenizer has 618 tokens and the model 100"):
        marker_of(Given(folder, replace(TUNED, vocab_size=100), 256), "assistant")
