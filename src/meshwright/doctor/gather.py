"""All ranks examined together: each reads its node, rank 0 collects; then clocks are compared and pairs of ranks are timed.

Everything has a time limit. A rank that hangs is missing in what rank 0 collects, and is named there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshwright.describe.cluster import Tier
from meshwright.doctor.clocks import Ahead, Store, ask_time, tell_time, value_of
from meshwright.doctor.limit import within
from meshwright.doctor.node import READINGS_S, Here, Sources, take_reading
from meshwright.doctor.pairs import Rounds, rounds_of, rounds_words, slow_pairs
from meshwright.doctor.reading import Gathered, Pair, Reading, reading_of

if TYPE_CHECKING:
    from meshwright.train.launch import Place
    from meshwright.train.measure.pairs import Timed

LATE_S = 2.0  # that a reading may come after its time: ranks do not begin at the same moment
CLOCKS_S = 4.0
PAIRS_S, AGAIN_S = 12.0, 3.0
GOODBYE_S = 2.0  # that rank 0 waits for the others at the end, for some launchers end all ranks when one has ended
MOST_AGAIN = 16  # slow pairs that are timed again, each alone: a neighbour's traffic is no fault of a pair
GPUS, CORES = "on GPUs", "on cores"

Report = Callable[[str], None]
Results = tuple[tuple[Pair, ...], tuple[tuple[int, int], ...], str]  # pairs, pairs that did not finish, why not all were timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What the network between ranks is described with, and how they exchange."""

    tiers: tuple[Tier, ...] = ()
    exchange: Callable[..., None] | None = None  # in the place of torch's, for tests


def alone(here: Here, sources: Sources, report: Report) -> Gathered:
    """A node examined by one process: without others there are no clocks to compare and no pairs."""
    started_s = time.monotonic()
    reading = take_reading(here, sources, report)
    return Gathered(num_ranks=1, readings=(reading,), took_s=time.monotonic() - started_s)


def gather(place: Place, here: Here, sources: Sources, network: Network, report: Report) -> Gathered | None:
    """What all ranks found, on rank 0; None on the others. All ranks call it at about the same time."""
    if place.num_ranks == 1:
        return alone(here, sources, report)
    started_s, store = time.monotonic(), place.control
    quiet: Report = report if place.rank == 0 else lambda what: None
    store.set(f"doctor/node/{place.rank}", here.node)
    reading = take_reading(here, sources, quiet)
    store.set(f"doctor/reading/{place.rank}", reading.to_text())
    until_s = started_s + READINGS_S + LATE_S
    if place.rank:
        _follow(place, reading, sources, network, until_s)
        return None
    return _lead(place, sources, network, started_s, until_s, report)


def _lead(place: Place, sources: Sources, network: Network, started_s: float, until_s: float, report: Report) -> Gathered:
    """Rank 0: collect, tell the time, decide which pairs are timed, and let the others go."""
    store = place.control
    try:
        report("waiting for the readings of other ranks")
        readings, silent = _readings(store, place.num_ranks, until_s)
        report("comparing clocks")
        clocks_until_s = time.monotonic() + CLOCKS_S
        firsts = [reading.rank for reading in readings if reading.is_first and reading.rank]
        store.set("doctor/clocks", "begin")
        tell_time(store, firsts, clocks_until_s, sources.now)
        readings = [_with_clock(store, reading, clocks_until_s) for reading in readings]
        pairs, stuck, failed = _lead_pairs(place, network, readings, report)
        notes = tuple(filter(None, [rounds_words(place.num_ranks)]))
        return Gathered(
            num_ranks=place.num_ranks,
            readings=tuple(readings),
            silent=silent,
            pairs=pairs,
            stuck=stuck,
            pairs_failed=failed,
            notes=notes,
            took_s=time.monotonic() - started_s,
        )
    finally:
        _goodbye(store, place.num_ranks)


def _readings(store: Store, num_ranks: int, until_s: float) -> tuple[list[Reading], dict[int, str]]:
    """Readings by rank, and ranks that gave none, with the names of their nodes."""
    readings, silent = [], {}
    for rank in range(num_ranks):
        try:
            readings.append(reading_of(value_of(store, f"doctor/reading/{rank}", until_s)))
        except TimeoutError:
            silent[rank] = f"the node of rank {rank}"
            with suppress(TimeoutError):
                silent[rank] = value_of(store, f"doctor/node/{rank}", until_s)
    return readings, silent


def _with_clock(store: Store, reading: Reading, until_s: float) -> Reading:
    """A reading with how far its node's clock is ahead; rank 0's own is not."""
    if not reading.is_first:
        return reading
    if reading.rank == 0:
        return replace(reading, clock_ahead_s=0.0, clock_error_s=0.0)
    try:
        ahead_s, error_s = json.loads(value_of(store, f"doctor/ahead/{reading.rank}", until_s))
    except TimeoutError:
        return replace(reading, failed={**reading.failed, "clock": "it did not answer rank 0 in time"})
    return replace(reading, clock_ahead_s=ahead_s, clock_error_s=error_s)


