"""How a run went: its time as the report counts it, steps, parts beside the predicted ones, cost and energy."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.ledger import Ledger, ledger_of_run, predicted_s
from meshwright.plan.plan import Plan
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.record.run import Run, read_run
from meshwright.record.summary import Summary, summary_of
from meshwright.report.facts import KINDS, predicted_parts_s, time_split, unpredicted_note
from meshwright.units import KWH, energy, parameters, seconds, usd

if TYPE_CHECKING:
    from meshwright.train.job import Job


def show_start(job: Job, layout_reason: str) -> None:
    """Say what is about to be trained, on what, with which layout and why, until when, and where it is recorded."""
    plan, training = job.plan, job.training
    predicted = predicted_s(plan, job.last_step).value
    goal = (
        f"validation loss {training.target_loss:g}, at most {job.last_step:,} steps" if training.target_loss else f"{job.last_step:,} steps"
    )
    saving = "every few minutes and at the end" if job.saves_by_clock else _saving(job)
    lines = (
        ("training", f"{plan.model.name}, {parameters(plan.model.num_parameters)} parameters, {plan.workload.precision}"),
        ("on", f"the corpus {job.corpus}, seed {job.seed}"),
        ("layout", f"{plan.layout.degrees} on {plan.layout.num_ranks} ranks ({plan.cluster.name}): {layout_reason}"),
        ("until", f"{goal}; {seconds(plan.step_time_s)} per step and at most {seconds(predicted)} in all by prediction"),
        ("record", f"{job.folder}, saved {saving}"),
    )
    for name, text in lines:
        print(f"{name:<9} {text}", file=_told_to(job), flush=True)


def _saving(job: Job) -> str:
    words = [f"every {job.checkpoint_steps:,} steps"] if job.checkpoint_steps else []
    return " and ".join([*words, *(["at the end"] if job.saves_at_end else [])]) or "never"


def show_next(job: Job) -> None:
    """Say how to look at the run."""
    page = shlex.join(["meshwright", "report", str(job.folder), "--out", str(job.folder / "report.html")])
    print(f"a page of this run:  {page}", file=_told_to(job))
    print(f"all runs, live:      {shlex.join(['meshwright', 'serve', str(job.runs)])}", file=_told_to(job))


def _told_to(job: Job) -> TextIO:
    """Standard output, unless that is kept for the result alone."""
    return sys.stderr if job.prints_json else sys.stdout


def show_run(folder: Path, plan: Plan, *, as_json: bool) -> str:
    """Print the closing table of a run folder; its status."""
    run = read_run(folder)
    if not run.records:
        return run.header.status
    found = facts(run, plan)
    if as_json:
        show_json(found)
        return run.header.status
    show_pairs(f"run {run.header.name}: {run.header.status.replace('_', ' ')}", _words(run, found))
    show_table("parts of the step", ("part", "predicted>", "measured>"), _parts(found))
    if note := unpredicted_note(plan, KINDS["trained"]):
        show_text(note)
    return run.header.status


def facts(run: Run, plan: Plan) -> dict[str, Any]:
    """The result as plain values."""
    told = summary_of(run)
    evaluations = [event for event in run.events if event.kind == "evaluation"]
    took = time_split(run, plan, told)
    last = run.records[-1]
    return {
        "name": run.header.name,
        "status": run.header.status,
        "folder": str(run.folder),
        "layout": str(plan.layout),
        "steps": last.step,
        "expected_steps": run.header.num_steps,
        "samples": last.samples,
        "loss": last.loss,
        "validation_loss": evaluations[-1].detail["loss"] if evaluations else None,
        "target_loss": run.header.target,
        "run_s": took.total_s,
        "time_s": took.by_what,
        "median_step_s": told.median_step_s,
        "mean_step_s": told.mean_step_s,
        "robust_std_pct": told.robust_std_pct,
        "p99_over_p50": told.p99_over_p50,
        "worst_step_s": told.worst_step_s,
        "tokens_per_s": told.tokens_per_s,
        "predicted_step_s": plan.step_time_s,
        "predicted_parts_s": predicted_parts_s(plan, KINDS["trained"]),
        "measured_parts_s": _mean_parts(told),
        **_money(ledger_of_run(run, plan)),
    }


def _mean_parts(told: Summary) -> dict[str, float]:
    return {part: told.mean_parts_s.get(part, 0.0) for part in PARTS}


def _money(took: Ledger) -> dict[str, Any]:
    """Cost and energy of all that was paid for, starts and saves included, where the plan's machine has a price and a power."""
    total = sum(took.gpu_seconds.values())
    shares = ", ".join(f"{state} {value / total:.0%}" for state, value in took.gpu_seconds.items() if value >= 0.005 * total)
    return {
        "cost_usd": None if took.usd_unrounded is None else float(took.usd_unrounded),
        "energy_kwh": None if took.energy_j is None else took.energy_j / KWH,
        "cost_note": f"{took.price or 'no price is listed'}; {shares}",
        "energy_note": f"{took.energy_source} at the wall" if took.energy_j is not None else "energy is unknown: no power is stated",
    }


def _words(run: Run, found: dict[str, Any]) -> list[tuple[str, str]]:
    goal = f" (target {found['target_loss']:.3f})" if found["target_loss"] else ""
    spent = ", ".join(f"{what} {seconds(took_s)}" for what, took_s in found["time_s"].items())
    lines = [
        ("time", f"{seconds(found['run_s'])}: {spent}"),
        ("work", f"{found['steps']:,} steps, {found['samples']:,} samples"),
    ]
    if found["validation_loss"] is not None:
        lines.append(("validation loss", f"{found['validation_loss']:.4f}{goal}"))
    spread = f"spread {found['robust_std_pct']:.1f} %, p99/p50 {found['p99_over_p50']:.2f}, worst {seconds(found['worst_step_s'])}"
    lines.append(("median step", f"{seconds(found['median_step_s'])}, {spread}; predicted {seconds(found['predicted_step_s'])}"))
    if found["tokens_per_s"]:
        lines.append(("speed", f"{found['tokens_per_s']:,.0f} tokens/s over the steady steps"))
    cost, energy_kwh = found["cost_usd"], found["energy_kwh"]
    lines.append(("cost", found["cost_note"] if cost is None else f"{usd(cost)}; {found['cost_note']}"))
    lines.append(("energy", found["energy_note"] if energy_kwh is None else f"{energy(energy_kwh * KWH)}; {found['energy_note']}"))
    slow = [str(event.detail["said"]) for event in run.events if event.kind == "slow_rank"]
    lines += [("slow rank", said) for said in slow[-2:]]
    lines.append(("folder", found["folder"]))
    return lines


def _parts(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for part in PARTS:
        predicted, measured = found["predicted_parts_s"].get(part), found["measured_parts_s"][part]
        if predicted or measured:
            rows.append((PART_NAMES[part], "-" if predicted is None else seconds(predicted), seconds(measured)))
    rows.append(("mean step", seconds(found["predicted_step_s"]), seconds(sum(found["measured_parts_s"].values()))))
    return rows
