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
    with Garbage() as garbage:
        assert not gc.isenabled()
        left = weakref.ref(Knot())
        assert left() is not None
        garbage.step()
        assert left() is None


def test_what_the_first_steps_no_longer_need_is_freed_when_they_are_over() -> None:
    """So is the replica of the generation before: its weights, and the threads of its groups."""
    knot = Knot()
    old = weakref.ref(knot)
    with Garbage() as garbage:
        del knot
        for _ in range(SETTLED - 1):
            garbage.step()
            assert old() is not None
        garbage.step()
        assert old() is None


def test_what_was_there_before_is_not_searched_later() -> None:
    knot = Knot()
    old = weakref.ref(knot)
    with Garbage() as garbage:
        for _ in range(SETTLED):
            garbage.step()
        del knot
        for _ in range(EVERY):
            garbage.step()
        assert old() is not None
    gc.collect()
    assert old() is None


def test_what_lived_longer_than_a_step_is_freed_in_the_end() -> None:
    with Garbage() as garbage:
        for _ in range(SETTLED):
            garbage.step()
        knot = Knot()
        garbage.step()
        left = weakref.ref(knot)
        del knot
        for number in range(SETTLED + 2, EVERY + 1):
            assert left() is not None, number
            garbage.step()
        assert left() is None


def test_a_compilers_objects_are_searched_once() -> None:
    with Garbage() as garbage:
        compiled = [Knot() for _ in range(50)]
        for _ in range(SETTLED):
            garbage.step()
        searched = {id(one) for one in gc.get_objects()}  # without those that are frozen
        assert not any(id(one) in searched for one in compiled)


def test_an_error_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ValueError, match="mid-run"), Garbage():
        raise ValueError("mid-run")
    gc.disable()
    try:
        with Garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_step_that_was_not_applied_does_not_count_as_one_of_the_first() -> None:
    """The replica of the generation before is dropped after steps that were applied."""
    knot = Knot()
    old = weakref.ref(knot)
    with Garbage() as garbage:
        for _ in range(SETTLED):
            garbage.step(is_applied=False)
        for _ in range(SETTLED - 1):
            garbage.step()
        del knot
        assert old() is not None
        garbage.step()
        assert old() is None
