"""The training loop on one rank: steps until the target, with evaluations, checkpoints and records.

All ranks run the same code. Common decisions (stop, save, end) are sent with the sums that every step computes anyway, so that no rank
waits in a collective that another rank does not enter. The times of a step are sent during the next step, and are written after it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.distributed as dist

from meshwright.train.elastic.carry import Keeping
from meshwright.train.feed import Feed
from meshwright.train.health.balance import balanced, slowdowns
from meshwright.train.health.damage import Comparison, SumTest
from meshwright.train.health.garbage import Garbage
from meshwright.train.health.gate import Gate, Guard, Trouble
from meshwright.train.health.limit import Limit
from meshwright.train.health.signals import StopSignal
from meshwright.train.health.spikes import Losses, largest_parameter
from meshwright.train.health.watch import Watch
from meshwright.train.job import TrainingJob
from meshwright.train.material import Material
from meshwright.train.parallel.batches import micro_batch, sample_numbers, without_loss
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.parallel.timing import Moment, between_s
from meshwright.train.record import measured
from meshwright.train.record.logbook import Logbook, Step
from meshwright.train.record.tracer import Tracer
from meshwright.train.replay import Held, Replays
from meshwright.train.replica import Replica
from meshwright.train.saves import Saves
from meshwright.train.sums import StepResult, Sums

EVALUATION_PATIENCE_S = 600.0
CHANGED = "changed"  # how `train` ends if replicas join or leave before the next step
DEAL_STEPS = 50  # after which micro-batches may be dealt differently


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
    material: Material
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
    gate: Gate  # the limits that it was taken with


@dataclass(frozen=True, slots=True)
class Run:
    """What changes while the loop runs, besides its progress."""

    progress: Progress
    feed: Feed
    guard: Guard
    replays: Replays
    unseen: deque[Taken] = field(default_factory=deque)


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
    status, guard = "finished", _guard(parts)
    replica.wants_stop = lambda: parts.stop.is_asked or (progress.step + 1 < last and parts.limit.wants_stop())
    replica.wants_save = parts.saves.wants_save
    if parts.keeping:
        replica.wants_change = parts.keeping.wants_change
    timer = replica.mesh.timer
    with ExitStack() as stack:
        feed = stack.enter_context(Feed(job, replica.mesh, parts.material.train, progress.samples))
        garbage = stack.enter_context(Garbage())
        replays = Replays(job, replica, logbook, parts.watch, parts.saves, guard)
        run = Run(progress, feed, guard, replays)
        begun = timer.moment()
        while progress.step < last:
            if parts.tracer and parts.tracer.begins_with(progress.step + 1):
                with parts.watch.allow(EVALUATION_PATIENCE_S, "starting a profile"):  # which imports torch's compiler
                    parts.tracer.begin()
                begun = timer.moment()
            taken = _step(parts, run, begun)
            run.unseen.append(taken)
            begun, step = taken.ended, progress.step
            evaluates = workload.is_evaluated_after(step, last)
            traced = parts.tracer is not None and parts.tracer.ends_with(step)
            deals = _is_dealt_after(job, step)
            pauses = traced or evaluates or deals or parts.saves.is_due(step) or step == last or not replica.is_late
            results = _read(parts, run, num_left=0 if pauses else 1)
            if garbage.step(is_applied=progress.step == step) and parts.keeping:
                parts.keeping.settle(replica.mesh.device)
            if any(result.stops or result.saves or result.changes for result in results):
                results += _read(parts, run, num_left=0)
            stops, saves = any(result.stops for result in results), any(result.saves for result in results)
            if progress.step < step:  # the step was not applied, or the one before: nothing is due here that was not done before
                if stops:
                    status = "stopped"
                    break
                begun = timer.moment()
                continue
            if traced:
                _end_trace(parts, progress)
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
            if deals and progress.step < last:
                _deal(parts, run)
            if changes and progress.step < last:
                status = CHANGED
                break
            if not run.unseen:
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


def _is_dealt_after(job: TrainingJob, step: int) -> bool:
    """Whether micro-batches may be dealt differently after a step: as a list of memberships says, or by which replicas are slow."""
    if job.memberships:
        return any(one.after_step == step for one in job.deals)
    return job.rebalances and step % DEAL_STEPS == 0


def _deal(parts: Parts, run: Run) -> None:
    """Give slow replicas fewer micro-batches from the next step on. Rank 0 knows which are slow, and all ranks do as it says."""
    logbook, mesh = parts.logbook, parts.replica.mesh
    layout = mesh.layout
    slow = list(logbook.stragglers.slow.values()) if logbook.stragglers else []
    slowdown = slowdowns(layout, slow)
    listed = [one.deal for one in parts.job.deals if one.after_step == run.progress.step and len(one.deal) == layout.dp]
    best = listed[-1] if listed else balanced(layout, parts.job.plan.workload.global_batch, slowdown)
    wanted = torch.tensor(best, device=mesh.device)
    mesh.marks.enter("how micro-batches are dealt", "world", range(layout.num_ranks))
    dist.broadcast(wanted, 0)
    deal = tuple(wanted.tolist())
    mesh.marks.leave()
    if deal == run.feed.deal:
        return
    logbook.flush()
    parts.replica.set_deal(deal)
    run.feed.set_deal(deal, run.progress.samples)
    logbook.rebalanced(run.progress, deal, [one.rank for one in slow])


def _guard(parts: Parts) -> Guard:
    """What decides which steps are applied. The check of sums is made on the device where results are read late."""
    replica = parts.replica
    comparison = Comparison(replica.mesh.layout, torch.finfo(replica.numbers.gradient).eps)
    on_device = replica.is_late and comparison.groups
    test = SumTest(comparison, replica.mesh.device) if on_device else None
    return Guard(comparison=comparison, losses=Losses(parts.job.spike_deviations), test=test)


def _step(parts: Parts, run: Run, begun: Moment) -> Taken:
    """Take one step, and attach its times to the sum of the next step."""
    job, replica, progress = parts.job, parts.replica, run.progress
    batch = run.feed.next()
    replica.mesh.timer.later()  # drop what ran between two steps: it does not belong to this one
    batch_size = job.plan.workload.global_batch
    rate = job.training.rate(progress.samples + batch_size)
    gate = replica.gate = run.guard.gate(progress.step + 1)
    sums = replica.step(batch, rate)
    progress.step, progress.samples = progress.step + 1, progress.samples + batch_size
    replica.is_uncounted = False
    return _taken(parts, progress, batch, sums, rate, gate, begun, run.feed.last_wait_s)


def _taken(
    parts: Parts, progress: Progress, batch: Sequence[MicroBatch], sums: Sums, rate: float, gate: Gate, begun: Moment, data_s: float
) -> Taken:
    """A step that has been launched, with its times, which are read later: the device is still at the update, and must not run dry."""
    mesh = parts.replica.mesh
    spans = mesh.timer.later()
    ended = mesh.timer.moment()
    step_s = cache(lambda: between_s(begun, ended))

    def columns() -> dict[str, float]:
        times = {**spans(), "data": [data_s]}
        return {**measured.parts_of(times, mesh.layout, step_s()), **measured.links_of(times, mesh.layout)}

    exchange = measured.Exchange(columns, mesh)
    parts.replica.rider = exchange
    return Taken(
        progress=replace(progress),
        batch=batch,
        sums=sums,
        rate=rate,
        ended=ended,
        step_s=step_s,
        ended_s=time.monotonic(),
        exchange=exchange,
        gate=gate,
    )


def _read(parts: Parts, run: Run, num_left: int) -> list[StepResult]:
    """The results of all steps but the last `num_left`, recorded. A step that was not applied is done again first."""
    results = []
    while len(run.unseen) > num_left:
        taken: Taken | None = run.unseen.popleft()
        assert taken is not None, "the queue holds steps"
        result = taken.sums.result()
        trouble = taken.gate.trouble(result)
        if trouble is not None:
            taken = _again(parts, run, taken, result, trouble)
        if taken is not None:
            results.append(_look(parts, taken, run.guard))
    return results


def _again(parts: Parts, run: Run, taken: Taken, result: StepResult, trouble: Trouble) -> Taken | None:
    """Do a step again that was not applied; None if its samples are skipped. Steps that were launched after it come again too."""
    timer, batch_size = parts.replica.mesh.timer, parts.job.plan.workload.global_batch
    for later in run.unseen:
        later.sums.values()  # wait for the device
    run.feed.put_back([later.batch for later in run.unseen])
    run.unseen.clear()
    step, samples = taken.progress.step, taken.progress.samples
    run.progress.step, run.progress.samples = step - 1, samples - batch_size
    held = Held(
        step=step,
        first_sample=samples - batch_size,
        batch=taken.batch,
        rate=taken.rate,
        gate=taken.gate,
        result=result,
        trouble=trouble,
        step_s=taken.step_s(),
    )
    timer.later()
    begun = timer.moment()
    sums = run.replays.settle(held)
    run.progress.samples = samples
    if sums is None:
        return None  # the samples count as seen, the step does not count as done
    run.progress.step = step
    parts.replica.is_uncounted = False
    return _taken(parts, run.progress, taken.batch, sums, taken.rate, taken.gate, begun, 0.0)


def _look(parts: Parts, taken: Taken, guard: Guard) -> StepResult:
    """Record the result of a step that was applied. The times of the step before have arrived with it."""
    progress, logbook = taken.progress, parts.logbook
    result, step_s = taken.sums.result(), taken.step_s()
    started_s = time.perf_counter()
    parts.watch.step(progress.step, step_s)
    guard.losses.update(result.loss)
    peak = guard.peaks.update(progress.step, [check.peak for check in result.checks])
    spike = guard.spikes.update(progress.step, result.grad_norm, result.own_norms)
    if peak and not spike:
        logbook.peak(Progress(step=progress.step - 1), peak)
    if spike:
        with parts.watch.allow(EVALUATION_PATIENCE_S, "looking for a large gradient"):
            # The gradients themselves exist only if no other step has begun.
            before = Progress(step=progress.step - 1, samples=progress.samples - parts.job.plan.workload.global_batch)
            logbook.spike(before, spike, "" if parts.replica.is_late else largest_parameter(parts.replica))
    routing = parts.replica.routing(taken.sums)
    for dead in guard.idle.update(progress.step, routing):
        logbook.dead_experts(progress, dead)
    logbook.flush()
    logbook.step(Step(progress.step, progress.samples, result, step_s, taken.rate, taken.exchange, taken.ended_s, routing))
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
        graded = replica.graded(_validation_batch(parts, evaluation.num_samples), counts_correct=parts.material.counts_correct)
    parts.logbook.evaluation(progress, graded, time.perf_counter() - started_s)
    quality = graded.mean_loss
    return bool(training.target_loss) and quality <= training.target_loss


def _validation_batch(parts: Parts, num_samples: int) -> list[MicroBatch]:
    """This rank's share of the validation samples. If they do not divide evenly, the last round is filled with samples without loss."""
    job, mesh = parts.job, parts.replica.mesh
    workload = job.plan.workload
    samples, made = parts.material.valid, []
    assert samples is not None, "a workload that is evaluated has samples for it"
    for numbers in sample_numbers(mesh.layout, mesh.dp.index, 0, num_samples):
        batch = samples.batch([min(number, num_samples - 1) for number in numbers])
        arrays = without_loss((batch.tokens, batch.labels, batch.documents), [number < num_samples for number in numbers])
        made.append(micro_batch(arrays, numbers, workload, mesh))
    return made
