"""The plan of a run: plan.json in its folder, if it still has the digest in the header."""

from __future__ import annotations

import hashlib
from pathlib import Path

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import read_bytes
from meshwright.plan.plan import Plan, read_plan
from meshwright.record.header import RunHeader, read_header

DIGITS = 12  # of a digest that is shown


def own_plan(folder: Path, header: RunHeader) -> tuple[Plan | None, str]:
    """The run's own plan and an empty text, or None and the reason: it cannot be read, or another plan is in its place.

    Nothing may be predicted or priced from a plan that is not the run's own. If the header has no digest, any plan is accepted.
    """
    path = folder / "plan.json"
    try:
        plan = read_plan(path)
        found = hashlib.sha256(read_bytes(path)).hexdigest()
    except (MeshwrightError, OSError) as error:
        return None, f"the run's plan cannot be read: {error.what if isinstance(error, MeshwrightError) else error.strerror}"
    recorded = header.plan_sha256
    if recorded is not None and found != recorded:
        digests = f"its digest is {found[:DIGITS]}..., run.json records {str(recorded)[:DIGITS]}..."
        return None, f"plan.json is not the run's own plan ({digests})"
    return plan, ""


def checked_plan(folder: Path, fix: str) -> Plan:
    """The plan in a run folder; raises an error, with `fix`, if it is not the run's own. A folder without a header accepts any plan."""
    plan = read_plan(folder / "plan.json")
    if (folder / "run.json").is_file():
        _, problem = own_plan(folder, read_header(folder))
        if problem:
            raise InputError(problem, where=str(folder / "plan.json"), fix=fix)
    return plan
