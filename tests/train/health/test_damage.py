"""Replicas that do not agree are found and named; rounding is no damage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.train.health.damage import Comparison
from meshwright.train.sums import Check, StepResult

EPSILON = float(np.finfo(np.float32).eps)
REPLICAS = Layout(dp=4, zero_stage=0)


def step(sent: NDArray[np.float32], received: NDArray[np.float32], digests: list[float] | None = None) -> StepResult:
    """A step in which rank i sent row i of `sent` and holds row i of `received`."""
    given = digests or [7.0] * len(sent)
    sums = zip(given, sent, received, strict=True)
    checks = tuple(Check(digest, float(a.sum(dtype=np.float64)), float(b.sum(dtype=np.float64)), 3.0) for digest, a, b in sums)
    norms = tuple(float(np.linalg.norm(row.astype(np.float64))) for row in sent)
    return StepResult(loss=1.0, grad_norm=1.0, num_tokens=8, own_norms=norms, checks=checks)


def gradients(seed: int, num_ranks: int = 4, size: int = 20_000) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_ranks, size)).astype(np.float32)


def summed(sent: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum as a ring computes it, rounded at each rank, on every rank."""
    total = sent[0].copy()
    for row in sent[1:]:
        total += row
    return np.tile(total, (len(sent), 1))


@pytest.mark.parametrize("seed", range(20))
def test_sound_steps_agree(seed: int) -> None:
    sent = gradients(seed)
    assert Comparison(REPLICAS, EPSILON).damage(9, step(sent, summed(sent))) is None


def test_every_exponent_bit_that_is_flipped_on_the_way_is_found() -> None:
    comparison, rng = Comparison(REPLICAS, EPSILON), np.random.default_rng(1)
    for bit in range(23, 30):
        sent = gradients(bit)
        received = summed(sent)
        received[2].view(np.uint32)[rng.integers(received.shape[1])] ^= np.uint32(1 << bit)
        found = comparison.damage(9, step(sent, received))
        assert found is not None and (found.what, found.ranks) == ("sum", (2,)), bit
        assert found.message.startswith("the summed gradients of rank 2 at step 9 are not what was sent: by ")


def test_a_sum_that_replicas_share_out_is_checked_as_a_whole() -> None:
    comparison, sent = Comparison(Layout(dp=4, zero_stage=1), EPSILON), gradients(5)
    shards = np.split(summed(sent)[0], 4)
    received = np.stack(shards)
    assert comparison.damage(9, step(sent, received)) is None
    received[3, 11] *= 16
    found = comparison.damage(9, step(sent, received))
    assert found is not None and found.ranks == (0, 1, 2, 3)


def test_groups_that_each_share_a_state_are_told_apart() -> None:
    comparison, sent = Comparison(Layout(dp=4, zero_stage=1, zero_ranks=2), EPSILON), gradients(6)
    received = np.stack(np.split(summed(sent)[0], 2) * 2)
    assert comparison.damage(9, step(sent, received)) is None
    received[3, 11] *= 16
    found = comparison.damage(9, step(sent, received))
    assert found is not None and found.ranks == (2, 3)


@pytest.mark.parametrize(
    "digests, odd, words",
    [
        ([5.0, 5.0, 6.0, 5.0], (2,), "the state of rank 2 differs from that of ranks 0, 1, 3: found at step 9"),
        (
            [5.0, 5.0, 6.0, 6.0],
            (0, 1, 2, 3),
            "the state of ranks 0, 1, 2, 3 differs, and it is not known which of them is right: found at step 9",
        ),
    ],
)
def test_a_state_that_differs_is_named_where_most_agree(digests: list[float], odd: tuple[int, ...], words: str) -> None:
    sent = gradients(1)
    found = Comparison(REPLICAS, EPSILON).damage(9, step(sent, summed(sent), digests))
    assert found is not None and (found.what, found.ranks) == ("state", odd)
    assert found.message.startswith(words)


def test_ranks_of_other_stages_and_slices_hold_other_things() -> None:
    layout = Layout(tp=2, pp=2, dp=1)
    nothing = np.zeros((4, 3), dtype=np.float32)
    assert Comparison(layout, EPSILON).groups == []
    assert Comparison(layout, EPSILON).damage(9, step(nothing, nothing, [1.0, 2.0, 3.0, 4.0])) is None
    assert sorted(map(sorted, Comparison(Layout(tp=2, dp=2), EPSILON).groups)) == [[0, 2], [1, 3]]


def test_what_is_not_known_is_no_damage() -> None:
    unknown = StepResult(loss=1.0, grad_norm=math.pi, num_tokens=8)
    assert Comparison(REPLICAS, EPSILON).damage(9, unknown) is None
