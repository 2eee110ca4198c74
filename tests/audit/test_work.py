"""FLOPs that a claimed run must have done: counted as everywhere here, worked by hand, and always in the claim's favour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.audit import work
from meshwright.audit.claim import Run
from meshwright.audit.submissions import flops_per_sample, submissions
from meshwright.audit.work import (
    alike,
    attention_range,
    fewest_samples,
    is_trained_whole,
    run_work,
    samples_of,
    seq_len_of,
    step_work,
    usual_samples,
)
from meshwright.describe.load import load_model
from meshwright.errors import InputError
from meshwright.evidence.mlperf import BENCHMARKS


def test_parameters_alone_count_six_a_token() -> None:
    # 70e9 parameters, 1e12 tokens: 6 x 70e9 x 1e12 = 4.2e23
    found = run_work(Run(parameters=70e9, tokens=1e12))
    assert found is not None and found.flops == pytest.approx(4.2e23) and found.usual_flops == 0.0
    assert found.line == "work: 1.000e12 tokens x 4.200e11 FLOP (6 x 7.000e10 parameters) = 4.200e23 FLOP"


def test_a_model_counts_its_own_flops_with_attention_where_a_length_is_known() -> None:
    model = load_model("llama-3.1-8b")
    short = run_work(Run(model="llama-3.1-8b", tokens=1e12))
    long = run_work(Run(model="llama-3.1-8b", tokens=1e12, seq_len=8192))
    assert short is not None and long is not None
    assert short.flops == pytest.approx(1e12 * model.flops_per_token(1)) and "attention left out: no seq_len" in short.line
    assert long.flops == pytest.approx(1e12 * model.flops_per_token(8192)) and "sequences of 8,192" in long.line
    assert short.flops < long.flops  # what is not known is counted in the claim's favour


def test_a_benchmark_without_samples_is_counted_with_the_fewest_on_record() -> None:
    found = run_work(Run(benchmark="llama31_405b"))
    assert found is not None and found.flops == pytest.approx(fewest_samples("llama31_405b") * flops_per_sample("llama31_405b"))
    assert "(the fewest on record) x 8,192 tokens" in found.line
    assert found.usual_flops == pytest.approx(usual_samples("llama31_405b") * flops_per_sample("llama31_405b"))
    assert found.flops < found.usual_flops
    claimed = run_work(Run(benchmark="llama31_405b", samples=300_000))
    assert claimed is not None and "300,000 samples (claimed)" in claimed.line and claimed.usual_flops == 0.0
    assert claimed.flops == pytest.approx(300_000 * flops_per_sample("llama31_405b"))


def test_claimed_tokens_of_a_benchmark_are_its_samples() -> None:
    by_tokens, by_samples = (run_work(Run(benchmark="llama31_8b", **said)) for said in ({"tokens": 100.0 * 8192}, {"samples": 100.0}))
    assert by_tokens is not None and by_samples is not None and by_tokens.flops == pytest.approx(by_samples.flops)


@pytest.mark.parametrize("run", [Run(), Run(tokens=1e12), Run(model="llama-3.1-8b"), Run(parameters=7e9), Run(samples=100.0, gpus=8)])
def test_what_does_not_say_enough_is_not_counted(run: Run) -> None:
    assert run_work(run) is None and step_work(run) is None


def test_a_step_is_its_batch_of_sequences() -> None:
    run = Run(model="llama-3.1-8b", seq_len=4096, global_batch=256)
    found = step_work(run)
    assert found is not None and found.flops == pytest.approx(256 * 4096 * load_model("llama-3.1-8b").flops_per_token(4096))
    benchmark = step_work(Run(benchmark="llama31_405b", global_batch=1152))
    assert benchmark is not None and benchmark.flops == pytest.approx(1152 * flops_per_sample("llama31_405b"))
    for missing in ({"seq_len": 0}, {"global_batch": 0}, {"model": ""}):
        assert step_work(replace(run, **missing)) is None


def test_the_length_of_a_sequence_is_the_claims_or_the_benchmarks() -> None:
    assert seq_len_of(Run(benchmark="gpt3")) == 2048 and seq_len_of(Run(benchmark="llama31_405b")) == 8192
    assert seq_len_of(Run(benchmark="gpt3", seq_len=4096)) == 4096
    assert seq_len_of(Run(model="llama-3.1-8b")) == 0


def test_a_benchmark_of_unknown_length_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHMARKS, "new", ("llama-3.1-8b", "no-such-workload"))
    assert seq_len_of(Run(benchmark="new")) == 0 and run_work(Run(benchmark="new")) is None
    with pytest.raises(InputError, match="the length of new's sequences is not known here"):
        run_work(Run(benchmark="new", tokens=1e12))


def test_what_others_count_of_attention_lies_around_what_we_do() -> None:
    low, high = attention_range(Run(model="llama-3.1-8b", seq_len=8192))
    assert low < 1 < high and low + high == pytest.approx(2.0)  # without attention; and with the half that the mask leaves out
    assert attention_range(Run(benchmark="llama31_8b")) == (low, high)
    assert attention_range(Run(model="llama-3.1-8b")) == attention_range(Run(parameters=8e9, seq_len=8192)) == (1.0, 1.0)
    longer, _ = attention_range(Run(model="llama-3.1-8b", seq_len=65536))
    assert longer < low


@pytest.mark.parametrize(
    ("run", "samples"),
    [
        (Run(samples=7.0, tokens=8192.0, benchmark="llama31_8b"), 7.0),
        (Run(tokens=8192.0 * 3, benchmark="llama31_8b"), 3.0),
        (Run(tokens=8192.0 * 3, seq_len=4096), 6.0),
        (Run(tokens=8192.0), 0.0),
        (Run(), 0.0),
    ],
)
def test_samples_are_claimed_or_follow_from_tokens(run: Run, samples: float) -> None:
    assert samples_of(run) == samples


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_nobody_needed_fewer_samples_than_the_fewest(benchmark: str) -> None:
    rows = [row.samples for row in submissions() if row.benchmark == benchmark and row.samples > 0]
    assert all(fewest_samples(benchmark) <= samples for samples in rows)
    assert usual_samples(benchmark) >= (fewest_samples(benchmark) if rows else 0.0)


def test_adapters_on_a_frozen_model_do_not_train_it_whole() -> None:
    assert {name for name in BENCHMARKS if not is_trained_whole(name)} == {"llama2_70b_lora"}


def test_submissions_on_the_same_machine_that_trained_the_same() -> None:
    row = next(one for one in submissions() if one.benchmark == "llama31_405b")
    machine = Run(accelerator=row.accelerator, gpus=row.gpus)
    assert row in alike(replace(machine, benchmark="llama31_405b"))
    assert row in alike(replace(machine, model="llama-3.1-405b"))
    assert all(BENCHMARKS[one.benchmark][0] == "llama-2-7b" for one in alike(replace(machine, model="llama-2-7b")))
    assert alike(replace(machine, parameters=405e9)) == []  # a number of parameters names no model
    assert alike(Run(accelerator=row.accelerator)) == alike(Run(gpus=row.gpus)) == []


def test_without_a_word_on_what_was_trained_the_only_benchmark_there_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [one for one in submissions() if one.benchmark in ("llama31_405b", "llama2_70b_lora")]
    one_kind = [row for row in rows if row.benchmark == "llama31_405b"][:2]
    machine = Run(accelerator="h100", gpus=8)
    monkeypatch.setattr(work, "find", lambda **asked: one_kind)
    assert alike(machine) == one_kind
    monkeypatch.setattr(work, "find", lambda **asked: rows)
    assert alike(machine) == []
