"""Weeks as a run folder: every interruption as an event, and the steps that were walked to stand for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from meshwright.record.entries import MEAN_PARTS
from meshwright.record.writer import RunWriter
from meshwright.simulator.outlook import Outlook
from meshwright.simulator.run import Paid, SimulatedRun, new_folder, records


def write_weeks(
    seen: Outlook, sample: SimulatedRun, runs: Path, name: str, plan_file: Path, paid: Paid | None = None, cut: bool = False
) -> Path:
    """The folder of the first seed. Its steps are the sample, its events the whole of it. `cut`: the budget ended it."""
    paid = paid or Paid()
    with new_folder(sample, runs, name, plan_file, None) as writer:
        writer.steps(records(sample))
        status = "stopped" if cut or not seen.weeks.complete else "finished"
        _write_events(seen, sample.seed, writer, paid, cut, status)
        writer.finish(status)
        return writer.folder


def _write_events(seen: Outlook, seed: int, writer: RunWriter, paid: Paid, cut: bool, status: str) -> None:
    campaign, happened = seen.campaign, seen.weeks
    spares = {"num_spares": campaign.num_spares, "num_spare_accelerators": campaign.num_spares * campaign.accelerators_per_node}
    mean = {MEAN_PARTS: {part: round(part_s, 6) for part, part_s in seen.step.parts_s.items() if part_s > 0}}
    writer.event("start", 0, 0.0, seed=seed, checkpoint_interval_s=round(campaign.interval_s, 3), **mean, **spares, **paid.detail)
    end_s = float(happened.wall_s[0])
    nexts = [*happened.when_s[1:], math.inf][: len(happened.when_s)]
    spent = list(_between(seen))
    times = zip(happened.when_s, happened.what, happened.done_s, happened.back_s, nexts, spent[:-1], strict=True)
    for when_s, what, done_s, back_s, next_s, took in times:
        step = int(done_s / seen.step.seconds)
        writer.event("fault", step, round(when_s, 3), cause=campaign.failures.causes[what].name, **took)
        if back_s < min(next_s, end_s):
            writer.event("restart", step, round(back_s, 3))
    kept = int(float(happened.work_s[0]) / seen.step.seconds)
    if cut:
        paid.write_over(writer, kept, round(end_s, 3))
    why = {"reason": "budget"} if cut else {}
    writer.event(status, kept, round(end_s, 3), goodput=round(float(happened.goodput[0]), 6), **spent[-1], **why)


def _between(seen: Outlook) -> Iterator[dict[str, float]]:
    """Seconds since the interruption before, by what they went into: work that counts, work that is lost, checkpoints; then to the end."""
    had = seen.weeks
    columns = ((*had.done_s, had.work_s[0]), (*had.lost_by_s, had.lost_s[0]), (*had.saved_by_s, had.checkpoint_s[0]))
    totals = np.array(columns, dtype=np.float64)
    for work_s, lost_s, checkpoint_s in np.diff(totals, axis=1, prepend=0.0).T.round(3).tolist():
        yield {"work_s": work_s, "lost_s": lost_s, "checkpoint_s": checkpoint_s}
