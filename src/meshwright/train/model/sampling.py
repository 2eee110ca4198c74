"""Checks of sampling options, made before torch is loaded, because loading torch takes seconds."""

from __future__ import annotations

import math

from meshwright.errors import InputError, argument


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Raise an InputError if the sampling options are not valid."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(
            f"{argument('temperature')} is {temperature:g}", where=argument("temperature"), fix="give 0 or more: 0 is greedy, 0.8 is common"
        )
    if top_k < 0:
        raise InputError(f"{argument('top_k')} is {top_k}", where=argument("top_k"), fix="give 0 or more: 0 draws from all tokens")
    if not 0 < top_p <= 1:
        raise InputError(
            f"{argument('top_p')} is {top_p:g}",
            where=argument("top_p"),
            fix="give a number above 0 and at most 1, which draws from all tokens",
        )
