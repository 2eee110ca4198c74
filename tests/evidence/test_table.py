"""CSV files as checked cells: an error names file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.evidence.table import CellError, Row, read_table


def row(**cells: str) -> Row:
    return Row(file="runs.csv", line=7, cells=cells)


def test_cells_are_read_as_what_is_asked_for() -> None:
    one = row(count=" 8 ", rate="1.5", name=" x ", empty="")
    assert (one.count("count"), one.positive("rate"), one.text("name"), one.filled("name")) == (8, 1.5, "x", "x")
    assert (one.count_or("empty", 3), one.positive_or("empty", 2.5), one.text("absent")) == (3, 2.5, "")


@pytest.mark.parametrize("cell", ["8.5", "0", "-1", "eight", "nan", "inf", "1_000", "1e16"])
def test_a_cell_that_is_no_count_is_named_with_its_line(cell: str) -> None:
    with pytest.raises(CellError) as error:
        row(count=cell).count("count")
    assert error.value.where == "runs.csv, line 7, column count"


def test_an_empty_cell_that_must_be_filled_says_so() -> None:
    with pytest.raises(CellError, match="count is empty"):
        row(count=" ").count("count")


def test_a_table_knows_its_columns_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n\n3,4\n")
    table = read_table(path)
    assert list(table.columns) == ["a", "b"] and [one.text("a") for one in table.rows] == ["1", "3"]
    table.require(("a", "b"))
    with pytest.raises(InputError, match="c"):
        table.require(("a", "c"))


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(InputError):
        read_table(tmp_path)
