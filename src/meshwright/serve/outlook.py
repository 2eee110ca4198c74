"""When a run ends and what it costs: as its plan predicted, and by the pace it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from meshwright.errors import MeshwrightError
from meshwright.ledger import Ledger, Rate, rate_of
from meshwright.plan.plan import Plan
from meshwright.record.header import RUNNING
from meshwright.serve.live import LiveRun
from meshwright.units import HOUR

TARGET_REACHED = "target_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known of a run's end; None where nobody can say."""

    num_steps: int | None  # to the target or through all samples; None for a run that is past all that was expected
    expected_steps: int | None  # by the workload
    progress: float | None  # steps done of `num_steps`, or of those expected where an ended run is past them; 1 at the target
    left_s: float | None  # by the pace of the last steps; of a run that goes on
    finish_at: str | None  # UTC, ISO 8601; of a run that is being lived through
    predicted_s: float | None  # for the whole run, by the plan
    paced_s: float | None  # for the whole run, by its own pace
    predicted_usd: float | None
    paced_usd: float | None
    usd_per_s: float | None
    price_note: str


def outlook_of(run: LiveRun, ledger: Ledger | None = None) -> Outlook:
    """What the run will take; all None for one without a plan, or with one whose numbers make no sense."""
    try:
        return _reckoned(run, ledger)
    except (ArithmeticError, ValueError, MeshwrightError):
        return replace(NOTHING_KNOWN, progress=_progress(run, None))


def _reckoned(run: LiveRun, ledger: Ledger | None) -> Outlook:
    """The same, at the price the ledger reckons with or else the listed one."""
    num_steps = last_step(run.plan, run.num_done) if run.plan else None
    expected_steps = run.plan.workload.num_steps() or None if run.plan else None
    left_s = _left_s(run, num_steps)
    rate = ledger.price if ledger and ledger.price else rate_of(run.plan.cluster) if run.plan else None
    usd_per_s = _usd_per_s(run, rate)
    predicted_s = _finite(run.plan.time_to_train_s) if run.plan and run.end_of_sample is None else None  # of the workload, not of weeks
    paced_s = run.busy_s + left_s if left_s is not None else None
    return Outlook(
        num_steps=num_steps,
        expected_steps=expected_steps,
        progress=_progress(run, num_steps or (expected_steps if run.has_ended else None)),
        left_s=left_s,
        finish_at=_finish_at(run, left_s),
        predicted_s=predicted_s,
        paced_s=paced_s,
        predicted_usd=_product(predicted_s, usd_per_s),
        paced_usd=_product(paced_s, usd_per_s),
        usd_per_s=usd_per_s,
        price_note=str(rate) if rate else "no price is listed",
    )


NOTHING_KNOWN = Outlook(
    num_steps=None,
    expected_steps=None,
    progress=None,
    left_s=None,
    finish_at=None,
    predicted_s=None,
    paced_s=None,
    predicted_usd=None,
    paced_usd=None,
    usd_per_s=None,
    price_note="the plan's numbers make no sense",
)


def last_step(plan: Plan, done: int) -> int | None:
    """Steps that the workload takes to its target; of a run past those, steps after which it ends in any case, where that is stated."""
    expected = plan.workload.num_steps()
    most_samples = plan.workload.training.most_samples if plan.workload.training else 0.0
    most = math.ceil(most_samples / plan.workload.global_batch) if math.isfinite(most_samples) else 0
    return next((number for number in (expected, most) if number and done <= number), None)


def _usd_per_s(run: LiveRun, rate: Rate | None) -> float | None:
    return float(rate.usd_per_gpu_hour) * run.header.num_ranks / HOUR if rate and run.header else None


def _progress(run: LiveRun, num_steps: int | None) -> float | None:
    """Steps done of those expected. To have ended is not to be done: a run may have been asked for a few steps, or stopped."""
    if run.status == TARGET_REACHED:
        return 1.0
    return min(run.num_done / num_steps, 1.0) if num_steps else None


def _left_s(run: LiveRun, num_steps: int | None) -> float | None:
    """Seconds to the end at the pace of the last steps, evaluations and saves coming as often as so far."""
    if run.header is None or run.header.status != RUNNING or not num_steps or not len(run.steps):
        return None
    between = run.busy_s / run.steps.total_s if run.steps.total_s else 1.0
    return max(num_steps - run.steps.last("step"), 0) * run.recent_step_s * between


def _finish_at(run: LiveRun, left_s: float | None) -> str | None:
    if left_s is None or run.status != RUNNING or run.header is None or run.header.kind != "trained" or left_s > 1e9:
        return None
    return (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat(timespec="seconds")


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _product(one: float | None, other: float | None) -> float | None:
    return one * other if one is not None and other is not None else None