def _follow(place: Place, reading: Reading, sources: Sources, network: Network, until_s: float) -> None:
    """Another rank: ask the time, exchange with partners, and wait until rank 0 has done."""
    store = place.control
    with suppress(TimeoutError):
        value_of(store, "doctor/clocks", until_s + CLOCKS_S)
        if reading.is_first:
            ahead: Ahead = ask_time(store, place.rank, time.monotonic() + CLOCKS_S, sources.now)
            store.set(f"doctor/ahead/{place.rank}", json.dumps([ahead.ahead_s, ahead.error_s]))
        kind = value_of(store, "doctor/pairs", time.monotonic() + 2 * CLOCKS_S)
        if kind in (GPUS, CORES):
            _exchange(place, network, on_gpus=kind == GPUS)
    with suppress(TimeoutError):
        value_of(store, "doctor/over", time.monotonic() + PAIRS_S + AGAIN_S)
    with suppress(RuntimeError):  # rank 0 has gone, and its store with it
        store.set(f"doctor/left/{place.rank}", "")


def _lead_pairs(place: Place, network: Network, readings: Sequence[Reading], report: Report) -> Results:
    """Decide whether pairs are timed, on GPUs or on cores, and do it."""
    working = [reading for reading in readings if reading.flops_per_s is not None or reading.num_gpus == 0]
    num_gpus = sum(1 for reading in readings if reading.num_gpus)
    why = "not all ranks gave a reading" if len(readings) < place.num_ranks else ""
    why = why or ("some GPUs did not work" if len(working) < len(readings) else "")
    why = why or ("some nodes have GPUs and others have none" if 0 < num_gpus < len(readings) else "")
    kind = "none" if why else GPUS if num_gpus else CORES
    place.control.set("doctor/pairs", kind)
    if why:
        return (), (), why
    report("timing pairs of ranks")
    return _exchange(place, network, on_gpus=kind == GPUS)


def _exchange(place: Place, network: Network, *, on_gpus: bool) -> Results:
    """Time all pairs, then slow ones again, each alone; on rank 0 what all ranks found."""
    from meshwright.train.measure.pairs import Timed, leave_world

    timed, until_s = Timed(), time.monotonic() + PAIRS_S
    why = _try_rounds(place, network, on_gpus, rounds_of(place.num_ranks), timed, until_s)
    pairs, stuck, failed = _results(place, "first", timed, why, until_s + LATE_S)
    slow = slow_pairs(pairs, network.tiers, on_gpus=on_gpus)[:MOST_AGAIN] if not failed else []
    wanted = json.dumps([(one.pair.first, one.pair.second) for one in slow])
    if place.rank == 0:
        place.control.set("doctor/again", wanted)
    again: list[tuple[int, int]] = [(a, b) for a, b in json.loads(value_of(place.control, "doctor/again", until_s + 2 * LATE_S))]
    if again:
        until_s = time.monotonic() + AGAIN_S
        why = _try_rounds(place, network, on_gpus, [[pair] for pair in again], timed, until_s)
        pairs, stuck, failed = _results(place, "again", timed, why, until_s + LATE_S)
    if not why and timed.joined:
        leave_world()
    return pairs, stuck, failed


def _try_rounds(place: Place, network: Network, on_gpus: bool, rounds: Rounds, timed: Timed, until_s: float) -> str:
    """Time rounds into `timed`; why that failed, or ""."""
    from meshwright.train.measure.pairs import run_rounds

    def run() -> None:
        run_rounds(place, rounds, timed, on_gpus=on_gpus, exchange=network.exchange)

    try:
        within(until_s - time.monotonic(), run)
    except Exception as error:  # of a network, whatever it does
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return ""


def _results(place: Place, when: str, timed: Timed, why: str, until_s: float) -> Results:
    """What all ranks found, on rank 0; nothing on the others."""
    waits_for = timed.waits_for if why else None
    place.control.set(f"doctor/pairs/{when}/{place.rank}", json.dumps({"rates": timed.rates, "waits_for": waits_for, "why": why}))
    if place.rank:
        return (), (), why
    pairs: list[Pair] = []
    stuck: set[tuple[int, int]] = set()
    failures = [why] if why else []
    for rank in range(place.num_ranks):
        try:
            found = json.loads(value_of(place.control, f"doctor/pairs/{when}/{rank}", until_s))
        except TimeoutError:
            failures.append(f"rank {rank} did not answer")
            continue
        pairs += [Pair(first=rank, second=int(other), bytes_per_s=rate) for other, rate in found["rates"].items()]
        failures += [found["why"]] if found["why"] else []
        if found["waits_for"] is not None:
            stuck.add((min(rank, found["waits_for"]), max(rank, found["waits_for"])))
    return tuple(pairs), tuple(sorted(stuck)), failures[0] if failures else ""


def _goodbye(store: Store, num_ranks: int) -> None:
    """Let the others go, and wait a little until they have."""
    until_s = time.monotonic() + GOODBYE_S
    with suppress(TimeoutError, RuntimeError):
        store.set("doctor/over", "")
        for rank in range(1, num_ranks):
            value_of(store, f"doctor/left/{rank}", until_s)
