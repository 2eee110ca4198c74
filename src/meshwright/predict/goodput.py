"""The interruptions that a long run must expect, and the share of its time that remains for work: goodput, in closed form.

The simulator draws interruptions at random with the same rates, times, checkpoint interval and spare nodes (`simulator.campaign`).
Interruptions come by the wall clock, at any state of the run. So a run trains at a moment if enough nodes were available one restart ago
and nothing has interrupted it since. These two conditions are independent, so the shares below are exact in the long run. Stalls of single
accelerators, as in logs, do not interrupt a run: they make its mean step longer than the predicted median step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from meshwright.cost.checkpoints import best_interval_s, goodput, manned_share
from meshwright.describe.cluster import Cluster
from meshwright.describe.failures import Failures, usual_failures
from meshwright.units import DAY, HOUR

LONG_S = DAY  # of a run without interruptions: in longer runs they are counted
FREE_INTERVAL_S = 60.0  # between checkpoints that cost nothing
LEAST_GOODPUT = 1e-9  # below this the run makes no progress
SHORTEST_STALL = 0.1  # of a step, as the simulator's noise has it
NOISE_FILE = Path(__file__).parents[1] / "simulator" / "noise.json"  # fitted by `meshwright noise --fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """The interruptions that a run must expect, its checkpoint interval and spare nodes; shares are of the wall clock and add up to 1."""

    failures: Failures
    between_s: float  # seconds between interruptions; infinite if nothing breaks
    interval_s: float  # of work between checkpoints
    num_spares: int  # spare nodes, which are paid for
    num_spare_accelerators: int
    work: float  # training that is kept
    lost: float  # training that is done again, and checkpoints that are not finished
    checkpoints: float  # waiting for checkpoints
    down: float  # detection and restart
    waiting: float  # for a node, beyond the time of detection and restart
    stalls_per_s: float  # share that stalls add to a step, per second of the step; the work above includes them

    def stalls(self, step_s: float) -> float:
        """Share that stalls add to steps of so many seconds: a longer step has more stalls, and each takes a share of the step."""
        return self.stalls_per_s * step_s

    def stretch(self, step_s: float) -> float:
        """Seconds that the run takes for each second without failures; infinite if it makes no progress."""
        return self.wall_s(1 + self.stalls(step_s))

    @property
    def goodput(self) -> float:
        """Share of the time in which the run makes progress that is kept."""
        return self.work

    @property
    def shares(self) -> Mapping[str, float]:
        """Where the time goes, under the names that the simulation of days uses."""
        return {
            "work": self.work,
            "work done again": self.lost,
            "checkpoints": self.checkpoints,
            "detection and restart": self.down,
            "waiting for a node": self.waiting,
        }

    def wall_s(self, work_s: float) -> float:
        """Seconds of wall clock that so much work takes; infinite if the run makes no progress."""
        return work_s / self.work if self.work >= LEAST_GOODPUT else math.inf


def advised_interval_s(failures: Failures, num_accelerators: int) -> float:
    """Seconds between checkpoints that lose the least time; an hour if nothing breaks, a minute if saving costs nothing."""
    between_s = failures.mean_time_between_s(num_accelerators)
    if not math.isfinite(between_s):
        return HOUR
    if failures.checkpoint_s == 0:
        return FREE_INTERVAL_S
    return float(best_interval_s(failures.checkpoint_s, between_s))


def advised_spares(failures: Failures, num_accelerators: int, accelerators_per_node: int) -> int:
    """Number of spare nodes that costs the least: idle nodes, compared with the whole machine waiting for one.

    The number of nodes in repair is Poisson, with the rate of losses times the repair time. If a node is lost while all s spares are out,
    the run waits for the first to come back: on average the repair time divided by s + 1.
    """
    out = failures.nodes_out(num_accelerators)
    most = math.ceil(out + 10 * math.sqrt(out) + 10)
    terms = np.concatenate([[-out], math.log(max(out, 1e-300)) - np.log(np.arange(1, most + 1))])
    none_left = 1 - np.concatenate([[0.0], np.cumsum(np.exp(np.cumsum(terms)))[:-1]])  # probability that s or more are out
    spares = np.arange(most + 1)
    waiting = out * np.maximum(none_left, 0.0) / (spares + 1)
    return int(np.argmin(waiting + spares * accelerators_per_node / num_accelerators))


@cache
def interruptions(
    failures: Failures, num_accelerators: int, accelerators_per_node: int, interval_s: float | None = None, num_spares: int | None = None
) -> Interruptions:
    """What a machine of so many accelerators must expect, with the advised interval and spares if none are given."""
    between_s = failures.mean_time_between_s(num_accelerators)
    every_s = advised_interval_s(failures, num_accelerators) if interval_s is None else interval_s
    spares = advised_spares(failures, num_accelerators, accelerators_per_node) if num_spares is None else num_spares
    manned = manned_share(failures.nodes_out(num_accelerators), spares)
    down_s, save_s = failures.detection_s + failures.restart_s, failures.checkpoint_s
    if math.isfinite(between_s):
        up = manned * math.exp(-down_s / between_s)
        with np.errstate(over="ignore"):
            work = manned * float(goodput(every_s, save_s, between_s, down_s))
    else:
        up, work = 1.0, every_s / (every_s + save_s)
    saving = work * save_s / every_s
    return Interruptions(
        failures=failures,
        between_s=between_s,
        interval_s=every_s,
        num_spares=spares,
        num_spare_accelerators=spares * accelerators_per_node,
        work=work,
        lost=max(up - work - saving, 0.0),
        checkpoints=saving,
        down=manned - up,
        waiting=1.0 - manned,
        stalls_per_s=_stalls_per_accelerator() * num_accelerators,
    )


@cache
def _stalls_per_accelerator() -> float:
    """Share that the stalls of one accelerator add to a step, per second of the step: the mean of all logs, of any class."""
    common = json.loads(NOISE_FILE.read_text(encoding="utf-8"))["classes"]["common"]["constants"]
    return float(common["stalls_per_hour"]) * (SHORTEST_STALL + float(common["stall_share"])) / HOUR


def expected_on(cluster: Cluster) -> Interruptions:
    """What a cluster must expect, with the rates of the largest run that published its counts."""
    return interruptions(usual_failures(), cluster.num_accelerators, cluster.used_per_node)
