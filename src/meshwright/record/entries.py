"""The content of the lines of a run: a step with its parts, and an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import InputError
from meshwright.record.lines import number, required_number, whole_number

PARTS = ("compute", "exposed_tp", "exposed_cp", "exposed_pp", "exposed_dp", "exposed_ep", "bubble", "optimizer", "data", "overhead")
PART_NAMES = {part: part.replace("_", " ") for part in PARTS}  # for people: all tables, pages and sentences use these names
SLOW_AFTER = ("evaluation", "checkpoint", "resumed", "restart", "membership")  # events after which the next step is not steady
ENDS = ("finished", "stopped")  # events that end simulated weeks; they also contain the time since the last interruption
MEAN_PARTS = "mean_parts_s"  # in the start event of simulated weeks: the parts of their mean step
LONGEST_S = 1e11  # three thousand years: no step takes longer, no event comes later, and the time is still a valid date
STEP_FIELDS = ("step", "samples", "loss", "grad_norm", "step_s")
LOADS_FIELD = "expert_loads"
OLD_STEP_FIELD = "step_time_s"  # what `step_s` was called in the records of version 0.1
OLD_MESSAGE_FIELD = "said"  # what an event's `message` was called in the records of version 0.1

_PART_OF_FIELD = {f"{part}_s": part for part in PARTS}
_EVENT_FIELDS = ("time_s", "kind", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step. Parts are seconds by name in `PARTS`; a part that was not measured is left out, not zero."""

    step: int  # from 1
    samples: int  # sequences trained on so far, including this step
    loss: float | None
    grad_norm: float | None
    step_s: float
    parts_s: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)  # tokens_per_s, memory_bytes, energy_j, ...
    expert_loads: tuple[tuple[float, ...], ...] = ()  # tokens of each expert over their mean, by layer with experts; empty: not recorded

    def __post_init__(self) -> None:
        if self.step < 0 or self.samples < 0:
            raise InputError(f"step {self.step} with {self.samples} samples: neither can be below 0", fix="give 0 or more")
        if unknown := self.parts_s.keys() - set(PARTS):
            raise InputError(f"no part of a step is called {sorted(unknown)[0]!r}", fix=f"use {', '.join(PARTS)}, or an extra field")
        if taken := [name for name in self.extra if name in (*STEP_FIELDS, LOADS_FIELD) or name in _PART_OF_FIELD]:
            raise InputError(f"the extra field {taken[0]!r} has the name of a field of every step", fix="call it something else")
        for name, seconds in (("step_s", self.step_s), *self.parts_s.items()):
            if not 0 <= seconds <= LONGEST_S:
                raise InputError(
                    f"{name} of step {self.step} is {seconds}, which is not a possible duration", fix=f"give 0 to {LONGEST_S:g} s"
                )

    def to_json(self) -> dict[str, Any]:
        """The record as one flat JSON object: `compute_s`, `exposed_tp_s`, ... next to the rest."""
        entry = {name: getattr(self, name) for name in STEP_FIELDS}
        entry |= {f"{part}_s": seconds for part, seconds in self.parts_s.items()} | dict(self.extra)
        return entry | {LOADS_FIELD: [list(layer) for layer in self.expert_loads]} if self.expert_loads else entry

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> StepRecord:
        """The record in a line; ValueError says what is missing."""
        if OLD_STEP_FIELD in entry and "step_s" not in entry:
            entry = {"step_s" if name == OLD_STEP_FIELD else name: value for name, value in entry.items()}
        rest = {name: number(entry, name) for name in entry if name not in (*STEP_FIELDS, LOADS_FIELD)}
        parts_s = {_PART_OF_FIELD[name]: value for name, value in rest.items() if name in _PART_OF_FIELD and value is not None}
        extra = {name: value for name, value in rest.items() if name not in _PART_OF_FIELD and value is not None}
        return StepRecord(
            step=whole_number(entry, "step"),
            samples=whole_number(entry, "samples"),
            loss=number(entry, "loss"),
            grad_norm=number(entry, "grad_norm"),
            step_s=required_number(entry, "step_s"),
            parts_s=parts_s,
            extra=extra,
            expert_loads=_loads_in(entry.get(LOADS_FIELD, [])),
        )


def _loads_in(layers: Any) -> tuple[tuple[float, ...], ...]:
    """Loads of experts as a line contains them: a list of numbers for each layer, each with as many; otherwise ValueError."""
    is_table = isinstance(layers, list) and all(isinstance(layer, list) for layer in layers)
    if not is_table or len({len(layer) for layer in layers}) > 1:
        raise ValueError(f"{LOADS_FIELD} is not a list of equally long lists")
    if not all(isinstance(load, int | float) and not isinstance(load, bool) for layer in layers for load in layer):
        raise ValueError(f"{LOADS_FIELD} holds something that is not a number")
    return tuple(tuple(float(load) for load in layer) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: start, evaluation, checkpoint, slow_rank, stall, nan, resumed, stopped, finished, fault, restart, ..."""

    time_s: float  # since the run's first start; simulated time in a simulated run
    kind: str
    step: int  # steps done when it happened
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := [name for name in self.detail if name in _EVENT_FIELDS]:
            raise InputError(f"the detail {taken[0]!r} of an event has the name of a field of every event", fix="call it something else")

    def to_json(self) -> dict[str, Any]:
        """The event as one flat JSON object."""
        return {"time_s": self.time_s, "kind": self.kind, "step": self.step, **self.detail}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Event:
        """The event in a line; ValueError says what is missing."""
        if not isinstance(entry.get("kind"), str):
            raise ValueError("kind is not text")
        time_s = required_number(entry, "time_s")
        if not abs(time_s) <= LONGEST_S:
            raise ValueError(f"time_s is {time_s}, which is not a possible time")
        detail = {name: value for name, value in entry.items() if name not in _EVENT_FIELDS}
        if OLD_MESSAGE_FIELD in detail and "message" not in detail:
            detail = {"message" if name == OLD_MESSAGE_FIELD else name: value for name, value in detail.items()}
        return Event(time_s=time_s, kind=entry["kind"], step=whole_number(entry, "step"), detail=detail)
