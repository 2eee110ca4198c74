"""A child: many steps of a case through the trainer's own loop, records and all; then some without records and some with, in turn.

A step's time is from the end of one update to the end of the next, so that data and records are in it. The cost of records comes from steps
of the same run that make none, a few at a time between others that do: heat, text and weights are the same for both. A card at its power
cap slows down for about a minute as it gets warm: that is the warm-up.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from h200_parts.cases import TRAINING, Case, case_of, layout_of, model_of, workload_of
from h200_parts.child import hand_over, note
from h200_parts.text import shared_folder, text_corpus
from meshwright.describe.load import EMULATED, THIS_MACHINE, load_cluster
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_bytes, plan_of
from meshwright.record.run import read_run
from meshwright.train import loop
from meshwright.train.job import TrainingJob
from meshwright.train.launch import Place
from meshwright.train.replica import Replica
from meshwright.train.session import run_rank

WARMUP = 70  # steps, about 50 s
NUM_TURNS, TURN_STEPS = 10, 8  # without records, with, without, ...; the first two steps of a turn do not count


class Marks:
    """When each update ended, and what memory was held then."""

    def __init__(self, is_gpu: bool) -> None:
        self.is_gpu = is_gpu
        self.times: list[Any] = []
        self.held_bytes: list[int] = []
        self.peaks_bytes: list[int] = []

    def add(self) -> None:
        """An update has been handed to the device."""
        if self.is_gpu:
            self.times.append(torch.cuda.Event(enable_timing=True))
            self.times[-1].record()
        else:
            self.times.append(time.perf_counter())
        self.held_bytes.append(torch.cuda.memory_allocated() if self.is_gpu else 0)
        self.peaks_bytes.append(torch.cuda.max_memory_allocated() if self.is_gpu else 0)
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()

    @property
    def times_s(self) -> list[float]:
        """When each update ended on the device, by its own clock."""
        if not self.is_gpu:
            return self.times
        torch.cuda.synchronize()
        return [self.times[0].elapsed_time(event) / 1e3 for event in self.times]

    def steps_s(self, warmup: int, last: int) -> list[float]:
        """Seconds between updates, after the warm-up up to the step `last`."""
        return [after - before for before, after in itertools.pairwise(self.times_s[warmup - 1 : last])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    is_gpu = given.device == "cuda"
    warmup = WARMUP if is_gpu else 2
    with tempfile.TemporaryDirectory() as folder:
        marks, records = recorded(given.case, Path(folder), warmup + given.steps, is_gpu)
    result = figures(marks, records, warmup, given.steps)
    note(f"with records {1e3 * result['mean_s']:.2f} ms a step, scatter {100 * result['cv']:.3f} %")
    hand_over({**result, **turns(marks, warmup + given.steps)})


def recorded(case: Case, folder: Path, num_before: int, is_gpu: bool) -> tuple[Marks, list[Any]]:
    """A run of the trainer as `meshwright train` makes it, on the standard library's sources; its marks and records.

    After `num_before` steps the turns begin.
    """
    corpus = text_corpus(shared_folder(), model_of(case).vocab_size)
    plan = case_plan(case, is_gpu)
    job = TrainingJob(
        plan=plan,
        runs=folder / "runs",
        name="steady",
        corpus=corpus,
        num_steps=num_before + NUM_TURNS * TURN_STEPS,
        saves_at_end=False,
        stall_timeout_s=300.0,
        plan_text=plan_bytes(plan),
    )
    marks = Marks(is_gpu)
    with marked_updates(marks), in_turns(num_before):
        run_rank(Place(rank=0, num_ranks=1, local_rank=0, num_local_ranks=1, store=dist.HashStore()), job, is_gpu)
    return marks, list(read_run(job.folder).records)


def case_plan(case: Case, is_gpu: bool) -> Plan:
    """The plan of the case on this machine."""
    cluster = load_cluster(THIS_MACHINE if is_gpu else EMULATED).resized(1)
    workload = replace(workload_of(case), training=replace(TRAINING, warmup_samples=20.0 * case.batch))
    return plan_of(Job(model_of(case), cluster, workload, profile="none").forecast(layout_of(case)), "steady")


@contextmanager
def marked_updates(marks: Marks) -> Iterator[None]:
    """Mark every update that any replica makes inside."""
    inner = Replica.update

    def update(self: Replica, *arguments: Any, **named: Any) -> None:
        inner(self, *arguments, **named)
        marks.add()

    Replica.update = update  # type: ignore[method-assign]
    try:
        yield
    finally:
        Replica.update = inner  # type: ignore[method-assign]


@contextmanager
def in_turns(num_before: int) -> Iterator[None]:
    """Let the loop make no records in every other turn."""
    inner = loop._record

    def record(parts: loop.Parts, progress: loop.Progress, *arguments: Any) -> None:
        if has_records(progress.step, num_before):
            inner(parts, progress, *arguments)

    loop._record = record  # type: ignore[assignment]
    try:
        yield
    finally:
        loop._record = inner


def has_records(step: int, num_before: int) -> bool:
    """Whether the step of this number, from 1 on, makes records."""
    return step <= num_before or (step - num_before - 1) // TURN_STEPS % 2 == 1


def turns(marks: Marks, num_before: int) -> dict[str, Any]:
    """What a step takes with records and without, in turns."""
    took_s: dict[bool, list[float]] = {True: [], False: []}
    for number, (before, after) in enumerate(itertools.pairwise(marks.times_s), start=2):  # from the end of the step before to its own
        place = (number - num_before - 1) % TURN_STEPS
        if number > num_before and place > 1:  # what follows the turn's first update is still the other turn's
            took_s[has_records(number - 1, num_before)].append(after - before)
    return {
        "on_s": statistics.mean(took_s[True]),
        "off_s": statistics.mean(took_s[False]),
        "turns_error": math.hypot(*(statistics.stdev(some) / math.sqrt(len(some)) / statistics.mean(some) for some in took_s.values())),
        "turns_s": {"on": took_s[True], "off": took_s[False]},
    }


def figures(marks: Marks, records: list[Any], warmup: int, num_steps: int) -> dict[str, Any]:
    """Scatter, drift, growth, and what records took by the trainer's own clock."""
    steps_s = marks.steps_s(warmup, warmup + num_steps)
    early, late, timed = warmup + 1, warmup + num_steps, records[warmup : warmup + num_steps]
    slope_s = statistics.linear_regression(range(len(steps_s)), steps_s).slope
    recording_s = [record.extra["recording_s"] for record in timed]
    metered = [record.extra["energy_j"] for record in timed if "energy_j" in record.extra]
    return {
        "num_steps": len(steps_s),
        "num_warmup": warmup,
        "drift": slope_s * len(steps_s) / statistics.mean(steps_s),
        "cv": statistics.pstdev(steps_s) / statistics.mean(steps_s),
        "mean_s": statistics.mean(steps_s),
        "early_step": early,
        "early_bytes": marks.held_bytes[early - 1],
        "late_bytes": marks.held_bytes[late - 1],
        "early_peak_bytes": marks.peaks_bytes[early - 1],
        "late_peak_bytes": marks.peaks_bytes[late - 1],
        "recording_s": statistics.median(recording_s),
        "recording_share": sum(recording_s) / sum(record.step_s for record in timed),
        "energy_j": statistics.median(metered) if metered else None,
        "first_loss": records[0].loss,
        "last_loss": timed[-1].loss,
        "steps_s": steps_s,
    }


if __name__ == "__main__":
    main()
