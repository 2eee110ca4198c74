"""The machine of a measured run, from its description: an accelerator, counts, and free text about its networks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import Accelerator, Link
from meshwright.describe.load import accelerator, link
from meshwright.errors import InputError
from meshwright.units import GBIT

RACK_INSTALLED = 72  # GB200 and GB300 NVL72: one NVLink domain of 18 trays with 4 GPUs
RACK_USED = 64  # jobs larger than one rack use 16 of its trays
BRIDGE_WAYS = 4  # accelerators joined by one NVLink bridge, if the text does not say

# The scale-up link of an accelerator, by architecture or by its own name, even if the text names another generation (several rows
# state the NVLink of the machine they were copied from).
SCALE_UP: Mapping[str, str] = {
    "ampere": "nvlink-3",
    "hopper": "nvlink-4",
    "blackwell": "nvlink-5",
    "blackwell-ultra": "nvlink-5",
    "ada": "pcie-4",
    "cdna3": "xgmi-mi300x",
    "cdna4": "xgmi-mi355x",
    "tpu-v5e": "ici-v5e",
    "tpu-v5p": "ici-v5p",
    "tpu-v6e": "ici-v6e",
    "trainium": "neuronlink-3",
}

# The network per accelerator in the vendor's reference system. Used, and marked as assumed, if a row states no speed.
REFERENCE_FABRIC: Mapping[str, str] = {
    "ampere": "hdr",
    "hopper": "ndr",
    "blackwell": "ndr",
    "blackwell-ultra": "xdr",
    "ada": "roce-200",
    "cdna3": "roce-400",
    "cdna4": "roce-400",
    "tpu-v5e": "dcn-v5e",
    "tpu-v5p": "dcn-v5p",
    "tpu-v6e": "dcn-v6e",
}

# Chips of a TPU pod; their own network joins a whole pod (Google Cloud TPU documentation, pages of v5e, v5p and v6e).
PODS: Mapping[str, int] = {"tpu-v5e": 256, "tpu-v5p": 8960, "tpu-v6e": 256}
TRAY = 4  # accelerators in an NVL72 tray
INFINIBAND = ("hdr", "ndr", "xdr")
ETHERNET = ("ethernet-100", "roce-200", "roce-400", "spectrum-x-mrc")

_ITEM = re.compile(r"[,;|]|\s\+\s|\band\b")
_OTHER_USE = re.compile(r"\b(storage|management|mgmt|for NS|north-south)\b", re.IGNORECASE)
_LABEL = re.compile(r"^[^:\d]*:\s*")
_COUNT = re.compile(r"^(\d{1,4})\s*[x\u00d7]\s*", re.IGNORECASE)
_SPEED = re.compile(
    r"(?:\b(\d{1,3})\s*[x\u00d7]\s*)?(?<![\d.])(\d{1,5}(?:\.\d{1,3})?)\s*(?:G(?:b|bit|bps|bE|be)?|(T)b(?:it|ps)?)(?![A-Za-z])"
)
_PER_ACCELERATOR = re.compile(r"\bper (gpu|accelerator)\b", re.IGNORECASE)
_GENERATION_GBIT = {"XDR": 800.0, "NDR": 400.0, "HDR": 200.0}
_INFINIBAND = re.compile(r"\bIB\b|infiniband|quantum", re.IGNORECASE)
_ETHERNET = re.compile(r"ethernet|roce|spectrum|\dGbe\b", re.IGNORECASE)
_MRC = re.compile(r"\bMRC\b")
_SPECTRUM = re.compile(r"spectrum-?\s?x", re.IGNORECASE)
_PLANES = re.compile(r"\b(\d{1,3})-plane\b", re.IGNORECASE)
_PCIE = re.compile(r"\bpcie\b\s*(?:gen)?\s*(\d)?", re.IGNORECASE)
_BRIDGE = re.compile(r"(?:(\d)-way\b.*)?\bbridge\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """A cluster, and what had to be assumed about it."""

    cluster: Cluster
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network between domains as a text states it, for one accelerator and one direction."""

    link: Link
    bytes_per_s: float
    num_planes: int
    assumed: bool


def machine(name: str, device: str, num_accelerators: int, per_node: int, host_network: str = "", scale_up: str = "") -> Machine:
    """The cluster of `num_accelerators` of `device`, `per_node` in a node, with networks that two texts describe."""
    chip = accelerator(device)
    inner = _inner_tiers(chip, num_accelerators, per_node, scale_up)
    tray = min(per_node, TRAY) if chip.name.startswith("gb") else per_node  # ports are counted by tray, even if a node is a rack
    fabric = read_fabric(chip, tray, host_network)
    outer = Tier(
        name="fabric",
        link=fabric.link.name,
        num_accelerators=num_accelerators,
        num_installed=num_accelerators,
        bytes_per_s=fabric.bytes_per_s,
        latency_s=fabric.link.latency_s,
        num_planes=fabric.num_planes,
        routing=fabric.link.routing,
        routing_assumed=fabric.link.routing_assumed,
    )
    cluster = Cluster(name=name, accelerator=chip, tiers=(*inner, outer), accelerators_per_node=per_node)
    alone = inner[-1].num_accelerators == num_accelerators
    assumption = f"network: {fabric.link.name} at {fabric.bytes_per_s / GBIT:g} Gb/s per accelerator, as in the vendor's reference system"
    assumptions = [assumption] if fabric.assumed else []
    if outer.routing_assumed:
        assumptions.append(f"routing: {outer.routing}, as in most Ethernet fabrics; the text does not say")
    return Machine(cluster, () if alone else tuple(assumptions))


