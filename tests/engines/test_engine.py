"""Engines by name."""

from __future__ import annotations

import pytest

from meshwright.engines.engine import FILES, engine_of, read_from
from meshwright.engines.site import ENGINES


def test_every_engine_has_its_files():
    assert tuple(FILES) == ENGINES


@pytest.mark.parametrize("name, outlives", [("slurm", True), ("kubernetes", True), ("ssh", False), ("local", False)])
def test_an_engine_is_made_for_a_job(request_of, name, outlives):
    engine = engine_of(name, request_of())
    assert type(engine).__name__.lower() == name and engine.outlives is outlives


def test_a_file_is_read_from_an_offset(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdef")
    assert read_from(tmp_path / "a", 2, 3) == b"cde" and read_from(tmp_path / "a", 9) == b""
    assert read_from(tmp_path / "none", 0) == b"" and read_from(tmp_path / "a" / "b", 0) == b""
