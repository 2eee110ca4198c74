"""When a run ends and what it costs: as predicted by its plan, and as expected from its recent step time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from meshwright.errors import MeshwrightError
from meshwright.ledger import Ledger, Rate, evaluation_s, predicted_s, rate_of
from meshwright.record.header import RUNNING
from meshwright.serve.live import LiveRun, between_steps_s
from meshwright.units import HOUR

TARGET_REACHED = "target_reached"
TARGET, WORKLOAD, ASKED, BUDGET = ENDS = ("target", "workload", "steps asked for", "budget")  # what can end a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known about the end of a run; None for what is unknown."""

    num_steps: int | None  # that the run takes, until whatever ends it first; None for a run that has done more than expected
    ends_by: str | None  # which of ENDS ends it first
    expected_steps: int | None  # from its header, or else from the workload
    progress: float | None  # steps done of `num_steps`, or of those expected if an ended run has done more; 1 at the target
    left_s: float | None  # at the recent step time; only for a run that has not ended
    finish_at: str | None  # UTC, ISO 8601; only for a real run that has not ended
    predicted_s: float | None  # for all `num_steps`, from the plan
    paced_s: float | None  # for the whole run, at its own step time
    predicted_usd: float | None
    paced_usd: float | None
    usd_per_s: float | None
    price_note: str


def outlook_of(run: LiveRun, ledger: Ledger | None = None) -> Outlook:
    """What the run will take; all None for a run without a plan, or if the numbers of its plan make no sense."""
    try:
        return _computed(run, ledger)
    except (ArithmeticError, ValueError, MeshwrightError):
        return replace(NOTHING_KNOWN, progress=_progress(run, None))


def _computed(run: LiveRun, ledger: Ledger | None) -> Outlook:
    """What the run will take, at the price that the ledger uses, or else the list price."""
    expected_steps, last_step = stated_steps(run)
    rate = ledger.price if ledger and ledger.price else rate_of(run.plan.cluster) if run.plan else None
    usd_per_s = _usd_per_s(run, rate)
    budget_s = _budget_s(run, ledger, usd_per_s)
    num_steps, ends_by = _end(run, expected_steps, last_step, budget_s)
    left_s = _left_s(run, num_steps) if ends_by != BUDGET else max(budget_s, 0.0)
    expected_s = _predicted_s(run, num_steps or expected_steps)
    paced_s = run.busy_s + left_s if left_s is not None else None
    return Outlook(
        num_steps=num_steps,
        ends_by=ends_by,
        expected_steps=expected_steps,
        progress=_progress(run, num_steps or (expected_steps if run.has_ended else None)),
        left_s=left_s,
        finish_at=_finish_at(run, left_s),
        predicted_s=expected_s,
        paced_s=paced_s,
        predicted_usd=_product(expected_s, usd_per_s),
        paced_usd=_product(paced_s, usd_per_s),
        usd_per_s=usd_per_s,
        price_note=str(rate) if rate else "no price is listed",
    )


NOTHING_KNOWN = Outlook(
    num_steps=None,
    ends_by=None,
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


def stated_steps(run: LiveRun) -> tuple[int | None, int | None]:
    """Steps the run is expected to take, and steps after which it ends in any case: from its header, or else (older folders) its plan."""
    if run.header is not None and run.header.num_steps:
        return run.header.num_steps, run.header.last_step
    if run.plan is None:
        return None, None
    workload = run.plan.workload
    most_samples = workload.training.most_samples if workload.training else 0.0
    most = math.ceil(most_samples / workload.global_batch) if math.isfinite(most_samples) else 0
    return workload.num_steps() or None, most or None


def _end(run: LiveRun, expected: int | None, last: int | None, budget_s: float) -> tuple[int | None, str | None]:
    """Steps that the run takes, and what ends it: the expected steps, or the last step if those are done, or the budget."""
    num_steps = next((number for number in (expected, last) if number and run.num_done <= number), None)
    left_s = _left_s(run, num_steps)
    if left_s is not None and left_s > budget_s:
        assert num_steps is not None
        stepping_s = left_s - _evaluation_s(run)  # a run that the budget stops has no last evaluation
        share = min(max(budget_s, 0.0) / stepping_s, 1.0) if stepping_s > 0 else 1.0
        return run.num_done + int((num_steps - run.num_done) * share), BUDGET
    if num_steps is None:
        return None, None
    of_workload = run.plan.workload.num_steps() if run.plan else 0
    to_target = run.header is not None and run.header.target is not None and num_steps == of_workload
    return num_steps, TARGET if to_target else WORKLOAD if num_steps == of_workload else ASKED


def _budget_s(run: LiveRun, ledger: Ledger | None, usd_per_s: float | None) -> float:
    """Seconds left in the budget of the run's last start; infinite if it has no budget."""
    starts = [event for event in run.events if event.kind in ("start", "resumed")]
    budget = starts[-1].detail.get("budget_usd") if starts else None
    if budget is None or not usd_per_s:
        return math.inf
    spent = float(ledger.usd_unrounded) if ledger and ledger.usd_unrounded is not None else run.busy_s * usd_per_s
    return (float(str(budget)) - spent) / usd_per_s


def _predicted_s(run: LiveRun, num_steps: int | None) -> float | None:
    """Seconds of so many steps, from the plan; None for a simulation of weeks, which does not end after a number of steps."""
    if run.plan is None or not num_steps or run.end_of_sample is not None:
        return None
    return _finite(predicted_s(run.plan, num_steps).value)


def _usd_per_s(run: LiveRun, rate: Rate | None) -> float | None:
    return float(rate.usd_per_gpu_hour) * run.header.num_ranks / HOUR if rate and run.header else None


def _progress(run: LiveRun, num_steps: int | None) -> float | None:
    """Steps done of those expected. An ended run is not always at 1: it may have been asked for fewer steps, or was stopped."""
    if run.status == TARGET_REACHED:
        return 1.0
    return min(run.num_done / num_steps, 1.0) if num_steps else None


def _left_s(run: LiveRun, num_steps: int | None) -> float | None:
    """Seconds to the end at the recent step time, including the evaluations still to come, and saves as often as until now."""
    if run.header is None or run.header.status != RUNNING or not num_steps or not len(run.steps):
        return None
    done = int(run.steps.last("step"))
    saving_s = sum(between_steps_s(event) for event in run.events if event.kind == "checkpoint")
    step_s = run.recent_step_s + saving_s / len(run.steps)
    num_evaluations = run.plan.workload.num_evaluations(num_steps, done) if run.plan else 0
    return max(num_steps - done, 0) * step_s + num_evaluations * _evaluation_s(run)


def _evaluation_s(run: LiveRun) -> float:
    """Seconds of an evaluation: the mean of those so far, or the predicted time before the first one."""
    seen = [between_steps_s(event) for event in run.events if event.kind == "evaluation"]
    return sum(seen) / len(seen) if seen else evaluation_s(run.plan) if run.plan else 0.0


def _finish_at(run: LiveRun, left_s: float | None) -> str | None:
    if left_s is None or run.status != RUNNING or run.header is None or run.header.kind != "trained" or left_s > 1e9:
        return None
    return (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat(timespec="seconds")


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _product(one: float | None, other: float | None) -> float | None:
    return one * other if one is not None and other is not None else None
