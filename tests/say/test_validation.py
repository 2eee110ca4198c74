"""What a validation says: errors by row, by group and in all, with none, one and many rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.evidence.measured import Skipped
from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.evidence.validate import Checked, validate
from meshwright.say.document import Document, Table
from meshwright.say.validation import NUM_WORST, validation_document
from meshwright.say.vocabulary import problems

from .conftest import table


@cache
def carried() -> tuple[Checked, ...]:
    return tuple(validate(read_runs(MEASURED_CSV).rows))


def off_by(*errors_pct: float) -> list[Checked]:
    """As many rows, predicted so far off."""
    rows = zip(carried(), errors_pct, strict=False)
    return [replace(row, predicted_s=row.run.measured_s * (1 + error / 100)) for row, error in rows]


def titles(document: Document) -> list[str]:
    return [block.title for block in document.blocks if isinstance(block, Table)]


def test_the_rows_with_the_largest_errors_come_first_whatever_their_sign() -> None:
    document = validation_document(off_by(1.0, -30.0, 20.0), [])
    assert [row[-2] for row in table(document, "the 3 rows with the largest errors").rows] == ["-30.0", "+20.0", "+1.0"]
    whole = table(validation_document(off_by(1.0, -30.0, 20.0), [], all_rows=True), "every row")
    assert [row[-2] for row in whole.rows] == ["+1.0", "-30.0", "+20.0"]


def test_the_sum_of_three_errors_worked_by_hand() -> None:
    (row,) = table(validation_document(off_by(1.0, -30.0, 20.0), []), "all").rows
    assert row[:5] == ("predicted", "3", "17.00", "-3.00", "-30.0")


def test_one_row_and_more_than_are_shown() -> None:
    assert titles(validation_document(off_by(1.0), []))[0] == "the row with the largest error"
    document = validation_document(carried(), [])
    assert len(carried()) > NUM_WORST and len(table(document, f"the {NUM_WORST} rows with the largest errors").rows) == NUM_WORST
    assert sum(int(row[1]) for row in table(document, "by benchmark").rows) == len(carried())
    assert sum(int(row[1]) for row in table(document, "by accelerator").rows) == len(carried())


def test_without_a_row_nothing_is_known_and_that_is_what_it_says() -> None:
    document = validation_document([], [Skipped("a", "the layout is not stated", 2)])
    assert titles(document) == ["all", "rows that cannot be expressed (--rows lists each)"]
    assert table(document, "all").rows == (("predicted", "0", "-", "-", "-", "-"),)
    values = document.to_json()
    assert (values["num_runs"], values["mape_pct"], values["coverage_pct"]) == (0, None, None) and problems(values) == []


def test_rows_that_cannot_be_expressed_are_counted_by_reason() -> None:
    skipped = [Skipped("a", "no layout", 2), Skipped("b", "no batch", 3), Skipped("c", "no layout", 4)]
    document = validation_document(off_by(1.0), skipped)
    assert table(document, "rows that cannot be expressed (--rows lists each)").rows == (("2", "no layout"), ("1", "no batch"))
    assert document.to_json()["skipped"][1] == {"name": "b", "row": 3, "why": "no batch"}
    assert "rows that cannot be expressed (--rows lists each)" not in titles(validation_document(off_by(1.0), []))
    each = validation_document(off_by(1.0), skipped, all_rows=True)
    assert table(each, "every row that cannot be expressed").rows == (
        ("2", "a", "no layout"),
        ("3", "b", "no batch"),
        ("4", "c", "no layout"),
    )


@pytest.mark.parametrize("confidence, name", [("published", "{round}, line {source_row}"), ("high", "{round} {submitter} {system}")])
def test_a_published_row_is_named_by_its_line(confidence: str, name: str) -> None:
    (row,) = off_by(1.0)
    run = replace(row.run, confidence=confidence)
    shown = table(validation_document([replace(row, run=run)], []), "the row with the largest error").rows[0][0]
    assert shown == name.format(round=run.round, source_row=run.source_row, submitter=run.submitter, system=run.system)


def test_values_of_all_carried_rows_are_in_the_vocabulary() -> None:
    values = validation_document(carried(), []).to_json()
    assert problems(values) == [] and len(values["rows"]) == len(carried())
    assert all(row["low_s"] <= row["predicted_s"] <= row["high_s"] for row in values["rows"])
