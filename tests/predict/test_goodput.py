"""Goodput in closed form: numbers worked by hand, and its laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.cost.checkpoints import manned_share
from meshwright.describe.failures import Cause, failures
from meshwright.describe.load import load_cluster
from meshwright.predict.goodput import advised_interval_s, advised_spares, expected_on, interruptions
from meshwright.simulator.noise import fitted_noise
from meshwright.units import HOUR

LLAMA3 = failures("llama3")


def test_enough_nodes_are_there_as_the_poisson_distribution_says() -> None:
    # a mean of 2 out: none e^-2, one 2 e^-2, two 2 e^-2
    assert manned_share(2.0, 0) == pytest.approx(math.exp(-2))
    assert manned_share(2.0, 2) == pytest.approx(5 * math.exp(-2))
    assert manned_share(0.0, 0) == manned_share(3.0, 200) == 1.0
    assert manned_share(1e5, 10) == 0.0


def test_goodput_matches_a_hand_worked_case() -> None:
    # an interruption every 1,000 s that loses no node, 100 s of work and 10 s of saving, 50 s down
    known = replace(
        LLAMA3,
        causes=(Cause(name="any", per_accelerator_hour=0.36, loses_node=False),),
        detection_s=20.0,
        restart_s=30.0,
        checkpoint_s=10.0,
    )
    seen = interruptions(known, 10, 5, interval_s=100.0, num_spares=1)
    up = math.exp(-0.05)
    assert seen.between_s == pytest.approx(1000) and seen.num_spare_accelerators == 5
    assert seen.goodput == pytest.approx(up * 0.1 / (math.exp(0.11) - 1))
    assert seen.checkpoints == pytest.approx(seen.work / 10)
    assert seen.down == pytest.approx(1 - up) and seen.waiting == 0
    assert sum(seen.shares.values()) == pytest.approx(1)
    assert seen.wall_s(100.0) == pytest.approx(100 / seen.goodput)


def test_where_nothing_breaks_only_checkpoints_take_time() -> None:
    seen = interruptions(failures("none"), 1024, 8)
    assert (seen.goodput, seen.num_spares, seen.waiting) == (pytest.approx(3600 / 3605), 0, 0.0)


def test_larger_machines_do_less_and_one_that_never_comes_back_does_nothing() -> None:
    shares = [interruptions(LLAMA3, size, 8).goodput for size in (2048, 8192, 32768, 131072)]
    assert shares == sorted(shares, reverse=True)
    assert interruptions(LLAMA3, 10**8, 8).wall_s(HOUR) == math.inf


def test_a_cluster_takes_the_advised_precautions() -> None:
    cluster = load_cluster("dgx-h100-superpod").resized(512)
    seen = expected_on(cluster)
    assert seen.interval_s == advised_interval_s(LLAMA3, 512) and seen.num_spares == advised_spares(LLAMA3, 512, 8) == 1
    assert 0.97 < seen.goodput < 0.99
    noise = fitted_noise()
    assert seen.stalls == pytest.approx(512 * noise.stalls_per_hour * noise.stall_s / HOUR)
    assert seen.stretch == pytest.approx((1 + seen.stalls) / seen.goodput)
