"""What a fit of the noise says: constants, and simulated beside logged step times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.record.step_times import StepTimes
from meshwright.say.noise import NAME_WIDTH, noise_document
from meshwright.say.vocabulary import problems
from meshwright.simulator.logs import StepLog
from meshwright.simulator.noise import MEANING
from meshwright.simulator.noise_classes import COMMON, fitted_noise
from meshwright.simulator.noise_fit import Checked

from .conftest import sentences, table

RUN = read_runs(MEASURED_CSV).rows[0]
FIRST = np.array([True, False, False, False, True, False])


def times(*seconds: float, is_first: np.ndarray = FIRST) -> StepTimes:
    return StepTimes(np.array(seconds), is_first, "by hand")


LOGGED = times(9.0, 2.0, 2.02, 1.98, 3.0, 2.0)


def checked(scale: float = 1.0, name: str = "a_log", spread: float = 1.0) -> Checked:
    """A log, simulated with steps so many times as long, and a spread so many times as wide."""
    steps = 2.0 * scale + (LOGGED.seconds - 2.0) * scale * spread
    return Checked(StepLog(name, RUN, LOGGED), fitted_noise().of(COMMON), (times(*steps),))


def test_every_constant_has_its_unit_and_meaning() -> None:
    document = noise_document(fitted_noise(), [checked()], [checked()], [])
    constants = document.values["constants"]
    assert {name: (one["unit"], one["meaning"]) for name, one in constants.items()} == dict(MEANING)
    assert constants["jitter"]["value"] == fitted_noise().of(COMMON).jitter
    assert [one["name"] for one in document.values["noise_classes"]] == list(fitted_noise().classes)


def test_a_log_worked_by_hand() -> None:
    document = noise_document(fitted_noise(), [checked(1.01)], [checked(1.01)], [("page", Path("page.html"))])
    (row,) = table(document, "each log, simulated with constants fitted without it").rows
    assert row[:5] == ("a_log", "2.000 s", "+1.00 %", "0.741 %", "0.741 %") and row[6:] == ("1.00", "0", "0.00", "9.00 s", "9.09 s", "")
    said = sentences(document)
    assert "Medians are off by 1.00 % on average, 1.00 % at most." in said and said[-1] == "wrote the page: page.html"
    assert any("within a factor of 1.5 for 1 of 1 logs (100 %); without the log's machine 1 (100 %)" in line for line in said)
    (values,) = document.to_json()["compared_logs"]
    assert (values["first_step_s"], values["after_evaluation_s"]) == (9.0, 3.0)
    assert values["simulated_after_evaluation_s"] == pytest.approx(3.03) and problems(document.to_json()) == []


def test_errors_of_both_signs_do_not_cancel_and_a_wide_spread_is_named() -> None:
    document = noise_document(fitted_noise(), [checked(1.01), checked(0.97, spread=2.0)], [checked(1.01), checked(0.97, spread=2.0)], [])
    assert document.values["median_error_mean_pct"] == pytest.approx(2.0)
    assert document.values["median_error_worst_pct"] == pytest.approx(3.0)
    assert (document.values["num_spread_within_factor"], document.values["share_spread_within_factor"]) == (1, 0.5)
    assert [row[-1] for row in table(document, "each log, simulated with constants fitted without it").rows] == ["", "spread"]


def test_a_log_without_evaluations_has_no_step_after_one() -> None:
    once = np.array([True, *[False] * 5])
    one = checked()
    alone = replace(one, log=StepLog("a", RUN, times(*LOGGED.seconds, is_first=once)), simulated=(times(*LOGGED.seconds, is_first=once),))
    (values,) = noise_document(fitted_noise(), [alone], [alone], []).to_json()["compared_logs"]
    assert values["after_evaluation_s"] is None and values["simulated_after_evaluation_s"] is None


def test_a_long_name_is_cut_for_people_and_whole_for_programs() -> None:
    name = "v6.0_" + "x" * 200 + "_nemo"
    document = noise_document(fitted_noise(), [checked(name=name)], [checked(name=name)], [])
    (row,) = table(document, "each log, simulated with constants fitted without it").rows
    assert len(row[0]) == NAME_WIDTH and document.values["compared_logs"][0]["name"] == name
