"""The budget of a run: read from the command line, and converted to the seconds that are left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError, argument
from meshwright.ledger.rate import Rate, read_usd
from meshwright.plan.plan import Plan
from meshwright.predict.outcome import Spread
from meshwright.record.run import Run
from meshwright.units import HOUR

UNDERSTOOD = "write 500USD, $500, 500 or 1.2kUSD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """An amount of USD for `num_gpus` accelerators at a rate; some of it may already be spent."""

    usd: Decimal
    rate: Rate
    num_gpus: int
    spent_usd: Decimal = Decimal(0)  # before this start, by the ledger

    @property
    def usd_per_s(self) -> Decimal:
        """US dollars per second of all accelerators."""
        return self.rate.usd_per_gpu_hour * self.num_gpus / Decimal(HOUR)

    @property
    def seconds_left(self) -> float:
        """Seconds of all accelerators that are left from this start on; negative if everything is spent."""
        return float((self.usd - self.spent_usd) / self.usd_per_s) if self.usd_per_s else float("inf")

    def cost_usd(self, seconds: float) -> Decimal:
        """US dollars for so many more seconds, plus what is already spent."""
        return self.spent_usd + self.usd_per_s * Decimal(repr(float(seconds)))

    def check(self, run_s: Spread) -> None:
        """Raise an InputError if the predicted cost exceeds the budget; it says by how much.

        The predicted value decides, not an end of its interval, because a run that turns out slower is stopped anyway.
        """
        would = self.cost_usd(run_s.value)
        if would <= self.usd:
            return
        spent = f", {amount(self.spent_usd)} of it spent already" if self.spent_usd else ""
        raise InputError(
            f"not started: the run is predicted to cost {amount(would)}{self._interval(run_s)}{spent}; "
            f"that is {amount(would - self.usd)} over the budget of {amount(self.usd)}",
            where=f"{argument('budget')}; {self.num_gpus:,} accelerators at {self.rate}",
            fix=f"give {argument('budget', f'{self.enough_usd(run_s.value)}USD')} or more, ask for fewer steps, or choose a cheaper plan",
        )

    def _interval(self, run_s: Spread) -> str:
        """The 80 % interval in brackets, with the reason if it is on one side of its value; empty if the value is certain."""
        low, value, high = run_s.low, run_s.value, run_s.high
        if low == high:
            return ""
        beside = {
            low: ", none of it below: comparable runs took longer than predicted",
            high: ", none of it above: comparable runs took less",
        }
        return f" (80 % between {amount(self.cost_usd(low))} and {amount(self.cost_usd(high))}{beside.get(value, '')})"

    def enough_usd(self, seconds: float) -> str:
        """A round number a little above the cost of so many more seconds, with what is already spent."""
        usd = self.cost_usd(seconds)
        shift = usd.adjusted() - 1
        return f"{(usd.scaleb(-shift) + 1).to_integral_value(rounding=ROUND_CEILING).scaleb(shift):f}"


def predicted_s(plan: Plan, num_steps: int, after: int = 0) -> Spread:
    """Seconds of a run of so many steps by the plan's prediction, evaluations included; for a resumed run, from a step on."""
    evaluations_s = plan.workload.num_evaluations(num_steps, after) * evaluation_s(plan)
    value = max(num_steps - after, 0) * plan.step_s + evaluations_s
    return Spread(value, value * plan.low_s / plan.step_s, value * plan.high_s / plan.step_s)


def evaluation_s(plan: Plan) -> float:
    """Seconds of one evaluation by the plan's prediction: its ideal time to train without the steps."""
    whole, count = plan.workload.num_steps(), plan.workload.num_evaluations(plan.workload.num_steps())
    beside_s = (plan.ideal_time_to_train_s or plan.time_to_train_s) - whole * plan.step_s
    return max(beside_s / count, 0.0) if count and math.isfinite(beside_s) else 0.0


def recorded_budget(run: Run) -> Decimal | None:
    """The budget of the run's last start; None if it had none, an error if it cannot be read."""
    starts = [event for event in run.events if event.kind in ("start", "resumed")]
    recorded = starts[-1].detail.get("budget_usd") if starts else None
    if recorded is None:
        return None
    return read_usd(str(recorded), f"budget_usd in {run.folder / 'events.jsonl'}", f"give a new budget, or {argument('budget', 'none')}")


def no_price(cluster: Cluster) -> InputError:
    """The error if a budget is given and no price of the machine is known."""
    return InputError(
        f"no price is listed for {cluster.accelerator.name}, so a budget cannot be checked",
        where=argument("budget"),
        fix=f"give the price of an accelerator-hour: {argument('price', '2.5USD/h')}",
    )


def read_budget(text: str, where: str = argument("budget")) -> Decimal:
    """The amount of USD that a user gives: `500USD`."""
    return read_usd(text, where, UNDERSTOOD)


def amount(usd: Decimal) -> str:
    """An amount for people: to the cent, and smaller amounts with their significant digits."""
    return f"{usd:,.2f} USD" if abs(usd) >= 1 or not usd else f"{float(usd):.3g} USD"
