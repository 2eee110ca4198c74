"""Our own instruction set: the same rows every time, no request twice, and answers that are Python."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from meshwright.train.tuning.instructions import NUM_ROWS, requests, rows, write_instructions


def test_rows_are_distinct_and_answers_parse() -> None:
    found = rows()
    assert len(found) == NUM_ROWS == len({row["instruction"] for row in found})
    for row in found:
        ast.parse(row["output"])
    assert rows(5) == found[:5]
    every = list(requests())
    assert len({request for request, _ in every}) == len(every) > NUM_ROWS


def test_the_file_is_written_once(tmp_path: Path) -> None:
    path = write_instructions(tmp_path)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == rows()
    before = path.stat().st_mtime_ns
    assert write_instructions(tmp_path) == path and path.stat().st_mtime_ns == before
