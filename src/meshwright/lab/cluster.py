"""A lab as a cluster: this machine's processors shared by the ranks, and the tiers host, rack and spine with the rates of the links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.this_machine import NAME as THIS_MACHINE
from meshwright.describe.this_machine import emulated_racks
from meshwright.files import write_whole
from meshwright.lab.description import Lab, rate_text
from meshwright.units import GB, GBIT, MICROSECOND, TERA


def cluster_name(lab: Lab) -> str:
    """The name of the cluster: it is this machine, so that a profile of this machine prices its compute."""
    return f"{THIS_MACHINE}-{lab.name}"


def lab_cluster(lab: Lab) -> Cluster:
    """The lab as a cluster. Ranks of a host share its link, and ranks of a rack its uplink: a rank's rate is its even share.

    Latencies are those of messages between processes that share cores; the links themselves add none.
    """
    machine = emulated_racks(1, lab.num_slots)
    inside = machine.tiers[0]  # the loopback of this machine, divided by the ranks
    per_rack = lab.num_hosts * lab.num_ranks
    tiers = [replace(inside, name="host", num_accelerators=lab.num_ranks, num_installed=lab.num_ranks)]
    if lab.num_hosts > 1:
        tiers.append(_tier(lab, "rack", per_rack, lab.rail_bits_per_s / lab.num_ranks, inside.latency_s))
    if lab.num_racks > 1:
        share = min(lab.uplink_bits_per_s / per_rack, lab.rail_bits_per_s / lab.num_ranks)
        tiers.append(_tier(lab, "spine", lab.num_slots, share, inside.latency_s))
    return replace(machine, name=cluster_name(lab), tiers=tuple(tiers), accelerators_per_node=lab.num_ranks)


def _tier(lab: Lab, name: str, size: int, bits_per_s: float, latency_s: float) -> Tier:
    return Tier(
        name=name,
        link="lab",
        num_accelerators=size,
        num_installed=size,
        bytes_per_s=bits_per_s / 8,
        latency_s=latency_s,
        num_planes=lab.num_planes,
        routing="hashed" if lab.num_planes > 1 and not lab.is_spread else "adaptive",
    )


def description_text(lab: Lab) -> str:
    """The cluster as a TOML file that `load_cluster` reads."""
    cluster = lab_cluster(lab)
    chip = cluster.accelerator
    peaks = ", ".join(f"{name} = {value / TERA!r}" for name, value in chip.dense_flops_per_s.items())
    lines = [
        f'name = "{cluster.name}"',
        f'note = "lab {lab.name}: {lab.words}; ranks share the cores of this machine"',
        f"accelerators_per_node = {cluster.accelerators_per_node}",
        "",
        "[accelerator]",
        f'name = "{chip.name}"',
        f'vendor = "{chip.vendor}"',
        f'architecture = "{chip.architecture}"',
        f"memory_GB = {chip.memory_bytes / GB!r}",
        f"memory_GB_per_s = {chip.memory_bytes_per_s / GB!r}",
        f"dense_TFLOP_per_s = {{ {peaks} }}",
        f"power_cap_W = {chip.power_cap_w!r}",
    ]
    for tier in cluster:
        link = f'{{ name = "{tier.link}", Gbit_per_s = {tier.bytes_per_s / GBIT!r}, latency_us = {tier.latency_s / MICROSECOND!r} }}'
        lines += ["", "[[tiers]]", f'name = "{tier.name}"', f"link = {link}", f"num_accelerators = {tier.num_accelerators}"]
        lines += [f"num_planes = {tier.num_planes}", f'routing = "{tier.routing}"'] if tier.num_planes > 1 else []
    text = f"`meshwright lab up`: rail {rate_text(lab.rail_bits_per_s)} shared by {lab.num_ranks} ranks, uplink "
    text += f"{rate_text(lab.uplink_bits_per_s)} shared by {lab.num_hosts * lab.num_ranks}; compute: a core of this machine, timed"
    source = cluster.sources["default"]
    lines += ["", "[sources]", f'default = {{ text = "{text}", date = "{source.date}" }}']
    return "\n".join(lines) + "\n"


def write_description(lab: Lab, path: Path) -> Path:
    """Write the description, and return where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, description_text(lab))
    return path
