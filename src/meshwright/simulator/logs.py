"""Step times from logs of real runs, each with the layout of the run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.plan.plan import Plan
from meshwright.plan.plan import plan_of as planned
from meshwright.predict.forecast import forecast
from meshwright.predict.software import software
from meshwright.record.step_times import StepTimes, read_step_times
from meshwright.simulator.planned_step import PlannedStep, planned_step

FOLDER = Path(__file__).parent / "step_times"
_SIZE = re.compile(r"^\d+x|[_.]n(gpu)?\d+.*$")  # the size of the part that was used, in the name of a system, and what follows it


@dataclass(frozen=True, eq=False)
class StepLog:
    """The step times of one run, and the row of measured runs that it belongs to."""

    name: str
    run: MeasuredRun
    times: StepTimes

    @property
    def first_steps(self) -> NDArray[np.int64]:
        """Numbers (from 0) of the steps after the start or an evaluation."""
        return np.flatnonzero(self.times.is_first)

    @property
    def machine(self) -> tuple[str, str]:
        """Submitter and name of the machine, without the size of the part that was used."""
        return self.run.submitter, _SIZE.sub("", self.run.system)

    @property
    def timer_is_wall(self) -> bool:
        """Whether the logged timer includes the time between steps: from round v5.0 on."""
        return self.run.round >= "v5.0"

    @cached_property
    def planned(self) -> PlannedStep:
        """The step of the run, as the simulator computes it."""
        return planned_step(plan_of(self.run))


def plan_of(run: MeasuredRun) -> Plan:
    """A measured run as a plan. Memory is not checked, because the run took place."""
    return planned(forecast(run.job(software(run.release)), run.layout, ignore_memory=True), run.name)


@cache
def step_logs(folder: Path = FOLDER, measured: Path = MEASURED_CSV) -> tuple[StepLog, ...]:
    """The logs in a folder, each matched by name with a row of measured runs. Logs of disturbed runs are left out."""
    rows = read_runs(measured).rows
    logs = [StepLog(path.stem, _row(path.stem, rows), read_step_times(path)) for path in sorted(folder.glob("*.csv"))]
    if not logs:
        raise InputError("no step-time logs", where=str(folder), fix="give a folder of CSV files with step,step_s")
    return tuple(log for log in logs if log.run.is_clean)


def _row(name: str, rows: tuple[MeasuredRun, ...]) -> MeasuredRun:
    """The row whose round, submitter, system and benchmark a file is named after."""
    found = [row for row in rows if _bare(name).startswith(_bare(f"{row.round}{row.submitter}{row.system}{row.benchmark}"))]
    if len(found) != 1:
        raise InputError(
            f"{len(found)} measured runs have the name {name}",
            where="step-time logs",
            fix="name the file after the round, submitter, system and benchmark of one row",
        )
    return found[0]


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
