"""Gradients far larger than usual are reported with their rank; sound runs have none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from meshwright.train.health.spikes import FACTOR, NUM_FIRST, NUM_STAYING, Peak, Peaks, Spike, Spikes

REAL = Path(__file__).parents[2] / "fixtures" / "gradient_norms.json"  # steps of small runs, by learning rate and seed
PEAKS = REAL.with_name("gradient_peaks.json")  # of two ranks, by model: the small model of tests, and llama-2m on the standard library


def found_in(norms: list[float], own: list[list[float]] | None = None) -> list[Spike]:
    detector = Spikes()
    rows = own or [[norm] for norm in norms]
    found = [detector.update(step, norm, row) for step, (norm, row) in enumerate(zip(norms, rows, strict=True), start=1)]
    return [spike for spike in found if spike]


def sound(seed: int, num_steps: int = 2000) -> list[float]:
    """A norm that falls to a tenth over the run, with heavy-tailed noise of 15 %."""
    rng = np.random.default_rng(seed)
    return list(np.geomspace(3.0, 0.3, num_steps) * np.exp(0.15 * np.clip(rng.standard_t(3, num_steps), -8, 8)))


@pytest.mark.parametrize("seed", range(5))
def test_sound_steps_have_none(seed: int) -> None:
    assert found_in(sound(seed)) == []


def test_real_runs_have_none() -> None:
    runs = json.loads(REAL.read_text())
    assert len(runs) >= 2
    for name, norms in runs.items():
        assert len(norms) >= 300 and found_in(norms) == [], name


@pytest.mark.parametrize("factor", [1e5, 30.0])
def test_a_large_gradient_is_reported_with_its_rank(factor: float) -> None:
    own = [[norm, 1.1 * norm] for norm in sound(1, 200)]
    own[120][1] *= factor
    (spike,) = found_in([math.hypot(*row) for row in own], own)
    assert (spike.step, spike.ranks) == (121, (1,))
    assert spike.norm / spike.usual > FACTOR
    assert spike.words("layers.0.mlp.up.weight").startswith("the gradient norm of step 121 is ")
    assert spike.words("layers.0.mlp.up.weight").endswith(", on rank 1, most of it in layers.0.mlp.up.weight; training continues")


def test_the_highest_bit_of_an_exponent_is_reported_where_it_is_flipped() -> None:
    """Of numbers below 2 the others are mostly set: flipping them makes a number small, and one entry less is nobody's loss."""
    gradient = np.random.default_rng(2).standard_normal(4096).astype(np.float32) * np.float32(1e-2)
    usual = float(np.linalg.norm(gradient.astype(np.float64)))
    gradient.view(np.uint32)[5] ^= np.uint32(1 << 30)
    norms = [usual * (1 + 0.1 * math.sin(step)) for step in range(60)]
    norms.append(float(np.linalg.norm(gradient.astype(np.float64))))
    assert len(found_in(norms)) == 1


def test_what_all_ranks_have_is_blamed_on_none_and_what_stays_is_usual() -> None:
    norms = [1.0] * 50 + [100.0] * 50
    found = found_in(norms, [[norm, norm] for norm in norms])
    assert [spike.ranks for spike in found] == [()] * NUM_STAYING
    assert found[-1].step == 50 + NUM_STAYING


def test_nothing_is_reported_the_first_steps() -> None:
    assert found_in([1.0] * (NUM_FIRST - 1) + [1e5] * 1) == []
    assert len(found_in([1.0] * NUM_FIRST + [1e5] * 1)) == 1


def test_unknown_norms_of_ranks_name_nobody() -> None:
    (spike,) = found_in([1.0] * 20 + [50.0], [[0.0, 0.0]] * 21)
    assert spike.ranks == ()


def peaks_in(rows: list[list[float]]) -> list[Peak]:
    detector = Peaks()
    return [found for step, row in enumerate(rows, start=1) if (found := detector.update(step, row))]


def test_one_gradient_that_stands_out_is_reported_with_its_rank() -> None:
    rng = np.random.default_rng(4)
    rows = [list(20.0 * np.exp(0.2 * rng.standard_normal(3))) for _ in range(200)]
    assert peaks_in(rows) == []
    rows[150][2] = 3000.0
    (found,) = peaks_in(rows)
    assert (found.step, found.rank, found.size) == (151, 2, 3000.0)
    assert str(found).startswith("one gradient of rank 2 in step 151 is 3e+03 times as large as ")


@pytest.mark.parametrize("row", [[], [0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_peaks_that_are_not_known_are_none(row: list[float]) -> None:
    assert peaks_in([[20.0, 20.0]] * 20 + [row]) == []


def test_the_peaks_of_real_runs_are_none() -> None:
    runs = json.loads(PEAKS.read_text())
    assert len(runs) >= 2
    for name, rows in runs.items():
        assert len(rows) >= 200 and peaks_in(rows) == [], name
