"""A plan in the words of other people's stacks, one file per stack.

Each file says at its top which plan it came from and what the stack cannot express; what would run as something else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, argument, nearest
from meshwright.files import write_whole
from meshwright.plan.export import deepspeed, hostfile, megatron, megatron_bridge, torchtitan
from meshwright.plan.features import Features
from meshwright.plan.plan import Plan

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

# What each file is called where all are written into one folder.
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
# What a stack can run of the choices that a search opens. Combinations that it refuses beside these are named when the file is made.
RUNS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "megatron": {"schedules": ("1f1b", "interleaved")},
    "megatron-bridge": {"schedules": ("1f1b", "interleaved")},
    "torchtitan": {"cp_kinds": tuple(torchtitan.ROTATION)},
    "deepspeed": {"schedules": ("1f1b",), "cp_kinds": ("all-to-all",)},
}
VENDORS = ("NVIDIA", "AMD")  # whose accelerators these stacks drive through torch and NCCL (or RCCL)


def runnable(features: Features, kinds: Iterable[str]) -> tuple[Features, str]:
    """The features that the stacks of all these exports have, and in words what that leaves out; empty where it is nothing."""
    left_out: list[str] = []
    for kind in kinds:
        for key, able in RUNS.get(kind, {}).items():
            open_before: tuple[str, ...] = getattr(features, key)
            kept: dict[str, Any] = {key: tuple(choice for choice in open_before if choice in able)}
            if not kept[key]:
                raise InputError(
                    f"no {key.replace('_', ' ')} are left that {' and '.join(kinds)} all run",
                    where=argument("export"),
                    fix="plan for one stack at a time",
                )
            left_out += [f"{choice} ({kind} has none)" for choice in open_before if choice not in able]
            features = replace(features, **kept)
    return features, ", ".join(left_out)


def export(plan: Plan, kind: str, path: Path, hosts: Sequence[str] = ()) -> None:
    """Write the plan for a stack; `hosts` names the nodes in the order of the machine where the file names any."""
    write_whole(path, exported(plan, kind, hosts))


def exported(plan: Plan, kind: str, hosts: Sequence[str] = ()) -> str:
    """The plan for a stack, as text."""
    if kind not in EXPORTS:
        raise InputError(f"no export named {kind!r}", where="export", fix=nearest(kind, EXPORTS))
    if plan.cluster.accelerator.vendor not in VENDORS:
        raise InputError(
            f"these stacks do not run on {plan.cluster.accelerator.name} of {plan.cluster.accelerator.vendor}",
            where="cluster.accelerator",
            fix=f"export plans for accelerators of {' or '.join(VENDORS)}",
        )
    return PLACED[kind](plan, hosts) if hosts and kind in PLACED else EXPORTS[kind](plan)
