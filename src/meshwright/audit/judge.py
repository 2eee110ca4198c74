"""A claim -> its statements, and the verdict on the whole claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from meshwright.audit.checks import (
    compute,
    convergence,
    efficiency,
    exposure,
    money,
    record,
    room,
    shares,
    speedup,
    superlatives,
    timing,
    variation,
)
from meshwright.audit.claim import Claim
from meshwright.audit.own_forecast import OwnForecast, own_forecast
from meshwright.audit.verdict import Statement, severity
from meshwright.describe.form import located
from meshwright.errors import InputError

CHECKS: tuple[Callable[[Claim], Iterable[Statement]], ...] = (
    compute.check,
    room.check,
    timing.check,
    convergence.check,
    record.check,
    money.check,
    efficiency.check,
    speedup.check,
    exposure.check,
    variation.check,
    shares.check,
    superlatives.check,
)

ENOUGH = """give what can be checked, such as
         benchmark (or model and tokens), accelerator, gpus and minutes: compute against the peak
         accelerator, gpus, minutes and cost_usd: the price per GPU-hour
         step_s, efficiency_pct and a [baseline] with step_s: a scaling efficiency
         speedup and a [baseline]: a ratio        part, total and share_pct: a share"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result for a claim."""

    claim: Claim
    statements: tuple[Statement, ...]  # the worst first
    forecast: OwnForecast | None = None  # None: not asked for

    @property
    def verdict(self) -> str:
        """The worst verdict of its statements."""
        return self.statements[0].verdict

    @property
    def why(self) -> str:
        """The reason of the worst statement."""
        return self.statements[0].why


def with_forecast(judgement: Judgement) -> Judgement:
    """The same with meshwright's own forecast of the claimed run, which does not change the verdict."""
    return replace(judgement, forecast=own_forecast(judgement.claim))


def judge(claim: Claim) -> Judgement:
    """All statements that can be made about a claim, the worst first; an error if none can be made."""
    with located(claim.where):
        statements = [statement for check in CHECKS for statement in check(claim)]
    if not statements:
        raise InputError("nothing in the claim can be checked", where=claim.where, fix=ENOUGH)
    return Judgement(claim, tuple(sorted(statements, key=lambda statement: (-severity(statement.verdict), _rank(statement.about)))))


def _rank(about: str) -> int:
    """The order of statements with the same verdict: first those about the claim's own numbers, then those that hold for every run."""
    of_all = ("step time", "submission", "log", "compute", "samples", "memory")
    return next((place for place, name in enumerate(of_all, start=1) if about.startswith(name)), 0)
