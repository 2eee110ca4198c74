"""Changes one value of the cluster or the workload, by the key that its file would use (`fabric.planes=7`, `gpus=7168`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import ROUTINGS, Accelerator
from meshwright.describe.model import Model
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import MOST_BATCH, MOST_IMBALANCE, Workload
from meshwright.errors import InputError, argument, close_names, nearest
from meshwright.units import GB, GBIT, MICROSECOND, TERA

SMALLEST, LARGEST = 1e-24, 1e24  # of a value: beyond them a step's seconds overflow

TierChange = Callable[[Tier, float], Tier]
ChipChange = Callable[[Accelerator, float], Accelerator]


def _planes(tier: Tier, up: float) -> Tier:
    """The tier with only so many of its planes: each carries an even share."""
    if up != int(up) or not 1 <= up <= tier.num_planes:
        raise InputError(
            f"{tier.name} has {tier.num_planes} planes, so {up:g} cannot be up",
            where=argument("changes", f"{tier.name}.planes={up:g}"),
            fix=f"choose from 1 to {tier.num_planes}",
        )
    return replace(tier, bytes_per_s=tier.bytes_per_s * up / tier.num_planes)


TIER_CHANGES: Mapping[str, TierChange] = {
    "planes": _planes,
    "GB_per_s": lambda tier, value: replace(tier, bytes_per_s=value * GB),
    "Gbit_per_s": lambda tier, value: replace(tier, bytes_per_s=value * GBIT),
    "latency_us": lambda tier, value: replace(tier, latency_s=value * MICROSECOND),
}
CHIP_CHANGES: Mapping[str, ChipChange] = {
    "memory_GB": lambda chip, value: replace(chip, memory_bytes=value * GB, driver_memory_bytes=0.0),
    "memory_GB_per_s": lambda chip, value: replace(chip, memory_bytes_per_s=value * GB),
    "power_cap_W": lambda chip, value: replace(chip, power_cap_w=value),
}
WORKLOAD_COUNTS = ("seq_len", "global_batch")
MODEL_KEYS = tuple(each.name for each in fields(Model))
WORKLOAD_KEYS = (*WORKLOAD_COUNTS, "precision", "attention_precision", "num_tokens", "expert_imbalance")


def changed(cluster: Cluster, workload: Workload, assignments: Iterable[str]) -> tuple[Cluster, Workload]:
    """The cluster and the workload with every KEY=VALUE applied; the number of accelerators last, because domains change it too."""
    last: list[tuple[str, str]] = []
    seen: set[str] = set()
    for text in assignments:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise InputError(f"cannot read {text!r}", where=argument("changes"), fix="write KEY=VALUE, such as fabric.planes=7")
        _check_known(key, cluster)
        if key in seen:
            raise InputError(
                f"{key} is set twice", where=argument("changes", text), fix=f"keep one of them: {argument('changes', f'{key}=...')}"
            )
        seen.add(key)
        if key == "gpus":
            last.append((key, value))
        elif key.startswith("workload."):
            workload = _changed_workload(workload, key, value)
        else:
            cluster = _changed_cluster(cluster, key, value)
    for key, value in last:
        cluster = cluster.resized(_count(key, value))
    return cluster, workload


def known_keys(cluster: Cluster) -> list[str]:
    """Every key that may be set for this machine."""
    tiers = [f"{tier.name}.{key}" for tier in cluster for key in (*TIER_CHANGES, "routing", "num_accelerators")]
    chips = [f"accelerator.{key}" for key in (*CHIP_CHANGES, *_format_keys(cluster))]
    return ["gpus", *tiers, *chips, "cluster.storage_GB_per_s", *(f"workload.{key}" for key in WORKLOAD_KEYS)]


def _check_known(key: str, cluster: Cluster) -> None:
    known = known_keys(cluster)
    if key in known:
        return
    noun, _, name = key.partition(".")
    if noun == "model":
        near = [f", with another {one}" for one in close_names(name, MODEL_KEYS)]
        raise InputError(
            f"{key!r} cannot be set: only values of the cluster and the workload can",
            where=argument("changes"),
            fix=f"describe the model in a TOML file of your own{near[0] if near else ''}, and give that file as the model",
        )
    alike = [one for one in known if one.partition(".")[0] == noun]  # a misspelled key of a known noun is one of that noun
    raise InputError(f"no value {key!r} can be set on {cluster.name}", where=argument("changes"), fix=nearest(key, alike or known))


def _format_keys(cluster: Cluster) -> list[str]:
    return [f"dense_TFLOP_per_s.{name}" for name in cluster.accelerator.dense_flops_per_s]


def _changed_cluster(cluster: Cluster, key: str, value: str) -> Cluster:
    noun, _, name = key.partition(".")
    if noun == "cluster":
        return replace(cluster, storage_bytes_per_s=_number(key, value) * GB)
    if noun == "accelerator":
        return replace(cluster, accelerator=_changed_chip(cluster.accelerator, name, _number(key, value)))
    index = next(i for i, tier in enumerate(cluster) if tier.name == noun)
    if name == "num_accelerators":
        return using(cluster, index, _count(key, value))
    tiers = list(cluster.tiers)
    if name == "routing":
        tiers[index] = replace(tiers[index], routing=_routing(key, value), routing_assumed=False)
        return replace(cluster, tiers=tuple(tiers))
    tiers[index] = TIER_CHANGES[name](tiers[index], _number(key, value))
    return replace(cluster, tiers=tuple(tiers))


def _changed_chip(chip: Accelerator, name: str, value: float) -> Accelerator:
    if name in CHIP_CHANGES:
        return CHIP_CHANGES[name](chip, value)
    number_format = name.partition(".")[2]
    return replace(chip, dense_flops_per_s={**chip.dense_flops_per_s, number_format: value * TERA})


def _changed_workload(workload: Workload, key: str, value: str) -> Workload:
    name = key.partition(".")[2]
    changes: dict[str, Any] = {name: value}
    if name in WORKLOAD_COUNTS:
        changes = {name: _count(key, value)}
    elif name == "num_tokens":
        changes = {name: _number(key, value), "convergence": None}
    elif name == "expert_imbalance":
        changes = {name: _number(key, value, 1.0, MOST_IMBALANCE, "1.3")}
    elif name == "precision":
        recipe(value, where=argument("changes", f"{key}={value}"))
    return replace(workload, **changes)


def using(cluster: Cluster, index: int, num_used: int) -> Cluster:
    """The machine with so many accelerators of each domain of a tier in use; as many domains as before."""
    tier = cluster.tiers[index]
    outermost = index == len(cluster.tiers) - 1
    if outermost:
        return cluster.resized(num_used)
    if num_used > tier.num_installed:
        raise InputError(
            f"a {tier.name} has {tier.num_installed} accelerators, fewer than {num_used}",
            where=argument("changes", f"{tier.name}.num_accelerators={num_used}"),
            fix=f"use at most {tier.num_installed}",
        )
    domain = replace(cluster, tiers=cluster.tiers[: index + 1]).resized(num_used)
    outer = []
    for other in cluster.tiers[index + 1 :]:
        size = other.num_accelerators // tier.num_accelerators * num_used
        outer.append(replace(other, num_accelerators=size, num_installed=max(other.num_installed, size)))
    return replace(cluster, tiers=(*domain.tiers, *outer))


def domain_changes(described: Cluster, used: Cluster) -> tuple[str, ...]:
    """What to set on a cluster, besides its number of accelerators, so that as many accelerators of each domain are used as in `used`."""
    inner = used.tiers[0]
    if described.can_have(used.num_accelerators):
        usual = described.resized(used.num_accelerators)
        if [tier.num_accelerators for tier in usual] == [tier.num_accelerators for tier in used]:
            return ()
    return (f"{inner.name}.num_accelerators={inner.num_accelerators}",)


def _routing(key: str, value: str) -> str:
    if value not in ROUTINGS:
        raise InputError(f"no routing named {value!r}", where=argument("changes", f"{key}={value}"), fix=nearest(value, ROUTINGS))
    return value


def _number(key: str, value: str, low: float = SMALLEST, high: float = LARGEST, example: str = "100") -> float:
    try:
        number = float(value)
    except ValueError:
        raise InputError(
            f"{key} is {value!r}, not a number", where=argument("changes"), fix=f"write {key}={example}, for example"
        ) from None
    if not low <= number <= high:
        raise InputError(
            f"{key} is {value}, not a number from {low:g} to {high:g}",
            where=argument("changes"),
            fix=f"write {key}={example}, for example",
        )
    return number


def _count(key: str, value: str) -> int:
    number = _number(key, value.replace("_", ""), low=-LARGEST, example="1024")
    if number != int(number) or not 1 <= number <= MOST_BATCH:
        raise InputError(
            f"{key} is {value}, not a whole number from 1 to {MOST_BATCH:,}",
            where=argument("changes"),
            fix=f"write {key}=1024, for example",
        )
    return int(number)
