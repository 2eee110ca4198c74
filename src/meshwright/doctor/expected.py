"""What a node should have: from the plan's cluster, or from the description of the machine at hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.this_machine import NAME as THIS_MACHINE
from meshwright.plan.plan import Plan

LEAST_VERSION = re.compile(r"(?P<name>[\w-]+)\s*>=\s*(?P<version>[\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is described of a node and of the network. None where nobody describes it: then ranks are compared with each other only."""

    words: str  # who says so: `plan NAME`, `this machine's description`
    needs_gpus: bool = False
    accelerator: str = ""
    gpus_per_node: int = 0
    flops_per_s: float | None = None  # of a GPU in bf16; of all cores of a node in fp32
    bytes_per_s: float | None = None  # of a GPU's memory; of a copy by one core
    gpu_memory_bytes: float | None = None
    power_cap_w: float | None = None
    host_bytes: float | None = None  # of host memory that the plan's ranks on a node take, where they run on cores
    tiers: tuple[Tier, ...] = ()


def expected_of(cluster: Cluster, words: str, plan: Plan | None = None) -> Expected:
    """What a cluster describes; with a plan, also what it needs."""
    chip = cluster.accelerator
    if chip.architecture == "cpu":
        return _of_cores(cluster, words, plan)
    num_ranks = plan.layout.num_ranks if plan else cluster.num_accelerators
    return Expected(
        words=words,
        needs_gpus=True,
        accelerator=chip.name,
        gpus_per_node=min(cluster.used_per_node, num_ranks),
        flops_per_s=chip.dense_flops_per_s.get("bf16"),
        bytes_per_s=chip.memory_bytes_per_s,
        gpu_memory_bytes=chip.room_bytes,
        power_cap_w=chip.power_cap_w if chip.power_cap_w == chip.power_cap_w else None,
        tiers=cluster.tiers,
    )


def _of_cores(cluster: Cluster, words: str, plan: Plan | None) -> Expected:
    """Of a node without GPUs. Racks that this machine stands for are all on it: their shares together are the machine."""
    chip = cluster.accelerator
    shares = cluster.num_accelerators if cluster.name.startswith(THIS_MACHINE) else cluster.accelerators_per_node
    return Expected(
        words=words,
        accelerator=chip.name,
        flops_per_s=chip.dense_flops_per_s.get("tf32", 0.0) * shares or None,
        bytes_per_s=chip.memory_bytes_per_s * shares,
        host_bytes=plan.peak_memory_bytes * min(shares, plan.layout.num_ranks) if plan else None,
    )


def least_versions() -> dict[str, tuple[int, ...]]:
    """Oldest versions that meshwright runs with, by package, as its own metadata states them."""
    try:
        lines = requires("meshwright") or []
    except PackageNotFoundError:
        return {}
    found = [LEAST_VERSION.match(line) for line in lines]
    return {one["name"]: version_of(one["version"]) for one in found if one}


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them: 2.13.0+cpu is (2, 13, 0)."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
