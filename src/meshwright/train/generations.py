"""One process of a run whose replicas come and go, through all generations that it takes part in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch.distributed as dist

from meshwright.train.agreement import check_shared
from meshwright.train.checks import check_job
from meshwright.train.elastic.carry import Carry, Uncovered
from meshwright.train.elastic.member import (
    ANSWER_S,
    BOUNDARY,
    COME,
    LOST,
    READY,
    UNCOVERED,
    Announcement,
    Member,
    abort_communicators,
    wait_for_all,
)
from meshwright.train.elastic.regroup import Regroup
from meshwright.train.health.signals import StopSignal
from meshwright.train.incidents import Incident
from meshwright.train.job import TrainingJob
from meshwright.train.loop import CHANGED
from meshwright.train.membership import layout_with
from meshwright.train.session import run_rank


def run_member(member: Member, made: Callable[[], TrainingJob], is_gpu: bool) -> None:
    """Train in every generation that this process belongs to, until the run is over or the process is told to leave.

    `made` makes the job, in this process and while it shows signs of life: that may read a corpus from far away.
    """
    member.is_gpu = is_gpu
    member.listen()
    job = made()
    material, carry, stop = check_job(job), Carry(), StopSignal()
    member.say(READY)
    announced = member.next()
    while announced is not None:
        regroup = Regroup(member=member, announced=announced, carry=carry, material=material, stop=stop)
        stays = False  # in its groups until all have come to the boundary
        try:
            if _run(regroup, job, is_gpu) != CHANGED:
                return
            stays = is_gpu
            member.say(BOUNDARY, str(carry.holdings[0].progress.step))
        except Uncovered as error:
            if member.newest == member.current:
                member.say(UNCOVERED, str(error.what))
        except Exception as error:
            if not regroup.survives(error):
                raise
            if member.newest == member.current:
                member.say(LOST, f"{member.current} {error}".partition("\n")[0][:200])
        if not stays:
            _leave_groups(is_gpu)
        announced = member.next(ANSWER_S)
        if stays:
            _leave_groups(is_gpu)


def _run(regroup: Regroup, job: TrainingJob, is_gpu: bool) -> str:
    """One generation; how it ended."""
    announced = regroup.announced
    layout = layout_with(job.plan.layout, len(announced.replicas))
    now = replace(
        job,
        dp=layout.dp,
        resume=job.resume or not regroup.is_first,
        after=_incident(announced) or (job.after if regroup.is_first else None),
    )
    place = regroup.member.place(announced, layout)
    if place.rank == 0 and not regroup.is_first and not regroup.carry.holdings:  # newcomers are last, so no rank has a state
        raise Uncovered("no rank has a state yet", where="the start of the run", fix="start the ranks again")
    regroup.member.say(COME, str(announced.generation))
    wait_for_all(place)
    if regroup.is_first and regroup.member.has_others:  # any node may come to write the records
        check_shared(place, job.remote or job.runs)
    return run_rank(place, now, is_gpu, regroup)


def _incident(announced: Announcement) -> Incident | None:
    """What broke before this generation."""
    return None if announced.incident is None else Incident.from_json(announced.incident)


def _leave_groups(is_gpu: bool) -> None:
    """Destroy the process groups of a generation that is over.

    NCCL destroys a communicator together with all ranks of the machine, and one of them may have gone. So it is aborted, in which no other
    rank takes part. After a step boundary that is done once all ranks wait there: then no kernel reads any more what this rank frees.
    """
    if is_gpu:
        abort_communicators()
    elif dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
