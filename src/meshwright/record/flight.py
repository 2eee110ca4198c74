"""The last collectives of every rank before a failure, and what they say together: which one did not finish, who entered it, who did not.

The communication library of each rank keeps its last calls, as a flight recorder does. When a failure is known, each rank that still runs
writes them to `flight/` in the run folder; `in_words` joins the traces of all ranks. A rank that was killed or stopped leaves no trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.files import read_text, write_whole

FLIGHT = "flight"  # the folder of traces in a run folder
KEPT = 64  # calls of each group in a trace: ranks are seldom further apart
MOST_BYTES = 1 << 24  # of one trace
MOST_NAMED = 8  # ranks in a sentence
MOST_SENTENCES = 3
UNEVEN = ("gather", "scatter")  # collectives in which ranks give tensors of different shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective, or one message, that a rank began."""

    number: int  # counted by the group; the same on all ranks; messages are counted apart
    what: str  # such as all-reduce
    shape: str  # such as float32 [4, 8]; empty if nothing is sent
    finished: bool
    is_message: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """The last calls of one rank in one group, in their order."""

    name: str  # as the library calls the group; disjoint groups may have the same name
    label: str  # such as tensor-parallel; empty: the group of all ranks
    ranks: tuple[int, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What the flight recorder of one rank held."""

    rank: int
    groups: tuple[GroupCalls, ...]

    @property
    def waits(self) -> bool:
        """Whether a call of this rank has not finished."""
        return any(not call.finished for group in self.groups for call in group.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """The first call of one group that did not finish on all ranks."""

    label: str
    ranks: tuple[int, ...]
    call: Call
    entered: tuple[int, ...]
    missing: tuple[tuple[int, Call | None], ...]  # ranks with a trace that had not entered it, and the last call that each had entered
    silent: tuple[int, ...]  # ranks without a trace
    finished: tuple[int, ...]
    differing: tuple[tuple[str, tuple[int, ...]], ...]  # what it was on which ranks, if not the same on all

    @property
    def text(self) -> str:
        """The finding in one sentence, without a full stop."""
        shape = f", {self.call.shape}" if self.call.shape and not self.differing else ""
        where = f"{self.call} of the {f'{self.label} ' if self.label else ''}group of {_ranks(self.ranks)}{shape}"
        if self.differing:
            return f"the ranks do not agree on {where}: " + "; ".join(f"{what} on {_ranks(ranks)}" for what, ranks in self.differing)
        reasons = [*self._late(), *([f"{_ranks(self.silent)} left no trace"] if self.silent else [])]
        if reasons:
            return f"{where}: {_ranks(self.entered)} had entered it, {' and '.join(reasons)}"
        if self.finished:
            unfinished = tuple(rank for rank in self.entered if rank not in self.finished)
            return f"{where}: all ranks had entered it, {_ranks(self.finished)} had finished it and {_ranks(unfinished)} had not"
        return f"{where}: all ranks had entered it and none had finished it"

    def _late(self) -> Iterator[str]:
        by_last: dict[str, list[int]] = {}
        for rank, last in self.missing:
            state = "finished" if last and last.finished else "not finished"
            what = f"the last that had been entered there is {last}, {state}" if last else "nothing had been entered there"
            by_last.setdefault(what, []).append(rank)
        for words, ranks in by_last.items():
            yield f"{_ranks(ranks)} had not ({words})"


def stuck(traces: Sequence[RankTrace]) -> list[Stuck]:
    """What did not finish, group by group, the likely cause first.

    A cause is a disagreement; then a rank that is missing and waits for nothing itself; then one that left no trace. A call that all
    ranks had entered comes last: it may simply have been under way.
    """
    by_rank = {trace.rank: trace for trace in traces}
    groups: dict[tuple[str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for trace in traces:
        for group in trace.groups:
            groups.setdefault((group.name, group.ranks), {})[trace.rank] = group
    found = [
        one
        for members in groups.values()
        for is_message in (False, True)
        if (one := _first_unfinished(members, set(by_rank), is_message=is_message)) is not None
    ]

    def place(one: Stuck) -> tuple[int, int]:
        if one.differing:
            return 0, one.call.number
        if any(not by_rank[rank].waits for rank, _ in one.missing):
            return 1, one.call.number
        return (2 if one.silent else 3 if one.missing else 4), one.call.number

    return sorted(found, key=place)


def in_words(traces: Sequence[RankTrace]) -> str:
    """What the traces of all ranks say together, in a few sentences; empty if nothing was under way."""
    found = [one.text for one in stuck(traces)]
    more = len(found) - MOST_SENTENCES
    return ". ".join([*found[:MOST_SENTENCES], *([f"{more} more groups had a call that was not finished"] if more > 0 else [])])


def _first_unfinished(members: dict[int, GroupCalls], traced: set[int], *, is_message: bool) -> Stuck | None:
    """The first call of a group that some rank had begun and not finished; `members` are the calls of the ranks with a trace."""
    group = next(iter(members.values()))
    if is_message and len(group.ranks) > 2:
        return None  # messages of several pairs are counted together, so that numbers of two ranks do not belong together
    calls = {rank: {call.number: call for call in one.calls if call.is_message == is_message} for rank, one in members.items() if one.calls}
    waiting = [call for of_rank in calls.values() for call in of_rank.values() if not call.finished]
    if not waiting:
        return None
    number = _blocking(sorted({call.number for call in waiting}), group.ranks, calls)
    call = next(call for call in waiting if call.number == number)
    last = {rank: max(of_rank.items())[1] for rank, of_rank in calls.items() if of_rank}
    entered = tuple(rank for rank in group.ranks if rank in last and last[rank].number >= number)
    of_ranks = {rank: calls[rank][number] for rank in entered if number in calls[rank]}
    return Stuck(
        label=group.label,
        ranks=group.ranks,
        call=call,
        entered=entered,
        missing=tuple((rank, last.get(rank)) for rank in group.ranks if rank in traced and rank not in entered),
        silent=tuple(rank for rank in group.ranks if rank not in traced),
        finished=tuple(rank for rank in entered if rank not in of_ranks or of_ranks[rank].finished),
        differing=_differing(of_ranks),
    )


def _blocking(numbers: Sequence[int], ranks: Sequence[int], calls: dict[int, dict[int, Call]]) -> int:
    """The first of the unfinished calls `numbers` that is more than under way.

    A library may record the end of a call late. So a call that all ranks had entered and one of them had finished counts only if no later
    one is left.
    """

    def is_ending(number: int) -> bool:
        of_ranks = [calls.get(rank, {}) for rank in ranks]
        all_entered = all(of_rank and max(of_rank) >= number for of_rank in of_ranks)
        return all_entered and any(number not in of_rank or of_rank[number].finished for of_rank in of_ranks)

    return next((number for number in numbers if not is_ending(number)), numbers[0])


def _differing(of_ranks: dict[int, Call]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What the same call is on different ranks; empty if it is the same."""
    kinds: dict[str, list[int]] = {}
    for rank, call in of_ranks.items():
        shape = "" if call.what in UNEVEN else call.shape
        kinds.setdefault(f"{call.what} of {shape}" if shape else call.what, []).append(rank)
    return tuple((what, tuple(ranks)) for what, ranks in kinds.items()) if len(kinds) > 1 else ()


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:MOST_NAMED])) + (f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def trace_path(folder: Path, rank: int) -> Path:
    """The file of one rank's trace in a run folder."""
    return folder / FLIGHT / f"rank-{rank:05}.json"


def write_trace(folder: Path, trace: RankTrace) -> None:
    """Write one rank's trace into a run folder."""
    path = trace_path(folder, trace.rank)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps(asdict(trace), separators=(",", ":")) + "\n")


