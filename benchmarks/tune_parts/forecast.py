"""What the planner says of a case on this machine, before the case is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h200_parts.forecast import Machine

from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster
from meshwright.errors import FitError, InputError
from meshwright.job import Job
from meshwright.plan.plan import plan_of
from meshwright.predict.practice import MESHWRIGHT
from meshwright.predict.software import software
from tune_parts.cases import Case, layout_of, model_of, workload_of


def forecast_of(case: Case, profile: Path | None, device_type: str) -> dict[str, Any]:
    """Seconds and peak bytes of a step, from a hardware profile, or from fitted constants without one; or why the planner does not say."""
    if profile is not None:
        machine = Machine.of(profile, device_type)
    else:
        machine = Machine(load_cluster(THIS_MACHINE if device_type == "cuda" else EMULATED).resized(1), software(MESHWRIGHT))
    try:
        plan = plan_of(Job(model_of(case), machine.cluster, workload_of(case), machine.stack).forecast(layout_of(case)), case.name)
    except (InputError, FitError) as error:
        return {"refused": error.what}
    return {"step_s": plan.step_s, "peak_bytes": plan.peak_memory_bytes, "parts_s": dict(plan.parts_s)}
