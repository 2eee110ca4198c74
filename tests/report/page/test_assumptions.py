"""Every assumption behind a plan is listed with where it comes from."""

from __future__ import annotations

import numpy as np

from meshwright.predict import software as sw
from meshwright.predict.forecast import Forecast
from meshwright.report.page.assumptions import chosen, evidence, fitted


def test_every_assumption_of_the_software_is_listed() -> None:
    numbers = {name for name, value in vars(sw).items() if name.isupper() and isinstance(value, int | float | dict | tuple)}
    assert numbers - {"ASSUMED", "BLACKWELL", "CLASSES", "FITTED", "GENERATIONS", "RELEASES"} == set(sw.ASSUMED)
    assert all(entry.what and entry.value and entry.origin for entry in chosen())


def test_every_fitted_constant_is_listed_with_what_was_expected(record_forecast: Forecast) -> None:
    listed = fitted(record_forecast)
    constants = [name for name in sw.FITTED if not name.startswith("release ")]
    assert {sw.FITTED[name].meaning for name in constants} <= {entry.what for entry in listed}
    assert next(entry for entry in listed if entry.what == "one round of a ring").origin == "2 us \u00b1 1 us"


def test_the_evidence_of_the_interval_is_reported(record_forecast: Forecast, workstation_forecast: Forecast) -> None:
    assert "inside the evidence" in evidence(record_forecast)
    assert "far from the evidence" in evidence(workstation_forecast)
    assert np.isfinite(workstation_forecast.mfu)
