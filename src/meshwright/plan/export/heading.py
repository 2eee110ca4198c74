"""The top of every exported file: which plan it came from, and what the stack cannot express."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from meshwright.plan.plan import Plan
from meshwright.units import seconds

WIDTH = 118  # of the text of a comment


def origin(plan: Plan) -> list[str]:
    """The plan in a few lines: its name, layout, machine, job and prediction."""
    machine, job, layout = plan.cluster, plan.workload, plan.layout
    attention = f", {layout.cp_kind} context" if layout.cp > 1 else ""
    timed = f" on a {plan.profile.words}" if plan.profile else ""
    return [
        f"plan: {plan.name} (plan file version {plan.version}, priced with {plan.software}{timed})",
        f"layout: {layout.degrees}, order {'-'.join(layout.order)}, schedule {layout.schedule}" + attention,
        f"machine: {machine.num_accelerators} x {machine.accelerator.name} of {machine.name}",
        f"job: {plan.model.name}, {job.global_batch} sequences of {job.seq_len} tokens per step, {job.precision}",
        f"predicted: {seconds(plan.step_s)} per step ({seconds(plan.low_s)} to {seconds(plan.high_s)})",
    ]


def heading(plan: Plan, what: str, limits: Sequence[str]) -> list[str]:
    """Comment lines: what the file is, where it comes from, what the reader must do."""
    lines = [comment(f"{what}, written by meshwright"), *(comment(line) for line in origin(plan))]
    if limits:
        lines += [comment("Not in this file; set by hand:"), *(comment(limit, bullet=True) for limit in limits)]
    return "\n".join(lines).split("\n")


def comment(text: str, bullet: bool = False, indent: str = "") -> str:
    """A sentence as wrapped comment lines. Every kind of line break in a name is removed, because formats differ in what ends a line."""
    text = " ".join(text.split())
    first, rest = ("- ", "  ") if bullet else ("", "")
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"{indent}# {line}" for line in lines)
