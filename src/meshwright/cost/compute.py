"""Time of the work on one accelerator: matrix products, attention, and what only moves bytes.

Every argument may be a number or an array; they broadcast, so one call prices all candidate layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]


def matmul_flops_per_s(peak_flops_per_s: Quantity, ceiling: Quantity, joule_per_flop: Quantity, power_cap_w: Quantity) -> Quantity:
    """FLOP/s of large matrix products: what the cores can do and what the power cap lets them do, one after the other.

    A product at the cores' ceiling would take 1/(ceiling x peak) seconds a FLOP; the energy of that FLOP takes a further
    joule/cap, because a chip at its cap slows its clock. Their sum, not their maximum, is what measured maxima follow: a chip of
    the same cores with a higher cap is faster, but less than in proportion.
    """
    return 1.0 / (1.0 / (ceiling * peak_flops_per_s) + joule_per_flop / power_cap_w)


def matmul_s(rows: Quantity, columns: Quantity, inner: Quantity, flops_per_s: Quantity, half_size: float) -> Any:
    """Seconds of a (rows x inner) by (inner x columns) product.

    `half_size` is the side at which a dimension alone halves the rate: tiles at the edges and the fill of the
    pipeline cost the same whatever the size. A product of nothing takes no time.
    """
    flops = 2.0 * rows * columns * inner
    safe = [np.maximum(side, 1.0) for side in (rows, columns, inner)]
    penalty = 1.0 + half_size * (1.0 / safe[0] + 1.0 / safe[1] + 1.0 / safe[2])
    return flops / flops_per_s * penalty


def layer_forward_bytes(hidden: Quantity, qkv: Quantity, ffn: Quantity, gated: Quantity, cast_bytes: Quantity, query: Quantity) -> Quantity:
    """Bytes one token moves through memory in a layer's forward pass outside the matrix products and attention.

    In bf16: two norms read and write (4 hidden), two residual adds read twice and write (6 hidden), rotary embedding reads and
    writes queries, keys and values, the activation reads one or two MLP vectors and writes one. Each matrix product's input is
    then cast, which moves `cast_bytes` an element (0 in bf16).
    """
    moved = 10 * hidden + 2 * qkv + (2 + gated) * ffn
    return 2.0 * moved + cast_bytes * (2 * hidden + query + ffn)


def layer_backward_bytes(hidden: Quantity, qkv: Quantity, ffn: Quantity, gated: Quantity, cast_bytes: Quantity) -> Quantity:
    """Bytes one token moves through memory in a layer's backward pass, likewise: norms and adds (12 hidden), rotary, activation."""
    moved = 12 * hidden + 2 * qkv + (3 + 2 * gated) * ffn
    return 2.0 * moved + cast_bytes * (qkv + 2 * hidden + (1 + gated) * ffn)
