"""Failures of a machine: what breaks, how often, and how long it takes to continue; published rates, or a user's own file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from meshwright.describe.form import Checked, checked
from meshwright.describe.load import CATALOGUE, read_toml
from meshwright.errors import InputError, argument, nearest
from meshwright.frozen import FrozenDict
from meshwright.units import DAY, HOUR

FAILURES_FILE = CATALOGUE / "failures.toml"
USUAL = "llama3"  # of a cluster whose own are not known: the largest run that published its counts
HIGHEST_PER_HOUR = 1.0  # of one accelerator: more is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that interrupts a run."""

    name: str
    per_accelerator_hour: float
    loses_node: bool  # whether the node must be replaced before the run continues

    def __post_init__(self) -> None:
        if not 0 <= self.per_accelerator_hour <= HIGHEST_PER_HOUR:
            raise InputError(
                f"{self.name} affects an accelerator {self.per_accelerator_hour:g} times per hour",
                where=f"failures: {self.name}.per_accelerator_hour",
                fix=f"give a rate from 0 to {HIGHEST_PER_HOUR:g} per hour, such as 7e-6",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Rates by cause, and the times that follow an interruption."""

    name: str
    causes: tuple[Cause, ...]
    detection_s: float  # until the failure is noticed
    restart_s: float  # until training continues, with all nodes available
    checkpoint_s: float  # that training waits for a checkpoint
    repair_s: float  # until a lost node is back
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=FrozenDict)  # by the name of the number

    def __post_init__(self) -> None:
        for key in ("detection_s", "restart_s", "checkpoint_s", "repair_s"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{key} is {value}", where=f"failures {self.name}: {key}", fix="give seconds of at least 0")

    @property
    def per_accelerator_hour(self) -> float:
        """Interruptions of all causes."""
        return sum(cause.per_accelerator_hour for cause in self.causes)

    def mean_time_between_s(self, num_accelerators: int) -> float:
        """Seconds between interruptions of a machine; infinite if nothing breaks."""
        rate = self.per_accelerator_hour * num_accelerators
        return HOUR / rate if rate > 0 else math.inf

    def nodes_out(self, num_accelerators: int) -> float:
        """Mean number of nodes in repair, if each lost node is replaced by another."""
        per_hour = sum(cause.per_accelerator_hour for cause in self.causes if cause.loses_node)
        return per_hour * num_accelerators * self.repair_s / HOUR


@cache
def usual_failures() -> Failures:
    """The failures of a cluster that does not state its own."""
    return failures(USUAL)


def failures(name: str) -> Failures:
    """The failures called `name` in the package, or those of a TOML file."""
    if name.endswith(".toml"):
        return _of(Path(name).stem, read_toml(Path(name)), name)
    known = read_toml(FAILURES_FILE)
    if name not in known:
        raise InputError(f"no failures named {name!r}", where=argument("failures"), fix=f"{nearest(name, known)}, or give a .toml file")
    return _of(name, known[name], FAILURES_FILE.name)


class _CauseEntry(Checked):
    """One cause in a file: its rate per hour, or its count during an observed time."""

    per_accelerator_hour: float | None = None
    count: float | None = None
    loses_node: bool = True


class _Observed(Checked):
    """How much was watched while the causes were counted."""

    num_accelerators: int = Field(gt=0)
    days: float = Field(gt=0, allow_inf_nan=False)


class _Entry(Checked):
    """A file of failures, or one of the package's."""

    detection_s: float
    restart_s: float
    checkpoint_s: float
    repair_h: float
    causes: dict[str, _CauseEntry]
    observed: _Observed | None = None
    note: str = ""
    sources: dict[str, str] = Field(default_factory=dict)


def _of(name: str, data: Mapping[str, Any], file: str) -> Failures:
    entry = checked(_Entry, data, file)
    return Failures(
        name=name,
        causes=tuple(_cause(key, cause, entry.observed, file) for key, cause in entry.causes.items()),
        detection_s=entry.detection_s,
        restart_s=entry.restart_s,
        checkpoint_s=entry.checkpoint_s,
        repair_s=entry.repair_h * HOUR,
        note=entry.note,
        sources=FrozenDict(entry.sources),
    )


def _cause(name: str, entry: _CauseEntry, observed: _Observed | None, file: str) -> Cause:
    if entry.per_accelerator_hour is not None and entry.count is None:
        return Cause(name=name, per_accelerator_hour=entry.per_accelerator_hour, loses_node=entry.loses_node)
    if entry.count is None or observed is None or entry.per_accelerator_hour is not None:
        raise InputError(
            f"the rate of {name} is not given",
            where=f"{file}: causes.{name}",
            fix="give per_accelerator_hour, or a count and [observed] with num_accelerators and days",
        )
    hours = observed.num_accelerators * observed.days * DAY / HOUR
    return Cause(name=name, per_accelerator_hour=entry.count / hours, loses_node=entry.loses_node)
