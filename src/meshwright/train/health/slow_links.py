"""Detects slow links from times that every step measures anyway; nothing is sent for it, and no device is waited for.

What a step tells about links, axis by axis:

- Stages (pp). A stage notes how long its first message to the next stage and the last one back were away, and the next stage how long it
  held them. The difference is the time of one message in each direction, whatever the clocks of the two say, and however slow the stages
  compute. It counts no further than the two stages waited for these messages: a message that comes early costs nothing.
- Replicas (dp). Ranks of a group wait for the slowest of them, and then for the exchange. The one that waits least came last, so its wait
  is what the exchange itself cost.
- Other axes (tp, cp, ep) exchange many times in a step. Their ranks take turns in being the last, so the lower quarter of a rank's waits
  are for the exchange alone; of a group, the least of its ranks counts.

Groups of an axis that do the same work over the same tiers of the network are compared with each other, as ranks are (`Stragglers`). What
all of them share, such as the uplink of a rack, slows them alike; so the fastest group of each stage, and of the whole axis, is compared
with its own first hundred steps. Times below 0.2 % of the step count as that much.

A slow group is named by its ranks. If one host is in all slow groups and in no sound group, its link is named.

What cannot be told apart: which link within a group of more than two hosts is slow, unless other groups show it; the two directions of a
link; the link of a host, its card and the port of the switch; a link that was slow from the start, if all groups that do the same work
cross it; and an exchange that hides behind compute, which costs nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.health.stragglers import SlowRank, Stragglers

Floats = NDArray[np.float64]
Group = tuple[int, ...]

LEAST_SHARE = 0.002  # of the step: what shows less counts as this much
TRIP = ("away", "held", "wait_after", "wait_before")  # spans of a round trip between neighbouring stages
HISTORY_FLOOR = 1.25  # slowdown below which a change since the first steps is not reported: other traffic changes too
LIKE_THE_NAMED = 0.7  # share of the logarithm of a named slowdown from which on other groups count as slow, too
SOUND = 0.25  # and below which they count as sound
NOUNS = {"tp": "tensor-parallel", "cp": "context-parallel", "pp": "pipeline", "dp": "data-parallel", "ep": "expert-parallel"}
MOST_NAMED = 4  # ranks, or hosts, that a message lists


def judged_axes(layout: Layout) -> tuple[str, ...]:
    """The axes on which ranks of a layout exchange something."""
    sizes = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep, "dp": layout.dp * layout.cp, "pp": layout.pp}
    return tuple(axis for axis, size in sizes.items() if size > 1)


def link_columns(layout: Layout) -> tuple[str, ...]:
    """What every rank tells about its links: a time for each axis, and of stages the four times of a round trip."""
    names = [[f"pp_{name}" for name in TRIP] if axis == "pp" else [f"link_{axis}"] for axis in judged_axes(layout)]
    return tuple(name for each in names for name in each)


def groups_along(layout: Layout, axis: str) -> list[Group]:
    """The ranks that exchange on an axis, group by group: neighbouring stages for pp, all that hold the same weights for dp."""
    if axis == "ep":
        stage = [[rank for rank in range(layout.num_ranks) if layout.coordinate(rank)["pp"] == number] for number in range(layout.pp)]
        return [tuple(ranks[first : first + layout.ep]) for ranks in stage for first in range(0, len(ranks), layout.ep)]
    along = ("dp", "cp") if axis == "dp" else (axis,)
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank in range(layout.num_ranks):
        found[tuple(at for name, at in layout.coordinate(rank).items() if name not in along)].append(rank)
    if axis != "pp":
        return [tuple(ranks) for ranks in found.values()]
    rows = [sorted(ranks, key=lambda rank: layout.coordinate(rank)["pp"]) for ranks in found.values()]
    return [pair for row in rows for pair in pairwise(row)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """Groups of ranks whose exchanges were found to be slow together, or normal again."""

    axis: str
    groups: tuple[Group, ...]
    hosts: tuple[str, ...]  # whose links may be the slow one; empty: it is not known
    step: int
    slowdown: float  # the time of an exchange divided by the expected one; below the floor for one that is normal again
    num_steps: int  # the window
    peers: tuple[Group, ...]  # the groups that it was compared with; empty: its own first steps
    recovered: bool = False

    @property
    def ranks(self) -> Group:
        """The ranks of all groups."""
        return tuple(sorted({rank for group in self.groups for rank in group}))

    def __str__(self) -> str:
        what = f"the {NOUNS[self.axis]} exchange between {_listed(self.groups)}"
        if self.recovered:
            return f"{what} is no longer slow: {100 * (self.slowdown - 1):+.0f} % over {self.num_steps} steps"
        against = f"than between {_listed(self.peers)}, which do the same work" if self.peers else "than in the first steps"
        return f"{self._place()}{what} takes {100 * (self.slowdown - 1):.0f} % longer {against}, over {self.num_steps} steps"

    def _place(self) -> str:
        if len(self.hosts) > 2:
            return f"a link among hosts {_some(self.hosts)} is slow: "
        if len(self.hosts) == 2:
            return f"the link between hosts {self.hosts[0]} and {self.hosts[1]} is slow: "
        return f"the link of host {self.hosts[0]} is slow: " if self.hosts else ""


def _some(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:MOST_NAMED])) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _listed(groups: Sequence[Group]) -> str:
    first = " and of ".join(f"ranks {_some(group)}" for group in groups[:2])
    return first + (f" and of {len(groups) - 2} more groups" if len(groups) > 2 else "")


@dataclass(slots=True, eq=False)
class Report:
    """What was reported of an axis and is not over."""

    found: SlowLink
    is_told: bool  # whether it was a report of its own: the same host may be known from another axis
    waits_for: set[tuple[int, int]]  # detectors and entries that were named
    covers: set[Group]


@dataclass(slots=True, eq=False)
class Evidence:
    """A detector of one axis, and the groups that each of its entries stands for: the fastest of them counts."""

    detector: Stragglers
    entries: list[list[int]]  # numbers of groups
    is_history: bool  # whether entries are compared with their own first steps

    def update(self, step: int, seconds: Floats) -> list[SlowRank]:
        """Add the seconds of one step, by group; return the entries that are found to be slow, or normal again."""
        return self.detector.update(step, [min(seconds[number] for number in numbers) for numbers in self.entries])


class Exchanges:
    """The exchanges of one axis: its groups, and what they are compared with."""

    def __init__(self, layout: Layout, axis: str, groups: Sequence[Group], likeness: Sequence[Hashable]) -> None:
        self.axis, self.groups = axis, list(groups)
        self.stages = [layout.coordinate(group[0])["pp"] for group in groups]
        alike: dict[Hashable, list[int]] = defaultdict(list)
        for number, key in enumerate(likeness):
            alike[key].append(number)
        paired = [number for numbers in alike.values() if len(numbers) > 1 for number in numbers]
        self.peers = {number: [other for other in numbers if other != number] for numbers in alike.values() for number in numbers}
        self.evidence: list[Evidence] = []
        if paired:
            self.evidence.append(Evidence(Stragglers([likeness[number] for number in paired]), [[number] for number in paired], False))
        self._add_history(list(alike.values()))
        if len(alike) > 1:
            self._add_history([list(range(len(groups)))])
        self.reports: list[Report] = []

    def _add_history(self, entries: list[list[int]]) -> None:
        self.evidence.append(Evidence(Stragglers(range(len(entries)), floor=HISTORY_FLOOR), entries, True))

    def seconds(self, everyones: Floats, columns: dict[str, int], share: Floats) -> Floats:
        """The time of an exchange of every group in one step, for as many micro-batches as the mean."""
        if self.axis != "pp":
            own = everyones[:, columns[f"link_{self.axis}"]] / (1.0 if self.axis == "dp" else share)
            return np.array([min(own[list(group)]) for group in self.groups])
        away, held, after, before = (everyones[:, columns[f"pp_{name}"]] for name in TRIP)
        first, second = np.array(self.groups).T
        return np.asarray(np.clip(away[first] - held[second], 0.0, after[first] + before[second]) / 2)

    def ratios(self, num_steps: int) -> Iterator[tuple[Group, float, bool]]:
        """Every group, the logarithm of how slow it was over the last steps, and whether that says how slow it is: all may be alike."""
        logs = np.zeros(len(self.groups))
        is_sure = False
        for one in self.evidence:
            for numbers, ratio in zip(one.entries, one.detector.usual_ratios(num_steps), strict=True):
                logs[numbers] = np.maximum(logs[numbers], ratio)
            is_sure |= one.is_history and one.detector.has_history
        return ((group, float(log), is_sure) for group, log in zip(self.groups, logs, strict=True))


class SlowLinks:
    """The detector. `hosts` has the host of each rank, and `domains` the ranks in a domain of each tier of the network.

    On one host, groups are judged only if `within_hosts`: processes that share cores disturb each other more than a link does. `seats` has
    the place of each rank in the network, by the numbers of the plan's ranks: ranks are numbered anew when replicas come or go.
    """

    def __init__(
        self,
        layout: Layout,
        hosts: Sequence[str] = (),
        domains: Sequence[int] = (),
        *,
        within_hosts: bool = False,
        seats: Sequence[int] = (),
    ) -> None:
        self.hosts = tuple(hosts) or ("",) * layout.num_ranks
        seat = list(seats) or list(range(layout.num_ranks))
        self.columns = {name: len(PARTS) + number for number, name in enumerate(link_columns(layout))}
        self.axes: list[Exchanges] = []
        for axis in judged_axes(layout):
            groups = [group for group in groups_along(layout, axis) if within_hosts or len(self._hosts_of(group)) > 1]
            spans = [tuple(len({seat[rank] // size for rank in group}) for size in domains) for group in groups]
            places = [(len(self._hosts_of(group)), *span) for group, span in zip(groups, spans, strict=True)]
            stages = [0 if axis == "pp" else layout.coordinate(group[0])["pp"] for group in groups]
            if groups:
                self.axes.append(Exchanges(layout, axis, groups, list(zip(stages, places, strict=True))))

    def update(self, step: int, everyones: Floats, step_s: float, share: Floats | None = None) -> list[SlowLink]:
        """Add the columns of one step, by rank; return the links that are found to be slow, or normal again.

        `share`: micro-batches of each rank, divided by the mean.
        """
        found: list[SlowLink] = []
        shares = np.ones(len(everyones)) if share is None else share
        for axis in self.axes:
            seconds = np.maximum(axis.seconds(everyones, self.columns, shares), LEAST_SHARE * step_s)
            for number, evidence in enumerate(axis.evidence):
                changed = evidence.update(step, seconds)
                found += self._named(axis, number, [one for one in changed if not one.recovered])
                found += self._over(axis, number, [one for one in changed if one.recovered])
        return found

    def _hosts_of(self, group: Group) -> set[str]:
        return {self.hosts[rank] for rank in group}

    def _named(self, axis: Exchanges, number: int, named: Sequence[SlowRank]) -> list[SlowLink]:
        """A report of the entries of one detector that were named, with all groups that are as slow; none if they were reported before."""
        evidence = axis.evidence[number]
        covered = {group for report in axis.reports for group in report.covers}
        new = [one for one in named if not covered.issuperset(self._groups(axis, evidence, one))]
        for one in named:
            for report in axis.reports:
                if one not in new and report.covers.issuperset(self._groups(axis, evidence, one)):
                    report.waits_for.add((number, one.rank))
        if not new:
            return []
        worst = max(new, key=lambda one: one.slowdown)
        slow = {group for one in new for group in self._groups(axis, evidence, one)}
        peers = () if evidence.is_history else tuple(axis.groups[other] for other in axis.peers[evidence.entries[worst.rank][0]])
        limit = LIKE_THE_NAMED * math.log(worst.slowdown)
        slow |= {group for group, log, _ in axis.ratios(worst.num_steps) if log > limit and group not in covered}
        found = SlowLink(
            axis=axis.axis,
            groups=tuple(sorted(slow)),
            hosts=self._suspects(worst, slow, set(peers) - slow),
            step=worst.step,
            slowdown=worst.slowdown,
            num_steps=worst.num_steps,
            peers=tuple(group for group in peers if group not in slow) or peers,
        )
        is_known = any(len(found.hosts) == 1 and report.found.hosts == found.hosts for other in self.axes for report in other.reports)
        axis.reports.append(Report(found, not is_known, {(number, one.rank) for one in new}, slow))
        return [] if is_known else [found]

    def _over(self, axis: Exchanges, number: int, recovered: Sequence[SlowRank]) -> list[SlowLink]:
        """The reports of which all groups that were named are normal again."""
        over = []
        for one in recovered:
            for report in [report for report in axis.reports if (number, one.rank) in report.waits_for]:
                report.waits_for.discard((number, one.rank))
                if report.waits_for:
                    continue
                axis.reports.remove(report)
                if report.is_told:
                    over.append(replace(report.found, step=one.step, slowdown=one.slowdown, num_steps=one.num_steps, recovered=True))
        return over

    def _groups(self, axis: Exchanges, evidence: Evidence, one: SlowRank) -> list[Group]:
        return [axis.groups[number] for number in evidence.entries[one.rank]]

    def _suspects(self, worst: SlowRank, slow: set[Group], sound: set[Group]) -> tuple[str, ...]:
        """The hosts that are in all slow groups of all axes and in no sound one; without such a host, those of the named groups."""
        if len(set(self.hosts)) == 1:
            return ()
        log, slow_anywhere, sound_anywhere = math.log(worst.slowdown), set(slow), set(sound)
        for axis in self.axes:
            for group, ratio, is_sure in axis.ratios(worst.num_steps):
                if ratio > LIKE_THE_NAMED * log:
                    slow_anywhere.add(group)
                elif is_sure and ratio < SOUND * log:
                    sound_anywhere.add(group)
        common = set.intersection(*(self._hosts_of(group) for group in slow_anywhere))
        left = common.difference(*(self._hosts_of(group) for group in sound_anywhere - slow_anywhere))
        return tuple(sorted(left or common or set().union(*(self._hosts_of(group) for group in slow))))
