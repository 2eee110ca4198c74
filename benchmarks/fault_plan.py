"""Which faults strike a run of benchmarks/faults.py, drawn from a seed: what breaks, in which phase, from which step on, on which rank."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("kill", "two kills", "stop", "exception", "sockets", "full disk", "lost disk")
WEIGHTS = (6, 2, 2, 6, 4, 3, 3)  # a stopped process takes longest to notice
DISK = ("full disk", "lost disk")
LOSES_A_REPLICA = ("kill", "stop", "exception")
USUAL_PHASES = ("step", "evaluation", "save")
LATER_PHASES = ("start", "prepare", "join")  # of the generation that follows a fault: a second fault while the run recovers from the first
PHASES = (*USUAL_PHASES, *LATER_PHASES, "end")
LAYOUTS = (
    "dp=2,zero=0",
    "dp=2,zero=1",
    "dp=3,zero=2,mbs=1",
    "dp=2,tp=2,zero=0",
    "dp=2,pp=2,zero=1",
    "dp=2,pp=2,vp=2,zero=2",
    "dp=2,cp=2,zero=1",
    "dp=4,zero=1,zero_ranks=2,mbs=1",
    "dp=2,zero=3",
    "dp=2,tp=2,pp=2,zero=0",
)
PER_RUN = 40
STEPS_PER_FAULT = 4
FIRST_STEP = 3
CHECKPOINT_STEPS = 10
STALL_S = 3.0  # --stall-timeout
PATIENCE_S = 1200.0  # for one run
AT_END = 2  # faults of a run that strike while it ends


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what breaks, in which phase, from which step on, and on which rank (and on which other one, for two at once)."""

    kind: str
    phase: str
    step: int
    rank: int
    other: int = 0

    @property
    def is_second(self) -> bool:
        """Whether it strikes while the run recovers from the fault before."""
        return self.phase in LATER_PHASES


def drawn(seed: int, number: int, per_run: int = PER_RUN) -> tuple[str, list[Fault]]:
    """The layout and the faults of one run, in order. A fault during a recovery follows one that loses a replica."""
    rng = random.Random(f"{seed}/{number}")
    layout = LAYOUTS[(seed + number) % len(LAYOUTS)]
    faults: list[Fault] = []
    while len(faults) < per_run:
        kind, phase = rng.choices(KINDS, WEIGHTS)[0], rng.choice(PHASES[:-1])
        step = FIRST_STEP + STEPS_PER_FAULT * len(faults) + rng.randrange(3)
        if len(faults) >= per_run - AT_END:
            kind, phase = rng.choice(("kill", "exception", "sockets", "full disk")), "end"
        elif kind in DISK:
            phase = rng.choice(("save", "join")) if kind == "full disk" else "save"
        if phase in LATER_PHASES and not (faults and faults[-1].kind in LOSES_A_REPLICA and not faults[-1].is_second):
            phase = rng.choice(USUAL_PHASES)
            kind = rng.choice(LOSES_A_REPLICA)
        faults.append(Fault(kind=kind, phase=phase, step=step, rank=rng.randrange(64), other=rng.randrange(64)))
    return layout, faults


def batch_of(layout: str) -> int:
    """Samples of a step: few, because a fault costs several steps; a pipeline needs more of them."""
    return 8 if "pp=" in layout else 6 if "dp=3" in layout else 4


def steps_of_run(per_run: int) -> int:
    """Steps of a run with so many faults."""
    return FIRST_STEP + STEPS_PER_FAULT * (per_run + 1)
