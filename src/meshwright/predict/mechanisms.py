"""What each way of surviving failures is worth, in closed form: restarts, spare nodes, checkpoints in memory, replicas that go on.

A restart stops the whole machine, so its cost grows with the rate of failures, which grows with the machine (`predict.goodput`). Where the
other replicas go on without the one that failed, a failure stops all of them only for a moment, and the rest of its cost is one replica
less until that one is back. The share of work is then 1 - out / replicas, divided by 1 + rate x (stall + step): `out` is the mean number of
replicas that are away, by Little's law the rate times how long each is away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.describe.failures import Failures
from meshwright.predict.goodput import interruptions
from meshwright.units import HOUR

MEMORY_COPY_S = 1.0  # assumed: what a copy to the memory of a neighbour holds up, written behind the step
NOTICE_S = 2.0  # until the end of a process is noticed; a goal of the trainer
REGROUP_S = 5.0  # until the other replicas go on; a goal of the trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way of surviving failures, at one size of machine."""

    name: str
    num_accelerators: int
    between_s: float  # seconds between interruptions
    num_spares: int  # nodes
    goodput: float  # share of the time that is work which is kept


def mechanisms(failures: Failures, num_accelerators: int, per_node: int, per_replica: int, step_s: float) -> list[Mechanism]:
    """All ways, from the plainest on, for a machine of so many accelerators whose replicas have `per_replica` each."""
    between_s = failures.mean_time_between_s(num_accelerators)
    plain = interruptions(failures, num_accelerators, per_node, num_spares=0)
    spared = interruptions(failures, num_accelerators, per_node)
    memory = interruptions(replace(failures, checkpoint_s=min(MEMORY_COPY_S, failures.checkpoint_s)), num_accelerators, per_node)
    rows = [
        ("restart from disk, no spare nodes", 0, plain.goodput),
        ("restart from disk, spare nodes", spared.num_spares, spared.goodput),
        ("restart from memory, spare nodes", memory.num_spares, memory.goodput),
        ("other replicas go on, no spare nodes", 0, going_on(failures, num_accelerators, per_replica, step_s, has_spares=False)),
        (
            "other replicas go on, spare nodes",
            spared.num_spares,
            going_on(failures, num_accelerators, per_replica, step_s, has_spares=True),
        ),
    ]
    return [
        Mechanism(name=name, num_accelerators=num_accelerators, between_s=between_s, num_spares=number, goodput=share)
        for name, number, share in rows
    ]


def going_on(failures: Failures, num_accelerators: int, per_replica: int, step_s: float, *, has_spares: bool) -> float:
    """Share of work if the other replicas go on; a failed one is away until it is restarted, on a spare node or once its node is back."""
    num_replicas = num_accelerators / per_replica
    rates = [(cause.per_accelerator_hour * num_accelerators / HOUR, cause.loses_node) for cause in failures.causes]
    back_s = failures.detection_s + failures.restart_s
    out = sum(rate * (failures.repair_s if loses_node and not has_spares else back_s) for rate, loses_node in rates)
    stall = sum(rate for rate, _ in rates) * (NOTICE_S + REGROUP_S + step_s)
    return max(1.0 - out / num_replicas, 0.0) / (1.0 + stall)
