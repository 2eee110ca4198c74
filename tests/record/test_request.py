"""A request to a run that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.record.request import REQUEST, ask_for_replicas, taken_request


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    assert taken_request(tmp_path) is None
    ask_for_replicas(tmp_path, 3)
    assert taken_request(tmp_path) == 3
    assert taken_request(tmp_path) is None and not (tmp_path / REQUEST).exists()


@pytest.mark.parametrize("text", ["", "3", "[]", '{"dp": 0}', '{"dp": true}', '{"dp": "4"}', '{"dp": 2.0}', "{"])
def test_what_is_no_request_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / REQUEST).write_text(text)
    assert taken_request(tmp_path) is None
