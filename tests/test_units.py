"""Quantities as people read them."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import units
from meshwright.units import KWH, carbon, energy, gib, parameters, per_cent, seconds, si, usd, water


def test_the_factors():
    assert units.GBIT * 8 == units.GB
    assert units.GIB == 1024**3
    assert (units.DAY, units.HOUR, units.KWH) == (86400.0, 3600.0, 1000 * units.HOUR)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (12.7e9, "B", "12.7 GB"),
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (1e3, "W", "1 kW"),
        (999.0, "W", "999 W"),
        (0.0, "W", "0 W"),
        (-2.5e6, "B", "-2.5 MB"),
        (3e21, "FLOP", "3000 EFLOP"),
        (7.0, "", "7"),
    ],
)
def test_si(value, unit, text):
    assert si(value, unit) == text


def test_si_keeps_as_many_digits_as_asked():
    assert si(123456.0, "B", digits=2) == "1.2e+02 kB"
    assert si(1.23456e9, "B", digits=3) == "1.23 GB"


@pytest.mark.parametrize(
    "value, text",
    [
        (83e-6, "83 us"),
        (0.0125, "12.5 ms"),
        (1.2704, "1.27 s"),
        (119.0, "119 s"),
        (7.07 * 60, "7.07 min"),
        (3.2 * 3600, "3.2 h"),
        (12.4 * 86400, "12.4 d"),
        (0.0, "0 s"),
        (-0.5, "-500 ms"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_can_be_printed(value):
    assert seconds(value) and si(value, "B") and gib(value) and usd(value)


@pytest.mark.parametrize(
    "count, text", [(405_853_388_800, "405.85 B"), (1e9, "1.00 B"), (94_400_000, "94.40 M"), (82_048, "82.05 K"), (632, "632"), (0, "0")]
)
def test_a_small_model_is_not_nothing_in_thousand_millions(count, text):
    assert parameters(count) == text


def test_gib_and_dollars():
    assert gib(53.06 * 2**30) == "53.1 GiB"
    assert (usd(1234567.0), usd(99.5), usd(-3.0)) == ("$1,234,567", "$99.50", "$-3.00")
    assert (usd(0.0), usd(0.01125), usd(0.00222)) == ("$0.00", "$0.0112", "$0.00222")


@pytest.mark.parametrize(
    "kilowatt_hours, text",
    [
        (0.0, "0 kWh"),
        (0.00123, "1.23 Wh"),
        (0.0999, "99.9 Wh"),
        (0.1, "0.1 kWh"),
        (12.345678, "12.35 kWh"),
        (1219.2, "1,219 kWh"),
        (9999.0, "9,999 kWh"),
        (12_345.6, "12.35 MWh"),
        (48_000_000.0, "48,000 MWh"),
    ],
)
def test_energy_is_reported_in_kilowatt_hours(kilowatt_hours, text):
    assert energy(kilowatt_hours * KWH) == text


def test_rows_of_a_table_have_the_unit_of_its_total():
    assert [energy(value * KWH, 2.0 * KWH) for value in (1.99, 0.01, 0.0)] == ["1.99 kWh", "0.01 kWh", "0 kWh"]


@pytest.mark.parametrize(
    "mass_kg, text",
    [(0.0, "0 kg CO2e"), (0.0249, "24.9 g CO2e"), (0.1, "0.1 kg CO2e"), (9999.0, "9,999 kg CO2e"), (12_345.0, "12.3 t CO2e")],
)
def test_carbon_has_a_unit_of_its_size(mass_kg, text):
    assert carbon(mass_kg) == text


@pytest.mark.parametrize("volume_l, text", [(0.05, "50 ml"), (12.4, "12.4 l"), (2e6, "2,000 m\u00b3")])
def test_water_has_a_unit_of_its_size(volume_l, text):
    assert water(volume_l) == text


def test_per_cents_have_one_form():
    assert per_cent(0.2234) == "22.3 %" and per_cent(-0.5, "+.2f") == "-50.00 %" and per_cent(12.5, ",.0f") == "1,250 %"
    source = Path(inspect.getfile(per_cent)).parent
    for path in source.rglob("*.py"):
        assert not re.findall(r":[,+]*\.[0-9]%\}", path.read_text()), f"{path.name}: use units.per_cent"
