"""Options of drawing tokens are refused before torch is loaded."""

from __future__ import annotations

import math

import pytest

from meshwright.errors import InputError
from meshwright.train.model.sampling import check_sampling


@pytest.mark.parametrize("temperature, top_k, top_p", [(0.0, 0, 1.0), (0.8, 50, 0.95), (2.0, 1, 1e-9)])
def test_what_can_be_drawn_passes(temperature: float, top_k: int, top_p: float) -> None:
    check_sampling(temperature, top_k, top_p)


@pytest.mark.parametrize(
    "temperature, top_k, top_p, named",
    [
        (-0.1, 0, 1.0, "temperature is -0.1"),
        (math.nan, 0, 1.0, "temperature is nan"),
        (math.inf, 0, 1.0, "temperature is inf"),
        (1.0, -1, 1.0, "top_k is -1"),
        (1.0, 0, 0.0, "top_p is 0"),
        (1.0, 0, 1.1, "top_p is 1.1"),
        (1.0, 0, math.nan, "top_p is nan"),
    ],
)
def test_what_cannot_is_named(temperature: float, top_k: int, top_p: float, named: str) -> None:
    with pytest.raises(InputError, match=named):
        check_sampling(temperature, top_k, top_p)
