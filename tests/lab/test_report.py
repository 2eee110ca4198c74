"""What is printed about labs."""

from __future__ import annotations

from pathlib import Path

from meshwright.lab import report, system
from meshwright.lab.description import Lab
from meshwright.lab.report import lab_document, removed_document
from meshwright.lab.state import LinkState, Removed, State
from meshwright.say.document import Note, Table, Text


def test_a_lab_shows_its_hosts_its_links_and_what_was_changed(monkeypatch):
    lab = Lab()
    monkeypatch.setattr(system, "namespaces", lambda prefix: list(lab.namespaces()))
    monkeypatch.setattr(system, "processes", lambda namespace: [1, 2] if namespace.endswith("r0h0") else [])
    state = State(lab=lab, changed={"rack1/0": LinkState(5e7, False)})
    document = lab_document(state, Path("lab.toml"))
    hosts, links = (block for block in document.blocks if isinstance(block, Table))
    assert hosts.rows[:2] == (("r0h0", "10.65.0.1", "2"), ("r0h1", "10.65.0.2", "0"))
    assert links.rows[-2:] == (("rack0", "0", "100mbit", "up"), ("rack1", "0", "50mbit", "cut"))
    assert document.values["missing_namespaces"] == [] and not any(isinstance(block, Note) for block in document.blocks)


def test_a_lab_with_a_hole_says_so(monkeypatch):
    lab = Lab()
    monkeypatch.setattr(system, "namespaces", lambda prefix: [name for name in lab.namespaces() if "spine" not in name])
    monkeypatch.setattr(system, "processes", lambda namespace: [])
    document = report.lab_document(State(lab=lab), Path("lab.toml"))
    assert document.values["missing_namespaces"] == ["mw-lab-p0spine"]
    assert Note("1 namespaces are missing, mw-lab-p0spine first: remove the lab and make it again") in document.blocks


def test_removing_says_what_was_there():
    assert removed_document("lab", Removed(7, 3), is_all=False).blocks == (Text("removed lab lab: 7 namespaces and 3 processes"),)
    assert removed_document("lab", Removed(0, 0), is_all=False).blocks == (Text("nothing of lab lab was there"),)
