from __future__ import annotations

import numpy as np
import pytest

from meshwright.cost.money import accelerator_hours, cost_usd


def test_the_record_run_costs_what_its_accelerator_hours_do() -> None:
    # 8,192 accelerators for 424.118 s at $10 an hour: 965.1 accelerator-hours
    assert accelerator_hours(8192, 424.118) == pytest.approx(965.104, rel=1e-5)
    assert cost_usd(8192, 424.118, 10.0) == pytest.approx(9651.04, rel=1e-5)


def test_one_call_prices_many_layouts() -> None:
    assert cost_usd(8, np.array([3600.0, 7200.0]), 2.5) == pytest.approx(np.array([20.0, 40.0]))
