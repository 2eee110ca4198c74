"""A run that keeps going on several nodes: one supervisor on each of them, of which the one of node 0 leads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.cli.train_arguments import Wishes
from meshwright.cli.train_run import Verb, check_place, check_with_torch, is_over, local_ranks, node_sizes, on_gpus, secret_of, settled
from meshwright.errors import InputError, TooFewNodesError

if TYPE_CHECKING:
    from meshwright.train.elastic.follower import Meeting
    from meshwright.train.elastic.member import Member
    from meshwright.train.elastic.nodes import Nodes
    from meshwright.train.job import TrainingJob

MOST_PORT = 65535
EXIT_FAILED = 1
OF_ONE_NODE = ("option resume", "option after", "option may_start_over")  # the leading supervisor says whether the run goes on


@dataclass(slots=True)
class Met:
    """The nodes of a run, and the exit status with which it ends."""

    nodes: Nodes
    code: int = EXIT_FAILED


def checked(wishes: Wishes) -> tuple[str, int]:
    """The host and the port at which the supervisors meet; an error if the command cannot be meant for several nodes."""
    if not wishes.meet:
        where = f"--node {wishes.node}" if wishes.node else "--nodes"
        raise InputError("where do the nodes meet?", where=where, fix="name an address of node 0: --meet HOST:PORT, and --nodes N")
    host, _, port = wishes.meet.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= MOST_PORT):
        raise InputError("not a host and a port", where=f"--meet {wishes.meet}", fix="write them as HOST:PORT, such as 10.0.0.1:29400")
    if not wishes.keep_going:
        fix = "add --keep-going; or start the ranks with torchrun on every node, and leave --nodes, --node and --meet out"
        raise InputError("only a run that keeps going has a supervisor on each node", where="--meet", fix=fix)
    if not wishes.name:
        raise InputError("supervisors of several nodes need the run's name", where="--name", fix="add --name NAME, the same on every node")
    return host, int(port)


@contextmanager
def met(wishes: Wishes, job: TrainingJob) -> Iterator[Met]:
    """All nodes of a run, once they have come and would train the same; they are told how it ended."""
    from meshwright.cli.keep_going import replicas_may_go
    from meshwright.train.elastic.nodes import Nodes

    if not replicas_may_go(job):
        raise InputError(
            f"replicas of {job.plan.model.name} cannot come and go: ranks of several replicas share its experts",
            where="--keep-going",
            fix="start the ranks with torchrun on every node (--max-restarts N), and leave --keep-going and --meet out",
        )
    host, port = checked(wishes)
    sizes = node_sizes(job.plan, wishes.nodes)
    nodes = Nodes(sizes, host, port, secret_of(wishes), _facts(job), job.stall_timeout_s, wishes.rendezvous_timeout_s)
    found = Met(nodes)
    nodes.open()
    try:
        print(f"meshwright: waiting for {len(sizes) - 1} other nodes at {wishes.meet}", file=sys.stderr, flush=True)
        nodes.meet()
        yield found
    except InputError:
        found.code = 2
        raise
    except TooFewNodesError as error:
        found.code = error.EXIT_STATUS
        raise
    finally:
        nodes.close(found.code)


def follow_run(wishes: Wishes, verb: Verb) -> int:
    """Supervise the ranks of a node that does not lead; the exit status."""
    from meshwright.train.checks import check_job

    host, port = checked(wishes)
    secret = secret_of(wishes)
    wishes = settled(wishes)
    try:
        job = verb.job_of(wishes)
        if is_over(wishes):  # node 0 finds the same, and does not wait for anybody
            return 0
        is_gpu = on_gpus(job.plan)
        check_job(job, reads_corpus=True)
        check_place(job.plan, job.plan.layout.num_ranks, is_gpu, job.ranks_per_gpu, local_ranks(job.plan, wishes))
        check_with_torch(replace(job, resume=False))
    except InputError as error:
        from meshwright.train.elastic.follower import report_trouble

        report_trouble(_meeting(wishes, host, port, secret, {}), error)
        raise
    from meshwright.train.elastic.follower import follow

    return follow(_meeting(wishes, host, port, secret, _facts(job)), _bodies(wishes, verb, job, is_gpu), job.stall_timeout_s)


def _meeting(wishes: Wishes, host: str, port: int, secret: bytes, facts: Mapping[str, str]) -> Meeting:
    from meshwright.train.elastic.follower import Meeting

    return Meeting(host=host, port=port, node=wishes.node, secret=secret, timeout_s=wishes.rendezvous_timeout_s, facts=facts)


def _facts(job: TrainingJob) -> dict[str, str]:
    """What must be the same on all nodes."""
    from meshwright.train.agreement import facts_of
    from meshwright.train.checks import check_job

    return {key: value for key, value in facts_of(job, check_job(job).digest).items() if key not in OF_ONE_NODE}


def _bodies(wishes: Wishes, verb: Verb, job: TrainingJob, is_gpu: bool) -> Callable[[Mapping[str, Any]], Callable[[Member], None]]:
    """What a rank does, by the terms under which the leading supervisor starts it.

    The rank itself finds out what the job is now: that may take long, and the supervisor of a node must show signs of life meanwhile.
    """
    from meshwright.train.generations import run_member
    from meshwright.train.incidents import Incident

    def body(terms: Mapping[str, Any]) -> Callable[[Member], None]:
        after = Incident.from_json(terms["after"]) if terms["after"] else None

        def made() -> TrainingJob:
            return replace(_job_now(wishes, verb, job, terms), resume=bool(terms["resume"]), after=after)

        return lambda member: run_member(member, made, is_gpu)

    return body


def _job_now(wishes: Wishes, verb: Verb, job: TrainingJob, terms: Mapping[str, Any]) -> TrainingJob:
    """The job as it is now: a run that goes on has spent a part of its budget."""
    if not terms["resume"]:
        return job
    return verb.job_of(settled(replace(wishes, resume=False, resume_if_exists=True)))
