"""A run that goes on by itself: lost replicas are left out and started again; all ranks are, if nothing else helps."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.train_arguments import Wishes
from meshwright.cli.train_run import Verb, run_once, settled
from meshwright.cli.urls import store_end
from meshwright.errors import InputError
from meshwright.record.request import taken_request
from meshwright.record.run import Run, read_run

if TYPE_CHECKING:
    from meshwright.train.elastic.nodes import Nodes
    from meshwright.train.incidents import Incident, Incidents
    from meshwright.train.job import TrainingJob
    from meshwright.train.launch import Failure

MOST_STARTS = 3  # in a row without a step
STACKS = "stacks"  # a folder of the run


@dataclass(slots=True)
class Faults:
    """The faults of one command, and what becomes of each."""

    job: TrainingJob
    all: Incidents = field(init=False)
    num_starts: int = 0  # that came to nothing

    def __post_init__(self) -> None:
        from meshwright.train.incidents import Incidents

        self.all = Incidents()

    def incident(self, failure: Failure) -> Incident:
        """A failure as an entry of the record."""
        from meshwright.train.incidents import Incident
        from meshwright.train.record.ending import last_step, last_times_s, silent_s

        folder = self.job.folder
        has_begun = (folder / "steps.jsonl").is_file()
        return Incident(
            number=len(self.all.all) + 1,
            reason=failure.reason,
            rank=failure.rank,
            step=last_step(folder) if has_begun else 0,
            message=failure.message,
            noticed_s=failure.noticed_s,
            from_outside=failure.from_outside,
            silent_s=silent_s(folder, failure.noticed_s) if has_begun else 0.0,
            step_times_s=last_times_s(folder) if has_begun else {},
        )

    def judged(self, failure: Failure) -> Incident | str:
        """What is recorded of the loss of a replica; a text says why all replicas must end."""
        if self._is_damaged():
            return "the states of replicas differ: all go back to a checkpoint from before"
        from meshwright.train.incidents import LOSSES

        incident = self.incident(failure)
        return self.all.refusal(incident, LOSSES) or incident

    def _is_damaged(self) -> bool:
        """Whether the replicas found a difference between their states since they began: then no state in memory can be trusted."""
        events = read_run(self.job.folder).events if (self.job.folder / "run.json").is_file() else []
        kinds = [event for event in events if event.kind in ("damage", "membership")]
        return bool(kinds) and kinds[-1].kind == "damage" and kinds[-1].detail.get("what") == "state"


def kept_going(wishes: Wishes, job: TrainingJob, is_gpu: bool, verb: Verb) -> int:
    """Run the replicas, here or on several nodes, until the run ends or nothing helps; the exit status."""
    from meshwright.train.elastic.supervisor import staying

    if not wishes.meet:
        with staying():
            return _kept_going(wishes, job, is_gpu, verb, None)
    from meshwright.cli.several_nodes import met

    with staying(), met(wishes, job) as meeting:
        meeting.code = _kept_going(wishes, job, is_gpu, verb, meeting.nodes)
        return meeting.code


def _kept_going(wishes: Wishes, job: TrainingJob, is_gpu: bool, verb: Verb, nodes: Nodes | None) -> int:
    """Run the replicas; start all ranks again from the newest complete checkpoint if none is left, until the run ends or nothing helps."""
    from meshwright.train.record.ending import record_surrender

    if job.memberships and not replicas_may_go(job):
        raise InputError(
            f"replicas of {job.plan.model.name} cannot come and go: ranks of several replicas share its experts",
            where="--memberships",
            fix="leave it out",
        )
    faults = Faults(job)
    while True:
        code, failure = run_replicas(job, is_gpu, faults, nodes) if replicas_may_go(job) else run_once(job, is_gpu)
        if failure is None or failure.reason == "interrupt" or job.memberships:  # a list of memberships begins with the first step
            return code
        if not (job.folder / "steps.jsonl").is_file() and not _starts_again(faults, failure):
            return code
        incident = faults.incident(failure)
        run = read_run(job.folder) if (job.folder / "run.json").is_file() else None
        message = failure.message if replicas_may_go(job) else _what_broke(run, failure)
        incident = replace(incident, message=message, saved_step=_saved_step(job))
        why = faults.all.refusal(incident)
        if why:
            record_surrender(job.folder, incident, why, faults.all.tried())
            print(f"meshwright: not started again: {why}\n  tried: {faults.all.tried()}", file=sys.stderr)
            return code
        print(f"meshwright: incident {incident.number} at step {incident.step}: the ranks are started again", file=sys.stderr)
        again = replace(wishes, name=job.name, resume=False, resume_if_exists=True)
        faults.job = job = replace(verb.job_of(settled(again)), after=incident)


def replicas_may_go(job: TrainingJob) -> bool:
    """Whether others hold all that a replica holds. Experts may be divided among several replicas: then all ranks are started again."""
    return job.plan.model.experts is None or job.plan.layout.dp == 1


def run_replicas(job: TrainingJob, is_gpu: bool, faults: Faults, nodes: Nodes | None = None) -> tuple[int, Failure | None]:
    """Run the replicas of a job until it ends; the exit status, and why they ended too early."""
    from meshwright.train.elastic.supervisor import Supervisor
    from meshwright.train.generations import run_member
    from meshwright.train.record.ending import record_end

    if nodes is not None:
        nodes.terms = {"resume": job.resume, "after": asdict(job.after) if job.after else None}
    supervisor = Supervisor(
        job.plan.layout,
        lambda member: run_member(member, lambda: job, is_gpu),
        faults.judged,
        lambda: taken_request(job.folder),
        job.memberships,
        job.stall_timeout_s,
        nodes,
        partial(_stacks_kept, job.folder),
    )
    try:
        code, failure = supervisor.run()
        if failure is not None and supervisor.has_opened() and failure.reason != "input":
            record_end(job.folder, failure.reason, failure.rank, failure.message)
        if code and (unstored := store_end(job)):
            print(f"meshwright: {unstored}", file=sys.stderr)
        return code, failure
    finally:
        supervisor.close()


def _stacks_kept(folder: Path, generation: int, rank: int, stacks: str) -> str:
    """Keep the stacks of a rank that came late to a generation or crashed in it; the name of the file, empty if there is none."""
    path = folder / STACKS / f"generation-{generation}-rank-{rank}.txt"
    try:
        if not (folder / "run.json").is_file():  # the folder may be another run's
            return ""
        path.parent.mkdir(exist_ok=True)
        path.write_text(stacks)
    except OSError:  # the fault that is being dealt with may be one of the disk
        return ""
    return str(path.relative_to(folder))


def _starts_again(faults: Faults, failure: Failure) -> bool:
    """Whether a run that was cut off before it had a folder is started again."""
    faults.num_starts += 1
    return failure.reason not in ("input", "interrupt") and faults.num_starts < MOST_STARTS


def _saved_step(job: TrainingJob) -> int:
    """The step of the newest checkpoint; -1 if there is none that can be seen."""
    from meshwright.train.checkpoint.durable import CheckpointError
    from meshwright.train.checkpoint.folder import step_folders

    try:
        return max((found.step for found in step_folders(job.checkpoints)), default=-1)
    except CheckpointError:
        return -1


def _what_broke(run: Run | None, failure: Failure) -> str:
    """What broke, in one line: of a hang, the watchdog's diagnosis."""
    stalls = [event for event in run.events if event.kind == "stall"] if run and failure.reason == "hang" else []
    return str(stalls[-1].detail.get("message", failure.message)) if stalls else failure.message
