"""The values of a report, under the names that `meshwright report --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshwright.ledger import ledger_values
from meshwright.plan.plan import Plan
from meshwright.record.entries import Event
from meshwright.record.profile import ProcessTimes, Profile
from meshwright.report.compare import Difference, differences, differing, simulated_beside
from meshwright.report.facts import Evaluation, Overlap, RunFacts, WholeJob, predicted_parts_s
from meshwright.report.noise import METHOD
from meshwright.report.scaling import Point, Scaling, left_out, scalings
from meshwright.say.forecast import layout_values
from meshwright.units import KWH

MAX_EVENTS = 1000  # of one run


def report_values(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """The whole report of one or several runs."""
    values: dict[str, Any] = {"runs": [run_values(facts, simulated_beside(facts, runs)) for facts in runs]}
    if len(runs) > 1:
        values["cannot_compare"] = differing(runs)
        values["differences"] = [_difference(one) for one in differences(runs)]
        values["scaling"] = [_scaling(one) for one in scalings(runs)]
        values["scaling_left_out"] = left_out(runs)
    values["interval_method"] = METHOD
    return values


def run_values(facts: RunFacts, simulated: RunFacts | None = None) -> dict[str, Any]:
    """One run. Values that come from its plan are absent if the run has no plan."""
    header, summary = facts.run.header, facts.summary
    losses = [one.loss for one in facts.evaluations if one.loss is not None]
    return {
        "name": header.name,
        "label": facts.label,
        "folder": str(facts.run.folder),
        "kind": header.kind,
        "status": header.status,
        "created": header.created,
        "machine": header.machine,
        "num_accelerators": header.num_ranks,
        "seed": header.seed,
        "conditions": list(header.conditions),
        "versions": dict(header.versions),
        **(_plan(facts.plan, facts.kind) if facts.plan else {}),
        "global_batch": facts.batch,
        "tokens_per_s": summary.tokens_per_s,
        **_time(facts),
        **_steps(facts),
        "mean_parts_s": dict(summary.mean_parts_s),
        **({"simulated_parts_s": dict(simulated.summary.mean_parts_s)} if simulated else {}),
        "unaccounted_s": summary.unaccounted_s,
        "mean_exposed_s": dict(summary.mean_exposed_s),
        "simulated_beside": simulated.label if simulated else None,
        "loss": facts.run.records[-1].loss,
        "validation_loss": losses[-1] if losses else None,
        "target_loss": header.target or 0.0,
        "evaluations": [_evaluation(one) for one in facts.evaluations],
        "measured_peak_memory_bytes": facts.measured_memory_bytes,
        **({"overlap": _overlap(facts.overlap)} if facts.overlap else {}),
        "slowest_replicas": [{"replica": one.number, "num_slowest_steps": one.num_steps} for one in facts.slowest_replicas[:10]],
        "event_counts": dict(facts.event_counts),
        "events": [_event(event) for event in facts.run.events[:MAX_EVENTS]],
        "ledger": ledger_values(facts.ledger),
        "notes": list(facts.notes),
    }


def _plan(plan: Plan, kind: str) -> dict[str, Any]:
    """What the run's plan says and predicts."""
    return {
        "model": plan.model.name,
        "workload": plan.workload.name,
        "cluster": plan.cluster.name,
        "layout": layout_values(plan.layout),
        "predicted_step_s": plan.step_s,
        "predicted_step_low_s": plan.low_s,
        "predicted_step_high_s": plan.high_s,
        "predicted_parts_s": predicted_parts_s(plan, kind),
        "predicted_peak_memory_bytes": plan.peak_memory_bytes,
    }


def _time(facts: RunFacts) -> dict[str, Any]:
    time, whole = facts.time, facts.whole_job
    return {
        "time_name": facts.time_name,
        "run_s": time.total_s,
        "num_trained_samples": time.samples,
        "sample_s": time.seconds_per_sample,
        "fixed_s": time.fixed_s,
        "spent_s": time.by_what,
        "is_target_reached": facts.reached_target,
        "whole_job_extrapolated": _whole_job(whole) if whole else None,
    }


