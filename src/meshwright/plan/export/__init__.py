"""A plan as files for other stacks, one module per stack.

Each file says at its top which plan it came from and what the stack cannot express. A plan that the stack would run differently is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meshwright.errors import InputError, nearest
from meshwright.files import write_whole
from meshwright.plan.export import deepspeed, hostfile, megatron, megatron_bridge, torchtitan
from meshwright.plan.plan import Plan
from meshwright.plan.stack.rule import Asked
from meshwright.plan.stack.vendors import check_vendor

PLACED: Mapping[str, Callable[[Plan, Sequence[str]], str]] = {
    "hostfile": hostfile.host_file,
    "hostfile-pp-last": hostfile.host_file_pp_last,
    "rankfile": hostfile.rank_file,
    "rankfile-pp-last": hostfile.rank_file_pp_last,
    "environment": hostfile.environment,
}


def _on_placeholders(kind: str) -> Callable[[Plan], str]:
    return lambda plan: PLACED[kind](plan, ())


EXPORTS: Mapping[str, Callable[[Plan], str]] = {
    "megatron": megatron.arguments,
    "megatron-bridge": megatron_bridge.overrides,
    "torchtitan": torchtitan.job_file,
    "deepspeed": deepspeed.configuration,
    **{kind: _on_placeholders(kind) for kind in PLACED},
}

# The name of each file when all are written into one folder.
FILE_NAMES: Mapping[str, str] = {
    "megatron": "megatron-args.sh",
    "megatron-bridge": "megatron-bridge.yaml",
    "torchtitan": "torchtitan.toml",
    "deepspeed": "deepspeed.json",
    "hostfile": "hostfile",
    "hostfile-pp-last": "hostfile-pp-last",
    "rankfile": "rankfile",
    "rankfile-pp-last": "rankfile-pp-last",
    "environment": "environment.sh",
}


def export(plan: Plan, kind: str, path: Path, hosts: Sequence[str] = ()) -> None:
    """Write the plan for a stack; `hosts` names the nodes in the order of the machine, for files that name nodes."""
    write_whole(path, exported(plan, kind, hosts))


def exported(plan: Plan, kind: str, hosts: Sequence[str] = ()) -> str:
    """The plan for a stack, as text."""
    if kind not in EXPORTS:
        raise InputError(f"no export named {kind!r}", where="export", fix=nearest(kind, EXPORTS))
    if kind in PLACED:
        check_vendor("a launcher of ranks", Asked(plan.model, plan.workload, plan.cluster))
    return PLACED[kind](plan, hosts) if hosts and kind in PLACED else EXPORTS[kind](plan)
