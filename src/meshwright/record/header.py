"""The header of a run, run.json: what ran, where, and how it ended. It is checked when it is made and when it is read."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.record.lines import number, object_in, one_line, whole_number

FORMAT = 1  # of the folder; a reader refuses a newer one
RESTORE = "restore the file as the run wrote it"
KINDS = ("trained", "simulated")
RUNNING = "running"
STATUSES = (RUNNING, "finished", "target_reached", "stopped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The content of run.json: what ran, where, and how it ended."""

    name: str
    kind: str
    seed: int
    num_ranks: int
    machine: str  # in words
    sequence_length: int | None = None  # tokens of a sample
    target: float | None = None  # evaluation loss at which the run is done
    num_steps: int | None = None  # steps that the run is expected to need: as many as asked for, or to the target as the workload states it
    last_step: int | None = None  # the run ends after this step, even without the target
    status: str = RUNNING
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    versions: Mapping[str, str | None] = field(default_factory=lambda: versions())
    plan_file: str | None = None  # as the user named it; the folder's copy is plan.json
    plan_sha256: str | None = None
    conditions: tuple[str, ...] = ()  # of a simulated machine, in words
    arguments: Mapping[str, str | float | bool | None] = field(default_factory=dict)  # the options that a trained run was started with
    money: Mapping[str, Any] | None = None  # the budget, and what is spent of it: see record.money
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_name(self.name)
        for what, value, known in (("kind", self.kind, KINDS), ("status", self.status, STATUSES)):
            if value not in known:
                raise InputError(f"a run's {what} cannot be {value!r}", fix=f"use one of {', '.join(known)}")
        if self.num_ranks < 1:
            raise InputError(f"a run of {self.num_ranks} ranks", fix="give at least one")
        try:
            _check_fields({spec.name: getattr(self, spec.name) for spec in fields(self)})
        except ValueError as error:
            raise InputError(
                f"a run's header cannot hold this: {one_line(error)}",
                where="run.json",
                fix="give a value of the type that the message names",
            ) from None


def versions() -> dict[str, str | None]:
    """Versions of the packages on which the numbers of a run depend; None for a package that is not installed."""
    found: dict[str, str | None] = {"python": python_version()}
    for package in ("meshwright", "numpy", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def check_name(name: str) -> str:
    """Return `name` if it is a valid name of one folder in the runs folder; otherwise raise an error."""
    problem = ""
    if not name or name.strip() != name:
        problem = "is empty, or begins or ends with a space"
    elif name.startswith(".") or "/" in name or "\\" in name:
        problem = "could lead out of the runs folder, or hide in it"
    elif any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in name):
        problem = "holds a control character"
    elif len(name.encode()) > 200:
        problem = f"is {len(name.encode())} bytes long"
    if problem:
        raise InputError(f"the run name {name!r} {problem}", fix="use up to 200 letters, digits and signs, no slash, no dot in front")
    return name


def read_header(folder: Path) -> RunHeader:
    """The header of the run in `folder`; an error if it is missing, damaged or of a newer format."""
    path = folder / "run.json"
    try:
        entry = object_in(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "not a run folder: it has no run.json", where=str(folder), fix="give a folder that train or simulate wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the run's header: {one_line(error)}", where=str(path), fix=RESTORE) from None
    version = entry.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"the run's format is {version!r}, not a whole number", where=str(path), fix=RESTORE)
    if version > FORMAT:
        raise InputError(f"the run's format is {version}; this meshwright reads up to {FORMAT}", where=str(path), fix="update meshwright")
    return _header(entry, path)


def _header(entry: Mapping[str, Any], path: Path) -> RunHeader:
    """The header in a JSON object, with each field checked for its type. Unknown fields are ignored."""
    known = {name: entry[name] for name in (spec.name for spec in fields(RunHeader)) if name in entry}
    try:
        _check_fields(known)
        return RunHeader(**{**known, "conditions": tuple(known.get("conditions", ()))})
    except (ValueError, InputError) as error:
        raise InputError(f"the run's header is damaged: {one_line(error)}", where=str(path), fix=RESTORE) from None


def _check_fields(known: Mapping[str, Any]) -> None:
    """Raise ValueError if a field of a header has the wrong type: what cannot be read back must not be written either."""
    for name in ("seed", "num_ranks"):
        whole_number(known, name)
    for name in ("sequence_length", "target"):
        value = number(known, name)
        if value is not None and not 0 <= value <= 2**53:
            raise ValueError(f"{name} is {value}")
    for name in ("num_steps", "last_step"):
        if known.get(name) is not None and whole_number(known, name) < 1:
            raise ValueError(f"{name} is {known[name]}")
    for name in ("name", "kind", "machine", "status", "created"):
        if not isinstance(known.get(name), str):
            raise ValueError(f"{name} is {known.get(name, 'missing')!r}")
    conditions = known.get("conditions", [])
    if not isinstance(conditions, list | tuple) or not all(isinstance(word, str) for word in conditions):
        raise ValueError("conditions are not a list of texts")
    if not all(word.isprintable() for word in (known["machine"], *conditions)):
        raise ValueError("machine or conditions contain characters that cannot be shown")
    if not isinstance(known.get("versions"), Mapping):
        raise ValueError("versions are missing")
    arguments, money = known.get("arguments", {}), known.get("money")
    if not isinstance(arguments, Mapping) or not all(isinstance(value, str | int | float | None) for value in arguments.values()):
        raise ValueError("arguments are not a table of plain values")
    if not isinstance(money, Mapping | None):
        raise ValueError("money is not a table")
    if datetime.fromisoformat(known["created"]).tzinfo is None:
        raise ValueError("created has no time zone")
