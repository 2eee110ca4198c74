"""When a run ends, and what must be the same for it to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_run import EVALUATION, Small

from meshwright.errors import InputError
from meshwright.train.job import TrainingJob, code_digest, digests, log_settings


def job(small: Small, layout: str = "dp=2", **changes: Any) -> TrainingJob:
    training = changes.pop("training", None)
    workload = changes.pop("workload", {})
    return TrainingJob(plan=small.plan(layout, training=training, **workload), runs=Path("runs"), name="a", corpus=small.corpus, **changes)


def test_a_run_ends_at_its_last_sample_or_step(small: Small) -> None:
    assert job(small).last_step == 4000 // 8
    assert job(small, num_steps=7).last_step == 7
    assert job(small, num_steps=900).last_step == 500
    assert job(small, training={"most_samples": 17.0}).last_step == 3


def test_a_run_is_expected_to_end_at_its_target_or_its_last_step(small: Small) -> None:
    tokens = {"num_tokens": 100.0 * 8 * 32}  # 100 steps
    assert job(small).expected_steps == 500
    assert job(small, workload=tokens).expected_steps == 500  # without a target loss, most_samples end it
    to_target = {"workload": tokens, "training": {"target_loss": 3.0}}
    assert job(small, **to_target).expected_steps == 100
    assert job(small, **to_target, num_steps=60).expected_steps == 60


def test_a_run_without_an_end(small: Small) -> None:
    endless = job(small, training={"most_samples": 0.0})
    with pytest.raises(InputError, match="nothing says when the run ends"):
        _ = endless.last_step
    assert replace(endless, num_steps=3).last_step == 3


def test_layout_and_evaluation_may_change_but_not_what_is_trained(small: Small) -> None:
    before = digests(job(small), "corpus")
    assert digests(job(small, "tp=2"), "corpus") == before
    assert digests(job(small, workload={"evaluation": EVALUATION}), "corpus") == before
    assert digests(job(small, num_steps=3), "corpus") == before
    for changed in (job(small, seed=1), job(small, training={"learning_rate": 1e-4}), job(small, workload={"seq_len": 16})):
        now = digests(changed, "corpus")
        assert [name for name in before if before[name] != now[name]] == ["plan"]
    assert digests(job(small), "another") == {**before, "corpus": "another"}
    assert before["code"] == code_digest()


def test_what_the_log_says_of_a_run(small: Small) -> None:
    settings = log_settings(job(small, "tp=2,dp=2,mbs=1", workload={"evaluation": EVALUATION}), 900, "a machine")
    assert (settings.global_batch, settings.gradient_accumulation_steps, settings.micro_batch) == (8, 4, 1)
    assert (settings.warmup_steps, settings.decay_steps, settings.train_samples, settings.eval_samples) == (2, 48, 900, 6)
