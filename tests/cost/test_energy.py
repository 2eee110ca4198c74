from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.energy import (
    PowerConstants,
    accelerator_power_w,
    busy_fraction,
    carbon_kg,
    facility_energy_j,
    node_power_w,
    run_energy_j,
    water_l,
)
from meshwright.errors import InputError
from meshwright.units import KWH

CONSTANTS = PowerConstants(waiting_fraction=0.3, host_w_per_accelerator=200.0, fan_fraction=0.1, wall_per_dc=1.05)
FRACTIONS = st.floats(0, 1)


def test_busy_fraction_matches_a_hand_worked_case() -> None:
    # 100 steps of 3 s of compute and 50 s of evaluations in 500 s
    assert busy_fraction(100, 3.0, 50.0, 500.0) == pytest.approx(0.7)


def test_node_power_matches_a_hand_worked_case() -> None:
    # half busy: 700 x (0.3 + 0.7 x 0.5) = 455 W; eight of them and 1,600 W of host: 5,240 W; fans and power supply
    accelerator_w = accelerator_power_w(700.0, 0.5, 0.3)
    assert accelerator_w == pytest.approx(455.0)
    assert node_power_w(8 * accelerator_w, 1600.0) == pytest.approx(5240.0)
    assert node_power_w(8 * accelerator_w, 1600.0, 0.1, 1.05) == pytest.approx(5240.0 * 1.1 * 1.05)


def test_an_accelerator_draws_its_cap_when_busy_and_a_share_when_waiting() -> None:
    assert accelerator_power_w(1000.0, 1.0, 0.3) == pytest.approx(1000.0)
    assert accelerator_power_w(1000.0, 0.0, 0.3) == pytest.approx(300.0)


@given(FRACTIONS, FRACTIONS, FRACTIONS)
def test_more_compute_never_draws_less(waiting: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert accelerator_power_w(700.0, low, waiting) <= accelerator_power_w(700.0, high, waiting) + 1e-9


def test_energy_carbon_and_water_match_a_hand_worked_case() -> None:
    # 64 nodes of 7 kW and 52 kW of switches for an hour: 500 kWh; PUE 1.2: 600 kWh; 400 g/kWh: 240 kg; 0.3 l/kWh: 150 l
    energy_j = run_energy_j(7000.0, 64, 3600.0, network_w=52_000.0)
    assert energy_j / KWH == pytest.approx(500.0)
    assert facility_energy_j(energy_j, 1.2) / KWH == pytest.approx(600.0)
    assert carbon_kg(facility_energy_j(energy_j, 1.2), 400.0) == pytest.approx(240.0)
    assert water_l(energy_j, 0.3) == pytest.approx(150.0)


def test_one_call_prices_many_layouts() -> None:
    busy = np.array([0.5, 1.0])
    node_w = node_power_w(8 * accelerator_power_w(700.0, busy, 0.3), 1600.0)
    assert run_energy_j(node_w, 2, np.array([10.0, 5.0])) == pytest.approx(np.array([104_800.0, 72_000.0]))


@pytest.mark.parametrize(
    "key, value",
    [("waiting_fraction", 1.2), ("host_w_per_accelerator", -1.0), ("fan_fraction", -0.1), ("wall_per_dc", 0.9), ("fan_fraction", np.nan)],
)
def test_constants_that_no_machine_has_are_refused(key: str, value: float) -> None:
    with pytest.raises(InputError, match=key):
        replace(CONSTANTS, **{key: value})
