"""The values of a report, under the names that `meshwright report --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshwright.ledger import ledger_json
from meshwright.report.compare import differences, differing, parts_of, simulated_beside
from meshwright.report.facts import RunFacts
from meshwright.report.noise import METHOD
from meshwright.report.profile import ProcessTimes, Profile
from meshwright.report.scaling import left_out, scalings

MAX_EVENTS = 1000  # of one run


def report_values(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """The whole report of one or several runs."""
    values: dict[str, Any] = {"runs": [run_values(facts, simulated_beside(facts, runs)) for facts in runs]}
    if len(runs) > 1:
        values["cannot_compare"] = differing(runs)
        values["differences"] = [asdict(one) for one in differences(runs)]
        values["scaling"] = [{"kind": one.kind, "of": one.of, "points": [asdict(point) for point in one.points]} for one in scalings(runs)]
        values["scaling_left_out"] = left_out(runs)
    values["interval_method"] = METHOD
    return values


def run_values(facts: RunFacts, simulated: RunFacts | None = None) -> dict[str, Any]:
    """One run."""
    header, plan, summary = facts.run.header, facts.plan, facts.summary
    ledger = ledger_json(facts.ledger)
    ledger.pop("entries")  # thousands; `meshwright ledger` has them
    return {
        "name": header.name,
        "label": facts.label,
        "folder": str(facts.run.folder),
        "kind": header.kind,
        "status": header.status,
        "created": header.created,
        "machine": header.machine,
        "num_ranks": header.num_ranks,
        "seed": header.seed,
        "conditions": list(header.conditions),
        "versions": dict(header.versions),
        "model": plan.model.name if plan else None,
        "workload": plan.workload.name if plan else None,
        "cluster": plan.cluster.name if plan else None,
        "layout": str(plan.layout) if plan else None,
        "samples_per_step": facts.batch,
        "tokens_per_s": summary.tokens_per_s,
        "time": {**asdict(facts.time), "fixed_s": facts.time.fixed_s, "name": facts.time_name, "reached_target": facts.reached_target},
        "whole_job_extrapolated": asdict(facts.whole_job) if facts.whole_job else None,
        "step": _step(facts),
        "parts": {row.part: {key: value for key, value in asdict(row).items() if key != "part"} for row in parts_of(facts, simulated)},
        "unaccounted_s": summary.unaccounted_s,
        "exposed_s": dict(summary.mean_exposed_s),
        "simulated_beside": simulated.label if simulated else None,
        "loss": {
            "last": facts.run.records[-1].loss,
            "target": header.target,
            "evaluations": [asdict(one) for one in facts.evaluations],
        },
        "memory": {"predicted_bytes": plan.peak_memory_bytes if plan else None, "measured_bytes": facts.measured_memory_bytes},
        "slowest_replicas": [asdict(one) for one in facts.slowest_replicas[:10]],
        "event_counts": dict(facts.event_counts),
        "events": [event.to_json() for event in facts.run.events[:MAX_EVENTS]],
        "ledger": ledger,
        "notes": list(facts.notes),
    }


def _step(facts: RunFacts) -> dict[str, Any]:
    summary, noise = facts.summary, facts.noise
    return {
        "num_steps": summary.num_steps,
        "num_steady_steps": summary.num_steady_steps,
        "num_expected": facts.run.header.num_steps,
        "median_s": summary.median_step_s,
        "mean_s": summary.mean_step_s,
        "low_s": noise.low_s if noise else None,
        "high_s": noise.high_s if noise else None,
        "robust_std_pct": summary.robust_std_pct,
        "p99_over_p50": summary.p99_over_p50,
        "worst_s": summary.worst_step_s,
        "drift_pct": summary.drift_pct,
        "noise_floor_pct": noise.floor_pct if noise else None,
        "correlation_steps": noise.correlation_steps if noise else None,
        "predicted_s": facts.plan.step_s if facts.plan else None,
        "predicted_low_s": facts.plan.low_s if facts.plan else None,
        "predicted_high_s": facts.plan.high_s if facts.plan else None,
    }


def profile_values(profile: Profile) -> dict[str, Any]:
    """A profile's processes."""
    return {
        "files": [str(path) for path in profile.files],
        "processes": [_process(process) for process in profile.processes],
        "notes": list(profile.notes),
    }


def _process(process: ProcessTimes) -> dict[str, Any]:
    times = ("window_s", "compute_s", "communication_s", "hidden_s", "exposed_s", "memory_s", "idle_s")
    return {
        "label": process.label,
        "rank": process.rank,
        "on_gpu": process.on_gpu,
        "num_events": process.num_events,
        "num_steps": process.num_steps,
        **{name: getattr(process, name) for name in times},
        "overlap_pct": process.overlap_pct,
        "exposed_pct": process.share_pct(process.exposed_s),
        "streams": [asdict(one) for one in process.streams],
        "collectives": [asdict(one) for one in process.collectives],
    }
