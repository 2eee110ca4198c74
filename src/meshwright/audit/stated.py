"""Numbers as somebody wrote them: 99.8 stands for anything that rounds to it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

WHOLE = 1e15  # above that a float is no longer written digit by digit
TIME = 0.05  # of a time: nobody writes 1 s for 1.4 s


@dataclass(frozen=True, slots=True)
class Stated:
    """A value, and the lowest and highest that would have been written so."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Stated:
        """The same in another unit."""
        return Stated(self.value * factor, self.low * factor, self.high * factor)

    def over(self, other: Stated) -> Stated:
        """The quotient, with the range that both roundings leave it."""
        return Stated(self.value / other.value, self.low / other.high, self.high / other.low)

    def widened(self, share: float) -> Stated:
        """The same with a range that is wider by a share of the value on both sides."""
        return Stated(self.value, self.low - share * abs(self.value), self.high + share * abs(self.value))

    def agrees(self, other: Stated) -> bool:
        """Whether both may be the same number."""
        slack = 1e-9 * max(abs(self.value), abs(other.value))
        return self.low <= other.high + slack and other.low <= self.high + slack


def stated(value: float) -> Stated:
    """`value` with half a unit of its last written digit on both sides; a lower end is never below half of a positive value.

    28.0 is taken as 28: a number of a file has lost its last zeros, and the wider range is the claim's to have.
    """
    written = int(value) if abs(value) < WHOLE and value == int(value) else value
    exponent = Decimal(repr(written)).as_tuple().exponent
    assert isinstance(exponent, int), "checked to be finite when it was read"
    half = min(float(Decimal(5).scaleb(exponent - 1)), abs(value) / 2)
    return Stated(float(value), value - half, value + half)


def stated_time(value: float) -> Stated:
    """The same of a duration, with a twentieth on both sides at the most."""
    wide, half = stated(value), TIME * value
    return Stated(wide.value, max(wide.low, value - half), min(wide.high, value + half))


def exactly(value: float) -> Stated:
    """A value that is not rounded: one of our own tables', or a count."""
    return Stated(float(value), float(value), float(value))
