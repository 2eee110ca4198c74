"""A CSV file as rows of checked cells; an error names the file, the line and the column."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.errors import InputError
from meshwright.files import read_text

LARGEST = 1e15  # far above any count, length or duration of a training step; keeps arithmetic on cells finite


class CellError(InputError):
    """A cell, a row or the file cannot be read: the whole file is refused. (A row that is only unusual is skipped.)"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file, its cells by column."""

    file: str
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell without surrounding space; empty if the cell is empty or the column is missing."""
        return self.cells.get(column, "").strip()

    def filled(self, column: str) -> str:
        """The text of a cell that may not be empty."""
        text = self.text(column)
        if not text:
            raise self.error(column, f"{column} is empty", f"fill in {column}")
        return text

    def count(self, column: str) -> int:
        """The whole number of at least 1 in a cell that may not be empty."""
        text = self.filled(column)
        number = self._number(column, text)
        if number != int(number) or number < 1:
            raise self.error(column, f"{column} is {text!r}, not a whole number of at least 1", "write 8, for example")
        return int(number)

    def count_or(self, column: str, default: int) -> int:
        """The whole number in a cell, or `default` if it is empty."""
        return self.count(column) if self.text(column) else default

    def positive(self, column: str) -> float:
        """The number above 0 in a cell that may not be empty."""
        text = self.filled(column)
        number = self._number(column, text)
        if number <= 0:
            raise self.error(column, f"{column} is {text!r}, and must be above 0", "write 1.27, for example")
        return number

    def positive_or(self, column: str, default: float) -> float:
        """The number in a cell, or `default` if it is empty."""
        return self.positive(column) if self.text(column) else default

    def error(self, column: str, what: str, fix: str) -> CellError:
        """An error about one cell."""
        return CellError(what, where=f"{self.file}, line {self.line}, column {column}", fix=fix)

    def _number(self, column: str, text: str) -> float:
        try:
            number = float(text) if "_" not in text else math.nan
        except ValueError:
            number = math.nan
        if not abs(number) <= LARGEST:
            raise self.error(
                column, f"{column} is {_shortened(text)}, not a number", "write a plain number without a unit, such as 8 or 1.27"
            )
        return number


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file with a header."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def require(self, columns: Sequence[str]) -> None:
        """Raise an error that names columns that are missing or occur twice."""
        where = f"{self.file}, line 1 (header)"
        missing = [column for column in columns if column not in self.columns]
        if len(missing) == len(columns):
            raise CellError(
                "the first line is not the header of a file of runs", where=where, fix=f"name the columns there: {','.join(columns)},..."
            )
        if missing:
            what = f"column {missing[0]} is missing" if len(missing) == 1 else f"columns {', '.join(missing)} are missing"
            raise CellError(what, where=where, fix=f"add {', '.join(missing)} to the header and fill in each row")
        twice = sorted({column for column in self.columns if column and self.columns.count(column) > 1})
        if twice:
            raise CellError(f"column {twice[0]} stands twice in the header", where=where, fix=f"keep one {twice[0]}")


def read_table(path: str | os.PathLike[str]) -> Table:
    """The rows of a UTF-8 CSV file, every one as long as the header."""
    file = str(path)
    lines = _lines(file)
    header = next(lines, None)
    if header is None:
        raise CellError("the file is empty", where=file, fix="give a CSV file with a header and a row for each run")
    columns = tuple(cell.strip() for cell in header[1])
    rows = []
    for line, cells in lines:
        if len(cells) != len(columns):
            raise CellError(
                f"the row has {len(cells)} cells, and the header {len(columns)}",
                where=f"{file}, line {line}, column {columns[len(cells)] if len(cells) < len(columns) else len(columns) + 1}",
                fix='write one cell for each column; put text that holds commas between quotes (")',
            )
        rows.append(Row(file, line, dict(zip(columns, cells, strict=True))))
    return Table(file, columns, tuple(rows))


def _lines(file: str) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line on which it starts; blank lines are skipped."""
    reader = csv.reader(io.StringIO(_text(file)), strict=True)
    start = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise CellError(
            f"the file is not a CSV: {error}", where=f"{file}, line {start}", fix="save it as comma-separated UTF-8 text"
        ) from None


def _text(file: str) -> str:
    try:
        return read_text(file, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CellError(
            f"byte {error.start} (0x{error.object[error.start]:02x}) is not UTF-8", where=file, fix="save the file as UTF-8 text"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CellError(f"cannot read the file: {reason}", where=file, fix="give the path of a CSV file") from None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
