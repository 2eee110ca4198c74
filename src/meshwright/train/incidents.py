"""What breaks in a run that goes on by itself (`--keep-going`): one entry for each fault, and whether the run is started again.

A fault may be a killed process, an exception, a hang or a lost connection. The ranks are started again from the newest complete checkpoint,
unless nothing suggests that it would help: wrong input, the same fault of the program at the same step, or several faults in a row without
progress.

An exception that comes again at the same step, with the same words, is a fault of the program or its data: it would come a third time. A
process that was killed or stopped from outside, and a lost connection, say nothing about the program, and may strike twice at one step by
chance. They count only if the run comes no further: a step that always uses up the memory of the machine, so that the kernel kills a
rank, ends the run in this way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_INCIDENTS = 1000  # in one command
LASTING = ("input", "interrupt")  # reasons that do not pass: wrong input, and a user who stops the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of a run."""

    number: int  # from 1
    reason: str  # exception, exit, signal, hang, connection or node
    rank: int | None  # None: not known, or all
    step: int  # steps done when it happened
    message: str  # what broke, in one line
    noticed_s: float  # when it was noticed, by the monotonic clock
    silent_s: float = 0.0  # from the last step on record until then: a hang takes a while to notice
    action: str = ""  # what was done, if not a restart from a checkpoint
    from_outside: bool = False  # a process was killed or stopped, or a connection was lost: no sign of a fault of the program
    saved_step: int = -1  # of the newest checkpoint then, if all ranks are started again
    step_times_s: Mapping[int, float] = field(default_factory=dict)  # of the steps on record, by number: those after a checkpoint are lost

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Incident:
        """An incident as another process has sent it."""
        return cls(**{**entry, "step_times_s": {int(step): float(seconds) for step, seconds in entry["step_times_s"].items()}})

    def lost(self, restarted_step: int) -> tuple[int, float]:
        """How many steps are lost if the run goes on after `restarted_step`, and how many seconds they took."""
        times_s = [seconds for step, seconds in self.step_times_s.items() if step > restarted_step]
        return max(self.step - restarted_step, 0), sum(times_s)

    def is_like(self, other: Incident) -> bool:
        """Whether both are one and the same fault of the program."""
        if self.from_outside or other.from_outside:
            return False
        return (self.reason, self.step, _words(self.message)) == (other.reason, other.step, _words(other.message))


def _words(message: str) -> str:
    """A message without seconds and sizes, which differ a little each time, and without generations: a restart begins a new one."""
    return re.sub(r"\d+\.\d+|generation[- ]\d+", "", message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How often one way of going on is tried."""

    most_alike: int  # the same fault of the program at the same step
    most_without_progress: int  # faults in a row after which no step further than before was done
    words: str  # what was tried, in the plural


RESTARTS = Limits(most_alike=1, most_without_progress=5, words="restarts")
LOSSES = Limits(most_alike=3, most_without_progress=6, words="losses of replicas")  # less is lost than with a restart


class Incidents:
    """The faults of one command so far."""

    def __init__(self) -> None:
        self.all: list[Incident] = []
        self._dealt_with: dict[Limits, list[Incident]] = {RESTARTS: [], LOSSES: []}
        self._in_vain: dict[Limits, int] = {RESTARTS: 0, LOSSES: 0}
        self._furthest: dict[Limits, tuple[int, int]] = {RESTARTS: (-1, -1), LOSSES: (-1, -1)}  # step, and step of a checkpoint

    def refusal(self, incident: Incident, limits: Limits = RESTARTS) -> str:
        """Add a fault, after which the ranks would be started again, or go on without a replica (`LOSSES`); why not, or an empty text."""
        before = [one for one in self._dealt_with[limits] if one.is_like(incident)]
        self.all.append(incident)
        self._dealt_with[limits].append(incident)
        self._count(incident, limits)
        if incident.reason in LASTING:
            return "it would fail again"
        if len(before) >= limits.most_alike:
            how = ", after a restart from a checkpoint" if limits is RESTARTS else ""
            return f"the same happened at step {incident.step} before (incident {before[-1].number}){how}"
        if self._in_vain[limits] >= limits.most_without_progress:
            return f"{self._in_vain[limits]} {limits.words} in a row came no further than step {self._furthest[limits][0]}"
        if len(self.all) >= MOST_INCIDENTS:
            return f"there were {MOST_INCIDENTS} incidents"
        return ""

    def _count(self, incident: Incident, limits: Limits) -> None:
        """Count faults without progress: no further step, and no newer checkpoint. After a restart, losses are counted anew."""
        step, saved_step = self._furthest[limits]
        has_progress = incident.step > step or incident.saved_step > saved_step
        self._in_vain[limits] = 0 if has_progress else self._in_vain[limits] + 1
        self._furthest[limits] = max(step, incident.step), max(saved_step, incident.saved_step)
        if limits is RESTARTS:
            self._in_vain[LOSSES], self._furthest[LOSSES] = 0, (-1, -1)

    def tried(self) -> str:
        """What was tried, in words."""
        return "; ".join(f"incident {one.number} at step {one.step}: {one.message}" for one in self.all[-5:])
