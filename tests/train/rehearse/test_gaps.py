"""Idle time between kernels."""

from __future__ import annotations

import pytest

from meshwright.train.rehearse.gaps import idle_s


def test_gaps_are_what_no_kernel_covers() -> None:
    # 0-2 and 1-4 overlap, 5-6 lies within 4.5-7, which ends after it: idle from 4 to 4.5 and from 7 to 10
    kernels = [(5.0, 6.0), (0.0, 2.0), (1.0, 4.0), (4.5, 7.0), (10.0, 11.0)]
    assert idle_s(kernels) == pytest.approx(0.5 + 3.0)


def test_one_kernel_or_none_leaves_no_gap() -> None:
    assert idle_s([]) == 0.0 and idle_s([(1.0, 2.0)]) == 0.0
