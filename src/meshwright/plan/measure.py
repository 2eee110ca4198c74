"""What a search minimizes: seconds of a step or of a run, or the energy of a run; for every layout, in closed form.

All measures have the same form: each second of the run has one cost while accelerators wait, and a higher cost while they work. So one
lower bound and one ranking work for all of them, and every objective considers all layouts, not only the fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.workload import Workload
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.predict.goodput import LEAST_GOODPUT, LONG_S, Interruptions, expected_on
from meshwright.predict.outcome import node_w, power_constants, working_s
from meshwright.predict.prediction import evaluation_time_s, num_evaluations_of
from meshwright.predict.step import StepParts

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that make up a run, a row per layout."""

    step_s: Column
    busy_s: Column  # of a step, in which accelerators work (`outcome.busy_seconds`)
    evaluation_s: Column  # forward passes of one evaluation

    def later(self, row: int, excess_s: float) -> Times:
        """One row, with a step that takes so much longer."""
        return Times(self.step_s[row] + excess_s, self.busy_s[row], self.evaluation_s[row])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The cost of seconds; by default the seconds of a step. Lower is better."""

    num_steps: int = 1
    num_evaluations: int = 0
    around_s: float = 0.0  # of each evaluation, beside its forward passes
    slowdown: float = 1.0  # of the software's release: work is counted at the reference's speed
    waiting_w: float = 1.0  # of a node, while accelerators wait
    working_w: float = 1.0
    most_s: float = math.inf  # seconds the run may take
    failing: Interruptions | None = None  # the interruptions that a run of more than a day must expect; None: they are left out
    spares_per_node: float = 0.0  # that stand by in such a run, for each node in use

    def times(self, workload: Workload, layouts: Layouts, priced: StepParts) -> Times:
        """The seconds that count, of every layout."""
        evaluation_s = evaluation_time_s(workload, layouts, priced) if self.num_evaluations else np.zeros(len(layouts))
        return Times(priced.step_s, self._busy_s(priced), evaluation_s)

    def least_times(self, priced: StepParts) -> Times:
        """A lower bound for all layouts that differ from the priced one only in their network: replicas exchange nothing."""
        step_s = priced.step_s - priced.seconds["exposed_dp"]
        return Times(step_s, np.minimum(self._busy_s(priced), step_s), np.zeros_like(step_s))

    def value(self, times: Times) -> Column:
        """The measure of every row; infinite if the run takes too long."""
        run_s = self.num_steps * times.step_s + self.num_evaluations * (times.evaluation_s + self.around_s)
        busy_s = np.minimum(self.num_steps * times.busy_s + self.num_evaluations * times.evaluation_s / self.slowdown, run_s)
        idle_s = run_s
        if self.failing and self.failing.work >= LEAST_GOODPUT:  # a longer run has to expect no less, so that the order of runs stays
            again = 1 + self.failing.lost / self.failing.work
            stretch = (1 + self.failing.stalls_per_s * times.step_s) / self.failing.work
            is_long = run_s > LONG_S
            busy_s = np.where(is_long, again * busy_s, busy_s)
            run_s = np.where(is_long, stretch * run_s, run_s)
            idle_s = np.where(is_long, (1 + self.spares_per_node) * run_s, run_s)
        value = self.waiting_w * idle_s + (self.working_w - self.waiting_w) * busy_s
        return np.asarray(np.where(run_s <= self.most_s, value, np.inf))

    def _busy_s(self, priced: StepParts) -> Column:
        return working_s(priced.seconds, self.slowdown)


STEP = Measure()


def run_time(job: Job) -> Measure:
    """Seconds of the run with its evaluations; on a given cluster, the cost is proportional to this."""
    num_steps = job.workload.num_steps()
    if not num_steps:  # nobody says how long the run is, so a step is used instead
        return STEP
    evaluations = num_evaluations_of(job.workload, num_steps)
    return Measure(num_steps=num_steps, num_evaluations=evaluations, around_s=job.software.evaluation_s)


def run_energy(job: Job, most_s: float = math.inf, *, ideal: bool = False) -> Measure:
    """Joules of the run per node, which also ranks layouts by carbon; only runs of at most `most_s` seconds count.

    As in an outcome, a run of more than a day includes interruptions and spare nodes, unless it is ideal.
    """
    time = run_time(job)
    failing = None if ideal or time is STEP else expected_on(job.cluster)
    (waiting_w, _), (working_w, _) = (node_w(job.cluster, busy, power_constants()) for busy in (0.0, 1.0))
    if math.isnan(waiting_w):  # the chip's power is not stated: the objective reports that for the fastest plan
        return time
    return Measure(
        num_steps=time.num_steps,
        num_evaluations=time.num_evaluations,
        around_s=time.around_s,
        slowdown=math.exp(job.log_factor),
        waiting_w=waiting_w,
        working_w=working_w,
        most_s=most_s,
        failing=failing,
        spares_per_node=failing.num_spares * job.cluster.accelerators_per_node / job.cluster.num_accelerators if failing else 0.0,
    )
