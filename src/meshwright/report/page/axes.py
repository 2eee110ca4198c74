"""Scales and ticks of charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from meshwright.units import DAY, HOUR, MINUTE

Scale = Callable[[float], float]  # a value -> a pixel


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values from `low` to `high`: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    if not rough > 0:
        return [low]
    exponent = math.floor(math.log10(rough))
    power, digits = 10.0**exponent, max(1 - exponent, 0)
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
    return [round(step * k, digits) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round values between two positive ones, for a logarithmic axis: 1, 2, 5 a decade, or fewer over many decades."""
    decades = math.log10(high / low)
    steps: Sequence[int] = (1, 2, 5) if decades <= 3 else (1,)
    if decades < 0.7:
        return [tick for tick in ticks(low, high, 5) if tick > 0]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def time_ticks(low_s: float, high_s: float) -> list[float]:
    """Round durations between two positive ones, for a logarithmic axis: seconds, minutes, hours, days in usual steps."""
    if high_s < 1.0:
        return log_ticks(low_s, high_s)
    minutes, days = (1, 2, 5, 10, 20, 30), (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    short = [step * power for power in (0.001, 0.01, 0.1, 1.0) for step in (1, 2, 5)]
    round_s = [*short, 10.0, 20.0, 30.0, *(MINUTE * m for m in minutes), *(HOUR * h for h in (1, 2, 5, 10)), *(DAY * d for d in days)]
    found = [value for value in round_s if low_s <= value <= high_s]
    return found if len(found) > 1 else log_ticks(low_s, high_s)


def logarithmic(low: float, high: float, start: float, stop: float) -> Scale:
    """A logarithmic scale from `low`..`high` to pixels `start`..`stop`."""
    return lambda value: start + (stop - start) * math.log(value / low) / math.log(high / low)


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """Ends of a logarithmic axis that contains positive `values`, with some room on both sides."""
    low, high = min(values), max(values)
    room = max((high / low) ** share, 1.08)
    return low / room, high * room
