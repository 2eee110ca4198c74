"""What the record of a run says about the faults that struck it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fault_plan import DISK, Fault


def told(run: Path, marks: Path, faults: Sequence[Fault]) -> Iterator[dict[str, Any]]:
    """For each fault that struck: when it was noticed and when the next step began, in seconds after it, and what it cost."""
    created_s = datetime.fromisoformat(json.loads((run / "run.json").read_text())["created"]).timestamp()
    incidents = [event for event in lines(run / "events.jsonl") if event["kind"] == "incident" and "down_s" in event]
    steps = {step["step"]: step["step_s"] for step in lines(run / "steps.jsonl")}
    for number, fault in enumerate(faults):
        if not (marks / str(number)).is_file():
            continue
        mark = json.loads((marks / str(number)).read_text())
        entry = {"kind": fault.kind, "phase": fault.phase, "dp": mark["dp"], "step": mark["step"]}
        after = next((event for event in incidents if created_s + event["time_s"] >= mark["time_s"]), None)
        if after and not (fault.kind in DISK and fault.phase != "join"):
            next_s = created_s + after["time_s"] - steps.get(after["step"], 0.0) - mark["time_s"]
            entry |= {"recovered_s": max(next_s, 0.0), "noticed_s": max(next_s - after["down_s"], 0.0)}
            entry |= {"lost_steps": after["num_lost_steps"], "how": after["action"].split(" ")[0], "incident": after["number"]}
        yield entry


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
