"""An error says what was wrong, where it stands and how to mend it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import FitError, InputError, MeshwrightError, nearest


def test_what_where_and_fix_stand_on_lines_of_their_own():
    error = InputError("tensor degree 6 does not divide 64 attention heads", where="layout.tp", fix="choose tp from 1, 2, 4")
    assert str(error) == "tensor degree 6 does not divide 64 attention heads\n  where: layout.tp\n  fix:   choose tp from 1, 2, 4"


def test_a_line_that_has_nothing_to_say_is_left_out():
    assert str(InputError("too small", fix="add one")) == "too small\n  fix:   add one"
    assert str(InputError("too small")) == "too small"


@pytest.mark.parametrize("kind", [InputError, FitError])
def test_every_kind_is_caught_as_one(kind):
    with pytest.raises(MeshwrightError):
        raise kind("no")


def test_close_names_are_offered_first():
    assert nearest("h10", ["h100", "gb300", "tpu-v5p"]) == "did you mean h100?"
    assert nearest("H100", ["h100", "h200"]) == "did you mean h100?"
    assert nearest("h10x", ["h100", "gb300", "h101"]) == "did you mean h100 or h101?"


def test_where_none_is_close_all_are_offered():
    assert nearest("zebra", ["tp", "cp"]) == "use one of cp, tp"
    assert nearest("zebra", []) == "nothing is known here"


@given(st.text(), st.lists(st.text()))
def test_any_name_gets_an_answer(name, known):
    assert nearest(name, known)
