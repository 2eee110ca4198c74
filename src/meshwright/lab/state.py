"""A lab that is up: its file, and making, changing and removing it.

The file says what was asked for. What is there is read from the system, so that a lab that was only half made, or whose file is lost, is
found and removed by the names of its namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.describe.this_machine import NAME as THIS_MACHINE
from meshwright.errors import InputError
from meshwright.files import read_text, write_whole
from meshwright.lab import network, nodes, system
from meshwright.lab.cluster import write_description
from meshwright.lab.description import Lab, check_rate
from meshwright.lab.guard import guarded

KIND, VERSION = "meshwright lab", 1
FOLDER = Path("/run/meshwright")  # empty after a restart of the machine, as the namespaces are gone too


@dataclass(frozen=True, slots=True)
class LinkState:
    """What was changed on a link since the lab was made."""

    bits_per_s: float
    is_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A lab and its changed links, by name and plane."""

    lab: Lab
    changed: Mapping[str, LinkState] = field(default_factory=dict)

    def link_state(self, link: network.Link) -> LinkState:
        """The rate of a link now, and whether it is up."""
        return self.changed.get(_key(link), LinkState(link.bits_per_s, True))


def _key(link: network.Link) -> str:
    return f"{link.name}/{link.plane}"


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """The file of a lab."""
    return folder / f"lab-{name}.json"


def description_path(name: str, folder: Path = FOLDER) -> Path:
    """Where a lab's description as a cluster is written by default; its name says that it is this machine."""
    return folder / f"{THIS_MACHINE}-{name}.toml"


def write_state(state: State, folder: Path = FOLDER) -> None:
    """Write the file of a lab."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = {key: asdict(value) for key, value in state.changed.items()}
    values = {"kind": KIND, "version": VERSION, "lab": asdict(state.lab), "changed": changed}
    write_whole(path_of(state.lab.name, folder), json.dumps(values, indent=1) + "\n")


def read_state(name: str, folder: Path = FOLDER) -> State:
    """The lab of that name; an error if it is not up."""
    path = path_of(Lab(name=name).name, folder)
    try:
        data = json.loads(read_text(path))
    except OSError:
        names = known(folder)
        fix = f"make it: `meshwright lab up --name {name}`" + (f"; these are up: {', '.join(names)}" if names else "")
        raise InputError(f"no lab named {name!r} is up", where=str(path), fix=fix) from None
    except ValueError:
        raise _damaged(path, name, "it is not JSON") from None
    return _state_from(data, path, name)


def _state_from(data: Any, path: Path, name: str) -> State:
    if not isinstance(data, dict) or data.get("kind") != KIND or data.get("version") != VERSION:
        raise _damaged(path, name, f"it is not of version {VERSION}")
    try:
        changed = {
            str(key): LinkState(check_rate(float(one["bits_per_s"]), key), bool(one["is_up"])) for key, one in data["changed"].items()
        }
        state = State(lab=Lab(**data["lab"]), changed=changed)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise _damaged(path, name, str(error)) from None
    if state.lab.name != name:
        raise _damaged(path, name, f"it is about {state.lab.name!r}")
    return state


def _damaged(path: Path, name: str, why: str) -> InputError:
    return InputError(f"the file of the lab is damaged: {why}", where=str(path), fix=f"remove the lab: `meshwright lab down --name {name}`")


def known(folder: Path = FOLDER) -> list[str]:
    """Names of the labs that have a file."""
    return sorted(path.stem.removeprefix("lab-") for path in folder.glob("lab-*.json"))


def up(lab: Lab, folder: Path = FOLDER, description: Path | None = None) -> State:
    """Make a lab, and write its description as a cluster. If that fails in the middle, or is killed, all of it is removed again."""
    system.check_able()
    nodes.check_services(lab)
    there = system.namespaces(lab.prefix)
    if there or path_of(lab.name, folder).exists():
        whole = set(there) == set(lab.namespaces())
        what = f"a lab named {lab.name!r} is already up" if whole else f"a lab named {lab.name!r}, or a part of one, is already there"
        fix = f"remove it with `meshwright lab down --name {lab.name}`, or choose another name: --name lab2"
        raise InputError(what, where=f"{len(there)} namespaces {lab.prefix}*", fix=fix)
    state, written = State(lab=lab), description or description_path(lab.name, folder)
    with guarded("down", lab.name, str(folder.absolute()), str(written.absolute())):
        try:
            write_state(state, folder)
            system.execute_all(network.up_commands(lab))
            if lab.has_login:
                nodes.start(lab, nodes.folder_of(lab.name, folder))
            write_description(lab, written)
        except BaseException:
            down(lab.name, folder)
            raise
    return state


@dataclass(frozen=True, slots=True)
class Removed:
    """What `down` found and removed."""

    num_namespaces: int
    num_processes: int


def down(name: str, folder: Path = FOLDER) -> Removed:
    """Remove all of a lab that is there, by the names of its namespaces: processes, namespaces, file."""
    system.check_able()
    there = system.namespaces(Lab(name=name).prefix)
    num_processes = system.end_processes(there)
    system.execute_all(network.down_commands(there))
    nodes.remove(nodes.folder_of(name, folder))
    for path in (description_path(name, folder), path_of(name, folder)):
        for draft in (path, *folder.glob(f".*.{path.name}")):  # a draft is what a killed command was writing
            draft.unlink(missing_ok=True)
    return Removed(len(there), num_processes)


def down_all(folder: Path = FOLDER) -> Removed:
    """Remove all labs."""
    names = {name.split("-")[1] for name in system.namespaces() if name.count("-") >= 2} | set(known(folder))
    removed = [down(name, folder) for name in sorted(names)]
    return Removed(sum(one.num_namespaces for one in removed), sum(one.num_processes for one in removed))


def change_link(
    state: State, name: str, *, plane: int | None = None, bits_per_s: float | None = None, is_up: bool | None = None, folder: Path = FOLDER
) -> State:
    """Give a link another rate, cut it or mend it, while jobs run. The rate is that of all planes together."""
    system.check_able()
    changed = dict(state.changed)
    for link in network.chosen(state.lab, name, plane):
        now = state.link_state(link)
        if bits_per_s is not None:
            now = replace(now, bits_per_s=bits_per_s / state.lab.num_planes)
            system.execute_all(network.rate_commands(link, now.bits_per_s))
        if is_up is not None:
            now = replace(now, is_up=is_up)
            system.execute_all(network.switch_commands(link, is_up=is_up))
        changed[_key(link)] = now
    found = replace(state, changed=changed)
    write_state(found, folder)
    return found


def restore_links(before: State, folder: Path = FOLDER) -> State:
    """Give the links of a lab the rates that they had, and cut or mend them as they were."""
    for link in network.links(before.lab):
        was = before.link_state(link)
        if read_state(before.lab.name, folder).link_state(link) != was:
            system.execute_all((*network.rate_commands(link, was.bits_per_s), *network.switch_commands(link, is_up=was.is_up)))
    write_state(before, folder)
    return before
