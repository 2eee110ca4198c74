"""Every assumption behind a plan is listed with where it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.predict import software as sw
from meshwright.predict.forecast import Forecast
from meshwright.report.page.assumptions import Assumption, _value, chosen, evidence, fitted, fitted_on, looked_up


def test_every_assumption_of_the_software_is_listed() -> None:
    numbers = {name for name, value in vars(sw).items() if name.isupper() and isinstance(value, int | float | dict | tuple)}
    assert numbers - {"ASSUMED", "BLACKWELL", "CLASSES", "FITTED", "GENERATIONS", "RELEASES", "UNTUNED"} == set(sw.ASSUMED)
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


def test_every_description_is_listed_with_its_sources(record_forecast: Forecast) -> None:
    listed = looked_up(record_forecast)
    job, whole = record_forecast.job, record_forecast.outcome
    kinds = {entry.what.split(":")[0] for entry in listed}
    assert {"model", "cluster", "accelerator", "workload", "price"} <= kinds
    assert {f"link of {tier.name}" for tier in job.cluster} <= kinds
    assert whole.offer is not None
    price = next(entry for entry in listed if entry.what == "price")
    assert price.value.endswith(f"per accelerator-hour, {whole.offer.price.provider} {whole.offer.price.kind}")
    assert all(entry.what and entry.value and entry.origin for entry in listed)


def test_what_states_no_source_and_a_link_that_nobody_lists_say_so(record_forecast: Forecast) -> None:
    job = record_forecast.job
    tiers = tuple(replace(tier, link="my-own-link") for tier in job.cluster.tiers)
    bare = replace(record_forecast, job=replace(job, model=replace(job.model, sources={}), cluster=replace(job.cluster, tiers=tiers)))
    found = {entry.what: entry for entry in looked_up(bare)}
    assert found["model"].origin == "no source is stated"
    assert found[f"link of {tiers[0].name}"] == Assumption(f"link of {tiers[0].name}", "my-own-link", "no source is stated")


def test_a_machine_without_a_price_lists_none(workstation_forecast: Forecast) -> None:
    assert workstation_forecast.outcome.offer is None
    assert "price" not in {entry.what for entry in looked_up(workstation_forecast)}


@pytest.mark.parametrize(
    "value, unit, shown",
    [
        (0.5, "", "0.5"),
        (2e-6, "s", "2 us"),
        (1234567.0, "B", "1,234,567 B"),
        (12345.678, "W", "1.235e+04 W"),
        ({"a": 1.0, "b": 0.25}, "s", "a 1, b 0.25 s"),
        ((1.0, 2.5), "", "1, 2.5"),
    ],
)
def test_numbers_tables_and_pairs_are_written_with_their_unit(value: object, unit: str, shown: str) -> None:
    assert _value(value, unit) == shown


def test_what_the_constants_were_fitted_on_is_said() -> None:
    assert fitted_on().startswith("Fitted on ") and sw.fitted_values().date in fitted_on()
