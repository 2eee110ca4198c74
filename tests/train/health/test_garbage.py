"""When garbage is searched for during a run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from meshwright.train.health.garbage import EVERY, SETTLED, Garbage


class Knot:
    """Something that only a search can free."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    assert gc.isenabled() and gc.get_freeze_count() == 0
    yield
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_what_a_step_leaves_is_freed_when_it_is_over_and_not_before() -> None:
    with Garbage(compiles=False) as garbage:
        assert not gc.isenabled()
        left = weakref.ref(Knot())
        assert left() is not None
        garbage.step()
        assert left() is None


def test_what_was_there_before_is_not_searched() -> None:
    old = weakref.ref(Knot())
    with Garbage(compiles=False) as garbage:
        for _ in range(EVERY):
            garbage.step()
        assert old() is not None
    gc.collect()
    assert old() is None


def test_what_lived_longer_than_a_step_is_freed_in_the_end() -> None:
    with Garbage(compiles=False) as garbage:
        knot = Knot()
        garbage.step()
        left = weakref.ref(knot)
        del knot
        for number in range(2, EVERY + 1):
            assert left() is not None, number
            garbage.step()
        assert left() is None


def test_a_compilers_objects_are_searched_once() -> None:
    with Garbage(compiles=True) as garbage:
        kept = gc.get_freeze_count()
        compiled = [Knot() for _ in range(50)]
        for _ in range(SETTLED):
            garbage.step()
        assert gc.get_freeze_count() >= kept + len(compiled)


def test_an_error_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ValueError, match="mid-run"), Garbage(compiles=False):
        raise ValueError("mid-run")
    gc.disable()
    try:
        with Garbage(compiles=False):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
