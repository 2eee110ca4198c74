"""One rank of a run, from joining the others to the end of the run."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from meshwright.describe.this_machine import processor_name
from meshwright.errors import InputError, MeshwrightError
from meshwright.files import write_whole
from meshwright.record.entries import Event
from meshwright.record.flight import remove_traces
from meshwright.record.header import RunHeader
from meshwright.record.lock import RunLock
from meshwright.record.run import read_run
from meshwright.record.stored import Mirror
from meshwright.record.writer import RunWriter, append_event, elapsed_s, set_status
from meshwright.storage import Location
from meshwright.train.checkpoint import CheckpointError, Manifest, Piece
from meshwright.train.checks import check_job
from meshwright.train.elastic.member import KEPT_AFTER_ERRORS
from meshwright.train.elastic.regroup import Regroup
from meshwright.train.health.gate import Unsound
from meshwright.train.health.limit import Limit
from meshwright.train.health.port import port_watched
from meshwright.train.health.recorder import Recorder, keep_calls
from meshwright.train.health.signals import StopSignal
from meshwright.train.health.slow_links import SlowLinks
from meshwright.train.health.watch import START_SILENCE_S, Diagnosis, Watch, places
from meshwright.train.interop.peft import load_peft
from meshwright.train.interop.trained import weights_in
from meshwright.train.job import TrainingJob, digests, log_settings
from meshwright.train.launch import ConnectionLost, Place, ReportedElsewhere, agreed, agreed_by_all, explain_failure
from meshwright.train.loop import CHANGED, Parts, Progress, train
from meshwright.train.material import Material
from meshwright.train.membership import seats_of
from meshwright.train.model.initial import initial_weights
from meshwright.train.parallel.collectives import everyones_texts
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.record.ending import flight_line, gone_ranks, last_step, loss_in_words, notices_first, opened, record_end
from meshwright.train.record.logbook import Logbook, machine_words, progress_stream
from meshwright.train.record.meter import gpu_meter, gpu_name
from meshwright.train.record.mlperf import MlperfLog
from meshwright.train.record.storing import mirror_of, say_unstored
from meshwright.train.record.tracer import Tracer
from meshwright.train.replica import Replica
from meshwright.train.saves import Saves, check_resumable, find, has_checkpoint, read_state, restore, tensor_names

START_PATIENCE_S = 600.0
MOST_HOST_BYTES = 64 + 64  # of a host's name, of which Linux allows no longer ones, and a GPU's
OWED = "owed"
BY_SIGNAL = "asked to stop by a signal"
# Work of different streams waits for one another where they share a queue of the GPU: a stage's receive must not wait for its send. The
# driver makes 8 of them unless told otherwise, and a rank has a stream for each communicator beside its own.
ENOUGH_QUEUES = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")
# Kernels are loaded at the start, not when they are first called: loading one may wait for a receive that waits for another stage. For most
# layouts `Replica.try_chunks` loads them in time; fully sharded weights cannot be tried backward without their replicas.
LOADED_KERNELS = ("CUDA_MODULE_LOADING", "EAGER")
# Messages between stages have a communicator for each direction, so torch's warning that they wait for one another does not apply.
OWN_LANES = ("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
TRACES_S = 2.0  # in which other ranks may write what they wait for: they look for a hang every second
LOCK_S = 5.0  # in which the last writer of the records must have ended
COLLECTIVE_S = 1800.0  # the last limit: the watchdog reports who is waited for long before


class RecordsLost(MeshwrightError):
    """Records that could be written before, and now cannot."""


def run_rank(place: Place, job: TrainingJob, is_gpu: bool, regroup: Regroup | None = None) -> str:
    """Train on this rank until the run is over, or until replicas join or leave; how it ended, in the words of a run's status.

    `regroup` is given in a run whose replicas may come and go.
    """
    stop, begun_s = (regroup.stop, regroup.member.began_s) if regroup else (StopSignal(), time.monotonic())
    device = torch.device("cuda", place.local_rank // job.ranks_per_gpu) if is_gpu else torch.device("cpu")
    if is_gpu and job.layout.pp > 1 and job.layout.zero_stage == 3:
        os.environ.setdefault(*LOADED_KERNELS)
    _claim(device, place, regroup.member.num_sharing if regroup else place.num_local_ranks, shares_gpu=job.ranks_per_gpu > 1)
    keep_calls(os.environ)
    if is_gpu and regroup:
        for setting in KEPT_AFTER_ERRORS.items():
            os.environ.setdefault(*setting)
    os.environ.setdefault(*OWN_LANES)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=place.store,
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=timedelta(seconds=COLLECTIVE_S),
        device_id=device if is_gpu else None,
    )
    marks, is_open = Marks(), threading.Event()
    recorder = Recorder(place.rank, place.num_ranks, job.folder, is_open, marks)
    if place.asked:
        recorder.write_when_asked(place.asked)
    layout = job.layout
    watch = Watch(
        marks,
        place.control,
        place.rank,
        place.num_ranks,
        regroup.report_hang if regroup else _reporter(job, recorder),
        timeout_s=job.stall_timeout_s,
        start_allowance_s=START_PATIENCE_S,
        start_silence_s=job.stall_timeout_s if regroup and not regroup.is_first else START_SILENCE_S,  # nothing is read from disk then
        place=places(layout.coordinate),
        witness=recorder.write,
        end=(lambda code: watch.rest()) if regroup else os._exit,
    )
    watch.start()
    try:
        model = job.plan.model
        ends_meet = layout.vp > 1 or model.ends_share_table
        mesh = make_mesh(
            layout, device, marks, key_copies=model.key_copies(layout.tp), ends_meet=ends_meet, has_experts=model.experts is not None
        )
        recorder.groups = mesh.made
        port = place.port if place.rank == 0 else 0
        watched = port_watched(port, place.num_ranks, _noting(job), is_sealed=bool(place.secret))
        waits_s = LOCK_S if job.after or (regroup and not regroup.is_first) else 0.0
        with _locked(job, place, waits_s) as mirror, watched:
            status = _train(job, mesh, watch, stop, place, begun_s, recorder, regroup, mirror)
    finally:
        watch.stop()
    if regroup and is_gpu and status == CHANGED:  # NCCL destroys a communicator together with others: this rank leaves once all have come
        torch.cuda.synchronize(device)
    else:
        dist.destroy_process_group()
    return status


def _noting(job: TrainingJob) -> Callable[[str], None]:
    """Says and records that strangers are at the port of the ranks."""

    def note(message: str) -> None:
        print(f"meshwright: {message}", file=sys.stderr, flush=True)
        with suppress(MeshwrightError, OSError):  # a run that has not begun has no events yet
            detail = {"message": message}
            append_event(job.folder, Event(time_s=elapsed_s(job.folder), kind="flood", step=last_step(job.folder), detail=detail))

    return note


def _claim(device: torch.device, place: Place, num_sharing: int, *, shares_gpu: bool = False) -> None:
    """Limit this rank to its share of the machine: of `num_sharing` ranks, also while there are fewer.

    Results depend in their last bits on the number of threads, so this number stays the same in all generations of a run.
    """
    if device.type == "cuda":
        if not shares_gpu:  # MPS has queues for few ranks only
            os.environ.setdefault(*ENOUGH_QUEUES)
        torch.cuda.set_device(device)
        return
    if place.num_local_ranks == place.num_ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo looks up the name of the host, which fails on many laptops
    if "OMP_NUM_THREADS" not in os.environ:  # torch uses the user's value, or torchrun's
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(cores // num_sharing, 1))


def _train(
    job: TrainingJob,
    mesh: Mesh,
    watch: Watch,
    stop: StopSignal,
    place: Place,
    begun_s: float,
    recorder: Recorder,
    regroup: Regroup | None,
    mirror: Mirror | None,
) -> str:
    """The run from opening its folder to its end, or to the end of a generation; how it ended.

    The recorder's `is_open` is set once the folder belongs to this run and not to another run of that name.
    """
    is_open = recorder.is_open
    material = regroup.material if regroup else check_job(job)
    machine = machine_words(mesh.device.type, mesh.layout.num_ranks, _device_name(mesh.device))
    is_writer = place.rank == 0
    writer = None if job.resume else _opened(place, "folder", lambda: _open_run(job, machine))
    if not job.resume:
        is_open.set()
    with _recorded(job, place, recorder, regroup):
        log = MlperfLog(job.folder / "mlperf.log" if is_writer else None, job.benchmark, log_settings(job, len(material.train), machine))
        log.init_start()
        if regroup:
            regroup.agree(job, mesh.device)
        # Where replicas may be lost, no update is launched before its sums have arrived: so the state is always that of a whole step.
        replica = Replica(job.plan.model, job.plan.workload, mesh, job.training, job.seed, reads_late=regroup is None)
        if regroup:
            replica.is_cut = regroup.is_cut
        marks_of_run = digests(job, material.digest)
        progress = _begin(job, replica, marks_of_run, place, regroup)
        is_open.set()
        if job.resume:
            writer = _opened(place, "records", lambda: _continued(job, progress.step, regroup))
        if writer:
            writer.update(num_steps=job.expected_steps, last_step=job.last_step)
            _leave_tokenizer(material, job)
        hosts, gpus = _machines(mesh)
        meter = gpu_meter(gpus) if writer and len(set(hosts)) == 1 else None
        links = _links_of(job, mesh, hosts, regroup) if is_writer else None
        logbook = Logbook(job, writer, log, meter=meter, links=links)
        resumed_step = progress.step if job.resume and not (regroup and regroup.taken) else None
        saves = Saves(
            job,
            replica,
            marks_of_run,
            resumed_step,
            store=place.control,
            is_hurried=lambda: stop.is_asked,
            is_cut=regroup.is_cut if regroup else bool,
            check=_check_of(mirror),
        )
        if writer and not job.resume and not regroup:
            begun_s = time.monotonic() - writer.time_s  # the ledger of a new run begins when its folder is created
        limit = Limit(job.budget if is_writer else None, begun_s, job.plan.step_s, num_ahead=2 if replica.is_late else 0)
        parts = Parts(
            job=job,
            replica=replica,
            material=material,
            saves=saves,
            logbook=logbook,
            watch=watch,
            stop=stop,
            limit=limit,
            tracer=Tracer(job.trace_from, job.last_step, job.folder, mesh) if job.trace_from > progress.step else None,
            keeping=regroup.keep(replica, progress, job, lambda: saves.is_busy) if regroup else None,
        )
        if regroup is None or regroup.is_first:
            logbook.begun(progress, time.monotonic() - begun_s, replica.attention, num_groups=mesh.num_groups, groups_s=mesh.making_s)
        if regroup is not None:
            logbook.make_up(regroup.carry.unwritten, progress)
            regroup.carry.unwritten = None
            logbook.regrouped(progress, begun_s, regroup.membership(job, progress))
        log.init_stop()
        log.run_start()
        may_owe = job.resume and not (regroup and regroup.is_planned)
        owed = agreed(place, "evaluation", lambda: OWED if owes_evaluation(job, progress) else "") if may_owe else ""
        return _steps(parts, progress, place, regroup, owes=owed == OWED)


def _machines(mesh: Mesh) -> tuple[list[str], list[str]]:
    """The host and the GPU of each rank, by rank. All ranks must call it, because they tell each other."""
    texts = everyones_texts(f"{socket.gethostname()} {gpu_name(mesh.device)}", MOST_HOST_BYTES, mesh.device)
    hosts, _, gpus = zip(*(text.partition(" ") for text in texts), strict=True)
    return list(hosts), list(gpus)


def _links_of(job: TrainingJob, mesh: Mesh, hosts: Sequence[str], regroup: Regroup | None) -> SlowLinks:
    """The detector of slow links."""
    domains = [tier.num_accelerators for tier in job.plan.cluster]
    seats = seats_of(job.plan.layout, mesh.layout, regroup.announced.replicas) if regroup else ()
    return SlowLinks(mesh.layout, hosts, domains, within_hosts=mesh.device.type == "cuda", seats=seats)


def owes_evaluation(job: TrainingJob, progress: Progress) -> bool:
    """Whether the run was stopped after a step that an evaluation follows, and before the evaluation."""
    if not progress.step or not job.plan.workload.is_evaluated_after(progress.step, job.last_step):
        return False
    return all(event.kind != "evaluation" or event.step != progress.step for event in read_run(job.folder).events)


def _steps(parts: Parts, progress: Progress, place: Place, regroup: Regroup | None, *, owes: bool) -> str:
    """All steps, the last checkpoint, and the record of how the run ended; how it ended."""
    job, stop, logbook = parts.job, parts.stop, parts.logbook
    try:
        status = train(parts, progress, owes_evaluation=owes)
        if status == CHANGED:
            assert parts.keeping is not None, "only a run whose replicas may change is asked to"
            parts.keeping.hand_in(progress)
            logbook.saves(progress, parts.saves.close(START_PATIENCE_S))
            logbook.leave(keeps_records=True)
            parts.keeping.carry.writer = logbook.writer
            return status
        why = _why_stopped(parts, progress, place) if status == "stopped" else ""
        if job.saves_at_end:
            is_hurried = why == BY_SIGNAL or stop.is_asked
            _save_last(parts, progress, place, stop.left_s(job.grace_s) if is_hurried else START_PATIENCE_S)
    except BaseException as error:
        with suppress(MeshwrightError, OSError):  # the first failure is reported
            if regroup and regroup.survives(error):
                parts.saves.abandon("a replica was lost")
                regroup.carry.unwritten = logbook.leave()
            else:
                logbook.finish(progress, "failed")
        raise
    if status == "stopped":
        logbook.event("stopped", progress, reason="signal" if why == BY_SIGNAL else "budget", message=why)
    logbook.finish(progress, status)
    return status


@contextmanager
def _recorded(job: TrainingJob, place: Place, recorder: Recorder, regroup: Regroup | None) -> Iterator[None]:
    """Record a failure inside the block, if no parent process will and the folder is ours: an event with this rank, and the status.

    What the rank waits for is written in any case, if something unforeseen failed.
    """
    try:
        yield
    except BaseException as error:
        if regroup and regroup.survives(error):
            raise
        if not isinstance(error, MeshwrightError):
            recorder.write_after_error()
        is_reported = isinstance(error, ReportedElsewhere) or (isinstance(error, Unsound) and place.rank > 0)  # all ranks raise that one
        if recorder.is_open.is_set() and not place.has_parent and not is_reported:
            is_cause, message = explain_failure(error, place.rank)
            if not is_cause:
                raise _lost(job, place, recorder) from error
            what = f"{type(error).__name__}: {error}" if isinstance(error, MeshwrightError) else message.removeprefix("meshwright: ")
            words = "" if isinstance(error, MeshwrightError) else recorder.words(range(place.num_ranks), TRACES_S)
            detail = {"flight": words} if words else {}
            record_end(job.folder, "exception", place.rank, what.partition("\n")[0], **detail)
        raise


def _lost(job: TrainingJob, place: Place, recorder: Recorder) -> Exception:
    """The error for a lost connection. The first rank that notices finds out who has gone, and records it; the others stay silent."""
    if not notices_first(place.store, place.rank):
        return ReportedElsewhere("another rank reports who has gone")
    gone = gone_ranks(place)
    message = loss_in_words(place.rank, gone)
    words = recorder.words(range(place.num_ranks), TRACES_S)
    detail = {"flight": words} if words else {}
    record_end(job.folder, "connection", gone[0] if len(gone) == 1 else None, message, gone=gone, noticed_by=place.rank, **detail)
    return ConnectionLost(message)


def _why_stopped(parts: Parts, progress: Progress, place: Place) -> str:
    """Why the run stops early, on every rank. Only rank 0 knows the budget; after a signal there is less time to save."""
    budget, limit = parts.job.budget, parts.limit
    if budget is None:
        return BY_SIGNAL
    return agreed(place, "stop", lambda: parts.logbook.over_budget(progress, budget, limit.spent_usd) if limit.is_passed else BY_SIGNAL)


def _save_last(parts: Parts, progress: Progress, place: Place, left_s: float) -> None:
    """Save the last state within a time limit. A failure is an error, which rank 0 reports for all ranks."""
    saves, until_s = parts.saves, time.monotonic() + left_s
    with parts.watch.allow(START_PATIENCE_S, "the last checkpoint"):
        last = saves.save_now(progress, left_s)
        parts.logbook.saves(progress, [*saves.close(max(until_s - time.monotonic(), 0.0)), *([last] if last else [])])
    if last and last.failure:
        kind = ReportedElsewhere if place.rank else CheckpointError
        raise kind(
            f"the last checkpoint, of step {progress.step}, was not saved: {last.failure.what}",
            where=last.failure.where,
            fix=last.failure.fix or "continue from the one before: --resume",
        )


def _begin(job: TrainingJob, replica: Replica, now: dict[str, str], place: Place, regroup: Regroup | None) -> Progress:
    """Take over the state that other ranks have in memory, set the first weights, or load those of the newest complete checkpoint."""
    if job.plan.workload.adapters:
        replica.fill_base(_base_weights(job))
    choice = regroup.take_over(replica, job) if regroup else None
    if choice is not None:
        return Progress(step=choice.step, samples=choice.samples)
    if not job.resume:
        replica.fill_weights(_first_weights(job))
        return Progress()
    refused: dict[str, str] = {}  # damaged checkpoints; every rank has the same list
    while name := agreed(place, f"checkpoint/{len(refused)}", lambda: _found(job, now, refused)):
        manifest = _read_together(replica, job.checkpoints / name, place)
        if isinstance(manifest, Manifest):
            if place.rank == 0:
                _say_continuing(job, refused)
            restore(replica, manifest)
            return Progress(step=manifest.step, samples=int(manifest.scalars["samples"]))
        refused[name] = manifest
    replica.fill_weights(_first_weights(job))
    return Progress()


def _read_together(replica: Replica, path: Location, place: Place) -> Manifest | str:
    """The manifest of a checkpoint that every rank has read its part of; or what is damaged in it, the same text on every rank."""
    manifest, damage = None, ""
    try:
        manifest = read_state(replica, path, tensor_names(replica), place.num_local_ranks)
    except CheckpointError as error:
        damage = error.what
    found = agreed_by_all(place, f"read/{path.name}", damage)
    return found or manifest or damage


def _found(job: TrainingJob, now: dict[str, str], refused: Mapping[str, str]) -> str:
    """The checkpoint to resume from, checked against this run; empty if there is none and the run may start from the beginning."""
    if job.may_start_over and not has_checkpoint(job):
        print("the run has no checkpoint yet: it starts over", file=progress_stream(job), flush=True)
        return ""
    found = find(job, refused)
    assert found.path is not None
    check_resumable(job, found.path, now)
    return found.path.name


def _say_continuing(job: TrainingJob, refused: Mapping[str, str]) -> None:
    found = find(job, refused)
    assert found.path is not None
    skipped = "".join(f"; skipped {path.name}: {why}" for path, why in found.skipped)
    print(f"continuing from {found.path.name}, the newest complete checkpoint{skipped}", file=progress_stream(job), flush=True)


def _first_weights(job: TrainingJob) -> Callable[[Piece], None]:
    """What the trained weights are at the start: the model's own, adapters from a folder, or new ones."""
    if job.adapter is not None:
        return load_peft(job.adapter, job.plan.model).fill
    if job.start_from is None or job.plan.workload.adapters:
        return initial_weights(job.plan.model, job.seed)
    return _base_weights(job)


