"""What `meshwright train` prints before and after a run: what is about to be trained, how it went, and how to look at it."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.show import show
from meshwright.cli.urls import where_is
from meshwright.describe.products import adapted_matrices
from meshwright.ledger import predicted_s
from meshwright.plan.plan import Plan
from meshwright.record.run import read_run
from meshwright.report.training import training_document
from meshwright.say.document import Document, Lines, Pairs
from meshwright.units import parameters, seconds

if TYPE_CHECKING:
    from meshwright.train.job import TrainingJob


def start_document(job: TrainingJob, layout_reason: str) -> Document:
    """What is about to be trained, on what, with which layout and why, until when, and where it is recorded."""
    plan, training = job.plan, job.training
    predicted = predicted_s(plan, job.last_step).value
    steps = f"{job.last_step:,} steps"
    goal = f"validation loss {training.target_loss:g}, at most {steps}" if training.target_loss else steps
    rows = (
        ("training", f"{plan.model.name}, {parameters(plan.model.num_parameters)} parameters, {plan.workload.precision}", ""),
        ("on", _material(job), ""),
        ("layout", f"{plan.layout.degrees} on {plan.layout.num_ranks} ranks ({plan.cluster.name}): {layout_reason}", ""),
        ("until", f"{goal}; {seconds(plan.step_s)} per step and at most {seconds(predicted)} in total, as predicted", ""),
        ("record", f"{where_is(job)}, saved {_saving(job)}", ""),
    )
    return Document(kind="training-start", title=f"training {plan.model.name}", blocks=(Pairs("", rows),))


def _material(job: TrainingJob) -> str:
    """What the run is trained on, in words."""
    if job.data is None:
        return f"the corpus {job.corpus}, seed {job.seed}"
    data, adapters = job.data, job.plan.workload.adapters
    matrices = ", ".join(adapted_matrices(job.plan.model, adapters)) if adapters else ""
    what = f"adapters of rank {adapters.rank} on {matrices}, base in {adapters.base}" if adapters else "all weights"
    held = f", {len(data.valid.samples):,} held out" if data.valid else ", none held out"
    return f"{data.path} ({data.format}): {len(data.train.samples):,} samples{held}, seed {job.seed}; trained: {what}"


def _saving(job: TrainingJob) -> str:
    """When checkpoints are written."""
    if job.saves_by_clock:
        return "every few minutes and at the end"
    words = [f"every {job.checkpoint_steps:,} steps"] if job.checkpoint_steps else []
    return " and ".join([*words, *(["at the end"] if job.saves_at_end else [])]) or "never"


def next_document(job: TrainingJob) -> Document:
    """How to look at the run: commands to copy."""
    out = Path("report.html") if job.remote else job.folder / "report.html"
    page = shlex.join(["meshwright", "report", where_is(job), "--out", str(out)])
    live = shlex.join(["meshwright", "serve", str(job.runs)])
    lines = Lines("to look at it", (f"a page of this run:  {page}", f"all runs, live:      {live}"))
    return Document(kind="training-next", title="to look at it", blocks=(lines,))


def show_start(job: TrainingJob, layout_reason: str) -> None:
    """Print what is about to be trained. The output is flushed, because the ranks are forked from this process."""
    _show_beside(job, start_document(job, layout_reason))


def show_next(job: TrainingJob) -> None:
    """Print how to look at the run."""
    _show_beside(job, next_document(job))


def _show_beside(job: TrainingJob, document: Document) -> None:
    """Print on standard output, or on stderr if standard output is kept for the JSON of the result."""
    out = sys.stderr if job.prints_json else sys.stdout
    with redirect_stdout(out):
        show(document, as_json=False)
    out.flush()


def show_run(folder: Path, plan: Plan, *, as_json: bool) -> str:
    """Print how the run in a folder went; return its status."""
    run = read_run(folder)
    show(training_document(run, plan), as_json=as_json)
    return run.header.status
