"""Whose accelerators a stack drives."""

from __future__ import annotations

from meshwright.plan.stack.rule import Asked, JobRule, Stack

VENDORS = ("NVIDIA", "AMD")  # whose accelerators the public stacks drive through torch and NCCL (or RCCL)


def _is_foreign(asked: Asked) -> bool:
    return asked.cluster is not None and asked.cluster.accelerator.vendor not in VENDORS


GPUS = (
    JobRule(
        what="does not run on {asked.cluster.accelerator.name} of {asked.cluster.accelerator.vendor}",
        where="cluster.accelerator",
        fix=f"plan for accelerators of {' or '.join(VENDORS)}",
        source="the stacks' own installation guides: CUDA or ROCm builds of PyTorch",
        forbids=_is_foreign,
    ),
)


def check_vendor(title: str, asked: Asked) -> None:
    """Raise where the accelerators are of a vendor that none of these programs knows."""
    Stack(name="", title=title, job_rules=GPUS).check_job(asked)
