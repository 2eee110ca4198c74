"""One process of a run whose replicas come and go, through all generations that it takes part in."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import torch.distributed as dist

from meshwright.train.agreement import check_shared
from meshwright.train.checks import check_job
from meshwright.train.elastic.carry import Carry, Uncovered
from meshwright.train.elastic.member import ANSWER_S, BOUNDARY, HANG, LOST, READY, UNCOVERED, Announcement, Member, Missing, wait_for_all
from meshwright.train.elastic.regroup import Regroup
from meshwright.train.health.signals import StopSignal
from meshwright.train.incidents import Incident
from meshwright.train.job import TrainingJob
from meshwright.train.loop import CHANGED
from meshwright.train.membership import layout_with
from meshwright.train.session import run_rank

LEAST_MEETING_S = 15.0  # in which the ranks of a generation must come: one that computes notices nothing before its next exchange


def run_member(member: Member, job: TrainingJob, is_gpu: bool) -> None:
    """Train in every generation that this process belongs to, until the run is over or the process is told to leave."""
    member.listen()
    material, carry, stop = check_job(job), Carry(), StopSignal()
    member.say(READY)
    announced = member.next()
    while announced is not None:
        regroup = Regroup(member=member, announced=announced, carry=carry, material=material, stop=stop)
        try:
            if _run(regroup, job, is_gpu) != CHANGED:
                return
            member.say(BOUNDARY, str(carry.holdings[0].progress.step))
        except Uncovered as error:
            if member.newest == member.current:
                member.say(UNCOVERED, str(error.what))
        except Missing as error:
            if member.newest == member.current:
                member.say(HANG, json.dumps({"text": str(error), "ranks": error.ranks, "generation": member.current}))
        except Exception as error:
            if not regroup.survives(error):
                raise
            if member.newest == member.current:
                member.say(LOST, f"{member.current} {error}".partition("\n")[0][:200])
        _leave_groups()
        announced = member.next(ANSWER_S)


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
    wait_for_all(place, max(LEAST_MEETING_S, job.stall_timeout_s))
    if regroup.is_first and regroup.member.has_others:  # any node may come to write the records
        check_shared(place, job.remote or job.runs)
    return run_rank(place, now, is_gpu, regroup)


def _incident(announced: Announcement) -> Incident | None:
    """What broke before this generation."""
    return None if announced.incident is None else Incident.from_json(announced.incident)


def _leave_groups() -> None:
    """Destroy the process groups of a generation that is over."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
