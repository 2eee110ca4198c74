"""Which stack a plan is for: the named one, those of the exports, or one that can run the job."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.job import Job
from meshwright.plan.candidates import Fixed
from meshwright.plan.search import has_layout
from meshwright.plan.stack import ANY, asked_of, candidates, joint, stack_named, with_stack
from meshwright.plan.stack.rule import Stack


def chosen_stack(job: Job, name: str, fixed: Fixed, also: Sequence[Stack] = ()) -> tuple[Job, Stack]:
    """The stack to plan for, and the job priced as such software; `also` are stacks that must run the plan too.

    If no stack is named, the first that can run the job with its fixed choices is used, beginning with the stack of its software. If no
    stack can, the plan is for no stack in particular.
    """
    named = [stack_named(name)] if name else []
    wanted = [stack_named(one) for one in dict.fromkeys(stack.name for stack in (*named, *also)) if one != ANY.name]
    if wanted:
        for stack in wanted:
            stack.check_job(asked_of(job))
        return (with_stack(job, wanted[0]) if named else job), joint(wanted)
    if name:
        return job, ANY
    return job, next((stack for stack in candidates(job) if not fixed.values or has_layout(job, fixed, stack)), ANY)
