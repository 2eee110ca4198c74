"""Numbers as the arithmetic of an audit shows them."""

from __future__ import annotations

from meshwright.units import TERA


def count(value: float) -> str:
    """A whole number with thousands separated; of more than a quadrillion a power of ten."""
    return f"{value:,.0f}" if abs(value) < 1e15 else _scientific(value)


def figure(value: float) -> str:
    """Four digits; thousands separated, powers of ten for what is larger than a billion or smaller than a thousandth."""
    if value and not 1e-3 <= abs(value) < 1e9:
        return _scientific(value)
    return count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _scientific(value: float) -> str:
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def teraflops(flops_per_s: float) -> str:
    """A rate of one accelerator."""
    return f"{figure(flops_per_s / TERA)} TFLOP/s"


def minutes(seconds: float) -> str:
    """Seconds as the minutes MLPerf publishes."""
    return f"{figure(seconds / 60)} min"


def percent(share: float) -> str:
    """A share in per cent: one digit after the point, more below one per cent."""
    return f"{100 * share:.1f} %" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.2g} %"
