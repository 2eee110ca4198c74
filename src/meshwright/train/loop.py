"""The training loop on one rank: steps until the target, with evaluations, checkpoints and records.

All ranks run the same code. Common decisions (stop, save, end) are sent with the sums that every step computes anyway, so that no rank
waits in a collective that another rank does not enter. The times of a step are sent during the next step, and are written after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from meshwright.errors import MeshwrightError
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Batch, Prefetcher, Samples, validation_samples
from meshwright.train.health.garbage import Garbage
from meshwright.train.health.limit import Limit
from meshwright.train.health.nonfinite import find_culprit
from meshwright.train.health.signals import StopSignal
from meshwright.train.health.spikes import Spikes, largest_parameter
from meshwright.train.health.watch import Watch
from meshwright.train.job import TrainingJob
from meshwright.train.model.compiled import compiles
from meshwright.train.parallel.batches import micro_batch, sample_numbers, without_loss
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.record import measured
from meshwright.train.record.logbook import Logbook, Step
from meshwright.train.replica import Replica, StepResult
from meshwright.train.saves import Saves

EVALUATION_PATIENCE_S = 600.0


class NotFinite(MeshwrightError):
    """A loss or gradient that is NaN or infinite."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the run has come."""

    step: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects that the loop uses on this rank."""

    job: TrainingJob
    replica: Replica
    corpus: Corpus
    train: Samples
    saves: Saves
    logbook: Logbook
    watch: Watch
    stop: StopSignal
    limit: Limit = field(default_factory=Limit)


def train(parts: Parts, progress: Progress) -> str:
    """Train until the target, the last step, a signal or the end of the budget; return the status of the run."""
    job, replica, logbook = parts.job, parts.replica, parts.logbook
    workload = job.plan.workload
    batch_size, last = workload.global_batch, job.last_step
    logbook.block_start(progress)
    status, spikes = "finished", Spikes()
    replica.wants_stop = lambda: parts.stop.is_asked or (progress.step + 1 < last and parts.limit.wants_stop())
    replica.wants_save = parts.saves.wants_save
    with ExitStack() as stack:
        batches = stack.enter_context(Prefetcher(parts.train, _numbers(job, replica, progress.samples)))
        garbage = stack.enter_context(Garbage(compiles=compiles(replica.mesh.layout, replica.mesh.device)))
        while progress.step < last:
            started_s = time.perf_counter()
            batch = _device_batch(parts, next(batches))
            replica.mesh.timer.later()  # the time between two steps does not belong to this step
            result = replica.gradients(batch)
            if not result.is_finite:
                raise _refusal(parts, progress, batch, result)
            if spike := spikes.update(progress.step + 1, result.grad_norm, result.own_norms):
                with parts.watch.allow(EVALUATION_PATIENCE_S, "looking for a large gradient"):
                    logbook.spike(progress, spike, largest_parameter(replica))
            rate = job.training.rate(progress.samples + batch_size)
            replica.update(result, rate)
            progress.step, progress.samples = progress.step + 1, progress.samples + batch_size
            _record(parts, progress, result, time.perf_counter() - started_s, batches.last_wait_s, rate)
            garbage.step()
            if result.stops:
                status = "stopped"
                break
            if workload.is_evaluated_after(progress.step, last):
                if evaluate(parts, progress):
                    status = "target_reached"
                    break
                logbook.block_start(progress)
            if (result.saves or parts.saves.is_due(progress.step)) and progress.step < last:
                with parts.watch.allow(EVALUATION_PATIENCE_S, "copying a checkpoint"):
                    parts.saves.save(progress)
    logbook.flush()
    return status


def evaluate(parts: Parts, progress: Progress) -> bool:
    """Evaluate on the validation samples, over all ranks; whether the target is reached."""
    job, replica = parts.job, parts.replica
    evaluation, training = job.plan.workload.evaluation, job.training
    assert evaluation is not None
    parts.logbook.flush()
    parts.logbook.evaluation_start(progress)
    started_s = time.perf_counter()
    with parts.watch.allow(EVALUATION_PATIENCE_S, "an evaluation"):
        loss, tokens = replica.evaluate(_validation_batch(parts, evaluation.num_samples))
    quality = loss / max(tokens, 1)
    parts.logbook.evaluation(progress, quality, tokens, time.perf_counter() - started_s)
    return bool(training.target_loss) and quality <= training.target_loss


def _validation_batch(parts: Parts, num_samples: int) -> list[MicroBatch]:
    """This rank's share of the validation samples. If they do not divide evenly, the last round is filled with samples without loss."""
    job, mesh = parts.job, parts.replica.mesh
    workload = job.plan.workload
    samples = validation_samples(parts.corpus.valid, workload.seq_len, num_samples)
    made = []
    for numbers in sample_numbers(job.plan.layout, mesh.dp.index, 0, num_samples):
        batch = samples.batch([min(number, num_samples - 1) for number in numbers])
        arrays = without_loss((batch.tokens, batch.labels, batch.documents), [number < num_samples for number in numbers])
        made.append(micro_batch(arrays, numbers, workload, mesh))
    return made


