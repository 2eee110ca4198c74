"""What is left of communication when compute hides it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]


def exposed_s(communication_s: Quantity, hiding_s: Quantity, num_pieces: Quantity, contention: Quantity) -> Any:
    """Seconds a step grows by communication in `num_pieces` that starts piece by piece behind compute of `hiding_s`.

    The last piece has nothing left to hide behind. What is hidden still takes cores, memory bandwidth and power from the compute:
    a fraction `contention` of it is paid.
    """
    open_s = np.maximum(np.maximum(communication_s / num_pieces, communication_s - hiding_s), 0.0)
    return open_s + contention * (communication_s - open_s)
