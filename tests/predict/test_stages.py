"""Layers over stages: even, with embedding and loss counted, stated, and not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.predict.stages import check_split, stage_layers


@pytest.mark.parametrize(
    "num_layers, pp, vp, first, last, expected",
    [
        (96, 8, 12, 0, 0, (12, 12, 12)),  # GPT-3 on 512 H100
        (126, 8, 8, 0, 0, (15, 16, 15)),  # 405B: embedding and loss count as a layer each
        (80, 1, 1, 0, 0, (80, 80, 80)),
        (61, 4, 1, 16, 13, (16, 16, 13)),
        (61, 4, 1, 0, 13, (16, 16, 13)),
        (10, 2, 1, 6, 4, (6, 5, 4)),  # nothing lies between the ends: half of the layers stands for a middle
        (94, 16, 1, 0, 0, (5, 6, 5)),
    ],
)
def test_layers_of_the_first_a_middle_and_the_last_stage(num_layers, pp, vp, first, last, expected):
    split = stage_layers(num_layers, pp, vp, first, last)
    assert split.legal
    assert (split.first, split.middle, split.last) == expected


@pytest.mark.parametrize("arguments", [(61, 4), (126, 8, 5), (10, 2, 1, 6, 5), (61, 4, 1, 20, 20), (12, 1, 1, 6, 0), (10, 4, 1, 9, 9)])
def test_layers_that_do_not_divide_are_marked(arguments):
    assert not stage_layers(*arguments).legal
    with pytest.raises(InputError, match="do not divide"):
        check_split(*arguments)


def test_the_error_says_what_would_divide():
    with pytest.raises(InputError) as caught:
        check_split(126, 8, 5)
    assert "126 layers do not divide over 8 pipeline stages of 5 chunks" in caught.value.what
    assert "with pp=8: vp = 1, 2, 4, 8, 16" in caught.value.fix
    check_split(126, 8, 8)


@given(st.integers(1, 130), st.integers(1, 32), st.integers(1, 8), st.integers(0, 20), st.integers(0, 20))
def test_a_legal_split_holds_every_layer_once(num_layers, pp, vp, first, last):
    split = stage_layers(num_layers, pp, vp if pp > 1 else 1, first, last)
    layers = split.at(np.arange(pp))
    assert not split.legal or (layers.sum() == num_layers and (layers >= 0).all())


def test_many_layouts_are_split_at_once():
    split = stage_layers(126, np.array([1, 2, 8, 8]), np.array([1, 1, 8, 5]))
    np.testing.assert_array_equal(split.legal, [True, True, True, False])
    np.testing.assert_array_equal(split.first[:3], [126, 63, 15])


def test_leading_layers_fill_the_first_chunks():
    split = stage_layers(8, 4)
    np.testing.assert_array_equal(split.leading_at(3, 1, np.arange(4)), [2, 1, 0, 0])
    interleaved = stage_layers(16, 4, 2)
    np.testing.assert_array_equal(interleaved.leading_at(3, 2, np.arange(4)), [2, 1, 0, 0])
