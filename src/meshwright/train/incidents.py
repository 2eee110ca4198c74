"""What breaks in a run that goes on by itself (`--keep-going`): one entry for each fault, and whether the run is started again.

A fault may be a killed process, an exception, a hang or a lost connection. The ranks are started again from the newest complete checkpoint,
unless nothing suggests that it would help: wrong input, the same fault at the same step, or several faults in a row without progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_WITHOUT_PROGRESS = 3  # faults in a row after which no step further than before was done
MOST_INCIDENTS = 1000  # in one command
LASTING = ("input", "interrupt")  # reasons that do not pass: wrong input, and a user who stops the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of a run."""

    number: int  # from 1
    reason: str  # exception, exit, signal, hang or connection
    rank: int | None  # None: not known, or all
    step: int  # steps done when it happened
    message: str  # what broke, in one line
    noticed_s: float  # when it was noticed, by the monotonic clock
    silent_s: float = 0.0  # from the last step on record until then: a hang takes a while to notice
    action: str = ""  # what was done, if not a restart from a checkpoint
    step_times_s: Mapping[int, float] = field(default_factory=dict)  # of the steps on record, by number: those after a checkpoint are lost

    def lost(self, restarted_step: int) -> tuple[int, float]:
        """How many steps are lost if the run goes on after `restarted_step`, and how many seconds they took."""
        times_s = [seconds for step, seconds in self.step_times_s.items() if step > restarted_step]
        return max(self.step - restarted_step, 0), sum(times_s)


class Incidents:
    """The faults of one command so far."""

    def __init__(self) -> None:
        self.all: list[Incident] = []
        self._furthest = -1
        self._num_without_progress = 0

    def refusal(self, incident: Incident, most_alike: int = 1) -> str:
        """Add a fault; return why the run should not be started again, or an empty text.

        `most_alike`: how often the same may happen at the same step. A replica that is lost may be killed again by chance.
        """
        before = [one for one in self.all if (one.reason, one.step) == (incident.reason, incident.step)]
        self.all.append(incident)
        self._num_without_progress = 0 if incident.step > self._furthest else self._num_without_progress + 1
        self._furthest = max(self._furthest, incident.step)
        if incident.reason in LASTING:
            return "it would fail again"
        if len(before) >= most_alike:
            return f"the same happened at step {incident.step} before (incident {before[-1].number}), after a restart from a checkpoint"
        if self._num_without_progress >= MOST_WITHOUT_PROGRESS:
            return f"{self._num_without_progress} restarts in a row came no further than step {self._furthest}"
        if len(self.all) >= MOST_INCIDENTS:
            return f"there were {MOST_INCIDENTS} incidents"
        return ""

    def tried(self) -> str:
        """What was tried, in words."""
        return "; ".join(f"incident {one.number} at step {one.step}: {one.message}" for one in self.all[-5:])