def _base_weights(job: TrainingJob) -> Callable[[Piece], None]:
    """The weights of the model that a run starts from, or beside which it trains adapters."""
    if job.start_from is None:
        return initial_weights(job.plan.model, job.seed)
    _, source = weights_in(job.start_from)
    return lambda piece: source.fill(piece.name.partition("/")[2], piece.shape, piece.start, piece.tensor)


@contextmanager
def _locked(job: TrainingJob, place: Place, waits_s: float) -> Iterator[Mirror | None]:
    """Lock the run folder, and its place in object storage if it has one. If another process writes it, no rank continues.

    Rank 0 gets the copying of the records to object storage, which renews that lock. After a fault it waits so long for a rank that was
    ended on another node, and still holds the lock.
    """
    with ExitStack() as held:
        mirrors: list[Mirror] = []

        def take() -> str:
            held.enter_context(RunLock.take(job.folder, waits_s))
            if job.remote:
                mirrors.append(mirror_of(job.folder, job.remote / job.name))
                held.callback(say_unstored, job.folder, job.remote / job.name, mirrors[0])
            return str(job.folder)

        agreed(place, "lock", take)
        yield mirrors[0] if mirrors else None


def _check_of(mirror: Mirror | None) -> Callable[[], None]:
    """What rank 0 checks before it completes a checkpoint: that no other process has taken over the run."""
    return mirror.lease.check if mirror else lambda: None


