"""The cost of communication in a profile: how much of it is hidden behind compute and how much is exposed, per process and stream.

Per process (a GPU, or the CPU of a rank), with unions of intervals so that nested and parallel events count once:

    window     from the first event's start to the last one's end
    compute    the union of compute kernels
    exposed    the union of communication kernels less the union of compute kernels
    hidden     communication that compute covers; hidden / communication is HolisticTraceAnalysis's comm_comp_overlap
    memory     copies, fills and other events, where neither compute nor communication runs
    idle       nothing at all runs; compute, exposed, memory and idle add up to the window
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.record.chrome_trace import ChromeTrace, Kind, Lane, read_trace
from meshwright.record.intervals import Union

MAX_COLLECTIVES = 12  # by name, the most exposed first


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """One stream that carries communication."""

    stream: str
    num_events: int
    communication_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """All communication of one name. Kernels that run at the same time on several streams are counted separately."""

    name: str
    num_events: int
    total_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessTimes:
    """Where the time of one GPU, or of one rank's CPU, went."""

    label: str
    rank: int | None
    on_gpu: bool
    num_events: int
    num_steps: int  # ProfilerSteps in the file
    window_s: float
    compute_s: float
    communication_s: float
    hidden_s: float
    exposed_s: float
    memory_s: float
    idle_s: float
    streams: tuple[StreamTimes, ...]
    collectives: tuple[CollectiveTimes, ...]
    compute: Union
    communication: Union
    memory: Union

    @property
    def overlap_pct(self) -> float | None:
        """Share of the communication that is hidden behind compute, in per cent; None without communication."""
        return 100 * self.hidden_s / self.communication_s if self.communication_s else None

    def share_pct(self, value_s: float) -> float:
        """A time in per cent of the window."""
        return 100 * value_s / self.window_s if self.window_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One or several traces: one process for each GPU or rank."""

    files: tuple[Path, ...]
    processes: tuple[ProcessTimes, ...]
    notes: tuple[str, ...]


def profile_of(paths: tuple[Path, ...]) -> Profile:
    """The times of all processes in all files, by rank."""
    _check_distinct(paths)
    found: list[tuple[Path, ProcessTimes]] = []
    notes: list[str] = []
    for path in paths:
        trace = read_trace(path)
        found += [(path, process) for process in _processes(trace)]
        notes += [f"{path.name}: {note}" for note in trace.notes]
    labels = Counter(process.label for _, process in found)
    if twice := [label for label, count in labels.items() if count > 1]:
        notes.append(f"Several files are of {', '.join(twice)}: they are distinguished by their file names.")
    processes = [replace(one, label=f"{one.label}, {path}") if labels[one.label] > 1 else one for path, one in found]
    processes.sort(key=lambda one: (one.rank is None, one.rank or 0))
    if not all(one.on_gpu for one in processes):
        notes.append("No GPU events: CPU operators count as compute, gloo's and c10d's as communication.")
    if not any(one.communication_s for one in processes):
        notes.append("No communication was recorded: no kernel named nccl*, no gloo or c10d operator.")
    return Profile(files=paths, processes=tuple(processes), notes=tuple(notes))


def _check_distinct(paths: tuple[Path, ...]) -> None:
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise InputError("the same trace is given twice", where=str(paths[number]), fix="give each trace once")


def _processes(trace: ChromeTrace) -> list[ProcessTimes]:
    found = groupby(trace.lanes, key=lambda lane: lane.process)
    return [_process(trace, process, list(lanes)) for process, lanes in found]


def _process(trace: ChromeTrace, process: str, lanes: list[Lane]) -> ProcessTimes:
    compute, communication = _union(lanes, Kind.COMPUTE), _union(lanes, Kind.COMMUNICATION)
    memory = _union(lanes, Kind.MEMORY, Kind.OTHER)
    busy = _union(lanes, *Kind)
    window_s = float(busy.end[-1] - busy.start[0])
    hidden_s = compute.overlap(communication)
    exposed_s = communication.length - hidden_s
    where = f"GPU {process}" if trace.on_gpu else f"CPU process {process}"
    streams = [_stream(lane, compute) for lane in lanes]
    return ProcessTimes(
        label=f"rank {trace.rank}, {where}" if trace.rank is not None else f"{trace.path.name}, {where}",
        rank=trace.rank,
        on_gpu=trace.on_gpu,
        num_events=sum(len(lane.start_s) for lane in lanes),
        num_steps=trace.num_steps,
        window_s=window_s,
        compute_s=compute.length,
        communication_s=communication.length,
        hidden_s=hidden_s,
        exposed_s=exposed_s,
        memory_s=max(busy.length - compute.length - exposed_s, 0.0),
        idle_s=max(window_s - busy.length, 0.0),
        streams=tuple(one for one in streams if one.num_events),
        collectives=_collectives(trace, lanes, compute),
        compute=compute,
        communication=communication,
        memory=memory,
    )


def _union(lanes: list[Lane], *kinds: Kind) -> Union:
    picked = [np.isin(lane.kind, kinds) for lane in lanes]
    start = np.concatenate([lane.start_s[mask] for lane, mask in zip(lanes, picked, strict=True)])
    return Union.of(start, np.concatenate([lane.end_s[mask] for lane, mask in zip(lanes, picked, strict=True)]))


def _stream(lane: Lane, compute: Union) -> StreamTimes:
    mask = lane.kind == Kind.COMMUNICATION
    own = Union.of(lane.start_s[mask], lane.end_s[mask])
    return StreamTimes(
        stream=lane.stream,
        num_events=int(mask.sum()),
        communication_s=own.length,
        exposed_s=own.length - compute.overlap(own),
    )


def _collectives(trace: ChromeTrace, lanes: list[Lane], compute: Union) -> tuple[CollectiveTimes, ...]:
    masks = [lane.kind == Kind.COMMUNICATION for lane in lanes]
    name, start, end = (_picked([getattr(lane, what) for lane in lanes], masks) for what in ("name", "start_s", "end_s"))
    exposed = (end - start) - compute.covers(start, end)
    found = []
    for number in np.unique(name).tolist():
        mask = name == number
        total_s, exposed_s = float(np.sum((end - start)[mask])), float(np.sum(exposed[mask]))
        found.append(
            CollectiveTimes(name=trace.names[int(number)], num_events=int(mask.sum()), total_s=total_s, exposed_s=max(exposed_s, 0.0))
        )
    return tuple(sorted(found, key=lambda one: -one.exposed_s)[:MAX_COLLECTIVES])


def _picked(columns: list[NDArray[np.float64]], masks: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    return np.concatenate([column[mask] for column, mask in zip(columns, masks, strict=True)])
