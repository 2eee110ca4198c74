"""What is expected to interrupt a long run, and the share of its time that remains for work: goodput, in closed form.

The simulator draws interruptions at random with the same rates, times, checkpoint interval and spares (`simulator.campaign`). Interruptions
come by the wall clock, whatever the run does. So a run trains at a moment if enough nodes were there a restart ago and nothing has
interrupted it since, and these two are independent: the shares below are exact in the long run. Stalls of single accelerators, as logs have
them, interrupt nothing: they make the steps of a long run longer on average than the median step that is predicted.
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

LONG_S = DAY  # of a run without interruptions: above, they are counted
FREE_INTERVAL_S = 60.0  # between checkpoints that cost nothing
LEAST_GOODPUT = 1e-9  # below, nothing gets done
NOISE_FILE = Path(__file__).parents[1] / "simulator" / "noise.json"  # fitted by `meshwright noise --fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """What a run has to expect, and with what precautions; shares are of the wall clock and add up to 1."""

    failures: Failures
    between_s: float  # interruptions; infinite where nothing breaks
    interval_s: float  # of work between checkpoints
    num_spares: int  # nodes that stand by, and are paid for
    num_spare_accelerators: int
    work: float  # training that counts
    lost: float  # training that is done again, and checkpoints that are not finished
    checkpoints: float  # waiting for checkpoints
    down: float  # detection and restart
    waiting: float  # for a node, beyond what detection and restart take
    stalls: float  # that stalls add to steps, of their time without; the work above includes them

    @property
    def stretch(self) -> float:
        """Seconds that the run takes for each one it would take if nothing failed; infinite where nothing gets done."""
        return self.wall_s(1 + self.stalls)

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
        """Seconds of wall clock that so much work takes; infinite where nothing gets done."""
        return work_s / self.work if self.work >= LEAST_GOODPUT else math.inf


def advised_interval_s(failures: Failures, num_accelerators: int) -> float:
    """Seconds between checkpoints that lose the least; an hour where nothing breaks, a minute where saving costs nothing."""
    between_s = failures.mean_time_between_s(num_accelerators)
    if not math.isfinite(between_s):
        return HOUR
    if failures.checkpoint_s == 0:
        return FREE_INTERVAL_S
    return float(best_interval_s(failures.checkpoint_s, between_s))


def advised_spares(failures: Failures, num_accelerators: int, accelerators_per_node: int) -> int:
    """Spare nodes that cost the least: idle nodes against the whole machine's waiting for one.

    Nodes out for repair are Poisson with the rate of losses times the repair time. A loss that finds every one of s spares out waits
    for the first to come back: a repair time over s + 1 on average.
    """
    out = failures.nodes_out(num_accelerators)
    most = math.ceil(out + 10 * math.sqrt(out) + 10)
    terms = np.concatenate([[-out], math.log(max(out, 1e-300)) - np.log(np.arange(1, most + 1))])
    none_left = 1 - np.concatenate([[0.0], np.cumsum(np.exp(np.cumsum(terms)))[:-1]])  # chance that s or more are out
    spares = np.arange(most + 1)
    waiting = out * np.maximum(none_left, 0.0) / (spares + 1)
    return int(np.argmin(waiting + spares * accelerators_per_node / num_accelerators))


@cache
def interruptions(
    failures: Failures, num_accelerators: int, accelerators_per_node: int, interval_s: float | None = None, num_spares: int | None = None
) -> Interruptions:
    """What a machine of so many accelerators has to expect, with the advised interval and spares where none are given."""
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
        stalls=_stalls_per_accelerator() * num_accelerators,
    )


@cache
def _stalls_per_accelerator() -> float:
    """Seconds in which an accelerator stalls in a second of training, on average."""
    constants = json.loads(NOISE_FILE.read_text(encoding="utf-8"))["constants"]
    return float(constants["stalls_per_hour"]["value"]) * float(constants["stall_s"]["value"]) / HOUR


def expected_on(cluster: Cluster) -> Interruptions:
    """What a cluster has to expect, by the rates of the largest run that published its counts."""
    return interruptions(usual_failures(), cluster.num_accelerators, cluster.used_per_node)
