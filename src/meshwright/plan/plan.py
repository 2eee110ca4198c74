"""A plan: one layout of one job, with its forecast; and the plan file.

The file is JSON. It contains the full descriptions, so that simulation and training need no other file, and a
version of the format. `plan_schema` returns its JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.arguments import check_types, typed
from meshwright.describe.bounds import MOST_REAL, check_numbers
from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.profile import Profile
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument
from meshwright.files import read_bytes, write_whole
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.predict.forecast import Forecast, forecast
from meshwright.predict.software import Software, is_release, on_profile, software

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A layout chosen for a job, with its forecast: everything that `simulate` and `train` need.

    Attributes:
        version: Version of the format of the plan file.
        name: Name of the plan.
        model: The model.
        cluster: The cluster, with as many accelerators as the plan uses.
        workload: The workload.
        layout: The layout.
        software: Release, class or software profile on which the forecast is based.
        step_s: Predicted seconds of a step.
        low_s: Lower end of the 80 % interval of the step time, in seconds.
        high_s: Upper end of the 80 % interval of the step time, in seconds.
        parts_s: Predicted seconds of each part of the step; they add up to `step_s`.
        placement: The network tiers that each axis crosses, from the inside out.
        spares_per_domain: Accelerators in each innermost domain that the plan does not use.
        peak_memory_bytes: Bytes on the fullest stage at its peak.
        time_to_train_s: Seconds of the whole run, with interruptions if it takes more than a day.
        ideal_time_to_train_s: Seconds of the whole run without interruptions.
        notes: Sentences that a reader should know before trusting the numbers.
        profile: The hardware profile, if the forecast is based on one.
    """

    version: int = VERSION
    name: str
    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    software: str  # release or profile that the prediction is based on
    step_s: float
    low_s: float
    high_s: float
    parts_s: Mapping[str, float]  # by step.PARTS; they add up to the step, what the exact schedule adds is in the bubble
    placement: Mapping[str, tuple[str, ...]]  # axis -> tiers it crosses
    spares_per_domain: int  # accelerators of an innermost domain that the plan leaves idle
    peak_memory_bytes: float
    time_to_train_s: float  # with interruptions, where the forecast counts them
    ideal_time_to_train_s: float = 0.0  # 0 in plans of earlier versions, whose time_to_train_s is the ideal time
    notes: tuple[str, ...] = field(default=())
    profile: Profile | None = None  # what was timed on the machine, where the prediction is based on it

    def __post_init__(self) -> None:
        check_types(self)
        if self.version != VERSION:
            raise InputError(
                f"plan version {self.version}, but this is written for version {VERSION}",
                where="version",
                fix="make the plan again with `meshwright plan`",
            )
        if self.profile:
            check_numbers(self.profile, "profile")
        times = {"step_s": self.step_s, "low_s": self.low_s, "high_s": self.high_s}
        amounts = {
            **times,
            "peak_memory_bytes": self.peak_memory_bytes,
            **{f"parts_s.{part}": value for part, value in self.parts_s.items()},
        }
        for name, value in amounts.items():
            if not 0 <= value <= MOST_REAL or (name in times and not value):
                raise InputError(f"{name} cannot be {value}", where=name, fix="make the plan again with `meshwright plan`")
        if self.layout.num_ranks != self.cluster.num_accelerators:
            raise InputError(
                f"the layout takes {self.layout.num_ranks} accelerators and the cluster has {self.cluster.num_accelerators} in use",
                where="layout",
                fix="make the plan again with `meshwright plan`",
            )

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, layout={self.layout.degrees!r}, step_s={self.step_s:.4g})"

    @typed
    def write(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        write_whole(Path(path), plan_bytes(self))


@typed
def plan_of(forecast: Forecast, name: str = "") -> Plan:
    """A plan made from a forecast. It can be written to a file, simulated and trained."""
    job, inner = forecast.job, forecast.job.cluster.tiers[0]
    time_s = forecast.time_to_train
    return Plan(
        name=name or job.name,
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        layout=forecast.layout,
        software=job.software.name,
        step_s=forecast.step_s,
        low_s=forecast.interval.low_s,
        high_s=forecast.interval.high_s,
        parts_s=dict(forecast.parts),
        placement=forecast.placement,
        spares_per_domain=inner.num_installed - inner.num_accelerators,
        peak_memory_bytes=forecast.peak_memory_bytes,
        time_to_train_s=time_s.value if time_s else 0.0,
        ideal_time_to_train_s=forecast.outcome.ideal_s or 0.0,
        notes=forecast.notes,
        profile=job.software.profile,
    )


def job_of(plan: Plan, software: Software | str = "") -> Job:
    """The job of a plan, with the software of the plan, or with other software; a name is combined with the plan's hardware profile."""
    return Job(plan.model, plan.cluster, plan.workload, software if isinstance(software, Software) else stack_of(plan, software))


def forecast_of(plan: Plan, software: Software | str = "") -> Forecast:
    """The plan priced again. Memory is not checked again, because it was checked when the plan was made."""
    return forecast(job_of(plan, software), plan.layout, ignore_memory=True)


def stack_of(plan: Plan, name: str = "") -> Software:
    """The software of the plan, or the software called `name`, with the hardware profile in the plan."""
    if not is_release(plan.software) and (not name or software(name).name != plan.software):
        given = f"{argument('software', name)} is another" if name else "a plan file holds only its name"
        raise InputError(
            f"the plan was made with the software profile {plan.software!r}, and {given}",
            where=f"software of the plan {plan.name!r}",
            fix=f"give {argument('software')}, the file that `meshwright calibrate ... --out FILE` wrote; or plan again without it",
        )
    stack = software(name or plan.software)
    return on_profile(stack, plan.profile) if plan.profile else stack


def plan_bytes(plan: Plan) -> bytes:
    """The content of the plan's file; without a profile the key is absent."""
    values = _plain(asdict(plan))
    if plan.profile is None:
        del values["profile"]
    return (json.dumps(values, indent=1) + "\n").encode()


@typed
def read_plan(path: str | Path) -> Plan:
    """Read a plan file; an InputError says what is wrong with it."""
    from pydantic import ValidationError

    path = Path(path)

    try:
        return _adapter().validate_json(_by_todays_names(read_bytes(path)))  # type: ignore[no-any-return]
    except OSError as error:
        raise InputError(
            f"cannot read the plan: {error.strerror}", where=str(path), fix="make one with `meshwright plan ... --out FILE`"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(
            f"this is not a plan: {key}: {first['msg']}", where=str(path), fix="make it again with `meshwright plan`"
        ) from None
    except InputError as error:
        raise InputError(error.what, where=f"{error.where} in {path}", fix=error.fix) from None


def _by_todays_names(content: bytes) -> bytes:
    """The content of a plan's file; where version 0.1 wrote it, `step_s` is called `step_time_s` there."""
    try:
        values = json.loads(content)
    except ValueError:
        return content  # the validation that follows reports what is wrong
    if not isinstance(values, dict) or "step_time_s" not in values or "step_s" in values:
        return content
    return json.dumps({"step_s" if key == "step_time_s" else key: value for key, value in values.items()}).encode()


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of a plan file."""
    schema: dict[str, Any] = _adapter().json_schema()
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "meshwright plan"}
    return {**named, **{key: value for key, value in schema.items() if key not in named}}


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


def _plain(value: Any) -> Any:
    """The value in the types of JSON. A number that JSON cannot write, such as infinity, becomes a word that can be read back."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
