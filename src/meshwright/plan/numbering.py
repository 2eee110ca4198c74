"""How another stack numbers its ranks, compared with the plan.

A plan assigns its ranks to the machine in its own order. A stack with another order runs the same plan if each of its ranks is started on
the accelerator with the same coordinates; a rank file does this.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.layout import AXES, ORDERS, Layout, Layouts

Order = tuple[str, ...]  # axes, innermost first

PP_LAST: Order = ("tp", "cp", "dp", "pp")  # Megatron-LM as it is, torchtitan, DeepSpeed
DP_LAST: Order = ("tp", "cp", "pp", "dp")  # Megatron-LM with --use-tp-pp-dp-mapping


def is_numbered(layout: Layout, order: Order) -> bool:
    """Whether numbering in `order` gives every rank the coordinates that the plan gives it; axes of one rank do not matter."""
    return bool(same_numbers(Layouts.of([layout]), order)[0])


def same_numbers(rows: Layouts, order: Order) -> NDArray[np.bool_]:
    """The same for every row of many layouts."""
    columns = {f.name: getattr(rows, f.name) for f in fields(Layouts)}
    foreign = Layouts(**{**columns, "order": np.full(len(rows), ORDERS.index(order), dtype=np.int64)})
    same = [(getattr(rows, axis) == 1) | (rows.stride(axis) == foreign.stride(axis)) for axis in AXES]
    return np.asarray(np.all(same, axis=0))


def places(layout: Layout, order: Order) -> list[int]:
    """For every rank numbered in `order`, the rank of the plan with the same coordinates: the accelerator it must start on."""
    foreign = replace(layout, order=order)
    return [layout.rank(foreign.coordinate(rank)) for rank in range(layout.num_ranks)]
