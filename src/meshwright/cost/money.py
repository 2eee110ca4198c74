"""Money of a run. Prices are data with dates elsewhere; here they are only multiplied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.units import HOUR

Quantity = float | NDArray[np.float64]


def accelerator_hours(num_accelerators: Quantity, seconds: Quantity) -> Quantity:
    """Accelerator-hours of a run: what providers bill."""
    return num_accelerators * seconds / HOUR


def cost_usd(num_accelerators: Quantity, seconds: Quantity, usd_per_accelerator_hour: Quantity) -> Quantity:
    """Dollars for renting `num_accelerators` for `seconds`."""
    return accelerator_hours(num_accelerators, seconds) * usd_per_accelerator_hour
