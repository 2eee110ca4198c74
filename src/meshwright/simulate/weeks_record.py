"""Weeks as a run folder: every interruption as an event, and the steps that were walked to stand for all of them."""

from __future__ import annotations

import math
from pathlib import Path

from meshwright.plan.plan import Plan
from meshwright.record import RunWriter
from meshwright.simulate.outlook import Outlook
from meshwright.simulate.run import SimulatedRun, new_folder, records


def write_weeks(seen: Outlook, plan: Plan, sample: SimulatedRun, runs: Path, name: str, plan_file: Path) -> Path:
    """The folder of the first seed. Its steps are the sample, its events the whole of it."""
    with new_folder(plan, sample.seed, runs, name, plan_file) as writer:
        writer.steps(records(sample))
        _write_events(seen, sample.seed, writer)
        writer.finish("finished" if seen.weeks.complete else "stopped")
        return writer.folder


def _write_events(seen: Outlook, seed: int, writer: RunWriter) -> None:
    campaign, happened = seen.campaign, seen.weeks
    down_s = campaign.failures.detection_s + campaign.failures.restart_s
    writer.event("start", 0, 0.0, seed=seed, checkpoint_interval_s=round(campaign.interval_s, 3), num_spares=campaign.num_spares)
    end_s = float(happened.wall_s[0])
    nexts = [*happened.when_s[1:], math.inf][: len(happened.when_s)]
    for when_s, what, done_s, next_s in zip(happened.when_s, happened.what, happened.done_s, nexts, strict=True):
        step = int(done_s / seen.step.seconds)
        writer.event("fault", step, round(when_s, 3), cause=campaign.failures.causes[what].name)
        if when_s + down_s < min(next_s, end_s):
            writer.event("restart", step, round(when_s + down_s, 3))
    kept = int(float(happened.work_s[0]) / seen.step.seconds)
    writer.event("stopped", kept, round(end_s, 3), goodput=round(float(happened.goodput[0]), 6))
