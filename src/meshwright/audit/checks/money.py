"""Compares dollars per GPU-hour with the price table."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim
from meshwright.audit.figures import count, figure
from meshwright.audit.stated import Stated, exactly
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, IMPOSSIBLE, MISLEADING, UNKNOWN, Statement
from meshwright.cost.money import accelerator_hours
from meshwright.describe.economics import Price, prices
from meshwright.units import usd

# Contracts differ from list prices, and list prices change: up to 1.5 times the list is accepted; beyond 10 times is impossible.
BESIDE, BEYOND = 1.5, 10.0
ROUNDING = 0.02


def check(claim: Claim) -> Iterator[Statement]:
    """A statement on what a GPU-hour would cost."""
    price, lines = _price(claim)
    if price is not None and claim.run.accelerator:
        yield _judged(claim, price.value, lines)
    elif price is not None or claim.cost_usd:
        why = "a price means nothing without accelerator, gpus and time"
        yield Statement(about="price", verdict=UNKNOWN, why=why, arithmetic=tuple(lines) or (f"claimed: {usd(claim.cost_usd)}",))
    if claim.usd_per_gpu_hour and claim.cost_usd and claim.run.gpus and claim.run.duration_s:
        yield _product(claim)


def _price(claim: Claim) -> tuple[Stated | None, list[str]]:
    """The price of a GPU-hour in the claim: as stated, or its cost divided by its GPU-hours."""
    run = claim.run
    if claim.usd_per_gpu_hour:
        return claim.usd_per_gpu_hour, [f"claimed: {usd(claim.usd_per_gpu_hour.value)} per GPU-hour"]
    if not (claim.cost_usd and run.gpus and run.duration_s):
        return None, []
    hours = float(accelerator_hours(run.gpus, run.duration_s.value))
    price = claim.cost_usd / hours
    return exactly(price), [
        f"time: {count(run.gpus)} GPUs x {figure(run.duration_s.value)} s / 3,600 = {figure(hours)} GPU-hours",
        f"price: {usd(claim.cost_usd)} / {figure(hours)} GPU-hours = {usd(price)} per GPU-hour",
    ]


def _judged(claim: Claim, price: float, lines: list[str]) -> Statement:
    listed = prices(claim.run.accelerator, provider=claim.provider)
    if not listed:
        of = f" from {claim.provider}" if claim.provider else ""
        why = f"no price of {claim.run.accelerator}{of} is in our table"
        return Statement(about="price", verdict=UNKNOWN, why=why, arithmetic=tuple(lines))
    low, high = listed[0], listed[-1]
    lines = [*lines, f"list prices of {claim.run.accelerator}: {_price_words(low)} to {_price_words(high)}"]
    if price > high.usd_per_accelerator_hour:
        times, side = price / high.usd_per_accelerator_hour, "the highest list price"
    elif price < low.usd_per_accelerator_hour:
        times, side = low.usd_per_accelerator_hour / price, "below the lowest list price"
    else:
        return Statement(
            about="price", verdict=CONSISTENT, why=f"{usd(price)} per GPU-hour is within the list prices", arithmetic=tuple(lines)
        )
    lines.append(f"{usd(price)} is {figure(times)} times {side}")
    why = f"{usd(price)} per GPU-hour is {figure(times)} times {side}"
    verdict = CONSISTENT if times <= BESIDE else IMPLAUSIBLE if times <= BEYOND else IMPOSSIBLE
    return Statement(about="price", verdict=verdict, why=why, arithmetic=tuple(lines))


def _price_words(price: Price) -> str:
    return f"{usd(price.usd_per_accelerator_hour)} ({price.provider} {price.kind}, {price.date})"


def _product(claim: Claim) -> Statement:
    assert claim.usd_per_gpu_hour is not None and claim.run.duration_s is not None
    hours = float(accelerator_hours(claim.run.gpus, claim.run.duration_s.value))
    bill = claim.usd_per_gpu_hour.value * hours
    holds = abs(claim.cost_usd / bill - 1) <= ROUNDING
    line = f"{figure(hours)} GPU-hours x {usd(claim.usd_per_gpu_hour.value)} = {usd(bill)}; claimed {usd(claim.cost_usd)}"
    why = "hours times price give the cost" if holds else f"hours times price give {usd(bill)}, not {usd(claim.cost_usd)}"
    return Statement(about="cost by its own numbers", verdict=CONSISTENT if holds else MISLEADING, why=why, arithmetic=(line,))
