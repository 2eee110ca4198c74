"""Samples to a target, steps and evaluations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.load import load_workload, names
from meshwright.describe.workload import Convergence, Evaluation, Workload
from meshwright.errors import InputError

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
    assert every.steps(100, 8) == [13, 26, 39, 52, 65, 78, 91, 100]  # 12.5 steps are rounded up; the run ends with an evaluation
    assert every.steps(5, 8) == [5]
    assert late.steps(60, 10) == [40, 50, 60]  # three intervals by the start, one more by the batch
    assert (every.steps(0, 8), every.count(0, 8)) == ([], 0)


@pytest.mark.parametrize(
    ("name", "batch", "steps", "evaluated"),
    [
        ("mlperf-gpt3", 2688, 220, list(range(10, 221, 10))),  # v3.0 CoreWeave, 448 nodes: 9.14 steps are rounded up
        ("mlperf-gpt3", 2560, 230, list(range(10, 231, 10))),  # v3.1 eos-dfw_n1280
        ("mlperf-llama31-405b", 960, 340, [300, 320, 340]),  # v5.1 hsg_ngpu2560: 15 intervals of 20 steps to the first
        ("mlperf-llama31-405b", 1024, 324, [270, 288, 306, 324]),  # v6.0 Azure
        ("mlperf-llama2-70b-lora", 12, 256, [128, 160, 192, 224, 256]),  # rule: the first floor(0.125 x 12 + 2) = 3 are skipped
        ("mlperf-llama2-70b-lora", 64, 120, list(range(66, 121, 6))),  # v4.1: the first at 4,224 samples
    ],
)
def test_mlperf_runs_are_evaluated_after_the_logged_steps(name, batch, steps, evaluated):
    workload = replace(load_workload(name), global_batch=batch)
    assert workload.evaluated_steps(steps) == evaluated


@given(
    every=st.floats(0.5, 5000),
    start=st.floats(0, 50_000),
    per_batch=st.floats(0, 100),
    batch=st.integers(1, 3000),
    steps=st.integers(0, 400),
)
def test_counting_evaluations_and_asking_step_by_step_agree_with_the_list(every, start, per_batch, batch, steps):
    rule = Evaluation(num_samples=10, every_samples=every, start_samples=start, start_samples_per_batch=per_batch)
    listed = rule.steps(steps, batch)
    assert [step for step in range(1, steps + 1) if rule.follows(step, steps, batch)] == listed
    assert rule.count(steps, batch) == len(listed)
    assert not steps or listed[-1] == steps
    assert all(step * batch >= start * (1 - 1e-6) for step in listed[:-1])


@pytest.mark.parametrize(
    ("name", "batch", "precision", "steps", "evaluations"),
    [
        ("mlperf-gpt3", 2048, "fp8", 288, 24),  # v3.0 dgxh100_n64: 288 steps, 24 evaluations
        ("mlperf-llama31-405b", 1024, "nvfp4", 324, 4),  # v6.0 Azure, 8,192 GB200
        ("mlperf-llama31-405b", 1152, "nvfp4", 288, 4),  # v5.1 theia_ngpu512
        ("mlperf-llama31-8b", 64, "fp8", 3456, 18),  # v5.1, 512 GB300
        ("mlperf-llama2-70b-lora", 8, "fp8", 384, 5),
        ("mlperf-llama2-70b-lora", 64, "fp8", 117, 10),  # a median between 19 and 20 intervals: the run ends with an evaluation
    ],
)
def test_mlperf_runs_as_logged(name, batch, precision, steps, evaluations):
    workload = load_workload(name)
    samples = workload.convergence.samples(batch, precision)
    assert samples / batch == steps
    assert replace(workload, global_batch=batch).num_evaluations(steps) == evaluations


def test_plain_pre_training_counts_tokens():
    workload = Workload(name="w", model="", seq_len=100, global_batch=10, num_tokens=9500)
    assert (workload.tokens_per_step, workload.num_steps()) == (1000, 10)
    assert load_workload("pretrain-15t").num_tokens == 15.6e12


def test_lora_is_described_as_such():
    adapters = load_workload("mlperf-llama2-70b-lora").adapters
    assert (adapters.rank, adapters.targets) == (16, ("qkv", "proj"))


@pytest.mark.parametrize(("key", "value"), [("seq_len", 10**8), ("global_batch", 10**11), ("seq_len", 0), ("global_batch", -64)])
def test_sequences_and_batches_that_nobody_trains_on_are_refused(key: str, value: int) -> None:
    sizes = {"seq_len": 8192, "global_batch": 512, key: value}
    with pytest.raises(InputError, match=f"{value:,}") as refused:
        Workload(name="w", model="", num_tokens=1e12, **sizes)
    assert refused.value.where == f"workload w: {key}"
