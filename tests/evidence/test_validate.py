"""Measured runs, predicted: errors, summaries and coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.evidence.refit import MEASURED_CSV, PUBLISHED_CSV, UNFITTED_CSV, log_errors
from meshwright.evidence.runs import read_runs
from meshwright.evidence.validate import family_name, grouped, summary, summary_of, validate
from meshwright.predict.software import fitted_values
from meshwright.say.validation import validation_document

RUNS = read_runs(MEASURED_CSV).rows
CHECKED = validate(RUNS)


def test_a_summary_by_hand() -> None:
    one = summary_of([1.0, -3.0, 2.0], [True, False, True])
    assert (one.num_runs, one.mape_pct, one.bias_pct, one.worst_pct) == (3, 2.0, 0.0, -3.0)
    assert one.coverage_pct == pytest.approx(200 / 3)


def test_no_rows_have_no_errors() -> None:
    assert validate([]) == []
    assert summary([]).num_runs == 0


def test_all_rows_at_once_are_what_each_is_alone() -> None:
    alone = [validate([run])[0] for run in RUNS]
    assert [row.predicted_s for row in CHECKED] == pytest.approx([row.predicted_s for row in alone])
    errors_pct = [100 * (row.predicted_s / run.measured_s - 1) for row, run in zip(alone, RUNS, strict=True)]
    assert [row.error_pct for row in CHECKED] == pytest.approx(errors_pct)


def test_what_is_validated_is_what_a_forecast_says() -> None:
    num_checked = 0
    for row in CHECKED:
        try:
            forecast = row.run.job(row.software).forecast(row.run.layout, ignore_memory=True)
        except InputError:  # logs state layouts whose stages are not as even as those that are planned
            continue
        num_checked += 1
        assert row.predicted_s == pytest.approx(forecast.step_s)
        assert (row.low_s, row.high_s) == pytest.approx(tuple(forecast.interval))
    assert num_checked > 0.9 * len(CHECKED)


def test_the_fit_sees_the_same_errors_but_for_what_the_exact_schedule_adds() -> None:
    """Constants are fitted by the closed form; a schedule timed whole takes longer by what uneven stages cost.

    That is 6 % for DeepSeek-V3, whose last stage also predicts further tokens.
    """
    closed = np.exp(log_errors(RUNS, fitted_values()))
    ratios = np.array([row.predicted_s / row.run.measured_s for row in CHECKED]) / closed
    assert ((ratios > 1 - 1e-9) & (ratios < 1.07)).all() and np.median(ratios) == pytest.approx(1.0, abs=1e-9)


def test_a_measured_time_twice_as_long_is_predicted_half() -> None:
    row = validate([replace(RUNS[0], measured_s=2 * CHECKED[0].predicted_s)])[0]
    assert row.error_pct == pytest.approx(-50)
    assert not row.is_covered


@pytest.mark.parametrize("path", [MEASURED_CSV, PUBLISHED_CSV, UNFITTED_CSV], ids=lambda path: path.stem)
def test_coverage_of_the_interval(path) -> None:
    assert 70 <= summary(validate(read_runs(path).rows)).coverage_pct <= 95


def test_a_round_nobody_fitted_is_near() -> None:
    row = validate([replace(RUNS[0], release="v9.0")])[0]
    assert row.interval.distance == "near" and "v9.0" in row.software.note
    assert row.interval.high / row.interval.low > CHECKED[0].interval.high / CHECKED[0].interval.low


def test_software_of_another_kind_is_far() -> None:
    row = validate([replace(RUNS[0], release="mystery-2026.01")])[0]
    assert row.interval.distance == "far" and row.software.release == "mystery-2026.01"


def test_json_has_what_programs_read() -> None:
    data = validation_document(CHECKED, []).values
    keys = {"round", "submitter", "system", "benchmark", "measured_s", "predicted_s", "low_s", "high_s", "error_pct", "evidence"}
    assert len(data["rows"]) == data["num_runs"] == len(RUNS)
    assert all(keys <= set(row) for row in data["rows"])
    assert all(row["low_s"] <= row["predicted_s"] <= row["high_s"] for row in data["rows"])
    assert sum(one["num_runs"] for one in data["by_family"].values()) == len(RUNS)


def test_groups_are_in_order_and_whole() -> None:
    groups = grouped(CHECKED, family_name)
    assert list(groups) == sorted(groups)
    assert sum(map(len, groups.values())) == len(CHECKED)
