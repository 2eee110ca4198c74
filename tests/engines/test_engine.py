"""Engines by name."""

from __future__ import annotations

from meshwright.engines.engine import FILES
from meshwright.engines.site import ENGINES


def test_every_engine_has_its_files():
    assert tuple(FILES) == ENGINES