def _inner_tiers(chip: Accelerator, num_accelerators: int, per_node: int, text: str) -> tuple[Tier, ...]:
    """The networks inside a node or rack, from the inside out."""
    if chip.name.startswith("gb"):
        used = _rack_share(num_accelerators)
        return (_tier("rack", link(_own_link(chip)), used, RACK_INSTALLED),)
    if chip.name in PODS:
        return (_tier("pod", link(_own_link(chip)), _domain_share(num_accelerators, PODS[chip.name]), PODS[chip.name]),)
    node = math.gcd(num_accelerators, per_node)
    pcie = _PCIE.search(text)
    if pcie and "nvlink" not in text.lower():
        return (_tier("node", link(f"pcie-{pcie[1] or 5}"), node, per_node),)
    bridge = _BRIDGE.search(text)
    if bridge or chip.name.endswith("-nvl"):
        ways = min(int(bridge[1]) if bridge and bridge[1] else BRIDGE_WAYS, per_node)
        size = math.gcd(node, ways)
        return (_tier("bridge", link(_own_link(chip)), size, ways), _tier("node", link("pcie-5"), node, per_node))
    return (_tier("node", link(_own_link(chip)), node, per_node),)


def _rack_share(num_accelerators: int) -> int:
    """GPUs in use in one NVL72 rack: all of a job that fits into one rack, otherwise 64, otherwise a number that fills racks evenly."""
    if num_accelerators <= RACK_INSTALLED:
        return num_accelerators
    return RACK_USED if num_accelerators % RACK_USED == 0 else _domain_share(num_accelerators, RACK_INSTALLED)


def _domain_share(num_accelerators: int, installed: int) -> int:
    """Accelerators in use in one domain: a number that fills domains evenly."""
    return max(used for used in range(1, min(installed, num_accelerators) + 1) if num_accelerators % used == 0)


def _own_link(chip: Accelerator) -> str:
    found = _of_chip(chip, SCALE_UP)
    if not found:
        raise InputError(f"the catalogue knows no network within a node of {chip.name}")
    return found


def _of_chip(chip: Accelerator, kinds: Mapping[str, str]) -> str:
    """The link of an accelerator by its own name, or else by its architecture; empty if there is none."""
    return kinds.get(chip.name) or kinds.get(chip.architecture, "")


def _tier(name: str, kind: Link, num_accelerators: int, num_installed: int) -> Tier:
    return Tier(
        name=name,
        link=kind.name,
        num_accelerators=num_accelerators,
        num_installed=max(num_installed, num_accelerators),
        bytes_per_s=kind.bytes_per_s,
        latency_s=kind.latency_s,
        routing=kind.routing,
    )


def read_fabric(chip: Accelerator, per_node: int, text: str) -> Fabric:
    """The network between nodes that `text` describes; missing values are taken from the vendor's reference system."""
    stated_gbit_per_s = stated_fabric_gbit_per_s(text, per_node)
    reference = _of_chip(chip, REFERENCE_FABRIC)
    if stated_gbit_per_s is None and not reference:
        raise InputError(f"the row states no network speed, and the catalogue knows no reference network of {chip.name}")
    gbit_per_s = stated_gbit_per_s or link(reference).bytes_per_s / GBIT
    is_pod = chip.name in PODS  # the network between pods is unlike the ports of other accelerators
    kind = link(reference) if is_pod else _nearest_link(text, gbit_per_s, reference or "ndr")
    return Fabric(kind, gbit_per_s * GBIT, _num_planes(text), assumed=stated_gbit_per_s is None)


def stated_fabric_gbit_per_s(text: str, per_node: int) -> float | None:
    """Gb/s of one accelerator, one way; None if number and speed of ports are not stated.

    Ports for storage and management are left out; of several kinds of ports, the kind that is fastest in total carries the traffic.
    A speed without a number of ports (`100GbE InfiniBand`) does not say how much one accelerator gets.
    """
    items = [item.strip() for item in _ITEM.split(text) if not _OTHER_USE.search(item.strip())]
    speeds = [speed for item in items if (speed := _item_gbit_per_s(_LABEL.sub("", item), per_node))]
    return max(speeds, default=None)


def _item_gbit_per_s(item: str, per_node: int) -> float | None:
    """Gb/s of one accelerator from `8x ConnectX-7 NDR 400Gb/s`, `16x 200 Gb/s ports`, `800 Gb/s per GPU`; None otherwise."""
    count = _COUNT.match(item)
    found = _SPEED.findall(item[count.end() :] if count else item)
    ports = [int(several or 1) * float(speed) * (1000 if tera else 1) for several, speed, tera in found]
    ports += [gbit for name, gbit in _GENERATION_GBIT.items() if not ports and re.search(rf"\b{name}\b", item)]
    if not ports:
        return None
    if _PER_ACCELERATOR.search(item):
        return max(ports)
    return int(count[1]) * max(ports) / per_node if count else None


def _nearest_link(text: str, gbit_per_s: float, reference: str) -> Link:
    """The link in the catalogue of the kind that the text names, closest in speed: its name and latency are used."""
    if _MRC.search(text) or _SPECTRUM.search(text):
        return link("spectrum-x-mrc")  # Spectrum-X chooses paths by load, MRC spreads packets over all paths: neither uses hashing
    names_infiniband = _INFINIBAND.search(text) or (reference in INFINIBAND and not _ETHERNET.search(text))
    kinds = INFINIBAND if names_infiniband else ETHERNET
    return min(map(link, kinds), key=lambda kind: abs(math.log(kind.bytes_per_s / GBIT / gbit_per_s)))


def _num_planes(text: str) -> int:
    planes = _PLANES.search(text)
    if planes:
        return max(int(planes[1]), 1)
    return link("spectrum-x-mrc").num_planes if _MRC.search(text) else 1