def _opened(place: Place, what: str, open_run: Callable[[], RunWriter]) -> RunWriter | None:
    """The writer of the run, on rank 0. If the folder cannot be written, no rank continues."""
    writers: list[RunWriter] = []

    def open_it() -> str:
        writers.append(open_run())
        remove_traces(writers[0].folder)
        opened(place.control)
        return str(writers[0].folder)

    agreed(place, what, open_it)
    return writers[0] if writers else None


def _open_run(job: TrainingJob, machine: str) -> RunWriter:
    training = job.training
    header = RunHeader(
        name=job.name,
        kind="trained",
        seed=job.seed,
        num_ranks=job.plan.layout.num_ranks,
        machine=machine,
        sequence_length=job.plan.workload.seq_len,
        target=training.target_loss or None,
        num_steps=job.expected_steps,
        last_step=job.last_step,
        plan_file=job.plan.name,
        arguments=job.arguments,
    )
    return RunWriter.create(job.runs, header, job.plan_text)


def _continued(job: TrainingJob, step: int, regroup: Regroup | None) -> RunWriter:
    """The writer of a run that goes on. Records that this command wrote a moment ago are no wrong input: their disk has failed."""
    held = regroup.kept_writer(step) if regroup else None
    if held is not None:
        return held
    try:
        return RunWriter.resume(job.folder, step, job.plan_text)
    except InputError as error:
        if job.after is None and (regroup is None or regroup.is_first):
            raise
        raise RecordsLost(error.what, where=error.where, fix=error.fix) from None


def _leave_tokenizer(material: Material, job: TrainingJob) -> None:
    """Copy the tokenizer into the run folder, so that the folder is complete."""
    for name, content in material.files.items():
        write_whole(job.folder / name, content)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def _reporter(job: TrainingJob, recorder: Recorder) -> Callable[[Diagnosis], None]:
    """What the watchdog does with its diagnosis: write it to the events and to standard error, with what the flight recorders say."""

    def report(found: Diagnosis) -> None:
        words = ""
        with suppress(MeshwrightError, OSError):  # the message must be printed even if the event cannot be written
            words = recorder.words((*found.waiting, *found.culprits), TRACES_S)
            if recorder.is_open.is_set():
                detail = {"message": found.text, **({"flight": words} if words else {})}
                append_event(job.folder, Event(time_s=elapsed_s(job.folder), kind="stall", step=found.step, detail=detail))
                set_status(job.folder, "failed")
        print(f"meshwright: {found.text}{flight_line(words)}", file=sys.stderr, flush=True)

    return report
