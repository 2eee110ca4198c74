"""The noise is that of runs of one layout."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.plan.noise import run_noise, run_spreads


def test_the_noise_is_that_of_the_carried_runs() -> None:
    assert len(run_spreads()) > 100
    assert np.mean(np.array(run_spreads()) <= run_noise()) == pytest.approx(0.9, abs=0.01)
