"""A forecast and a simulation of days say the same of a long run: time, cost, energy and goodput within 1 %."""

from __future__ import annotations

import pytest

from meshwright.job import Job
from meshwright.simulator.simulation import simulate
from meshwright.units import DAY

LONG_RUNS = [
    ("llama-3.1-405b", "dgx-h100-superpod", "pretrain-1t", 512, "tp=8,cp=2,pp=16,vp=2,mbs=1,schedule=zero-bubble"),
    ("llama-3.1-405b", "dgx-h100-superpod", "pretrain-15t", 8192, "tp=8,cp=2,pp=16,vp=4,mbs=1"),
    ("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", 512, "tp=8,pp=8,vp=2,mbs=1"),
    ("deepseek-v3", "dgx-h100-superpod", "pretrain-1t", 2048, "tp=8,ep=256,mbs=1"),
]


@pytest.mark.parametrize("days", [14, 60])
@pytest.mark.parametrize(("model", "cluster", "workload", "gpus", "layout"), LONG_RUNS)
def test_a_plan_and_its_simulated_days_agree(model, cluster, workload, gpus, layout, days):
    forecast = Job(model, cluster, workload, gpus=gpus).forecast(layout, ignore_memory=True)
    seen = simulate(forecast, days=days, seeds=20)
    assert forecast.goodput == pytest.approx(seen.goodput, rel=0.01)
    whole_s = seen.time_to_train_s
    assert forecast.time_to_train.value == pytest.approx(whole_s, rel=0.01)
    assert forecast.cost.value == pytest.approx(seen.cost_usd * whole_s / (days * DAY), rel=0.01)
    assert forecast.energy.value == pytest.approx(seen.energy_j * whole_s / (days * DAY), rel=0.01)


@pytest.mark.parametrize(("model", "cluster", "workload", "gpus", "layout"), LONG_RUNS)
def test_without_failures_a_plan_and_its_simulated_days_agree(model, cluster, workload, gpus, layout):
    forecast = Job(model, cluster, workload, gpus=gpus).forecast(layout, ignore_memory=True, ideal=True)
    seen = simulate(forecast, days=14, failures="none", noise=False)
    whole = seen.time_to_train_s / (14 * DAY)
    assert seen.time_to_train_s == pytest.approx(forecast.time_to_train.value, rel=0.01) and seen.goodput == pytest.approx(1.0, abs=0.01)
    assert seen.cost_usd * whole == pytest.approx(forecast.cost.value, rel=0.01)
    assert seen.energy_j * whole == pytest.approx(forecast.energy.value, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_no_seed_changes_the_energy_of_a_large_run_much(seed):
    # Few steps are sampled for weeks: some samples have no stall and some many, but the energy is that of the mean step.
    forecast = Job("llama-3.1-405b", "dgx-h100-superpod", "pretrain-15t", gpus=8192).forecast("tp=8,cp=2,pp=16,vp=4,mbs=1")
    seen = simulate(forecast, days=30, seeds=20, seed=seed)
    assert seen.energy_j * seen.time_to_train_s / (30 * DAY) == pytest.approx(forecast.energy.value, rel=0.01)


def test_the_days_of_a_simulation_and_its_seeds_do_not_change_the_time_to_train():
    forecast = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=512).forecast("tp=8,pp=8,vp=2,mbs=1")
    once, often = (simulate(forecast, days=days, seeds=seeds).time_to_train_s for days, seeds in ((2, 1), (30, 100)))
    assert once == often == pytest.approx(forecast.time_to_train.value, rel=0.01)
