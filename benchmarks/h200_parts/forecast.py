"""What the planner says of a case on this machine, from a hardware profile, before the case is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h200_parts.cases import Case, layout_of, model_of, workload_of
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster
from meshwright.describe.profile import load_profile
from meshwright.errors import FitError, InputError
from meshwright.job import Job
from meshwright.plan.plan import plan_of
from meshwright.predict.practice import MESHWRIGHT
from meshwright.predict.software import Software, on_profile, software


@dataclass(frozen=True, slots=True)
class Machine:
    """One accelerator of this machine, and what prices its work."""

    cluster: Cluster
    stack: Software

    @classmethod
    def of(cls, profile: Path | None, device_type: str) -> Machine:
        """This machine by its profile; without one the fitted constants would speak, which only a dry run may ask for."""
        cluster = load_cluster(THIS_MACHINE if device_type == "cuda" else EMULATED).resized(1)
        if profile is None:
            if device_type == "cuda":
                raise InputError(
                    "a prediction needs this card's profile", where="--profile", fix="make one with `meshwright measure --out FILE`"
                )
            return cls(cluster, software(MESHWRIGHT))
        return cls(cluster, on_profile(software(MESHWRIGHT), load_profile(profile)))

    def forecast(self, case: Case) -> dict[str, Any]:
        """Seconds and peak bytes of a step; or why the planner does not say."""
        try:
            plan = plan_of(Job(model_of(case), self.cluster, workload_of(case), self.stack).forecast(layout_of(case)), case.name)
        except (InputError, FitError) as error:
            return {"refused": error.what}
        return {"step_s": plan.step_s, "peak_bytes": plan.peak_memory_bytes, "parts_s": dict(plan.parts_s), "software": plan.software}
