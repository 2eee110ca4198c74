"""The document of a run under a given list of faults."""

from __future__ import annotations

from meshwright.say.document import Document, Pairs
from meshwright.simulator.fault_trace import Replayed
from meshwright.units import per_cent, seconds


def fault_trace_document(found: Replayed) -> Document:
    """How the time of the run was used."""
    title = f"{found.name}: {found.num_steps:,} steps under {found.num_faults:,} faults"
    lines = (
        ("effective time", per_cent(found.ettr, ".2f"), "share of the time that is work which counts"),
        ("time", seconds(found.wall_s), ""),
        ("recovering", seconds(found.recovering_s), "noticing, forming groups, joining, starting again"),
        ("done again", seconds(found.lost_s), "steps in flight, and steps since the newest checkpoint"),
        ("restarts", str(found.num_restarts), "of all ranks, because no replica was left"),
    )
    values = {
        "plan": found.name,
        "goodput": found.ettr,
        "num_steps": found.num_steps,
        "num_faults": found.num_faults,
        "num_restarts": found.num_restarts,
        "simulated_s": found.wall_s,
        "recovering_s": found.recovering_s,
        "lost_s": found.lost_s,
    }
    return Document(kind="simulation-of-faults", title=title, blocks=(Pairs(title, lines),), values=values)
