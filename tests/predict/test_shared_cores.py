"""Pipelines whose ranks share cores, against hand-worked schedules and laws."""

from __future__ import annotations

import pytest

from meshwright.cost.pipeline import ChunkTimes
from meshwright.predict.shared_cores import share_of_even

EVEN = ChunkTimes(forward_s=1.0, backward_s=2.0, weight_s=0.75)


def test_two_stages_by_hand() -> None:
    """9 s with cores of their own, 6 s of work where a stage alone is twice as fast."""
    assert share_of_even(2, 2, 1, EVEN, 0.0, 2.0, zero_bubble=False) == pytest.approx(6 / 9)


def test_one_stage_or_a_core_for_each_rank_changes_nothing() -> None:
    assert share_of_even(8, 1, 1, EVEN, 0.0, 4.0, zero_bubble=False) == 1.0
    assert share_of_even(8, 4, 1, EVEN, 0.3, 1.0, zero_bubble=False) == 1.0


@pytest.mark.parametrize("zero_bubble", [False, True])
@pytest.mark.parametrize("pp, vp", [(2, 1), (4, 1), (2, 3), (4, 2)])
def test_without_messages_a_core_is_never_idle_however_long_the_step(pp: int, vp: int, zero_bubble: bool) -> None:
    for m in (2 * pp, 5 * pp, 40 * pp, 40 * pp + 1):
        even = (3 * m * vp + (pp - 1) * (3 - 1.5 * zero_bubble)) if m % pp == 0 else None
        share = share_of_even(m, pp, vp, EVEN, 0.0, 100.0, zero_bubble=zero_bubble)
        assert share < 1.0
        if even:
            assert share == pytest.approx(3 * m * vp / even, rel=1e-6)


def test_waits_for_messages_hide_behind_the_work_of_others_as_far_as_there_is_some() -> None:
    """A long message leaves nothing to hide behind: the step is then as long as with cores of its own, but for the work alone."""
    short, long = (share_of_even(8, 2, 1, EVEN, hop_s, 4.0, zero_bubble=False) for hop_s in (0.1, 1e4))
    assert short < 0.9 < long < 1.0


def test_uneven_ends_count() -> None:
    light = ChunkTimes(forward_s=1.0, backward_s=2.0, last_forward_s=0.5, last_backward_s=1.0)
    assert share_of_even(1, 2, 1, light, 0.0, 2.0, zero_bubble=False) == pytest.approx(0.5)  # one operation at a time
