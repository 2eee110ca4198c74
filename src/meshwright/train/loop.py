"""The training loop on one rank: steps until the target, with evaluations, checkpoints and records.

All ranks run the same code. Common decisions (stop, save, end) are sent with the sums that every step computes anyway, so that no rank
waits in a collective that another rank does not enter. The times of a step are sent during the next step, and are written after it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from meshwright.errors import MeshwrightError
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Batch, Prefetcher, Samples, validation_samples
from meshwright.train.elastic.carry import Keeping
from meshwright.train.health.damage import Comparison, Damage
from meshwright.train.health.garbage import Garbage
from meshwright.train.health.limit import Limit
from meshwright.train.health.nonfinite import find_culprit
from meshwright.train.health.signals import StopSignal
from meshwright.train.health.spikes import Peaks, Spikes, largest_parameter
from meshwright.train.health.watch import Watch
from meshwright.train.job import TrainingJob
from meshwright.train.model.compiled import compiles
from meshwright.train.parallel.batches import micro_batch, sample_numbers, without_loss
from meshwright.train.parallel.digests import NUM_PARTS
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.parallel.timing import Moment, between_s
from meshwright.train.record import measured
from meshwright.train.record.logbook import Logbook, Step
from meshwright.train.record.tracer import Tracer
from meshwright.train.replica import Replica
from meshwright.train.saves import Saves
from meshwright.train.sums import StepResult, Sums

EVALUATION_PATIENCE_S = 600.0
CHANGED = "changed"  # how `train` ends if replicas join or leave before the next step


class NotFinite(MeshwrightError):
    """A loss or gradient that is NaN or infinite."""


class Damaged(MeshwrightError):
    """Replicas whose states differ, or a wrong sum."""


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
    tracer: Tracer | None = None
    keeping: Keeping | None = None  # in a run whose replicas may come and go


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was taken, and perhaps not read yet."""

    progress: Progress  # after it
    batch: Sequence[MicroBatch]
    sums: Sums
    rate: float
    ended: Moment  # by the timer of the device
    step_s: Callable[[], float]  # from the end of the step before; waits for the device
    ended_s: float  # by the monotonic clock
    exchange: measured.Exchange


def train(parts: Parts, progress: Progress, *, owes_evaluation: bool = False) -> str:
    """Train until the target, the last step, a signal or a spent budget; how it ended, in the words of a run's status.

    `changed`: replicas join or leave before the next step.

    On a GPU the result of a step is read while the next step runs, so that the device never waits for the host. Before an evaluation, a
    checkpoint and the end of the run the last result is read too. A run that was stopped before an evaluation begins with it.
    """
    job, replica, logbook = parts.job, parts.replica, parts.logbook
    workload, last = job.plan.workload, job.last_step
    logbook.block_start(progress)
    if owes_evaluation:
        if evaluate(parts, progress):
            return "target_reached"
        logbook.block_start(progress)
    status, checks = "finished", Checks(Spikes(), Peaks(), Comparison(replica.mesh.layout, torch.finfo(replica.numbers.gradient).eps))
    replica.wants_stop = lambda: parts.stop.is_asked or (progress.step + 1 < last and parts.limit.wants_stop())
    replica.wants_save = parts.saves.wants_save
    if parts.keeping:
        replica.wants_change = parts.keeping.wants_change
    unseen: deque[Taken] = deque()
    timer = replica.mesh.timer
    with ExitStack() as stack:
        batches = stack.enter_context(Prefetcher(parts.train, _numbers(job, replica, progress.samples)))
        garbage = stack.enter_context(Garbage(compiles=compiles(replica.mesh.layout, replica.mesh.device)))
        begun = timer.moment()
        while progress.step < last:
            if parts.tracer:
                parts.tracer.before(progress.step + 1)
            taken = _step(parts, progress, batches, begun)
            unseen.append(taken)
            begun = taken.ended
            evaluates = workload.is_evaluated_after(progress.step, last)
            traced = parts.tracer is not None and parts.tracer.ends_with(progress.step)
            pauses = traced or evaluates or parts.saves.is_due(progress.step) or progress.step == last or not replica.is_late
            results = [_look(parts, unseen.popleft(), checks) for _ in range(len(unseen) - (not pauses))]
            garbage.step()
            if any(result.stops or result.saves or result.changes for result in results):
                results += [_look(parts, unseen.popleft(), checks) for _ in range(len(unseen))]
            if traced:
                _end_trace(parts, progress)
            stops, saves = any(result.stops for result in results), any(result.saves for result in results)
            changes = _kept(parts, progress) or any(result.changes for result in results)
            if stops and progress.step < last:  # a run that has taken its last step ends as it would have
                status = "stopped"
                break
            if evaluates:
                if evaluate(parts, progress):
                    status = "target_reached"
                    break
                logbook.block_start(progress)
            if (saves or parts.saves.is_due(progress.step)) and progress.step < last:
                with parts.watch.allow(EVALUATION_PATIENCE_S, "copying a checkpoint"):
                    parts.saves.save(progress)
            if changes and progress.step < last:
                status = CHANGED
                break
            if not unseen:
                begun = timer.moment()  # what lies between two steps belongs to neither
    logbook.flush()
    return status


