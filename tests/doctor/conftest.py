"""Ranks that the tests of this folder share: processes start once, as in tests/train."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The ranks import what they run by its name: `sick` of this folder.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from ranks import Pools


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Pools of gloo ranks by size."""
    started = Pools()
    yield started
    started.close()
