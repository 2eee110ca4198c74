"""What the commands of a lab print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.lab import network, nodes, system
from meshwright.lab.description import Lab, rate_text
from meshwright.lab.state import FOLDER, Removed, State
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text


def lab_document(state: State, description: Path) -> Document:
    """A lab as it is now: what is there is read from the system."""
    lab = state.lab
    there = set(system.namespaces(lab.prefix))
    missing = sorted(set(lab.namespaces()) - there)
    running = {host: len(system.processes(lab.namespace(host))) if lab.namespace(host) in there else 0 for host in lab.hosts}
    hosts: list[dict[str, Any]] = [{"host": str(host), "address": lab.address(host), "num_processes": running[host]} for host in lab.hosts]
    links = [_link(state, link) for link in network.links(lab)]
    title = f"lab {lab.name}: {lab.words}"
    site = nodes.folder_of(lab.name, FOLDER).site if lab.has_login else None
    services = (("site file", str(site), "for meshwright launch"), ("login host", "meshwright lab login", "to submit jobs")) if site else ()
    blocks: list[Block] = [
        Pairs(title, (("description", str(description), ""), ("interface", lab.interface, "of each host"), *services)),
        Table("hosts", ("host", "address", "processes>"), tuple((h["host"], h["address"], str(h["num_processes"])) for h in hosts)),
        Table("links", ("link", "plane>", "rate>", "state"), tuple(map(_link_row, links))),
    ]
    blocks += [Note(f"{len(missing)} namespaces are missing, {missing[0]} first: remove the lab and make it again")] if missing else []
    blocks.append(Text(f"meshwright plan llama-2m {description} python-stdlib"))
    files = [_file("cluster", description), *([_file("site file", site)] if site else [])]
    values = {"lab": _values(lab), "lab_hosts": hosts, "lab_links": links, "missing_namespaces": missing, "files": files}
    return Document(kind="lab", title=title, blocks=tuple(blocks), values=values)


def _values(lab: Lab) -> dict[str, Any]:
    return {
        "name": lab.name,
        "num_racks": lab.num_racks,
        "hosts_per_rack": lab.num_hosts,
        "ranks_per_host": lab.num_ranks,
        "rail_bits_per_s": lab.rail_bits_per_s,
        "uplink_bits_per_s": lab.uplink_bits_per_s,
        "num_planes": lab.num_planes,
    }


def _file(what: str, path: Path) -> dict[str, str]:
    return {"what": what, "path": str(path)}


def _link(state: State, link: network.Link) -> dict[str, Any]:
    now = state.link_state(link)
    return {"link": link.name, "plane": link.plane, "bits_per_s": now.bits_per_s, "is_up": now.is_up}


def _link_row(link: Mapping[str, Any]) -> tuple[str, ...]:
    return str(link["link"]), str(link["plane"]), rate_text(link["bits_per_s"]), "up" if link["is_up"] else "cut"


def removed_document(name: str, removed: Removed, *, is_all: bool) -> Document:
    """What `lab down` removed."""
    what = "all labs" if is_all else f"lab {name}"
    nothing = f"nothing of {what} was there"
    done = f"removed {what}: {removed.num_namespaces} namespaces and {removed.num_processes} processes"
    values = {"num_namespaces": removed.num_namespaces, "num_processes": removed.num_processes}
    return Document(kind="lab-removed", title=what, blocks=(Text(done if removed.num_namespaces else nothing),), values=values)