def read_traces(folder: Path) -> list[RankTrace]:
    """The traces in a run folder, by rank. A file that is none is left out."""
    found = []
    for path in sorted((folder / FLIGHT).glob("rank-*.json")):
        with suppress(OSError, ValueError):
            found.append(trace_of(json.loads(read_text(path, MOST_BYTES))))
    return found


def remove_traces(folder: Path) -> None:
    """Remove the traces of an earlier failure, before the run goes on, and their folder if nothing else is in it."""
    for path in (folder / FLIGHT).glob("*rank-*.json"):  # and what a kill left half written
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):
        (folder / FLIGHT).rmdir()


def trace_of(entry: Any) -> RankTrace:
    """A trace from its JSON; ValueError if it is none."""
    try:
        groups = tuple(
            GroupCalls(
                name=str(group["name"]),
                label=str(group["label"]),
                ranks=tuple(int(rank) for rank in group["ranks"]),
                calls=tuple(_call_of(call) for call in group["calls"]),
            )
            for group in entry["groups"]
        )
        return RankTrace(rank=int(entry["rank"]), groups=groups)
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"no trace of a rank: {error}") from None


def _call_of(entry: Any) -> Call:
    return Call(
        number=int(entry["number"]),
        what=str(entry["what"]),
        shape=str(entry["shape"]),
        finished=bool(entry["finished"]),
        is_message=bool(entry["is_message"]),
    )
