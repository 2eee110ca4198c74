"""Rows of data sets: JSON lines, lists, Parquet, text and folders of them, with the place of what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.train.tuning.rows import read_rows

ROWS = [{"text": "one"}, {"text": "two", "more": [1, {"a": None}]}]


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = "".join(json.dumps(row) + "\n\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.json").write_text(json.dumps(ROWS), encoding="utf-8")
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_text("one", encoding="utf-8")
    found = [row.values["text"] for row in read_rows(tmp_path)]
    assert found == ["one", "two"] * 4 + ["one"]


def test_the_place_of_a_row_counts_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n\n[]\n', encoding="utf-8")
    with pytest.raises(InputError, match="the row is a list") as found:
        list(read_rows(path))
    assert found.value.where == f"line 3 of {path}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.jsonl", "{", "not JSON"), ("a.json", "{}", "holds a dict, not a list"), ("a.txt", b"\xff", "byte 0 is not UTF-8")],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        list(read_rows(tmp_path / name))


def test_objects_of_parquet_lose_keys_that_only_other_rows_have(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"messages": [[{"role": "user", "content": "a", "name": None}, {"role": "user", "content": "b", "name": "x"}]]})
    pq.write_table(table, tmp_path / "a.parquet")
    (row,) = read_rows(tmp_path / "a.parquet")
    assert row.values["messages"] == [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "name": "x"}]


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n')
    assert [row.values for row in read_rows(path)] == [{"text": "one"}, {"text": "two"}]


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "one"}\n{"messages": [{"role": "user", "content": "a", "content": "b"}]}\n', encoding="utf-8")
    with pytest.raises(InputError, match="the key 'content' stands twice in one object") as caught:
        list(read_rows(path))
    assert caught.value.where == f"line 2 of {path}"
