"""The list of bad nodes: a JSON file that stays, so that a later start leaves these nodes out.

A node stays on it until a person deletes its entry: one that failed and passes later may fail again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, argument
from meshwright.files import read_text, write_whole

FORMAT = "meshwright bad nodes"
VERSION = 1
FIX = "delete the file, or make it again with `meshwright doctor --bad-nodes FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """A node that failed an examination."""

    node: str
    date: str  # when it last failed, in UTC
    reasons: tuple[str, ...]


def read_bad_nodes(path: Path) -> tuple[BadNode, ...]:
    """The nodes of a list; none where there is no file yet."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "it is not text") if isinstance(error, OSError) else "it is not text"
        raise InputError(
            f"cannot read the list of bad nodes: {why}", where=str(path), fix=f"name another file: {argument('bad_nodes')}"
        ) from None
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it holds no object")
        if values["kind"] != FORMAT or values["version"] != VERSION:
            raise ValueError(f"kind {values['kind']!r}, version {values['version']!r}")
        return tuple(_node(one) for one in values["nodes"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"this is not a list of bad nodes: {why}", where=str(path), fix=FIX) from None


def _node(values: Mapping[str, Any]) -> BadNode:
    node, date, reasons = values["node"], values["date"], values["reasons"]
    if not (isinstance(node, str) and isinstance(date, str) and isinstance(reasons, list) and all(isinstance(one, str) for one in reasons)):
        raise ValueError("an entry has a node and a date as text, and reasons as a list of texts")
    return BadNode(node=node, date=date, reasons=tuple(reasons))


def with_failed(known: Sequence[BadNode], failed: Mapping[str, Sequence[str]], date: str) -> tuple[BadNode, ...]:
    """The list with nodes that failed now: a node that is on it already has its newest date and reasons."""
    new = {node: BadNode(node=node, date=date, reasons=tuple(reasons)) for node, reasons in failed.items()}
    return (*(one for one in known if one.node not in new), *new.values())


def write_bad_nodes(path: Path, nodes: Sequence[BadNode]) -> None:
    """Write the list, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"kind": FORMAT, "version": VERSION, "nodes": [asdict(node) for node in nodes]}
    write_whole(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
