"""Software stacks: what each can run (`rule`), who can run a plan, and which stack is planned for where nobody says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, argument, nearest
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.plan.stack.deepspeed import DEEPSPEED
from meshwright.plan.stack.megatron import BRIDGE, MEGATRON
from meshwright.plan.stack.own import MESHWRIGHT
from meshwright.plan.stack.rule import CHOICES, Asked, Stack
from meshwright.plan.stack.torchtitan import TORCHTITAN
from meshwright.predict import practice
from meshwright.predict.software import software

ANY = Stack(name="any", title="some stack")
STACKS: Mapping[str, Stack] = {stack.name: stack for stack in (MEGATRON, BRIDGE, TORCHTITAN, DEEPSPEED, MESHWRIGHT)}
NAMES = (*STACKS, ANY.name)
# The stack that software of a class is, for jobs whose user names none.
OF_CLASS: Mapping[str, str] = {
    practice.MLPERF: "megatron",
    practice.NEMO: "bridge",
    practice.MEGATRON: "megatron",
    practice.TORCHTITAN: "torchtitan",
    practice.FSDP: "deepspeed",
    practice.MESHWRIGHT: "meshwright",
}


def asked_of(job: Job) -> Asked:
    """What a job asks of a stack."""
    return Asked(job.model, job.workload, job.cluster)


def stack_named(name: str) -> Stack:
    """The stack that `--stack` names."""
    if name == ANY.name:
        return ANY
    if name not in STACKS:
        raise InputError(f"no stack named {name!r}", where=argument("stack"), fix=nearest(name, NAMES))
    return STACKS[name]


def stack_of_export(kind: str) -> Stack | None:
    """The stack that a kind of export is for; None for files that any stack may use."""
    return next((stack for stack in STACKS.values() if stack.export == kind), None)


def joint(stacks: Sequence[Stack]) -> Stack:
    """What all of these stacks run."""
    if len(stacks) == 1:
        return stacks[0]
    first, title = stacks[0], " and ".join(stack.title for stack in stacks)
    shared: dict[str, Any] = {
        key: tuple(one for one in getattr(first, key) if all(one in getattr(stack, key) for stack in stacks)) for key in CHOICES
    }
    for key, left in shared.items():
        if not left:
            raise InputError(
                f"no {key.replace('_', ' ')} are left that {title} all have", where=argument("export"), fix="plan for one stack at a time"
            )
    return Stack(
        name="+".join(stack.name for stack in stacks),
        title=f"not every one of {title} runs it:",
        software=first.software,
        **shared,
        switches={key: value for stack in reversed(stacks) for key, value in stack.switches.items()},
        overlaps_single_chunks=all(stack.overlaps_single_chunks for stack in stacks),
        captures_recomputed=all(stack.captures_recomputed for stack in stacks),
        job_rules=tuple(replace(rule, what=f"{stack.title} {rule.what}") for stack in stacks for rule in stack.job_rules),
        rules=tuple(replace(rule, what=f"{stack.title} {rule.what}") for stack in stacks for rule in stack.rules),
        source="; ".join(stack.source for stack in stacks),
    )


def candidates(job: Job) -> list[Stack]:
    """Stacks that can run some layout of a job as it is priced, the likeliest first: the one that its software is, then the others.

    A machine that `meshwright measure` timed was timed with meshwright's own trainer, and a processor is trained on by no other.
    """
    own = bool(job.software.profile) or job.cluster.accelerator.architecture == "cpu"
    first = MESHWRIGHT.name if own else OF_CLASS.get(job.software.kind, MEGATRON.name)
    return [STACKS[name] for name in dict.fromkeys((first, *STACKS)) if not _refuses(STACKS[name], job)]


def _refuses(stack: Stack, job: Job) -> bool:
    return any(rule.forbids(asked_of(job)) for rule in stack.job_rules)


def with_stack(job: Job, stack: Stack) -> Job:
    """The job priced as software of the stack's class, where its user named the stack and no software.

    A benchmark of MLPerf that Megatron-LM or Megatron-Bridge runs stays priced as submissions ran it: those stacks are what submitters use.
    """
    stays = stack in (MEGATRON, BRIDGE) and job.workload.is_mlperf
    if not job.software.is_default or stack.is_any or stays or job.software.profile:
        return job
    return Job(job.model, job.cluster, job.workload, software(stack.software), described=job.described)


def runs_on(job: Job, layout: Layout) -> tuple[str, ...]:
    """Names of the stacks that run a layout as planned."""
    return tuple(name for name, reason in refusals(job, layout).items() if not reason)


def refusals(job: Job, layout: Layout) -> dict[str, str]:
    """By stack, why it does not run a layout as planned; empty where it does."""
    return {name: stack.refusal(asked_of(job), layout) for name, stack in STACKS.items()}
