"""The only conversion factors, and the reading and printing of quantities. Inside, everything is SI."""

from __future__ import annotations

import math

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
PETA = 1e15

GB = GIGA
GIB = float(2**30)
MIB = float(2**20)
GBIT = GIGA / 8
MICROSECOND = 1e-6
MINUTE = 60.0
HOUR = 3600.0
DAY = 24 * HOUR
KWH = 3.6e6

_PREFIXES = ((1e18, "E"), (PETA, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))


def si(value: float, unit: str, digits: int = 4) -> str:
    """`value` with the largest SI prefix that leaves at least one digit before the point: 12.7 GB."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}".rstrip()


def parameters(count: float, form: str = ".2f") -> str:
    """A model's size as people say it: 405.85 B, 94.40 M, 82.05 K."""
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= factor:
            return f"{count / factor:{form}} {letter}"
    return f"{count:.0f}"


def gib(num_bytes: float) -> str:
    """Bytes as GiB, the unit GPU tools print: 53.1 GiB."""
    return f"{num_bytes / GIB:.1f} GiB"


def seconds(value: float) -> str:
    """A duration as people say it: 83 us, 1.271 s, 7.07 min, 3.2 h, 12.4 d."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0 s"
    size = abs(value)
    if size < 1e-3:
        return f"{value * 1e6:.3g} us"
    if size < 1:
        return f"{value * 1e3:.4g} ms"
    if size < 2 * MINUTE:
        return f"{value:.4g} s"
    if size < 2 * HOUR:
        return f"{value / MINUTE:.4g} min"
    if size < 3 * DAY:
        return f"{value / HOUR:.3g} h"
    return f"{value / DAY:.3g} d" if size < 1000 * DAY else f"{value / DAY:,.0f} d"


def per_cent(share: float, form: str = ".1f") -> str:
    """A share of 1 in per cent, with a space as SI has it: 22.3 %."""
    return f"{100 * share:{form}} %"


def usd(value: float) -> str:
    """Dollars with thousands separated; cents only where they matter, and parts of one where there is no more."""
    if 0 < abs(value) < 0.1:
        return f"${value:.3g}"
    return f"${value:,.2f}" if abs(value) < 100 else f"${value:,.0f}"


def energy(joules: float, like_j: float | None = None) -> str:
    """Energy as people say it: kWh, Wh below a tenth of one, MWh from ten thousand on. Joules are for a step or a token alone.

    Rows of a table have one unit where each is given the table's total as `like_j`.
    """
    whole = abs(joules if like_j is None else like_j) / KWH
    factor, unit = (1e-3, "MWh") if whole >= 1e4 else (1.0, "kWh") if whole >= 0.1 or not whole else (1e3, "Wh")
    value = joules / KWH * factor
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"


def carbon(mass_kg: float) -> str:
    """Greenhouse gas: 18.6 kg CO2e, g below a tenth of one, t from ten thousand on."""
    return _scaled(mass_kg, "g CO2e", "kg CO2e", "t CO2e")


def water(volume_l: float) -> str:
    """Water: 12.4 l, ml below a tenth of one, cubic metres from ten thousand on."""
    return _scaled(volume_l, "ml", "l", "m\u00b3")


def _scaled(value: float, thousandth: str, unit: str, thousand: str) -> str:
    """A quantity in its unit; from ten thousand on in the unit a thousand times larger, below a tenth in the one that much smaller."""
    if value >= 10_000:
        value, unit = value / 1000, thousand
    elif 0 < value < 0.1:
        value, unit = value * 1000, thousandth
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
