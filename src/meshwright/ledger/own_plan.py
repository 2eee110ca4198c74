"""The plan that a run ran by: the folder's plan.json, if it is still the one whose digest the run's header records."""

from __future__ import annotations

import hashlib
from pathlib import Path

from meshwright.errors import MeshwrightError
from meshwright.plan.plan import Plan, read_plan
from meshwright.record import RunHeader

DIGITS = 12  # of a digest that is shown


def own_plan(folder: Path, header: RunHeader) -> tuple[Plan | None, str]:
    """The run's own plan and "", or None and why there is none: it cannot be read, or another plan stands in its place.

    Nothing may be predicted or priced by a plan that the run did not run by. A header without a digest vouches for none: any is taken.
    """
    path = folder / "plan.json"
    try:
        plan = read_plan(path)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (MeshwrightError, OSError) as error:
        return None, f"the run's plan cannot be read: {error.what if isinstance(error, MeshwrightError) else error.strerror}"
    recorded = header.plan_sha256
    if recorded is not None and found != recorded:
        digests = f"its digest is {found[:DIGITS]}..., run.json records {str(recorded)[:DIGITS]}..."
        return None, f"plan.json is not the run's own plan ({digests})"
    return plan, ""
