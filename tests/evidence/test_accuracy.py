"""What was asked of the predictor is reached, and the committed page says what is computed now."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.evidence import accuracy
from meshwright.evidence.accuracy import Figure, evidence, headline, left_out, on_peer_run, peers
from meshwright.evidence.fit import Rows, fit
from meshwright.predict import software

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
FIGURES = headline()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_was_asked_is_reached(figure: Figure) -> None:
    assert figure.is_met, f"{figure.name}: {figure.reached_words}, asked {figure.asked}"


def test_figures_in_words() -> None:
    assert (Figure(name="a", reached=1.234, at_most=2).asked, Figure(name="a", reached=1.234).reached_words) == ("at most 2 %", "1.23 %")
    assert Figure(name="a", reached=80, at_least=70, at_most=95).asked == "70 to 95 %"
    assert not Figure(name="a", reached=2.1, at_most=2).is_met
    assert Figure(name="a", reached=22, unit="", at_most=24).reached_words == "22"


def test_which_rows_count() -> None:
    rows = evidence()
    assert (len(rows.large()), len(rows.small()), len(rows.adapters())) == (30, 18, 81)
    assert all(row.run.is_nvidia and row.run.is_clean and row.run.is_high_confidence for row in rows.joint())
    assert {row.run.vendor for row in rows.other_vendors()} == {"AMD"}
    assert not any(row.run.model.experts for row in rows.dense_tables())


def test_left_out_rows_are_those_of_the_joint_fit() -> None:
    names = sorted(entry["name"] for entry in left_out("row", "large", "small"))
    assert names == sorted(row.run.name for row in evidence().joint())


def test_left_out_rows_are_further_off_than_fitted_ones() -> None:
    fitted, row_out, family_out = (
        sum(abs(row.error_pct) for row in evidence().joint()),
        *(sum(abs(entry["error_pct"]) for entry in left_out(column, "large", "small")) for column in ("row", "family_out")),
    )
    assert fitted < row_out < family_out


def test_two_of_the_peers_seven_runs_are_not_in_our_files() -> None:
    missing = [(run["accelerator"], run["num_accelerators"]) for run in peers()["runs"] if not on_peer_run(run)]
    assert missing == [("h100", 8192), ("gb200", 2496)]


def test_every_assumption_has_a_reason_and_is_restored_after_being_tried() -> None:
    reasons = software.ASSUMED
    assert {"MATMUL_CEILING", "COLLECTIVE_S", "STEP_S"} <= set(reasons)
    assert all(one.meaning and one.reason for one in reasons.values())
    before = {name: repr(getattr(software, name)) for name in reasons}
    for name in reasons:
        with accuracy._assumed(name, 0.8):
            pass
    assert before == {name: repr(getattr(software, name)) for name in reasons}


def test_an_assumption_that_is_tried_is_felt() -> None:
    rows = [row.run for row in evidence().large()]
    values = fit(Rows.of([row.run for row in evidence().joint()]))
    plain = Rows.of(rows).log_errors(values)
    with accuracy._assumed("BF16_PJ_PER_FLOP", 1.2):
        assert (Rows.of(rows).log_errors(values) > plain).all()


def test_what_the_weighting_rule_does_is_reported_as_it_is():
    even = accuracy.even_weights()
    said = f"With equal weights, the predicted step of the record machine is {even.record_pct:+.1f} % off"
    assert said in " ".join(PAGE.read_text().split())
    assert even.large_pct == pytest.approx(1.2, abs=0.3)  # the rule moves the record, hardly the mean
