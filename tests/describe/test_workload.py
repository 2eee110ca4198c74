"""Samples to a target, steps and evaluations."""

import pytest

from meshwright.describe.load import load_workload, names
from meshwright.describe.workload import Convergence, Evaluation, Workload

TABLE = Convergence(samples_by_batch={8: 1000.0, 32: 2000.0}, samples_by_precision={"nvfp4": {8: 1500.0}})


def test_measured_batches_are_returned_as_measured():
    assert (TABLE.samples(8), TABLE.samples(32)) == (1000, 2000)


def test_between_batches_a_straight_line_in_log_log():
    assert TABLE.samples(16) == pytest.approx(1000 * 2**0.5)


def test_smaller_batches_waste_nothing_and_larger_ones_ever_more():
    assert TABLE.samples(2) == pytest.approx(1000)
    assert TABLE.samples(128) == pytest.approx(4000)


def test_a_falling_tail_is_not_carried_on():
    assert Convergence(samples_by_batch={8: 2000.0, 16: 1000.0}).samples(64) == pytest.approx(1000)


def test_a_precision_with_its_own_table_uses_it():
    assert TABLE.samples(8, "nvfp4") == 1500
    assert TABLE.samples(64, "nvfp4") == pytest.approx(1500)
    assert TABLE.samples(8, "fp8") == 1000


@pytest.mark.parametrize(
    ("batch", "precision", "beyond"),
    [(8, "bf16", ""), (20, "bf16", ""), (32, "bf16", ""), (33, "bf16", "above"), (7, "bf16", "below"), (16, "nvfp4", "above")],
)
def test_a_batch_that_nobody_measured_lies_beyond(batch, precision, beyond):
    workload = Workload(name="w", model="", seq_len=100, global_batch=batch, precision=precision, convergence=TABLE)
    assert workload.batch_beyond == beyond
    assert workload.measured_batches == ((8, 8) if precision == "nvfp4" else (8, 32))


def test_a_run_through_tokens_has_no_measured_batches():
    workload = Workload(name="w", model="", seq_len=100, global_batch=10, num_tokens=9500)
    assert (workload.measured_batches, workload.batch_beyond) == (None, "")


@pytest.mark.parametrize("name", names("workloads"))
def test_the_catalogues_own_batches_were_measured(name):
    assert load_workload(name).batch_beyond == ""


def test_evaluations_at_multiples_from_the_start_on():
    every = Evaluation(num_samples=10, every_samples=100)
    late = Evaluation(num_samples=10, every_samples=100, start_samples=250, start_samples_per_batch=10)
    assert every.count(1000, 8) == 10
    assert every.count(50, 8) == 1  # the run ends with an evaluation
    assert late.count(1000, 8) == 7  # first at 400, not before 330


@pytest.mark.parametrize(
    ("name", "batch", "precision", "steps", "evaluations"),
    [
        ("mlperf-gpt3", 2048, "fp8", 288, 24),  # v3.0 dgxh100_n64: 288 steps, 24 evaluations
        ("mlperf-llama31-405b", 1024, "nvfp4", 324, 4),  # v6.0 Azure, 8,192 GB200
        ("mlperf-llama31-405b", 1152, "nvfp4", 288, 4),  # v5.1 theia_ngpu512
        ("mlperf-llama31-8b", 64, "fp8", 3456, 18),  # v5.1, 512 GB300
        ("mlperf-llama2-70b-lora", 8, "fp8", 384, 5),
        ("mlperf-llama2-70b-lora", 64, "fp8", 117, 9),
    ],
)
def test_mlperf_runs_as_logged(name, batch, precision, steps, evaluations):
    workload = load_workload(name)
    samples = workload.convergence.samples(batch, precision)
    assert samples / batch == steps
    assert workload.evaluation.count(samples, batch) == evaluations


def test_plain_pre_training_counts_tokens():
    workload = Workload(name="w", model="", seq_len=100, global_batch=10, num_tokens=9500)
    assert (workload.tokens_per_step, workload.num_steps()) == (1000, 10)
    assert load_workload("pretrain-15t").num_tokens == 15.6e12


def test_lora_is_described_as_such():
    adapters = load_workload("mlperf-llama2-70b-lora").adapters
    assert (adapters.rank, adapters.targets) == (16, ("qkv", "proj"))
