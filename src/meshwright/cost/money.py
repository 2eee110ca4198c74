"""Money of a run. Prices are data with dates in the catalogue; this module only multiplies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.units import HOUR

Quantity = float | NDArray[np.float64]


def accelerator_hours(num_accelerators: Quantity, seconds: Quantity) -> Quantity:
    """Accelerator-hours of a run, which providers bill."""
    return num_accelerators * seconds / HOUR


def cost_usd(num_accelerators: Quantity, seconds: Quantity, usd_per_accelerator_hour: Quantity) -> Quantity:
    """Dollars for renting `num_accelerators` for `seconds`."""
    return accelerator_hours(num_accelerators, seconds) * usd_per_accelerator_hour
