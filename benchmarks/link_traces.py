"""Steps as the ranks of a small layout would time them, with one link or one rank that is slower: traces for the detector of slow links.

The layout is TP 2 x PP 2 x DP 2. A pass of a micro-batch has eight pieces, and after each of them the ranks of a tensor-parallel group
exchange; stages run 1F1B with eight micro-batches and send messages; at the end replicas exchange gradients. Ranks compute for times that
have the noise of a trace, and so have exchanges: those of one link in a step are all longer by one factor. Clocks of ranks differ. Many
trials run at once: the last axis of every array is the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.schedule import FORWARD, schedule_named
from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.health.slow_links import TRIP, SlowLink, SlowLinks, groups_along, link_columns
from meshwright.train.health.stragglers import SlowRank, Stragglers

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]  # generator, steps, entries -> times in units of the usual one
Group = tuple[int, ...]

LAYOUT = Layout(tp=2, pp=2, dp=2)
LINKS: dict[str, list[Group]] = {axis: groups_along(LAYOUT, axis) for axis in ("tp", "pp", "dp")}
SCHEDULE = schedule_named("1f1b", LAYOUT.pp, 1, 8)
NUM_STEPS = 50  # of a trial
SLOW_RANK = 2
NUM_PIECES = 8  # of a pass, with an exchange of the tensor-parallel ranks after each
PIECE_S = 1 / NUM_PIECES  # of a forward pass; a backward pass takes twice as long
PIECE_JITTER = 0.05  # of a piece beside that of the step: which rank comes last changes
EXCHANGE_S = {"tp": 0.02, "pp": 0.3, "dp": 1.0}  # one of each; a step takes about 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """What is slower in a trace, by which factor: the exchanges of some groups, or a rank."""

    factor: float = 1.0
    groups: tuple[Group, ...] = ()
    host: str = ""  # whose link that is, if it is the link of a host
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Step:
    """One step as its ranks time it, in all trials."""

    busy_s: Floats  # [ranks, trials]
    everyones: Floats  # the columns of an exchange: [ranks, columns, trials]
    step_s: Floats  # [trials]


def steps(rngs: Sequence[np.random.Generator], draw: Draw, num_steps: int, slower: Slower) -> list[Step]:
    """So many steps, one after another."""
    links = [group for groups in LINKS.values() for group in groups]
    paces = np.stack([draw(rng, num_steps, LAYOUT.num_ranks) for rng in rngs], axis=2)
    longer = np.stack([draw(rng, num_steps, len(links)) for rng in rngs], axis=2)
    longer[:, [number for number, group in enumerate(links) if group in slower.groups]] *= slower.factor
    if slower.rank >= 0:
        paces[:, slower.rank] *= slower.factor
    clocks_s = 100.0 * rngs[0].random(LAYOUT.num_ranks)
    return [Making(rngs[0], pace, dict(zip(links, link, strict=True)), clocks_s).step() for pace, link in zip(paces, longer, strict=True)]


@dataclass(slots=True, eq=False)
class Making:
    """A step in the making."""

    rng: np.random.Generator
    pace: Floats  # of each rank, [ranks, trials]
    longer: dict[Group, Floats]  # by how many times each group exchanges longer than usual
    clocks_s: Floats
    busy_s: Floats = field(init=False)
    now_s: Floats = field(init=False)  # of each rank
    waits: list[list[Floats]] = field(init=False)  # of each rank, in tensor-parallel exchanges
    trips: dict[str, Floats] = field(init=False)

    def __post_init__(self) -> None:
        self.busy_s, self.now_s = np.zeros_like(self.pace), np.zeros_like(self.pace)
        self.waits, self.trips = [[] for _ in self.pace], {name: np.zeros_like(self.pace) for name in TRIP}

    def step(self) -> Step:
        """Run it."""
        for replica in range(LAYOUT.dp):
            self._pipeline([[LAYOUT.rank({"tp": i, "cp": 0, "pp": s, "dp": replica}) for i in range(LAYOUT.tp)] for s in range(LAYOUT.pp)])
        ends, reduced = self.now_s, np.zeros_like(self.pace)
        for group in LINKS["dp"]:
            done = ends[list(group)].max(axis=0) + EXCHANGE_S["dp"] * self.longer[group]
            reduced[list(group)] = done - ends[list(group)]
        lowest = [np.sort(waits, axis=0)[len(waits) // 4] * len(waits) for waits in self.waits]
        values = {"link_tp": np.stack(lowest), "link_dp": reduced, **{f"pp_{name}": column for name, column in self.trips.items()}}
        columns = [np.zeros_like(self.pace) for _ in PARTS] + [values[name] for name in link_columns(LAYOUT)]
        return Step(self.busy_s, np.stack(columns, axis=1), ends.max(axis=0) + EXCHANGE_S["dp"])

    def _pipeline(self, stages: list[list[int]]) -> None:
        """Run one replica's schedule."""
        sent: dict[tuple[int, int], Floats] = {}  # (operation, rank) -> when its result was sent
        firsts, lasts = ({int(stage): i for i, stage in order} for order in (_backwards(), enumerate(SCHEDULE.stage)))
        first_message = min(i for i in range(len(SCHEDULE.stage)) if SCHEDULE.stage[i] == 1)
        received: dict[int, Floats] = {}
        for i, stage in enumerate(map(int, SCHEDULE.stage)):
            source = int(SCHEDULE.waits_for[i])
            for rank, below, above in zip(stages[stage], stages[0], stages[1], strict=True):
                if source < 0:
                    continue
                arrives = sent[source, above if stage == 0 else below] + EXCHANGE_S["pp"] * self.longer[below, above]
                waited, self.now_s[rank] = np.maximum(arrives - self.now_s[rank], 0.0), np.maximum(arrives, self.now_s[rank])
                if i == first_message:
                    received[rank], self.trips["wait_before"][rank] = self._clock(rank), waited
                if stage == 0 and i == lasts[0]:
                    self.trips["away"][rank] = self._clock(rank) - sent[firsts[0], rank] - self.clocks_s[rank]
                    self.trips["wait_after"][rank] = waited
            self._pass(stages[stage], 1 if SCHEDULE.kind[i] == FORWARD else 2)
            for rank in stages[stage]:
                sent[i, rank] = self.now_s[rank].copy()
                if stage == 1 and i == lasts[1]:
                    self.trips["held"][rank] = self._clock(rank) - received[rank]

    def _clock(self, rank: int) -> Floats:
        return np.asarray(self.now_s[rank] + self.clocks_s[rank])

    def _pass(self, group: list[int], length: int) -> None:
        """The pieces of one pass on the ranks of a tensor-parallel group."""
        for jitter in np.exp(PIECE_JITTER * self.rng.standard_normal((NUM_PIECES, len(group), self.pace.shape[1]))):
            seconds = length * PIECE_S * jitter * self.pace[group]
            self.busy_s[group] += seconds
            arrivals = self.now_s[group] + seconds
            done = arrivals.max(axis=0) + EXCHANGE_S["tp"] * self.longer[tuple(group)]
            for rank, arrival in zip(group, arrivals, strict=True):
                self.waits[rank].append(done - arrival)
            self.now_s[group] = done


