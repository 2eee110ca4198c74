"""What a training run may cost: the price that is used, what was spent before, and whether the run can end within its budget."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from meshwright.errors import InputError
from meshwright.ledger import Budget, Rate, amount, ledger_of_run, no_price, predicted_s, rate_of, read_budget, read_rate, recorded_budget
from meshwright.ledger.rate import GIVEN
from meshwright.plan.plan import Plan
from meshwright.record.money import money_problem
from meshwright.record.run import Run, read_run

if TYPE_CHECKING:
    from meshwright.train.job import TrainingJob

NO_BUDGET = "none"


def with_budget(job: TrainingJob, budget: str | None, price: str | None) -> TrainingJob:
    """The job with its price and, if one is set, its budget; an error if the prediction says that the run cannot end within it.

    A resumed run keeps its budget, and a price that the user gave, until the user gives others.
    """
    past = read_run(job.folder) if job.resume else None
    if past and budget is None:
        _check_kept(past)
    rate = read_rate(price) if price is not None else _given_before(past) or rate_of(job.plan.cluster)
    allowed = _allowed_usd(budget, past)
    if allowed is None:
        return replace(job, rate=rate)
    if rate is None:
        raise no_price(job.plan.cluster)
    if not job.saves_at_end:
        raise InputError("a run that its budget stops must be saved", where="--no-save, --budget", fix="leave one of them out")
    spent = _spent_usd(past, job.plan, rate) if past else Decimal(0)
    kept = Budget(usd=allowed, rate=rate, num_gpus=job.plan.layout.num_ranks, spent_usd=spent)
    kept.check(predicted_s(job.plan, job.expected_steps, _saved_step(past)))
    return replace(job, rate=rate, budget=kept)


def _check_kept(past: Run) -> None:
    """Raise an error if the budget of a resumed run, or the record of what it spent, is not as the run wrote it."""
    problem = money_problem(past.folder, past.header)
    if not problem:
        return
    kept, spent = (_kept_usd(past, name) for name in ("budget_usd", "spent_usd"))
    known = f"; its header has a budget of {amount(kept)}, {amount(spent)} of it spent" if kept is not None and spent is not None else ""
    raise InputError(
        f"the run's record of its money was changed: {problem}{known}",
        where=str(past.folder),
        fix="put the file back as it was, or say what the run may cost from its first start on: --budget USD, or --budget none",
    )


def _kept_usd(past: Run, name: str) -> Decimal | None:
    """An amount from the run's header; None if there is none, or if it is not a valid amount."""
    try:
        value = Decimal(str(past.header.money[name])) if past.header.money else None
    except (ArithmeticError, KeyError):
        return None
    return value if value is not None and value.is_finite() and value >= 0 else None


def _allowed_usd(text: str | None, past: Run | None) -> Decimal | None:
    if text is None:
        return (_kept_usd(past, "budget_usd") or recorded_budget(past)) if past else None
    return None if text.strip().lower() == NO_BUDGET else read_budget(text)


def _spent_usd(past: Run, plan: Plan, rate: Rate) -> Decimal:
    """What earlier starts cost: at the prices they recorded, or at today's if they recorded none; at least the amount in the header."""
    spent = ledger_of_run(past, plan).usd_unrounded
    if spent is None:
        spent = ledger_of_run(past, plan, price=rate).usd_unrounded or Decimal(0)
    return max(spent, _kept_usd(past, "spent_usd") or Decimal(0))


def _given_before(past: Run | None) -> Rate | None:
    """The price of the run's last start, if the user gave it; a price from the catalogue is looked up again."""
    starts = [event for event in past.events if event.kind in ("start", "resumed")] if past else []
    last = Rate.from_json(starts[-1].detail.get("price")) if starts else None
    return last if last and last.kind == GIVEN else None


def _saved_step(past: Run | None) -> int:
    """The step after which the run continues: that of its last checkpoint."""
    saved = [event.detail.get("saved_step") for event in past.events if event.kind == "checkpoint"] if past else []
    return max((step for step in saved if isinstance(step, int)), default=0)


def more_money(job: TrainingJob) -> list[str]:
    """The option to add to the command that continues a run that was stopped by its budget."""
    run = read_run(job.folder)
    if job.budget is None or not any(event.kind == "stopped" and event.detail.get("reason") == "budget" for event in run.events[-1:]):
        return []
    budget = replace(job.budget, spent_usd=_spent_usd(run, job.plan, job.budget.rate))
    steps = [] if job.num_steps is None else ["--steps", str(job.num_steps)]
    return [*steps, "--budget", f"{budget.enough_usd(predicted_s(job.plan, job.expected_steps, _saved_step(run)).value)}USD"]