def _kept(parts: Parts, progress: Progress) -> bool:
    """Keep what the run needs if it loses a replica; whether the list of memberships says that replicas change after this step."""
    if parts.keeping is None:
        return False
    with parts.watch.allow(EVALUATION_PATIENCE_S, "copying the state to a neighbour"):
        parts.logbook.copying_s = parts.keeping.after_step(progress)
    return progress.step in parts.keeping.changes_after


def _end_trace(parts: Parts, progress: Progress) -> None:
    """Write the traces, and record how much communication ran behind compute."""
    assert parts.tracer is not None
    parts.logbook.flush()
    with parts.watch.allow(EVALUATION_PATIENCE_S, "writing a profile"):
        found = parts.tracer.finish()
    if found is not None:
        parts.logbook.overlap(progress, found)


def _step(parts: Parts, progress: Progress, batches: Prefetcher, begun: Moment) -> Taken:
    """Take one step, and attach its times to the sum of the next step."""
    job, replica = parts.job, parts.replica
    mesh = replica.mesh
    batch = _device_batch(parts, next(batches), progress.samples + job.plan.workload.global_batch)
    mesh.timer.later()  # drop what ran between two steps: it does not belong to this one
    batch_size = job.plan.workload.global_batch
    rate = job.training.rate(progress.samples + batch_size)
    sums = replica.step(batch, rate)
    progress.step, progress.samples = progress.step + 1, progress.samples + batch_size
    replica.is_uncounted = False
    spans = mesh.timer.later()  # read later: the device is still at the update, and must not run out of work
    data_s = batches.last_wait_s
    ended = mesh.timer.moment()
    step_s = cache(lambda: between_s(begun, ended))
    exchange = measured.Exchange(lambda: measured.parts_of({**spans(), "data": [data_s]}, mesh.layout, step_s()), mesh)
    replica.rider = exchange
    return Taken(
        progress=replace(progress),
        batch=batch,
        sums=sums,
        rate=rate,
        ended=ended,
        step_s=step_s,
        ended_s=time.monotonic(),
        exchange=exchange,
    )


@dataclass(frozen=True, slots=True)
class Checks:
    """What is checked in the result of every step."""

    spikes: Spikes
    peaks: Peaks
    comparison: Comparison


def _look(parts: Parts, taken: Taken, checks: Checks) -> StepResult:
    """Read the result of a step and record it; raise if it is not finite. The times of the step before have arrived with it."""
    progress, logbook = taken.progress, parts.logbook
    result, step_s = taken.sums.result(), taken.step_s()
    started_s = time.perf_counter()
    parts.watch.step(progress.step, step_s)
    if not result.is_finite:
        raise _refusal(parts, taken, result)
    if damage := checks.comparison.damage(progress.step, result):
        raise _damaged(parts, progress, damage)
    peak = checks.peaks.update(progress.step, [check.peak for check in result.checks])
    spike = checks.spikes.update(progress.step, result.grad_norm, result.own_norms)
    if peak and not spike:
        logbook.peak(Progress(step=progress.step - 1), peak)
    if spike:
        with parts.watch.allow(EVALUATION_PATIENCE_S, "looking for a large gradient"):
            # The gradients themselves exist only if no other step has begun.
            before = Progress(step=progress.step - 1, samples=progress.samples - parts.job.plan.workload.global_batch)
            logbook.spike(before, spike, "" if parts.replica.is_late else largest_parameter(parts.replica))
    logbook.flush()
    logbook.step(Step(progress.step, progress.samples, result, step_s, taken.rate, taken.exchange, taken.ended_s))
    saved = parts.saves.finished()
    parts.limit.saw(step_s, saved)
    logbook.saves(progress, saved)
    logbook.recording_s = time.perf_counter() - started_s
    return result


