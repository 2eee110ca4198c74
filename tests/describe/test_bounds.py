"""A number that cannot be is refused where a description is made, whatever part of it holds the number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError

CLUSTER, MODEL, WORKLOAD = load_cluster("workstation-8x"), load_model("mixtral-8x7b"), load_workload("python-stdlib")


def test_more_heads_than_a_float_can_count() -> None:
    with pytest.raises(InputError, match="num_heads cannot be 18446744073709551616"):
        replace(MODEL, num_heads=2**64, num_kv_heads=1)


def test_a_schedule_that_ends_nowhere() -> None:
    assert WORKLOAD.training is not None
    for value in (math.nan, math.inf, -1.0):
        with pytest.raises(InputError, match=r"training\.decay_samples cannot be"):
            replace(WORKLOAD, training=replace(WORKLOAD.training, decay_samples=value))


def test_samples_to_the_target_at_no_batch() -> None:
    convergence = load_workload("mlperf-llama31-405b").convergence
    assert convergence is not None
    for table in ({}, {0: 1e6}, {1024: 0.0}):
        with pytest.raises(InputError, match="samples to the target are given for no batch"):
            replace(convergence, samples_by_batch=table)


def test_an_evaluation_every_zero_samples() -> None:
    assert WORKLOAD.evaluation is not None
    with pytest.raises(InputError, match=r"evaluated every 0\.0 samples"):
        replace(WORKLOAD.evaluation, every_samples=0.0)


def test_a_node_without_accelerators_and_a_tier_that_is_no_number() -> None:
    with pytest.raises(InputError, match="a node has no accelerator"):
        replace(CLUSTER, accelerators_per_node=0)
    with pytest.raises(InputError, match=r"tiers\[0\]\.latency_s cannot be nan"):
        replace(CLUSTER, tiers=(replace(CLUSTER.tiers[0], latency_s=math.nan), *CLUSTER.tiers[1:]))


def test_what_nobody_stated_may_be_unknown() -> None:
    assert math.isinf(replace(CLUSTER, storage_bytes_per_s=math.inf).storage_bytes_per_s)
    assert math.isnan(replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, power_cap_w=math.nan)).accelerator.power_cap_w)
