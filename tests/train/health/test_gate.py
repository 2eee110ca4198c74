"""Which steps are applied: the same decision on the host and on the device, and few alarms on sound steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from meshwright.layout import Layout, parse_layout
from meshwright.train.health.damage import Comparison, SumTest
from meshwright.train.health.gate import QUIET_STEPS, Gate, Guard
from meshwright.train.health.spikes import Losses
from meshwright.train.sums import Check, StepResult

EPSILON = float(np.finfo(np.float32).eps)
USUAL = StepResult(
    loss=2.0, grad_norm=1.0, num_tokens=8, own_norms=(1.0, 1.0), own_losses=(8.0, 8.0), checks=(Check(5, 3, 7, 1), Check(5, 4, 7, 1))
)


def gate(layout: str = "dp=2,zero=0", **limits: object) -> Gate:
    comparison = Comparison(parse_layout(layout), EPSILON)
    return Gate(step=9, comparison=comparison, test=SumTest(comparison, torch.device("cpu")), **limits)  # type: ignore[arg-type]


def rows_of(result: StepResult) -> torch.Tensor:
    own = zip(result.own_norms, result.own_losses, result.checks, strict=True)
    return torch.tensor([[norm**2, loss, *check] for norm, loss, check in own], dtype=torch.float64)


def is_closed(gate: Gate, result: StepResult) -> bool:
    loss, norm = (torch.tensor(value, dtype=torch.float64) for value in (result.loss, result.grad_norm))
    return bool(gate.is_closed(loss, norm, rows_of(result)))


@pytest.mark.parametrize(
    "changes, kind",
    [
        ({}, ""),
        ({"loss": 3.1}, "loss"),
        ({"grad_norm": 5.1}, "norm"),
        ({"checks": (Check(5, 3, 7, 1), Check(5, 4, 7, 9.0))}, "peak"),
        ({"checks": (Check(5, 3, 7.001, 1), Check(5, 4, 7, 1))}, "sum"),
    ],
)
def test_host_and_device_come_to_the_same_decision(changes: dict[str, object], kind: str) -> None:
    limits = gate(loss=3.0, norm=5.0, peaks=(8.0, 8.0))
    result = replace(USUAL, **changes)  # type: ignore[arg-type]
    trouble = limits.trouble(result)
    assert (trouble.kind if trouble else "") == kind
    assert is_closed(limits, result) == bool(kind) != limits.passes(result)


@pytest.mark.parametrize("layout", ["dp=4,zero=0", "dp=4,zero=1", "dp=4,zero=1,zero_ranks=2", "dp=2,tp=2,zero=1", "tp=2,pp=2"])
@pytest.mark.parametrize("seed", range(5))
def test_wrong_sums_are_found_on_the_device_as_on_the_host(layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parsed = parse_layout(layout)
    comparison = Comparison(parsed, EPSILON)
    sent = rng.standard_normal(4)
    received = np.zeros(4)
    for ranks in comparison.groups:
        for holders in comparison.holders(ranks):
            shares = rng.dirichlet(np.ones(len(holders)))
            received[list(holders)] = shares * sent[list(ranks)].sum()
    for wrong in (None, *range(4)):
        landed = received.copy()
        if wrong is not None:
            landed[wrong] += 1e-3
        checks = tuple(Check(1.0, float(a), float(b), 1.0) for a, b in zip(sent, landed, strict=True))
        result = StepResult(loss=1.0, grad_norm=1.0, num_tokens=8, own_norms=(1.0,) * 4, own_losses=(0.0,) * 4, checks=checks)
        found = comparison.damage(3, result)
        assert bool(SumTest(comparison, torch.device("cpu")).is_wrong(rows_of(result))) == (found is not None)
        assert (found is not None) == (wrong is not None and bool(comparison.groups))


def test_a_step_that_is_no_number_has_that_trouble() -> None:
    trouble = gate().trouble(replace(USUAL, loss=math.nan))
    assert trouble is not None and trouble.kind == "nan" and trouble.message == "the loss of step 9 is NaN or infinite"


def guard(deviations: float = 20.0) -> Guard:
    return Guard(comparison=Comparison(Layout(dp=2, zero_stage=0), EPSILON), losses=Losses(deviations))


def test_sound_steps_pass() -> None:
    """Losses that fall, with noise of one per cent, and gradients that vary by a third: fewer than 0.25 % of 4,000 steps are doubted."""
    rng, found, watched = np.random.default_rng(3), 0, guard()
    for step in range(1, 4001):
        loss = (2.0 + 6.0 * math.exp(-step / 300)) * (1 + 0.01 * rng.standard_t(4))
        peaks = np.exp(0.35 * rng.standard_normal(2))
        checks = tuple(Check(5, 3.5, 7, float(peak)) for peak in peaks)
        result = replace(USUAL, loss=loss, grad_norm=math.exp(0.35 * rng.standard_normal()), checks=checks)
        found += watched.gate(step).trouble(result) is not None
        watched.losses.update(loss)
        watched.peaks.update(step, peaks.tolist())
        watched.spikes.update(step, result.grad_norm, result.own_norms)
    assert found <= 10


def test_a_high_loss_is_doubted_once_enough_losses_are_known() -> None:
    watched = guard()
    assert watched.gate(1).loss == math.inf
    for _ in range(10):
        watched.losses.update(2.0)
    assert watched.gate(11).loss == pytest.approx(2.2)
    assert guard(0.0).gate(11).loss == math.inf


def test_confirmed_gradients_are_not_doubted_again_for_a_while() -> None:
    watched = guard()
    for step in range(1, 21):
        watched.spikes.update(step, 1.0, (1.0, 1.0))
    watched.confirmed(21)
    assert watched.gate(21 + QUIET_STEPS).norm == math.inf
    assert watched.gate(22 + QUIET_STEPS).norm == pytest.approx(10.0)
