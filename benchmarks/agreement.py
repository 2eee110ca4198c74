"""How far a plan and the simulation of its days agree on a whole run: time, cost, energy, goodput.

`python benchmarks/agreement.py` prints a table for six jobs, with failures and without; `--json` prints the same as JSON. The simulation is
of 30 days with 100 seeds. Its cost and energy are those of the days times the run's length over the days.

2026-11-17, 2 cores x86_64 shared with other work, Python 3.11.7; the simulation against the plan, in per cent:
  job                          failures     time     cost   energy  goodput
  llama-3.1-8b, 8 h100         llama3      -0.01    -0.01    -0.06    -0.05
  llama-3.1-8b, 8 h100         none        +0.14    +0.14    +0.07    -0.14
  llama-3.1-8b, 64 b200        llama3      +0.12    +0.12    +0.03    +0.27
  llama-3.1-8b, 64 b200        none        +0.14    +0.14    +0.06    -0.14
  llama-3.1-70b, 512 h100      llama3      +0.04    +0.04    -0.13    +0.02
  llama-3.1-70b, 512 h100      none        +0.14    +0.14    +0.07    -0.14
  deepseek-v3, 2,048 h100      llama3      +0.20    +0.20    -0.09    +0.08
  deepseek-v3, 2,048 h100      none        +0.14    +0.14    +0.06    -0.14
  llama-3.1-405b, 4,096 gb200  llama3      +0.65    +0.65    +0.25    +0.03
  llama-3.1-405b, 4,096 gb200  none        +0.14    +0.14    +0.07    -0.14
  llama-3.1-405b, 8,192 h100   llama3      +0.47    +0.47    +0.04    +0.09
  llama-3.1-405b, 8,192 h100   none        +0.14    +0.14    +0.07    -0.14
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from meshwright.job import Job
from meshwright.predict.forecast import Forecast
from meshwright.simulator.simulation import Simulation, simulate
from meshwright.units import DAY, HOUR, KWH

DAYS, SEEDS = 30, 100
JOBS = (
    ("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", 8, "tp=2,mbs=1"),
    ("llama-3.1-8b", "hgx-b200-ndr", "pretrain-1t", 64, "tp=1,mbs=1"),
    ("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", 512, "tp=8,pp=8,vp=2,mbs=1"),
    ("deepseek-v3", "dgx-h100-superpod", "pretrain-1t", 2048, "tp=8,ep=256,mbs=1"),
    ("llama-3.1-405b", "azure-gb200-128", "pretrain-15t", 4096, "tp=4,cp=2,pp=8,vp=8,mbs=1"),
    ("llama-3.1-405b", "dgx-h100-superpod", "pretrain-15t", 8192, "tp=8,cp=2,pp=16,vp=4,mbs=1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One quantity of a whole run by plan and by simulation."""

    job: str
    failures: str
    quantity: str
    plan: float
    simulated: float

    @property
    def difference_pct(self) -> float:
        """The simulation's value against the plan's."""
        return 100 * (self.simulated / self.plan - 1)


def agreements(model: str, cluster: str, workload: str, gpus: int, layout: str, *, fails: bool, days: float = DAYS) -> list[Agreement]:
    """Time, cost, energy and goodput of one job; without failures, of a machine without noise too."""
    forecast = Job(model, cluster, workload, gpus=gpus).forecast(layout, ignore_memory=True, ideal=not fails)
    seen = simulate(forecast, days=days, seeds=SEEDS, noise=fails, failures="" if fails else "none")
    planned, simulated = planned_values(forecast), simulated_values(seen, days)
    name, failures = f"{model}, {gpus:,} {forecast.job.cluster.accelerator.name}", "llama3" if fails else "none"
    return [
        Agreement(job=name, failures=failures, quantity=quantity, plan=planned[quantity], simulated=simulated[quantity])
        for quantity in planned
    ]


def planned_values(forecast: Forecast) -> dict[str, float]:
    """What the plan says of the whole run; without failures all of its time is work."""
    assert forecast.time_to_train and forecast.cost and forecast.energy
    return {
        "time_h": forecast.time_to_train.value / HOUR,
        "cost_usd": forecast.cost.value,
        "energy_kwh": forecast.energy.value / KWH,
        "goodput": 1.0 if forecast.goodput is None else forecast.goodput,
    }


def simulated_values(seen: Simulation, days: float) -> dict[str, float]:
    """The same by simulation."""
    assert seen.time_to_train_s and seen.cost_usd and seen.energy_j and seen.goodput
    whole = seen.time_to_train_s / (days * DAY)
    return {
        "time_h": seen.time_to_train_s / HOUR,
        "cost_usd": seen.cost_usd * whole,
        "energy_kwh": seen.energy_j / KWH * whole,
        "goodput": seen.goodput,
    }


def main() -> None:
    """Print all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    found = [one for job in JOBS for fails in (True, False) for one in agreements(*job, fails=fails)]
    if parser.parse_args().json:
        print(json.dumps([{**asdict(one), "difference_pct": one.difference_pct} for one in found], indent=1))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}; {DAYS} days, {SEEDS} seeds")
    for one in found:
        numbers = f"{one.plan:14,.4g} {one.simulated:14,.4g} {one.difference_pct:+8.2f} %"
        print(f"  {one.job:28} failures {one.failures:7} {one.quantity:10} {numbers}")
    worst = max(found, key=lambda one: abs(one.difference_pct))
    print(f"  the largest difference: {worst.difference_pct:+.2f} % ({worst.quantity}, {worst.job}, failures {worst.failures})")


if __name__ == "__main__":
    main()
