"""Which replicas a run has, from which step on, and how the batch is dealt to them.

The global batch stays what the plan says. Its micro-batches are dealt to the replicas in turn; where they do not divide evenly, the last
round is filled with samples that carry no loss. What a run computes therefore depends only on its list of memberships: from which step on
it had how many replicas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.files import MOST_LINES_BYTES, read_bytes, refusal
from meshwright.layout import Layout

EVENT = "membership"  # the kind of the event that records a membership
DEALT = "rebalanced"  # that of a deal
EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The number of replicas from one step on, until the next membership."""

    from_step: int  # the first step that these replicas take
    dp: int

    def __post_init__(self) -> None:
        if self.from_step < 1 or self.dp < 1:
            raise InputError(f"{self.dp} replicas from step {self.from_step} on", where="memberships", fix="both count from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """How micro-batches are dealt to the replicas after one step, until the next deal or the next change of the replicas."""

    after_step: int
    deal: tuple[int, ...]  # micro-batches of each replica


def layout_with(layout: Layout, dp: int) -> Layout:
    """The layout with another number of replicas.

    If the ranks that share a sharded state no longer divide the replicas, the next larger number that does share it: no rank then holds
    more than before for this reason.
    """
    replicas = dp * layout.cp
    sharing = next((size for size in range(layout.zero_ranks, replicas) if replicas % size == 0), 0) if layout.zero_ranks else 0
    return replace(layout, dp=dp, zero_ranks=sharing)


def seats_of(planned: Layout, now: Layout, replicas: Sequence[int]) -> list[int]:
    """The rank of the plan in whose place each rank now is, where these replicas are left; those beyond the plan sit where others do."""
    places = [now.coordinate(rank) for rank in range(now.num_ranks)]
    return [planned.rank({**place, "dp": replicas[place["dp"]] % planned.dp}) for place in places]


def num_rounds(layout: Layout, global_batch: int) -> int:
    """Micro-batches that each replica runs in a step; in the last round some may have no loss."""
    return -(-global_batch // (layout.dp * layout.micro_batch))


def dealt(layout: Layout, global_batch: int) -> list[int]:
    """Micro-batches with a loss that each replica runs in a step."""
    whole, rest = divmod(global_batch // layout.micro_batch, layout.dp)
    return [whole + (index < rest) for index in range(layout.dp)]


def check_replicas(layout: Layout, workload: Workload, dp: int, where: str) -> Layout:
    """The layout with `dp` replicas; an error if the batch has no work for some of them."""
    most = workload.global_batch // layout.micro_batch
    if not 1 <= dp <= most:
        raise InputError(
            f"{dp} replicas cannot share a batch of {workload.global_batch} in micro-batches of {layout.micro_batch}",
            where=where,
            fix=f"choose 1 to {most} replicas",
        )
    return layout_with(layout, dp)


def deal_refusal(layout: Layout, deal: Sequence[int]) -> str:
    """Why replicas of a layout cannot have such different numbers of micro-batches; empty if they can."""
    if min(deal) < 1:
        return "every replica needs a micro-batch"
    if layout.zero_stage > 1 and layout.dp > 1 and len(set(deal)) > 1:
        return f"ZeRO {layout.zero_stage} exchanges gradients or weights for every micro-batch, so all replicas need equally many"
    if layout.expert_ranks > 1 and layout.dp > 1 and len(set(deal)) > 1:
        sharing = f"the {layout.expert_ranks} ranks that share out experts"
        return f"{sharing} exchange tokens in every micro-batch, so all replicas need equally many"
    return ""


def check_deal(layout: Layout, workload: Workload, dealt: Dealt, where: str) -> None:
    """Raise an error if the replicas cannot have this deal, or it is no deal of this batch. `layout` has the replicas of that time."""
    words = f"the deal {', '.join(map(str, dealt.deal))} after step {dealt.after_step}"
    fix = "give the events of a run of the same plan"
    most = -(-workload.global_batch // layout.micro_batch)
    if len(dealt.deal) != layout.dp:
        raise InputError(f"{words} is for {len(dealt.deal)} replicas, and the run has {layout.dp} then", where=where, fix=fix)
    if sum(dealt.deal) * layout.micro_batch < workload.global_batch or max(dealt.deal) > most:
        what = f"does not fit a batch of {workload.global_batch} in micro-batches of {layout.micro_batch}"
        raise InputError(f"{words} {what}", where=where, fix=fix)
    if why := deal_refusal(layout, dealt.deal):
        raise InputError(f"{words} is not possible: {why}", where=where, fix=fix)


def in_effect(events: Iterable[Mapping[str, Any]]) -> list[Membership]:
    """The memberships that events record, in order of their steps. After a run went back to an earlier step, later ones do not count."""
    found: list[Membership] = []
    for event in events:
        if event.get("kind") != EVENT:
            continue
        try:
            new = Membership(from_step=_count(event, "from_step"), dp=_count(event, "dp"))
        except ValueError as error:
            raise InputError(f"a membership is damaged: {error}", where=EVENTS, fix="restore the file") from None
        found = [one for one in found if one.from_step < new.from_step]
        if not found or found[-1].dp != new.dp:
            found.append(new)
    return found


def deals_in_effect(events: Iterable[Mapping[str, Any]]) -> list[Dealt]:
    """The deals that events record, in order of their steps. A change of the replicas ends a deal, and so does a step back."""
    found: list[Dealt] = []
    for event in events:
        try:
            if event.get("kind") == EVENT:
                found = [one for one in found if one.after_step + 1 < _count(event, "from_step")]
            elif event.get("kind") == DEALT:
                deal = event.get("deal")
                if not isinstance(deal, list) or not deal or any(type(number) is not int or number < 1 for number in deal):
                    raise ValueError(f"deal is {deal!r:.40}")
                found.append(Dealt(after_step=_count(event, "step"), deal=tuple(deal)))
        except ValueError as error:
            raise InputError(f"an event is damaged: {error}", where=EVENTS, fix="restore the file") from None
    return found


def _count(event: Mapping[str, Any], name: str) -> int:
    value = event.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def read_memberships(path: Path) -> tuple[list[Membership], list[Dealt]]:
    """The memberships of a run folder, or of a file with one JSON object per line; and how micro-batches were dealt in between."""
    file = path / EVENTS if path.is_dir() else path
    events = []
    try:
        lines = read_bytes(file, MOST_LINES_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        raise refusal("cannot read memberships", file, error) from None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            raise InputError("not a JSON object", where=f"{file} line {number}", fix="give the events of a run") from None
        if isinstance(entry, dict):
            events.append({"kind": EVENT, **entry})
    found = in_effect(events)
    if not found or found[0].from_step != 1:
        raise InputError(
            "no membership from step 1 on", where=str(file), fix='give lines such as {"from_step": 1, "dp": 2}, or a run with --keep-going'
        )
    return found, deals_in_effect(events)


def dp_at(memberships: Sequence[Membership], step: int) -> int:
    """The number of replicas that take a step."""
    return [one.dp for one in memberships if one.from_step <= step][-1]


def next_dp(memberships: Sequence[Membership], step: int) -> int:
    """The number of replicas after the next change that follows a step; that of the step itself if none follows."""
    return next((one.dp for one in memberships if one.from_step > step), dp_at(memberships, step))


def changes_after(memberships: Sequence[Membership]) -> frozenset[int]:
    """The steps after which the number of replicas changes."""
    return frozenset(after.from_step - 1 for _, after in pairwise(memberships))
