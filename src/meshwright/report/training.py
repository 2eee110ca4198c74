"""What `meshwright train` says at the end: the time as the report counts it, steps, parts beside the predicted ones, cost, energy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.ledger import Ledger, ledger_of_run
from meshwright.plan.plan import Plan
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.record.run import Run
from meshwright.record.summary import summary_of
from meshwright.report.facts import KINDS, busy_note, event_number, predicted_parts_s, time_split, unpredicted_note
from meshwright.report.tables import NONE, Line, Row
from meshwright.say.document import Block, Document, Note, Pairs, Table
from meshwright.say.forecast import layout_values
from meshwright.units import KWH, energy, per_cent, seconds, usd

MAX_SLOW = 2  # slow ranks that are named, the last ones


def training_document(run: Run, plan: Plan) -> Document:
    """The result of a trained run; if it ended before its first step, what was to be trained."""
    title = f"run {run.header.name}: {run.header.status.replace('_', ' ')}"
    values = _common_values(run, plan) | (_step_values(run, plan) if run.records else {})
    blocks = (
        _blocks(run, title, values)
        if run.records
        else (Pairs(title, (("work", "no step was done", ""), ("folder", values["folder"], ""))),)
    )
    return Document(kind="training", title=title, blocks=tuple(blocks), values=values)


def _common_values(run: Run, plan: Plan) -> dict[str, Any]:
    """What is known about every run, with or without steps."""
    return {
        "name": run.header.name,
        "status": run.header.status,
        "folder": str(run.folder),
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "workload": plan.workload.name,
        "num_accelerators": run.header.num_ranks,
        "seed": run.header.seed,
        "layout": layout_values(plan.layout),
        "num_steps": 0,
        "expected_steps": run.header.num_steps,
        "num_trained_samples": 0,
        "loss": None,
        "validation_loss": None,
        "target_loss": run.header.target or 0.0,
        "predicted_step_s": plan.step_s,
        "predicted_parts_s": predicted_parts_s(plan, KINDS["trained"]),
        **_money(ledger_of_run(run, plan)),
        "notes": list(filter(None, [unpredicted_note(plan, KINDS["trained"])])),
    }


def _step_values(run: Run, plan: Plan) -> dict[str, Any]:
    """What the steps of a run show."""
    summary = summary_of(run)
    evaluations = [event for event in run.events if event.kind == "evaluation"]
    time = time_split(run, plan, summary)
    last = run.records[-1]
    return {
        "num_steps": last.step,
        "num_trained_samples": last.samples,
        "loss": last.loss,
        "validation_loss": event_number(evaluations[-1], "loss") if evaluations else None,
        "run_s": time.total_s,
        "spent_s": time.by_what,
        "median_step_s": summary.median_step_s,
        "mean_step_s": summary.mean_step_s,
        "robust_std_pct": summary.robust_std_pct,
        "p99_over_p50": summary.p99_over_p50,
        "worst_step_s": summary.worst_step_s,
        "tokens_per_s": summary.tokens_per_s,
        "mean_parts_s": dict(summary.mean_parts_s),
        "notes": [
            *filter(None, [unpredicted_note(plan, KINDS["trained"]), busy_note(plan, KINDS["trained"], summary.median_step_s)]),
        ],
    }


def _money(ledger: Ledger) -> dict[str, Any]:
    """Cost and energy of all time that was paid for, including starts and saves, if price and power of the plan's machine are known."""
    total = sum(ledger.gpu_seconds.values())
    shares = ", ".join(f"{state} {per_cent(value / total, '.0f')}" for state, value in ledger.gpu_seconds.items() if value > 0.005 * total)
    return {
        "cost_usd": None if ledger.usd_unrounded is None else float(ledger.usd_unrounded),
        "energy_kwh": None if ledger.energy_j is None else ledger.energy_j / KWH,
        "cost_note": f"{ledger.price or 'no price is listed'}; {shares}",
        "energy_note": f"{ledger.energy_source} at the wall" if ledger.energy_j is not None else "energy is unknown: no power is stated",
    }


def _blocks(run: Run, title: str, values: dict[str, Any]) -> Iterator[Block]:
    yield Pairs(title, tuple(_lines(run, values)))
    yield Table("parts of the step", ("part", "predicted>", "measured>"), tuple(_parts(values)))
    yield from map(Note, values["notes"])


def _lines(run: Run, values: dict[str, Any]) -> Iterator[Line]:
    spent = ", ".join(f"{what} {seconds(spent_s)}" for what, spent_s in values["spent_s"].items())
    yield "time", f"{seconds(values['run_s'])}: {spent}", ""
    yield "work", f"{values['num_steps']:,} steps, {values['num_trained_samples']:,} samples", ""
    if any(event.kind == "evaluation" for event in run.events):
        loss = values["validation_loss"]
        goal = f" (target {values['target_loss']:.3f})" if values["target_loss"] else ""
        yield "validation loss", f"{'not a number' if loss is None else f'{loss:.4f}'}{goal}", ""
    spread = f"spread {values['robust_std_pct']:.1f} %, p99/p50 {values['p99_over_p50']:.2f}, worst {seconds(values['worst_step_s'])}"
    yield "median step", f"{seconds(values['median_step_s'])}, {spread}; predicted {seconds(values['predicted_step_s'])}", ""
    if values["tokens_per_s"]:
        yield "tokens per second", f"{values['tokens_per_s']:,.0f} over the steady steps", ""
    cost, energy_kwh = values["cost_usd"], values["energy_kwh"]
    yield "cost", values["cost_note"] if cost is None else f"{usd(cost)}; {values['cost_note']}", ""
    yield "energy", values["energy_note"] if energy_kwh is None else f"{energy(energy_kwh * KWH)}; {values['energy_note']}", ""
    slow = [str(event.detail.get("message", f"after step {event.step:,}")) for event in run.events if event.kind == "slow_rank"]
    yield from (("slow rank", text, "") for text in slow[-MAX_SLOW:])
    links = [str(event.detail.get("message", f"after step {event.step:,}")) for event in run.events if event.kind == "slow_link"]
    yield from (("slow link", text, "") for text in links[-MAX_SLOW:])
    incidents = [str(event.detail.get("message", f"at step {event.step:,}")) for event in run.events if event.kind == "incident"]
    if len(incidents) > MAX_SLOW:
        yield "incidents", f"{len(incidents)}, of which the last {MAX_SLOW} are listed", ""
    yield from (("incident", text, "") for text in incidents[-MAX_SLOW:])
    yield "folder", values["folder"], ""


def _parts(values: dict[str, Any]) -> Iterator[Row]:
    for part in PARTS:
        predicted, measured = values["predicted_parts_s"].get(part), values["mean_parts_s"].get(part, 0.0)
        if predicted or measured:
            yield PART_NAMES[part], NONE if predicted is None else seconds(predicted), seconds(measured)
    yield "mean step", seconds(values["predicted_step_s"]), seconds(sum(values["mean_parts_s"].values()))
