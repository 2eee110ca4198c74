"""How tokens may be drawn from a model; known before torch is loaded, which takes seconds."""

from __future__ import annotations

import math

from meshwright.errors import InputError


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Pass where tokens can be drawn so."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"temperature {temperature:g} is not 0 or more", where="temperature", fix="0 is greedy; 0.8 is common")
    if top_k < 0:
        raise InputError(f"top_k {top_k} is not 0 or more", where="top_k", fix="0 draws from all tokens")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p {top_p:g} is not above 0 and at most 1", where="top_p", fix="1 draws from all tokens")
