"""The interval of the exposed time between replicas: the constants behind it are varied by their expected uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.prediction import interval_of, parts
from meshwright.predict.software import FITTED, Software

# The constants that decide how long traffic between replicas takes and how much of it is exposed. A step has other errors too.
BEHIND = ("fabric_efficiency", "hashed_efficiency", "round_s", "hopper_contention", "blackwell_contention")
NORMAL_90 = 1.2815515655446004


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds per step that traffic between replicas adds, with an 80 % interval."""

    seconds: float
    low_s: float
    high_s: float


def exposed_between_replicas(job: Job, layout: Layout) -> Exposed:
    """The predicted exposed time, varied by the expected spread of each constant; the errors are added as independent.

    No public trace exists, so the spread is the one that was expected before the fit, and was not measured. Times of a hardware profile
    have the spread of predictions from profiles.
    """
    middle_s = _exposed_s(job, layout)
    above, below = 0.0, 0.0
    if job.software.profile:
        held = interval_of(job)
        above, below = (middle_s * (held.high - 1)) ** 2, (middle_s * (held.low - 1)) ** 2
    for name in BEHIND:
        moved = [_exposed_s(replace(job, software=_moved(job.software, name, side * NORMAL_90)), layout) - middle_s for side in (1, -1)]
        above += max(*moved, 0.0) ** 2
        below += min(*moved, 0.0) ** 2
    return Exposed(seconds=middle_s, low_s=max(middle_s - math.sqrt(below), 0.0), high_s=middle_s + math.sqrt(above))


def _moved(stack: Software, name: str, deviates: float) -> Software:
    fitted = FITTED[name]
    value = min(max(float(getattr(stack.constants, name)) + deviates * fitted.spread, fitted.low), fitted.high)
    return replace(stack, constants=replace(stack.constants, **{name: value}))


def _exposed_s(job: Job, layout: Layout) -> float:
    return float(parts(job, Layouts.of([layout])).seconds["exposed_dp"][0])
