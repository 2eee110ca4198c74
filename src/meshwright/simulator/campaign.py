"""Weeks of a run: interruptions, detection, restarts, work done again, checkpoints, spare nodes; many seeds at once.

Each pass of the loop handles the next interruption of every seed. Single steps are not simulated here: training between interruptions is
counted in seconds of work, and the mean of simulated steps says how many steps that is. docs/simulator.md has the error of this
simplification.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.failures import Failures
from meshwright.errors import InputError, argument
from meshwright.predict.goodput import Interruptions, interruptions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_INTERRUPTIONS = 100_000  # of one run: more would take minutes to simulate, and would only show that the run makes no progress

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What is run for weeks, with which checkpoint interval and how many spare nodes."""

    failures: Failures
    num_accelerators: int
    accelerators_per_node: int
    interval_s: float  # of work between checkpoints
    num_spares: int  # spare nodes, ready to replace broken ones
    dead_nodes: int = 0  # broken at the start: spares replace them; if there are too few spares, the run waits

    def __post_init__(self) -> None:
        if not 0 <= self.dead_nodes <= self.num_nodes:
            raise InputError(
                f"{argument('failed_nodes')} is {self.dead_nodes}, and the cluster has {self.num_nodes} nodes",
                where=argument("failed_nodes"),
                fix=f"give 0 to {self.num_nodes}",
            )
        if self.num_spares < 0:
            raise InputError(f"{argument('spares')} is {self.num_spares}", where=argument("spares"), fix="give 0 or more")
        if not (math.isfinite(self.interval_s) and self.interval_s > 0):
            place = argument("checkpoint_every")
            raise InputError(f"{place} is {self.interval_s:g} s", where=place, fix="give more than 0 s")

    @property
    def num_nodes(self) -> int:
        """Nodes that the run needs."""
        return math.ceil(self.num_accelerators / self.accelerators_per_node)

    @property
    def per_s(self) -> float:
        """Interruptions per second."""
        between_s = self.failures.mean_time_between_s(self.num_accelerators)
        return 1 / between_s

    @property
    def expected(self) -> Interruptions:
        """Where the time goes in the long run, in closed form; nodes that are broken at the start are left out."""
        return interruptions(self.failures, self.num_accelerators, self.accelerators_per_node, self.interval_s, self.num_spares)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weeks:
    """The result of each seed; all times are seconds of wall clock."""

    wall_s: Floats  # from the start to the end of the simulation or of the work
    work_s: Floats  # training that was kept
    lost_s: Floats  # training that was done again, and checkpoints that were not finished
    checkpoint_s: Floats  # waiting for checkpoints
    down_s: Floats  # detection and restart
    waiting_s: Floats  # for a node, beyond the time of detection and restart
    interruptions: Ints  # seeds x causes
    finished: NDArray[np.bool_]  # whether the work was done
    when_s: tuple[float, ...]  # of the first seed: the time of each interruption
    what: tuple[int, ...]  # and its cause
    done_s: tuple[float, ...]  # and the work that was kept by then
    lost_by_s: tuple[float, ...]  # and all that was lost by then
    saved_by_s: tuple[float, ...]  # and all time of checkpoints by then
    back_s: tuple[float, ...]  # and when training continues, if no other interruption comes
    complete: bool  # False if the user interrupted the simulation; then every seed ends where it was

    @property
    def goodput(self) -> Floats:
        """Share of the wall clock that is work which was kept: effective time."""
        return self.work_s / self.wall_s


def weeks(
    campaign: Campaign,
    seed: int,
    num_seeds: int,
    horizon_s: float = math.inf,
    work_s: float | Floats = math.inf,
    report: Report | None = None,
) -> Weeks:
    """Simulate until `horizon_s` of wall clock have passed or `work_s` of work are done (one number, or one per seed)."""
    if not (horizon_s < math.inf or np.all(np.isfinite(work_s))):
        raise InputError(
            "the simulation has no end", where=argument("days"), fix="give a number of days, or a workload with tokens or a target"
        )
    expected = campaign.per_s * min(horizon_s, campaign.expected.wall_s(float(np.max(work_s))))
    if expected > MOST_INTERRUPTIONS:
        raise InputError(
            f"an interruption every {1 / campaign.per_s:.3g} s would come more than {MOST_INTERRUPTIONS:,} times before the end",
            where=f"{argument('days')}, {argument('failures')}",
            fix="give fewer days, lower rates or faster restarts",
        )
    return _Loop(campaign, np.random.default_rng([seed, 4]), num_seeds, horizon_s, work_s).run(report)


