"""What the document of an examination says, for people and for programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import CARDS, DEFECTS, healthy

from meshwright.doctor.checks import failed_nodes, findings_of
from meshwright.doctor.report import doctor_document
from meshwright.record.bad_nodes import BadNode, with_failed
from meshwright.say.document import Document
from meshwright.say.vocabulary import problems

LIST = "runs/bad-nodes.json"


def document_of(gathered, known=()) -> Document:
    findings = findings_of(gathered, CARDS)
    bad = with_failed(known, failed_nodes(findings), "2026-11-16T08:00:00+00:00")
    return doctor_document(gathered, CARDS, findings, bad, LIST, []).with_files({})


def test_healthy_nodes_are_fit(texts):
    document = document_of(replace(healthy(), took_s=12.5))
    assert problems(document.to_json()) == []
    assert document.values["is_fit"] and document.values["bad_nodes"] == []
    assert "fit for a run; examined in 12.5 s" in list(texts(document))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_bad_node_is_named_with_reason_and_remedy(defect, texts):
    check, put_in = DEFECTS[defect]
    document = document_of(put_in(healthy()))
    assert problems(document.to_json()) == []
    said = " ".join(texts(document))
    assert "node2" in said and LIST in said and "what to do" in said
    assert not document.values["is_fit"]
    assert [one["node"] for one in document.values["bad_nodes"]][-1] == "node2"
    assert document.values["bad_nodes"][-1]["failed_checks"][0].startswith(f"{check}: ")


def test_a_listed_node_that_passes_stays_listed_with_a_note(texts):
    known = [BadNode(node="node1", date="2026-11-01", reasons=("disk: slow",)), BadNode(node="elsewhere", date="2026-11-01", reasons=())]
    document = document_of(healthy(), known)
    assert [one["node"] for one in document.values["bad_nodes"]] == ["node1", "elsewhere"]
    assert document.values["is_fit"] and len(document.values["notes"]) == 1 and "node1 passes now" in document.values["notes"][0]


def test_a_failure_without_a_node_is_no_fit_run(texts):
    document = document_of(replace(healthy(), pairs=(), pairs_failed="Connection refused"))
    assert not document.values["is_fit"] and document.values["bad_nodes"] == []
    assert any("no node could be named" in text for text in texts(document))
