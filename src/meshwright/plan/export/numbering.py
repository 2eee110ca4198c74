"""How a foreign stack numbers its ranks, against where a plan puts them.

A plan deals its ranks onto the machine in its own order. A stack that numbers them in another order runs the same plan if each of its
ranks is started on the accelerator that holds the same coordinates: that is what a rank file is for.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.layout import AXES, Layout

Order = tuple[str, ...]  # axes, innermost first

PP_LAST: Order = ("tp", "cp", "dp", "pp")  # Megatron-LM as it is, torchtitan, DeepSpeed
DP_LAST: Order = ("tp", "cp", "pp", "dp")  # Megatron-LM with --use-tp-pp-dp-mapping


def is_numbered(layout: Layout, order: Order) -> bool:
    """Whether numbering in `order` gives every rank the coordinates that the plan gives it; axes of one rank do not matter."""
    foreign = replace(layout, order=order)
    return all(layout.stride(axis) == foreign.stride(axis) for axis in AXES if getattr(layout, axis) > 1)


def places(layout: Layout, order: Order) -> list[int]:
    """For every rank numbered in `order`, the rank of the plan with the same coordinates: the accelerator it must start on."""
    foreign = replace(layout, order=order)
    return [layout.rank(foreign.coordinate(rank)) for rank in range(layout.num_ranks)]


def rank_note(layout: Layout, order: Order, stack: str) -> list[str]:
    """What to say where the stack numbers its ranks in another order than the plan."""
    if is_numbered(layout, order):
        return []
    return [
        f"{stack} numbers ranks {'-'.join(order)} (innermost first), the plan places them {'-'.join(layout.order)}: "
        "start it with the rank file of kind `rankfile-pp-last`, or the axes land on other tiers than planned"
    ]
