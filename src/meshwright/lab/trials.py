"""Trials of a lab: weak scaling over its racks, and faults in mid-run; measured steps beside what forecast and simulator say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meshwright.errors import InputError
from meshwright.lab import state
from meshwright.lab.description import Lab
from meshwright.lab.paced import WARM_STEPS, Steps, after, pace_of, paced_forecast, run_paced
from meshwright.plan.plan import plan_of
from meshwright.predict.forecast import Forecast
from meshwright.simulator.simulation import simulate

SLOW_FACTOR = 1.5
SETTLE_STEPS = 2  # after a fault: the step that it hits, and TCP's recovery
LEAST_STEPS = 4  # of a stretch whose median is given

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One number of racks."""

    num_racks: int
    num_ranks: int
    forecast: Forecast
    measured: Steps

    @property
    def off(self) -> float:
        """How much longer the forecast is than the measured step, as a share of it."""
        return self.forecast.step_s / self.measured.median_s - 1.0


def scaling(lab: Lab, folder: Path, num_steps: int, num_cores: int, report: Report) -> list[Size]:
    """The same work for each rack, on one rack, then two, up to all of them."""
    check_steps(num_steps, WARM_STEPS + 2 * LEAST_STEPS)
    found = []
    for num_racks in range(1, lab.num_racks + 1):
        part = replace(lab, num_racks=num_racks)
        forecast = paced_forecast(part)
        report(
            f"running {part.num_slots} ranks on {num_racks} of {lab.num_racks} racks: {num_steps} steps of about {forecast.step_s:.2f} s"
        )
        steps = run_paced(pace_of(forecast, num_steps), part, folder, f"racks-{num_racks}", num_cores)
        found.append(Size(num_racks=num_racks, num_ranks=part.num_slots, forecast=forecast, measured=after(steps, WARM_STEPS)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in mid-run: steps before and after it, as simulated and as measured."""

    name: str
    words: str
    simulated_before_s: float
    simulated_after_s: float
    before: Steps
    after: Steps
    worst_s: float  # of the steps right after the fault

    @property
    def off(self) -> tuple[float, float]:
        """How much longer the simulated steps are than the measured ones, before and after, as shares."""
        return self.simulated_before_s / self.before.median_s - 1.0, self.simulated_after_s / self.after.median_s - 1.0


def faults(made: state.State, folder: Path, num_steps: int, num_cores: int, report: Report) -> Iterator[Fault]:
    """Run the job once for each fault that the lab can have; links are mended afterwards."""
    lab = made.lab
    if lab.num_racks < 2:
        raise InputError(f"lab {lab.name!r} has one rack, so nothing crosses racks", where="--racks", fix="make a lab of 2 racks or more")
    check_steps(num_steps, WARM_STEPS + 2 * LEAST_STEPS + SETTLE_STEPS)
    forecast = paced_forecast(lab)
    as_it_is = simulated_s(forecast, folder, "as-it-is")
    for name, words, simulated, strike, mend in _kinds(made, forecast, folder):
        report(f"{words}, in the middle of {num_steps} steps of about {forecast.step_s:.2f} s")
        pace, middle = pace_of(forecast, num_steps), num_steps // 2
        if name == "slow-host":
            per_rack, per_host = lab.num_hosts * lab.num_ranks, lab.num_ranks
            slow = tuple(range(per_rack - per_host, per_rack))
            pace = replace(pace, slow_ranks=slow, slow_factor=SLOW_FACTOR, slow_from=middle + 1)
        try:
            steps = run_paced(pace, lab, folder, name, num_cores, (middle, strike))
        finally:
            mend()
        yield Fault(
            name=name,
            words=words,
            simulated_before_s=as_it_is,
            simulated_after_s=simulated(),
            before=after(steps, WARM_STEPS, middle),
            after=after(steps, middle + SETTLE_STEPS),
            worst_s=max(steps.step_s[middle : middle + SETTLE_STEPS]),
        )


Kind = tuple[str, str, Callable[[], float], Callable[[], object], Callable[[], object]]


def _kinds(made: state.State, forecast: Forecast, folder: Path) -> Iterator[Kind]:
    """Each fault: its name, its words, the simulated step with it, how it strikes, and how it is mended."""
    lab = made.lab
    racks = [f"rack{rack}" for rack in range(lab.num_racks)]

    def uplinks(share: float) -> Callable[[], object]:
        return lambda: [state.change_link(state.read_state(lab.name), rack, bits_per_s=lab.uplink_bits_per_s * share) for rack in racks]

    def plane(*, is_up: bool) -> Callable[[], object]:
        last = lab.num_planes - 1
        return lambda: [state.change_link(state.read_state(lab.name), str(host), plane=last, is_up=is_up) for host in lab.hosts]

    half = paced_forecast(replace(lab, uplink_bits_per_s=lab.uplink_bits_per_s / 2))
    slow = {rank: SLOW_FACTOR for rank in range((lab.num_hosts - 1) * lab.num_ranks, lab.num_hosts * lab.num_ranks)}
    yield "halved-uplink", "all uplinks at half their rate", lambda: simulated_s(half, folder, "half"), uplinks(0.5), uplinks(1.0)
    host = f"host r0h{lab.num_hosts - 1} computes {SLOW_FACTOR:g} times as long"
    yield "slow-host", host, lambda: simulated_s(forecast, folder, "slow", slow_rank=slow), lambda: None, lambda: None
    if lab.num_planes > 1:
        words = f"one of {lab.num_planes} planes lost by every host"
        yield (
            "lost-plane",
            words,
            lambda: simulated_s(forecast, folder, "plane", planes_lost=1),
            plane(is_up=False),
            plane(is_up=True),
        )


def simulated_s(forecast: Forecast, folder: Path, name: str, **faults: object) -> float:
    """The simulator's step for a forecast with faults, without noise."""
    runs = folder / "simulated"
    shutil.rmtree(runs / name, ignore_errors=True)
    found = simulate(plan_of(forecast), steps=WARM_STEPS + LEAST_STEPS, noise=False, runs=runs, name=name, **faults)  # type: ignore[arg-type]
    assert found.run is not None
    return float(np.median(found.run.steps.step_s[WARM_STEPS:]))


def check_steps(num_steps: int, least: int) -> None:
    """Raise an error if there are too few steps for a median."""
    if num_steps < least:
        raise InputError(f"--steps is {num_steps}", where="--steps", fix=f"give at least {least}")
