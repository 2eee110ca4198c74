"""Sweeps: scaling with error bars, and what a difference can say."""

from dataclasses import replace

import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.candidates import Fixed
from meshwright.plan.noise import run_noise
from meshwright.plan.sizes import Ask
from meshwright.plan.sweep import sweep

RECORD = Ask(
    job=Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b"),
    fixed=Fixed({"tp": 4, "cp": 2, "pp": 8, "schedule": "interleaved", "cp_kind": "ring", "order": ("tp", "cp", "pp", "dp")}),
    keep=1,
)
SMALL = Ask(
    job=Job("llama-3.2-1b", "dgx-h100-superpod", replace(load_workload("pretrain-1t"), seq_len=2048, global_batch=32), gpus=32),
    keep=1,
)


def test_112_and_128_racks_differ_by_less_than_two_runs_do():
    found = sweep(RECORD, [8192, 7168])
    assert [(point.num_accelerators, point.global_batch) for point in found.points] == [(7168, 896), (8192, 1024)]
    last = found.points[-1]
    assert abs(last.efficiency - 1) < run_noise()
    assert last.efficiency_low < 0.998 < last.efficiency_high  # it supports neither the claim nor its inverse
    assert last.efficiency_low < 1 / 0.998 < last.efficiency_high
    assert len(found.sentences) == 1 and "a pair of runs cannot show it" in found.sentences[0]


def test_strong_scaling_keeps_the_batch_and_loses_efficiency():
    found = sweep(SMALL, [8, 16, 32], "strong")
    assert {point.global_batch for point in found.points} == {32}
    first, *others = found.points
    assert (first.efficiency, first.efficiency_low, first.efficiency_high) == (1.0, 1.0, 1.0)
    for point in others:
        speedup = first.best.step_s / point.best.step_s
        assert point.efficiency == pytest.approx(speedup * 8 / point.num_accelerators)
        assert point.efficiency_low < point.efficiency < point.efficiency_high


def test_weak_scaling_grows_the_batch_from_its_base():
    assert [point.global_batch for point in sweep(SMALL, [8, 16, 32]).points] == [8, 16, 32]
    assert [point.global_batch for point in sweep(SMALL, [8, 16]).points] == [32, 64]
    assert [point.global_batch for point in sweep(SMALL, [8, 16], base=16).points] == [16, 32]


def test_a_size_without_a_plan_is_named_and_the_others_stand():
    found = sweep(SMALL, [16, 17, 32], "strong")
    assert [point.num_accelerators for point in found.points] == [16, 32]
    assert [(size, "17 accelerators do not spread evenly over nodes of 8" in error.what) for size, error in found.misses] == [(17, True)]


@pytest.mark.parametrize(
    "sizes, mode, base", [([], "weak", None), ([8], "sideways", None), ([0], "weak", None), ([8, -8], "strong", None), ([8], "weak", 0)]
)
def test_bad_input_is_refused(sizes, mode, base):
    with pytest.raises(InputError):
        sweep(SMALL, sizes, mode, base)


def test_a_batch_that_does_not_divide_is_refused_with_what_would():
    with pytest.raises(InputError, match=r"grows to 32\.50") as raised:
        sweep(replace(SMALL, job=SMALL.job.changed("workload.global_batch=26")), [10], base=8)
    assert "multiples of 4" in raised.value.fix