class _Loop:
    """The state of every seed between two interruptions."""

    def __init__(self, campaign: Campaign, rng: np.random.Generator, num_seeds: int, horizon_s: float, work_s: float | Floats) -> None:
        self.campaign, self.rng, self.horizon_s, self.target_s = campaign, rng, horizon_s, work_s
        zeros = np.zeros(num_seeds)
        self.now_s, self.work_s, self.lost_s = zeros.copy(), zeros.copy(), zeros.copy()
        self.saving_s, self.down_s, self.waiting_s = zeros.copy(), zeros.copy(), zeros.copy()
        self.left_s = zeros.copy()  # of the restart that is running, waiting included
        self.node_s = zeros.copy()  # of that: until enough nodes are available
        self.active = np.ones(num_seeds, dtype=bool)
        self.finished = np.zeros(num_seeds, dtype=bool)
        self.counts = np.zeros((num_seeds, max(len(campaign.failures.causes), 1)), dtype=np.int64)
        self.back_s = np.full((num_seeds, _most_out(campaign)), -math.inf)  # for each node that was lost: when it is repaired
        self.back_s[:, : campaign.dead_nodes] = campaign.failures.repair_s
        self.node_s[:] = self.left_s[:] = self._missing_s()
        rates = np.array([cause.per_accelerator_hour for cause in campaign.failures.causes] or [1.0])
        self.chances = np.cumsum(rates) / np.sum(rates) if rates.sum() else np.ones(len(rates))
        self.loses = np.array([cause.loses_node for cause in campaign.failures.causes] or [False])
        self.story: list[tuple[float, int, float, float, float, float]] = []  # of the first seed, as in Weeks

    def run(self, report: Report | None = None) -> Weeks:
        """Go from interruption to interruption until every seed has ended, or the user interrupts the simulation."""
        complete = True
        try:
            while self.active.any():
                self._until_next()
                if report:
                    report("simulating weeks", *self._progress())
        except KeyboardInterrupt:
            if not self.now_s.all():
                raise  # no seed has completed anything
            complete = False
        return self._weeks(complete)

    def _progress(self) -> tuple[int, int]:
        """Progress of the seeds, in thousandths."""
        ended = self.work_s / self.target_s if math.isinf(self.horizon_s) else self.now_s / self.horizon_s
        return int(1000 * np.mean(np.where(self.active, ended, 1.0))), 1000

    def _weeks(self, complete: bool) -> Weeks:
        return Weeks(
            wall_s=self.now_s,
            work_s=self.work_s,
            lost_s=self.lost_s,
            checkpoint_s=self.saving_s,
            down_s=self.down_s,
            waiting_s=self.waiting_s,
            interruptions=self.counts,
            finished=self.finished,
            when_s=tuple(one[0] for one in self.story),
            what=tuple(one[1] for one in self.story),
            done_s=tuple(one[2] for one in self.story),
            lost_by_s=tuple(one[3] for one in self.story),
            saved_by_s=tuple(one[4] for one in self.story),
            back_s=tuple(one[5] for one in self.story),
            complete=complete,
        )

    def _until_next(self) -> None:
        """One interruption of every active seed, or its end."""
        per_s, rest_s = self.campaign.per_s, self.horizon_s - self.now_s
        draws = self.rng.standard_exponential(len(self.now_s))
        gap_s = draws / per_s if per_s > 0 else np.full(len(self.now_s), math.inf)
        ended = self.active & (gap_s >= rest_s) & np.isfinite(rest_s)
        gap_s = np.where(self.active, np.minimum(np.minimum(gap_s, rest_s), self._enough_s()), 0.0)
        recovering_s = np.minimum(self.left_s, gap_s)
        up_s = gap_s - recovering_s
        done = self._train(up_s, ended)
        waited_s = np.minimum(self.node_s, recovering_s)
        self.waiting_s += waited_s
        self.down_s += recovering_s - waited_s
        self.now_s += np.where(done, 0.0, gap_s)
        self.finished |= done
        self.active &= ~(ended | done)
        self._interrupt()

    def _enough_s(self) -> Floats:
        """Seconds in which each seed would be done without another interruption: no longer interval is needed."""
        interval_s, save_s = self.campaign.interval_s, self.campaign.failures.checkpoint_s
        need_s = np.maximum(self.target_s - self.work_s, 0.0)
        return np.asarray(self.left_s + need_s * (1 + save_s / interval_s) + interval_s + save_s)

    def _train(self, up_s: Floats, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Train for `up_s`; return which seeds finished their work. Their clocks are set to that moment."""
        interval_s, save_s = self.campaign.interval_s, self.campaign.failures.checkpoint_s
        whole = np.floor(up_s / (interval_s + save_s))
        rest_s = up_s - whole * (interval_s + save_s)
        kept_s = whole * interval_s + np.where(ended, np.minimum(rest_s, interval_s), 0.0)
        reached_s = whole * interval_s + np.minimum(rest_s, interval_s)
        need_s = self.target_s - self.work_s
        done = self.active & (reached_s >= need_s)
        saves = np.where(done, np.ceil(np.minimum(need_s, 1e300) / interval_s) - 1, whole)
        self.work_s += np.where(done, need_s, kept_s)
        self.saving_s += np.where(ended & ~done, whole * save_s + np.maximum(rest_s - interval_s, 0.0), np.maximum(saves, 0.0) * save_s)
        self.lost_s += np.where(done | ended, 0.0, rest_s)
        recovered_s = np.where(done, self.left_s, 0.0)
        self.now_s += np.where(done, recovered_s + need_s + np.maximum(saves, 0.0) * save_s, 0.0)
        return done

    def _interrupt(self) -> None:
        """Draw what interrupts the seeds that continue, and how long their restarts take."""
        which = np.minimum(np.searchsorted(self.chances, self.rng.random(len(self.now_s)), side="right"), len(self.chances) - 1)
        hit = np.flatnonzero(self.active)
        self.counts[hit, which[hit]] += 1
        lost = np.flatnonzero(self.active & self.loses[which])
        failures = self.campaign.failures
        self.back_s[lost, self.back_s[lost].argmin(axis=1)] = self.now_s[lost] + failures.repair_s
        self.node_s = np.where(self.active, self._missing_s(), 0.0)
        self.left_s = np.where(self.active, failures.detection_s + failures.restart_s + self.node_s, 0.0)
        if self.active[0]:
            now_s, work_s, lost_s, saving_s, left_s = (
                float(column[0]) for column in (self.now_s, self.work_s, self.lost_s, self.saving_s, self.left_s)
            )
            self.story.append((now_s, int(which[0]), work_s, lost_s, saving_s, now_s + left_s))

    def _missing_s(self) -> Floats:
        """Seconds until no more nodes are out of service than there are spares: a run without enough nodes waits."""
        spares = self.campaign.num_spares
        if spares >= self.back_s.shape[1]:
            return np.zeros(len(self.now_s))
        # As many nodes as there are spares may stay out of service: the ones that are repaired last. The run waits for the one before them.
        needed_s = np.partition(self.back_s, -spares - 1, axis=1)[:, -spares - 1]
        return np.maximum(needed_s - self.now_s, 0.0)


def _most_out(campaign: Campaign) -> int:
    """Nodes that may be out of service at once: as many as break during one repair in the worst case, or all."""
    usual = campaign.per_s * campaign.failures.repair_s
    return min(math.ceil(usual + 10 * math.sqrt(usual)) + 16 + campaign.dead_nodes, campaign.num_nodes + campaign.num_spares)
