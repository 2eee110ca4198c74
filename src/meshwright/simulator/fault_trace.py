"""A given list of faults on a run whose replicas go on: what share of its time is work that counts.

Unlike weeks with drawn failures (`campaign`), every fault has its time and says how many replicas it takes. The others go on after the
fault is noticed and the groups are formed anew; the lost ones come back later, which stops all for a moment. If no replica is left, all
ranks are started again from the newest checkpoint. How long each of this takes is in the trace; it must have been measured elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from meshwright.describe.form import Checked, checked
from meshwright.describe.load import read_toml
from meshwright.errors import InputError
from meshwright.frozen import FrozenDict
from meshwright.plan.plan import Plan

MOST_FAULTS = 100_000
MOST_S = 1e9
MOST_STEPS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFault:
    """One fault: when it strikes, in seconds after the first step began, what it is, and how many replicas it takes."""

    time_s: float
    what: str
    num_replicas: int  # 0: connections broke, and no process


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long a machine takes for each part of a recovery, in seconds."""

    step_s: float  # with all replicas, evaluations and checkpoints included
    notice_s: Mapping[str, float]  # by kind of fault
    regroup_s: float  # until the other replicas take the next step
    return_s: float  # until a lost replica is ready to join
    join_s: float  # for which all wait when it joins
    restart_s: float  # of all ranks, until the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTrace:
    """The faults of one run, and what is known of its recoveries."""

    num_steps: int
    checkpoint_steps: int  # between checkpoints
    recovery: Recovery
    faults: tuple[TracedFault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What becomes of a run that these faults strike."""

    name: str
    num_steps: int
    num_faults: int  # that struck before the end
    num_restarts: int  # of all ranks
    wall_s: float
    work_s: float  # steps that count
    lost_s: float  # steps that were done again, those in flight included
    recovering_s: float  # noticing, forming groups, joining, starting again

    @property
    def ettr(self) -> float:
        """Share of the time that is work which counts: effective training time."""
        return self.work_s / self.wall_s if self.wall_s else 1.0


class _FaultEntry(Checked):
    time_s: float = Field(ge=0, le=MOST_S)
    what: str
    num_replicas: int = Field(ge=0, le=1_000_000)


class _RecoveryEntry(Checked):
    step_s: float = Field(gt=0, le=MOST_S)
    notice_s: dict[str, float]
    regroup_s: float = Field(ge=0, le=MOST_S)
    return_s: float = Field(ge=0, le=MOST_S)
    join_s: float = Field(ge=0, le=MOST_S)
    restart_s: float = Field(ge=0, le=MOST_S)


class _Entry(Checked):
    num_steps: int = Field(ge=1, le=MOST_STEPS)
    checkpoint_steps: int = Field(ge=1, le=MOST_STEPS)
    recovery: _RecoveryEntry
    faults: list[_FaultEntry] = Field(default_factory=list, max_length=MOST_FAULTS)


def read_trace(path: Path) -> FaultTrace:
    """The trace in a TOML file."""
    entry = checked(_Entry, read_toml(path), str(path))
    known = entry.recovery.notice_s
    for what, value in known.items():
        if not 0 <= value <= MOST_S:
            raise InputError(
                f"a fault of kind {what!r} is noticed after {value} s", where=f"{path}: recovery.notice_s", fix="give seconds of at least 0"
            )
    unknown = sorted({fault.what for fault in entry.faults} - known.keys())
    if unknown:
        raise InputError(
            f"the trace does not say after how long a fault of kind {unknown[0]!r} is noticed",
            where=f"{path}: recovery.notice_s",
            fix=f"add {unknown[0]} = SECONDS",
        )
    faults = tuple(TracedFault(**fault.model_dump()) for fault in sorted(entry.faults, key=lambda fault: fault.time_s))
    recovery = Recovery(**{**entry.recovery.model_dump(), "notice_s": FrozenDict(known)})
    return FaultTrace(num_steps=entry.num_steps, checkpoint_steps=entry.checkpoint_steps, recovery=recovery, faults=faults)


def replayed(plan: Plan, trace: FaultTrace) -> Replayed:
    """The run of a plan under these faults."""
    run = _Replay(trace, plan.layout.dp, lambda dp: _slowdown(plan, dp), dp=plan.layout.dp)
    for fault in trace.faults:
        run.train(until_s=fault.time_s)
        if run.is_done:
            break
        run.strike(fault)
    run.train()
    return Replayed(
        name=plan.name,
        num_steps=trace.num_steps,
        num_faults=run.num_faults,
        num_restarts=run.num_restarts,
        wall_s=run.now_s,
        work_s=run.now_s - run.lost_s - run.recovering_s,
        lost_s=run.lost_s,
        recovering_s=run.recovering_s,
    )


def _slowdown(plan: Plan, dp: int) -> float:
    """How much longer a step takes with fewer replicas: each runs more micro-batches."""
    micro_batches = plan.workload.global_batch // plan.layout.micro_batch
    return -(-micro_batches // dp) / -(-micro_batches // plan.layout.dp)


@dataclass(slots=True)
class _Replay:
    """A clock that goes from fault to fault."""

    trace: FaultTrace
    planned_dp: int
    slowdown: Callable[[int], float]  # of a step, by the number of replicas
    now_s: float = 0.0
    dp: int = 0
    times_s: list[float] = field(default_factory=list)  # of the steps that count
    backs_s: list[float] = field(default_factory=list)  # when lost replicas are ready to join
    lost_s: float = 0.0
    recovering_s: float = 0.0
    num_faults: int = 0
    num_restarts: int = 0

    @property
    def is_done(self) -> bool:
        return len(self.times_s) == self.trace.num_steps

    def train(self, until_s: float = math.inf) -> None:
        """Take steps until a fault strikes, or the run is done. The step in flight is lost."""
        while not self.is_done and self.now_s < until_s:
            self._let_join()
            step_s = self.trace.recovery.step_s * self.slowdown(self.dp)
            if self.now_s + step_s > until_s:
                self.lost_s += max(until_s - self.now_s, 0.0)
                self.now_s = max(until_s, self.now_s)
            else:
                self.now_s += step_s
                self.times_s.append(step_s)

    def strike(self, fault: TracedFault) -> None:
        """Recover from a fault; one that strikes during a recovery begins it anew."""
        self.recovering_s -= max(self.now_s - fault.time_s, 0.0)
        self.now_s = fault.time_s
        self.num_faults += 1
        recovery = self.trace.recovery
        self._wait(recovery.notice_s[fault.what])
        if fault.num_replicas < self.dp:
            self.dp -= fault.num_replicas
            self._wait(recovery.regroup_s)
            self.backs_s += [self.now_s + recovery.return_s] * fault.num_replicas
        else:
            self._restart()

    def _restart(self) -> None:
        """Start all ranks again from the newest checkpoint."""
        kept = len(self.times_s) // self.trace.checkpoint_steps * self.trace.checkpoint_steps
        self.lost_s += sum(self.times_s[kept:])
        del self.times_s[kept:]
        self.dp, self.backs_s = self.planned_dp, []
        self.num_restarts += 1
        self._wait(self.trace.recovery.restart_s)

    def _let_join(self) -> None:
        """Replicas that are ready join at this step boundary, all at once."""
        ready = [back_s for back_s in self.backs_s if back_s <= self.now_s]
        if ready:
            self.dp += len(ready)
            self.backs_s = [back_s for back_s in self.backs_s if back_s not in ready]
            self._wait(self.trace.recovery.join_s)

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.recovering_s += seconds