def _whole_job(whole: WholeJob) -> dict[str, Any]:
    return {
        "num_steps": whole.num_steps,
        "num_evaluations": whole.num_evaluations,
        "mean_step_s": whole.mean_step_s,
        "time_to_train_s": whole.seconds,
        "cost_usd": whole.usd,
        "energy_kwh": None if whole.energy_j is None else whole.energy_j / KWH,
    }


def _steps(facts: RunFacts) -> dict[str, Any]:
    summary, noise = facts.summary, facts.noise
    return {
        "num_steps": facts.num_steps,
        "num_recorded_steps": summary.num_steps,
        "num_steady_steps": summary.num_steady_steps,
        "expected_steps": facts.run.header.num_steps,
        "median_step_s": summary.median_step_s,
        "median_step_low95_s": noise.low_s if noise else None,
        "median_step_high95_s": noise.high_s if noise else None,
        "mean_step_s": summary.mean_step_s,
        "robust_std_pct": summary.robust_std_pct,
        "p99_over_p50": summary.p99_over_p50,
        "worst_step_s": summary.worst_step_s,
        "drift_pct": summary.drift_pct,
        "noise_floor_pct": noise.floor_pct if noise else None,
        "correlation_steps": noise.correlation_steps if noise else None,
    }


def _evaluation(one: Evaluation) -> dict[str, Any]:
    return {"step": one.step, "num_trained_samples": one.samples, "validation_loss": one.loss, "evaluation_s": one.seconds}


def _overlap(found: Overlap) -> dict[str, Any]:
    return {
        "first_step": found.first_step,
        "last_step": found.last_step,
        "num_traced_ranks": found.num_traced_ranks,
        "communication_s": found.communication_s,
        "hidden_s": found.hidden_s,
        "overlap_pct": found.overlap_pct,
    }


def _event(event: Event) -> dict[str, Any]:
    return {"at_s": event.time_s, "kind": event.kind, "step": event.step, "details": dict(event.detail)}


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "label": one.label,
        "base_label": one.base,
        "step_change_pct": one.change_pct,
        "step_change_low95_pct": one.low_pct,
        "step_change_high95_pct": one.high_pct,
        "text": one.text,
    }


def _scaling(one: Scaling) -> dict[str, Any]:
    return {"mode": one.kind, "what": one.of, "scaling_points": [_point(point) for point in one.points]}


def _point(point: Point) -> dict[str, Any]:
    return {
        "labels": list(point.labels),
        "num_accelerators": point.num_ranks,
        "global_batch": point.batch,
        "median_step_s": point.step_s,
        "median_step_low95_s": point.low_s,
        "median_step_high95_s": point.high_s,
        "efficiency": point.efficiency,
        "efficiency_low95": point.low,
        "efficiency_high95": point.high,
        "text": point.text,
    }


def profile_values(profile: Profile) -> dict[str, Any]:
    """The processes of a profile."""
    return {
        "traces": [str(path) for path in profile.files],
        "processes": [_process(process) for process in profile.processes],
        "notes": list(profile.notes),
    }


def _process(process: ProcessTimes) -> dict[str, Any]:
    times = ("window_s", "compute_s", "communication_s", "hidden_s", "exposed_s", "memory_s", "idle_s")
    return {
        "label": process.label,
        "rank": process.rank,
        "is_on_gpu": process.on_gpu,
        "num_events": process.num_events,
        "num_steps": process.num_steps,
        **{name: getattr(process, name) for name in times},
        "overlap_pct": process.overlap_pct,
        "exposed_pct": process.share_pct(process.exposed_s),
        "streams": [asdict(one) for one in process.streams],
        "collectives": [asdict(one) for one in process.collectives],
    }