def _numbers(job: TrainingJob, replica: Replica, first: int) -> Iterator[list[int]]:
    """Numbers of the samples in this rank's part of every batch from `first` on, without end."""
    batch_size = job.plan.workload.global_batch
    while True:
        groups = sample_numbers(job.plan.layout, replica.mesh.dp.index, first, batch_size)
        yield [number for group in groups for number in group]
        first += batch_size


def _device_batch(parts: Parts, batch: Batch) -> list[MicroBatch]:
    """A batch as it was read, divided into micro-batches and moved to this rank's device."""
    workload, mesh = parts.job.plan.workload, parts.replica.mesh
    size = mesh.layout.micro_batch
    cuts = [slice(i, i + size) for i in range(0, len(batch.numbers), size)]
    return [
        micro_batch((batch.tokens[cut], batch.labels[cut], batch.documents[cut]), batch.numbers[cut].tolist(), workload, mesh)
        for cut in cuts
    ]


def _record(parts: Parts, progress: Progress, result: StepResult, step_s: float, data_s: float, rate: float) -> None:
    """Send this rank's times with the sum of the next step, and write the record of the step before, whose times have arrived."""
    started_s, ended_s = time.perf_counter(), time.monotonic()
    mesh = parts.replica.mesh
    spans = mesh.timer.later()  # the device still works on the update, and should get the work of the next step in time
    exchange = measured.Exchange(lambda: measured.parts_of({**spans(), "data": [data_s]}, mesh.layout, step_s), mesh)
    parts.replica.rider = exchange
    parts.watch.step(progress.step, step_s)
    parts.logbook.flush()
    parts.logbook.step(Step(progress.step, progress.samples, result, step_s, rate, exchange, ended_s))
    saved = parts.saves.finished()
    parts.limit.saw(step_s, saved)
    parts.logbook.saves(progress, saved)
    parts.logbook.recording_s = time.perf_counter() - started_s


def _refusal(parts: Parts, progress: Progress, batch: Sequence[MicroBatch], result: StepResult) -> NotFinite:
    """The error that says where a NaN or infinity first appeared. The update has not been applied."""
    parts.logbook.flush()
    with parts.watch.allow(EVALUATION_PATIENCE_S, "looking for the source of a NaN"):
        culprit = find_culprit(parts.replica, batch, result)
    last = progress.samples + parts.job.plan.workload.global_batch - 1
    which = "loss" if not math.isfinite(result.loss) else "gradient norm"
    what = f"the {which} of step {progress.step + 1} (samples {progress.samples} to {last}) is NaN or infinite: {culprit}"
    parts.logbook.event("nan", progress, message=culprit, first_sample=progress.samples, last_sample=last)
    return NotFinite(
        what,
        where=str(parts.job.folder),
        fix="the weights are those from before the step; continue with --resume, with a lower learning rate, or without that batch",
    )
