"""What breaks, how often, and how long it takes to go on: published rates, or a user's own file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, nearest
from meshwright.units import DAY, HOUR

FAILURES_FILE = Path(__file__).parent / "failures.toml"
HIGHEST_PER_HOUR = 1.0  # of one accelerator: more is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that interrupts a run."""

    name: str
    per_accelerator_hour: float
    loses_node: bool  # whether the node must be replaced before the run goes on

    def __post_init__(self) -> None:
        if not 0 <= self.per_accelerator_hour <= HIGHEST_PER_HOUR:
            raise InputError(
                f"{self.name} strikes an accelerator {self.per_accelerator_hour:g} times an hour",
                where=f"failures: {self.name}.per_accelerator_hour",
                fix=f"give a rate from 0 to {HIGHEST_PER_HOUR:g} an hour, such as 7e-6",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Rates by cause, and the times that follow an interruption."""

    name: str
    causes: tuple[Cause, ...]
    detection_s: float  # until somebody notices
    restart_s: float  # until training goes on, with all nodes there
    checkpoint_s: float  # that training waits for a checkpoint
    repair_s: float  # until a lost node is back
    note: str = ""

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
        """Seconds between interruptions of a machine; infinite where nothing breaks."""
        rate = self.per_accelerator_hour * num_accelerators
        return HOUR / rate if rate > 0 else math.inf


def failures(name: str) -> Failures:
    """The failures called `name` in the package, or those of a TOML file."""
    if name.endswith(".toml"):
        return _of(Path(name).stem, _read(Path(name)), name)
    known = _read(FAILURES_FILE)
    if name not in known:
        raise InputError(f"no failures named {name!r}", where="--failures", fix=f"{nearest(name, known)} Or give a .toml file")
    return _of(name, known[name], FAILURES_FILE.name)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the failures: {error.strerror or error}", where=str(path), fix="give a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"no TOML: {error}", where=str(path), fix="see failures.toml in the package for the form") from None


def _of(name: str, data: Mapping[str, Any], file: str) -> Failures:
    try:
        observed = data.get("observed")
        hours = float(observed["num_accelerators"]) * float(observed["days"]) * DAY / HOUR if observed else math.nan
        if observed and not (math.isfinite(hours) and hours > 0):
            raise InputError("nothing was observed", where=f"{file}: observed", fix="give num_accelerators and days above 0")
        causes = tuple(_cause(key, entry, hours) for key, entry in data["causes"].items())
        return Failures(
            name=name,
            causes=causes,
            detection_s=float(data["detection_s"]),
            restart_s=float(data["restart_s"]),
            checkpoint_s=float(data["checkpoint_s"]),
            repair_s=float(data["repair_h"]) * HOUR,
            note=str(data.get("note", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the failures lack {error}" if isinstance(error, KeyError) else f"the failures cannot be read: {error}",
            where=file,
            fix="write detection_s, restart_s, checkpoint_s, repair_h and [causes] with per_accelerator_hour",
        ) from None


def _cause(name: str, entry: Mapping[str, Any], hours: float) -> Cause:
    rate = float(entry["per_accelerator_hour"]) if "per_accelerator_hour" in entry else float(entry["count"]) / hours
    return Cause(name=name, per_accelerator_hour=rate, loses_node=bool(entry.get("loses_node", True)))
