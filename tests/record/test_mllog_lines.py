"""Lines of MLPerf logs: found in any file, read once, in order."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.record.mllog import parse_log
from meshwright.record.mllog_lines import UnreadableLog, is_number, lines_of, number, read_log_text

FIXTURE = Path(__file__).parents[1] / "fixtures" / "blocks_only.log"


def test_two_lines_that_ran_into_one_are_both_read() -> None:
    lines = FIXTURE.read_text().splitlines()
    assert len(lines_of(lines[0] + lines[1]).events) == 2


@pytest.mark.parametrize("text", ["", "no log at all\n", "+ echo ':::SYSJSON {}'\n"])
def test_a_file_without_log_lines_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="no :::MLLOG line"):
        parse_log(text, "x.log")


def test_lines_printed_again_count_once_and_prefixes_do_not_matter() -> None:
    text = FIXTURE.read_text()
    once = lines_of(text).events
    again = lines_of(text + "\n" + "\n".join(text.splitlines()[:10]))  # the first ten lines stand at the end once more
    assert again.events == once and len(again.again) == 10
    prefixed = "\n".join(f"12: rank 0 {line}" for line in text.splitlines())
    assert [event.key for event in lines_of(prefixed).events] == [event.key for event in once]


def test_packed_files_are_read_and_others_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(FIXTURE.read_bytes()))
    assert lines_of(read_log_text(path)).events == lines_of(FIXTURE.read_text()).events
    with pytest.raises(UnreadableLog):
        read_log_text(tmp_path / "nowhere.log")


def test_numbers_may_stand_in_quotes_and_truth_values_are_none() -> None:
    assert (number("1.5"), number(3), number("x"), number(None)) == (1.5, 3.0, None, None)
    assert is_number(2.0) and not is_number(True) and not is_number("2") and not is_number(math.inf)