def evaluate(parts: Parts, progress: Progress) -> bool:
    """Evaluate on the validation samples, over all ranks; return whether the target is reached."""
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
    for numbers in sample_numbers(mesh.layout, mesh.dp.index, 0, num_samples):
        batch = samples.batch([min(number, num_samples - 1) for number in numbers])
        arrays = without_loss((batch.tokens, batch.labels, batch.documents), [number < num_samples for number in numbers])
        made.append(micro_batch(arrays, numbers, workload, mesh))
    return made


def _numbers(job: TrainingJob, replica: Replica, first: int) -> Iterator[list[int]]:
    """Numbers of the samples in this rank's part of every batch, from `first` on, without end."""
    batch_size = job.plan.workload.global_batch
    while True:
        groups = sample_numbers(replica.mesh.layout, replica.mesh.dp.index, first, batch_size)
        yield [number for group in groups for number in group]
        first += batch_size


def _device_batch(parts: Parts, batch: Batch, end: int) -> list[MicroBatch]:
    """A batch as it was read, divided into micro-batches and moved to this rank's device. Samples from `end` on carry no loss."""
    workload, mesh = parts.job.plan.workload, parts.replica.mesh
    size = mesh.layout.micro_batch
    cuts = [slice(i, i + size) for i in range(0, len(batch.numbers), size)]
    arrays = batch.tokens, batch.labels, batch.documents
    if batch.numbers[-1] >= end:  # the batch does not divide evenly among the replicas
        arrays = without_loss(arrays, (batch.numbers < end).tolist())
    tokens, labels, documents = arrays
    return [micro_batch((tokens[cut], labels[cut], documents[cut]), batch.numbers[cut].tolist(), workload, mesh) for cut in cuts]


def _damaged(parts: Parts, progress: Progress, damage: Damage) -> Damaged:
    """The error for replicas that do not agree. The update of the step was wrong, or an earlier one, so nothing is saved."""
    parts.logbook.flush()
    before = progress.step - (NUM_PARTS if damage.what == "state" else 1)
    parts.logbook.event("damage", Progress(step=progress.step - 1), what=damage.what, ranks=list(damage.ranks), message=damage.message)
    sound = f"a checkpoint of step {before} or before is sound" if before > 0 else "no checkpoint is known to be sound"
    return Damaged(
        damage.message,
        where=str(parts.job.folder),
        fix=f"{sound}: remove later ones and continue with --resume; check the machines of these ranks (meshwright doctor)",
    )


def _refusal(parts: Parts, taken: Taken, result: StepResult) -> NotFinite:
    """The error that names where a NaN or infinity first appeared. Neither this update nor a later one has been made."""
    parts.logbook.flush()
    with parts.watch.allow(EVALUATION_PATIENCE_S, "looking for the source of a NaN"):
        culprit = find_culprit(parts.replica, taken.batch, result)
    progress = taken.progress
    first, last = progress.samples - parts.job.plan.workload.global_batch, progress.samples - 1
    which = "loss" if not math.isfinite(result.loss) else "gradient norm"
    what = f"the {which} of step {progress.step} (samples {first} to {last}) is NaN or infinite: {culprit}"
    before = Progress(step=progress.step - 1, samples=first)
    parts.logbook.event("nan", before, message=culprit, first_sample=first, last_sample=last)
    return NotFinite(
        what,
        where=str(parts.job.folder),
        fix="the weights are those from before the step; continue with --resume, with a lower learning rate, or without that batch",
    )
