"""Drift of jobs without a pipeline, from rows of measured runs."""

from __future__ import annotations

import math

import pytest

from meshwright.simulator import row_spreads
from meshwright.simulator.row_spreads import drift_without_pipeline


def test_half_of_the_rows_spread_more_than_the_drift_gives_and_the_same_call_gives_the_same() -> None:
    found = drift_without_pipeline()
    assert found == drift_without_pipeline() and found.num_rows > 100
    assert 0 < found.drift < 0.02 and 0.1 < found.level_spread < 2


def test_drift_scales_with_what_the_rows_state(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, unit_pct = drift_without_pipeline(), row_spreads._unit_pct()
    monkeypatch.setattr(row_spreads, "_unit_pct", lambda: 2 * unit_pct)
    halved = drift_without_pipeline()
    assert halved.drift == pytest.approx(usual.drift / 2, rel=1e-5) and halved.level_spread == usual.level_spread
    assert math.isfinite(unit_pct) and unit_pct > 0
