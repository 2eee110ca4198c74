"""What a training run may cost: the price that is used, what was spent before, and whether it can end inside its budget."""

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
    """The job with its price and, where one is set, its budget; an error where the run cannot end inside it by prediction.

    A run that goes on keeps the budget it was given, and a price that the user gave, until it is given others.
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
    """Pass where the budget of a run that continues, and the record of what it spent, are as the run wrote them."""
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
    """An amount that the run's header keeps; None where there is none, or where it is no amount."""
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
    """What earlier starts took: at the prices they recorded, or at today's where they had none; no less than the header remembers."""
    spent = ledger_of_run(past, plan).usd_unrounded
    if spent is None:
        spent = ledger_of_run(past, plan, price=rate).usd_unrounded or Decimal(0)
    return max(spent, _kept_usd(past, "spent_usd") or Decimal(0))


def _given_before(past: Run | None) -> Rate | None:
    """The price of the run's last start, where the user gave it: a price of the catalogue is looked up again."""
    starts = [event for event in past.events if event.kind in ("start", "resumed")] if past else []
    last = Rate.from_json(starts[-1].detail.get("price")) if starts else None
    return last if last and last.kind == GIVEN else None


def _saved_step(past: Run | None) -> int:
    """Steps after which the run continues: those of its last save."""
    saved = [event.detail.get("saved_step") for event in past.events if event.kind == "checkpoint"] if past else []
    return max((step for step in saved if isinstance(step, int)), default=0)


def more_money(job: TrainingJob) -> list[str]:
    """What to add to the command that continues a run which its budget stopped."""
    run = read_run(job.folder)
    if job.budget is None or not any(event.kind == "stopped" and event.detail.get("reason") == "budget" for event in run.events[-1:]):
        return []
    budget = replace(job.budget, spent_usd=_spent_usd(run, job.plan, job.budget.rate))
    steps = [] if job.num_steps is None else ["--steps", str(job.num_steps)]
    return [*steps, "--budget", f"{budget.enough_usd(predicted_s(job.plan, job.expected_steps, _saved_step(run)).value)}USD"]
