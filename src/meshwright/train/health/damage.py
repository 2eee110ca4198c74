"""Damaged data between replicas: numbers of a step that must agree, and do not.

Two checks, on numbers that every rank sends with the sums of the step. A replica with other weights, or a sum that is wrong, makes all
later steps wrong: a wrong sum is not applied, and the step is done again; a state that differs stops the run.

*The state that replicas hold alike.* Every step they compare a digest of one part of their weights (without ZeRO also of the optimizer's
state). Any bit that differs is found within `NUM_PARTS` steps. With three replicas or more, the one that differs from most is named.

*The sum over replicas.* Adding is linear: the sum of all gradients that were sent is the sum of all that were received, but for rounding.
So a number that changed on the way, in a buffer or in the sum itself, is found in the same step, if the change is larger than the rounding
of all other numbers together: about 1e-6 of the gradient norm in fp32. A smaller change in a single gradient does not matter.

What is not found: a number that was wrong before it was sent, because no other rank has computed it. `spikes` reports those that are far
too large. The state that ZeRO divides among replicas exists only once, and so does everything in a run with one replica.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.layout import Layout
from meshwright.train.parallel.digests import NUM_PARTS
from meshwright.train.sums import CHECKS_FROM, Check, StepResult

# The rounding of one addition is at most half an epsilon of the result, and rounding errors of many numbers add up like a random walk.
# This many times that is far beyond chance.
ROUNDINGS = 16.0
SENT, RECEIVED = (CHECKS_FROM + Check._fields.index(name) for name in ("sent", "received"))  # columns of a rank's row


@dataclass(frozen=True, slots=True)
class Damage:
    """Replicas whose numbers do not agree."""

    what: str  # state or sum
    ranks: tuple[int, ...]  # where the damage is; several: it is not known in which of them
    message: str


class Comparison:
    """Which ranks must agree, under one layout. `epsilon` is that of the format in which gradients are summed."""

    def __init__(self, layout: Layout, epsilon: float) -> None:
        self.layout, self.epsilon = layout, epsilon
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank in range(layout.num_ranks):
            place = layout.coordinate(rank)
            groups[place["pp"], place["tp"]].append(rank)
        self.groups = [tuple(ranks) for ranks in groups.values() if len(ranks) > 1]

    def damage(self, step: int, result: StepResult) -> Damage | None:
        """What does not agree in a step, if anything. All ranks get the same answer."""
        for ranks in self.groups if result.checks else ():
            found = self._of_state(step, ranks, result) or self._of_sum(step, ranks, result)
            if found is not None:
                return found
        return None

    def _of_state(self, step: int, ranks: Sequence[int], result: StepResult) -> Damage | None:
        digests = {rank: result.checks[rank].digest for rank in ranks}
        (usual, count), *others = Counter(digests.values()).most_common()
        if not others:
            return None
        is_clear = count > len(ranks) / 2
        odd = tuple(rank for rank in ranks if not is_clear or digests[rank] != usual)
        same = tuple(rank for rank in ranks if rank not in odd)
        what = f"differs from that of {_named(same)}" if is_clear else "differs, and it is not known which of them is right"
        since = f"somewhere in the last {NUM_PARTS} steps"
        return Damage("state", odd, f"the state of {_named(odd)} {what}: found at step {step}, it began {since}")

    def _of_sum(self, step: int, ranks: Sequence[int], result: StepResult) -> Damage | None:
        sent = math.fsum(result.checks[rank].sent for rank in ranks)
        size = math.fsum(result.own_norms[rank] for rank in ranks)
        limit = self.rounding(len(ranks)) * size
        for holders in self.holders(ranks):
            received = math.fsum(result.checks[rank].received for rank in holders)
            if abs(received - sent) > limit:
                by = f"by {abs(received - sent):.3g}, where rounding explains {limit:.1g}"
                return Damage("sum", holders, f"the summed gradients of {_named(holders)} at step {step} are not what was sent: {by}")
        return None

    def rounding(self, num_ranks: int) -> float:
        """By how much a sum over so many ranks may be off, as a share of the gradients' size."""
        return ROUNDINGS * self.epsilon * math.sqrt(num_ranks)

    def holders(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """Ranks that together hold the sum once: each rank without ZeRO, otherwise each group that shares a state."""
        size = self.layout.sharing_ranks if self.layout.zero_stage else 1
        in_order = sorted(ranks, key=lambda rank: (self.layout.coordinate(rank)["dp"], self.layout.coordinate(rank)["cp"]))
        return [tuple(sorted(in_order[at : at + size])) for at in range(0, len(in_order), size)]


class SumTest:
    """The check of sums on the device, for steps that are applied before the host has read their sums. It never waits for the host."""

    def __init__(self, comparison: Comparison, device: torch.device) -> None:
        groups = comparison.groups
        holders = [(number, held) for number, ranks in enumerate(groups) for held in comparison.holders(ranks)]
        num_ranks = comparison.layout.num_ranks
        group, holder = [len(groups)] * num_ranks, [len(holders)] * num_ranks  # one more of each for ranks that are in none
        for number, ranks in enumerate(groups):
            for rank in ranks:
                group[rank] = number
        for place, (_, held) in enumerate(holders):
            for rank in held:
                holder[rank] = place
        self.group, self.holder = (torch.tensor(values, device=device) for values in (group, holder))
        self.group_of_holder = torch.tensor([number for number, _ in holders], dtype=torch.int64, device=device)
        roundings = [comparison.rounding(len(ranks)) for ranks in groups]
        self.roundings = torch.tensor([*roundings, 0.0], dtype=torch.float64, device=device)

    def is_wrong(self, rows: Tensor) -> Tensor:
        """Whether the sum of any group is not what was sent, from the rows of all ranks (`sums.NUM_OWN`)."""
        squares, sent, received = rows[:, 0], rows[:, SENT], rows[:, RECEIVED]
        sizes = torch.zeros_like(self.roundings).index_add_(0, self.group, squares.clamp(min=0.0).sqrt())
        sums = torch.zeros_like(self.roundings).index_add_(0, self.group, sent)
        landed = rows.new_zeros(len(self.group_of_holder) + 1).index_add_(0, self.holder, received)[:-1]
        return ((landed - sums[self.group_of_holder]).abs() > (sizes * self.roundings)[self.group_of_holder]).any()


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {listed}"
