"""A run that continues with changed inputs gets an error that names them."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.train.checkpoint import check_same

SAVED = {"plan": "aa", "corpus": "bb", "code": "cc"}


def test_equal_digests_pass() -> None:
    assert check_same(SAVED, dict(SAVED)) == ()


def test_every_difference_is_listed_with_both_values_and_the_way_out() -> None:
    with pytest.raises(InputError) as caught:
        check_same(SAVED, {"plan": "aa", "corpus": "b2", "tokenizer": "dd"}, flag="--allow")
    assert str(caught.value) == (
        "this run differs from its checkpoint in code, corpus, tokenizer\n"
        "  where: code: cc in the checkpoint, not known now; corpus: bb in the checkpoint, b2 now; "
        "tokenizer: not recorded in the checkpoint, dd now\n"
        "  fix:   restore what the checkpoint was made with, or allow the change with --allow code --allow corpus --allow tokenizer"
    )


def test_an_allowed_difference_is_returned_so_that_it_can_be_logged() -> None:
    assert check_same(SAVED, SAVED | {"code": "c2"}, allowed={"code", "plan"}) == ("code",)
    with pytest.raises(InputError, match="in corpus"):
        check_same(SAVED, SAVED | {"code": "c2", "corpus": "b2"}, allowed={"code"})


def test_a_wrong_name_in_what_is_allowed_is_an_error() -> None:
    with pytest.raises(InputError, match="'cod' is not something that a checkpoint compares"):
        check_same(SAVED, SAVED, allowed={"cod"})
