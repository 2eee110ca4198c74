"""What a fit says: constants with bounds, and what was asked and reached."""

from __future__ import annotations

from pathlib import Path

from meshwright.evidence.accuracy import Figure
from meshwright.say.fitting import accuracy_document, figure_table, figure_values, fit_document

from .conftest import sentences, table

MET = Figure(name="mean error", reached=2.25, at_most=5.0)
MISSED = Figure(name="inside the interval", reached=60.0, at_least=70.0, at_most=90.0)
REPORTED = Figure(name="constants", reached=17.0, unit="")
CONSTANT = {"value": 0.123456, "unit": "s", "expected": (0.1, 0.05), "bounds": (0.0, 1e6), "meaning": "a | time"}


def test_a_constant_stands_with_what_was_expected_and_its_bounds() -> None:
    document = fit_document({"constants": {"round_s": CONSTANT}, "fitted_on": "3 rows"}, [MET], [Path("a.json"), Path("b.json")])
    assert table(document, "1 fitted constants").rows == (("round_s", "0.1235", "s", "0.1 +- 0.05", "0 - 1e+06", "a | time"),)
    assert sentences(document) == ["fitted on 3 rows", "written: a.json, b.json"]
    assert document.values["num_constants"] == 1 and document.values["constants"]["round_s"] is CONSTANT
    assert document.values["files"] == [{"what": "constants", "path": "a.json"}, {"what": "constants", "path": "b.json"}]


def test_a_figure_that_is_missed_says_so_and_one_that_nobody_asked_for_does_not() -> None:
    assert figure_table([MET, MISSED, REPORTED]).rows == (
        ("mean error", "at most 5 %", "2.25 %", ""),
        ("inside the interval", "70 to 90 %", "60.00 %", "missed"),
        ("constants", "reported", "17", ""),
    )


def test_a_bound_is_met_where_it_is_touched_and_a_number_that_is_none_meets_nothing() -> None:
    touched = [
        Figure(name="a", reached=5.0, at_most=5.0),
        Figure(name="b", reached=70.0, at_least=70.0, at_most=90.0),
        Figure(name="c", reached=float("nan"), at_most=5.0),
    ]
    assert [row[-1] for row in figure_table(touched).rows] == ["", "", "missed"]


def test_bounds_that_are_not_asked_for_are_null_for_programs() -> None:
    document = accuracy_document([REPORTED], [Path("page.md")])
    (figure,) = document.to_json()["figures"]
    assert (figure["at_least"], figure["at_most"], figure["reached"], figure["is_met"]) == (None, None, 17.0, True)
    assert document.values["files"] == [{"what": "accuracy page", "path": "page.md"}] and sentences(document) == ["written: page.md"]
    assert figure_values([]) == [] and figure_table([]).rows == ()
