"""The communication that is left when compute hides it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]


def exposed_s(communication_s: Quantity, hiding_s: Quantity, num_pieces: Quantity, contention: Quantity) -> Any:
    """Seconds that communication in `num_pieces` adds to a step, if each piece can run behind compute of `hiding_s`.

    The last piece has no compute left to hide behind. Hidden communication still uses cores, memory bandwidth and power that compute needs:
    a fraction `contention` of it makes the step longer.
    """
    open_s = np.maximum(np.maximum(communication_s / num_pieces, communication_s - hiding_s), 0.0)
    return open_s + contention * (communication_s - open_s)