def _backwards() -> list[tuple[int, int]]:
    """The operations in reverse, so that the first of each stage is met last."""
    return list(reversed(list(enumerate(map(int, SCHEDULE.stage)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is slower, in words, and the host of each rank."""

    what: str
    hosts: tuple[str, ...]
    slower: Slower


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTrials:
    """How often what is slower was named within the steps of a trial, and how often something else was."""

    noise: str
    what: str
    slowdown: float
    num_trials: int
    num_named: int
    num_wrong: int


def cases(slowdowns: Sequence[float]) -> Iterator[Case]:
    """One link of each axis is slower, or that of a host with two ranks, or a rank, or nothing."""
    alone, pairs = (tuple(f"h{rank // size}" for rank in range(LAYOUT.num_ranks)) for size in (1, LAYOUT.tp))
    crossing = tuple(group for axis in ("pp", "dp") for group in LINKS[axis] if any(pairs[rank] == "h1" for rank in group))
    yield Case(what="nothing", hosts=alone, slower=Slower())
    for factor in slowdowns:
        for axis, groups in LINKS.items():
            yield Case(what=f"a link of {axis}", hosts=alone, slower=Slower(factor=factor, groups=(groups[1],)))
        yield Case(what="the link of a host", hosts=pairs, slower=Slower(factor=factor, groups=crossing, host="h1"))
        yield Case(what="a rank", hosts=alone, slower=Slower(factor=factor, rank=SLOW_RANK))


def link_trials(noise: str, draw: Draw, case: Case, num_trials: int) -> LinkTrials:
    """Run both detectors, of links and of ranks, on so many traces in which something is slower from the start."""
    rngs = [np.random.default_rng([seed, len(noise)]) for seed in range(num_trials)]
    links = [SlowLinks(LAYOUT, case.hosts) for _ in rngs]
    ranks = [Stragglers([LAYOUT.coordinate(rank)["pp"] for rank in range(LAYOUT.num_ranks)]) for _ in rngs]
    found: list[list[SlowLink | SlowRank]] = [[] for _ in rngs]
    for number, step in enumerate(steps(rngs, draw, NUM_STEPS, case.slower), start=1):
        for trial, named in enumerate(found):
            named += links[trial].update(number, step.everyones[:, :, trial], float(step.step_s[trial]))
            named += ranks[trial].update(number, step.busy_s[:, trial])
    right = [[_is_right(one, case.slower) for one in named if not one.recovered] for named in found]
    return LinkTrials(
        noise=noise,
        what=case.what,
        slowdown=case.slower.factor,
        num_trials=num_trials,
        num_named=sum(any(each) for each in right),
        num_wrong=sum(not all(each) for each in right),
    )


def _is_right(one: SlowLink | SlowRank, slower: Slower) -> bool:
    """Whether a report names what is slower, and nothing else."""
    if isinstance(one, SlowRank):
        return one.rank == slower.rank
    return set(one.groups) <= set(slower.groups) and (not slower.host or slower.host in one.hosts)
