"""The list of bad nodes stays, grows, and is refused where it is damaged."""

from __future__ import annotations

import json

import pytest

from meshwright.errors import InputError
from meshwright.record.bad_nodes import BadNode, read_bad_nodes, with_failed, write_bad_nodes

OLD = BadNode(node="node3", date="2026-11-01T08:00:00+00:00", reasons=("disk: slow",))
NOW = "2026-11-16T08:00:00+00:00"


def test_a_list_comes_back_from_its_file(tmp_path):
    path = tmp_path / "new" / "bad.json"
    assert read_bad_nodes(path) == ()
    write_bad_nodes(path, [OLD])
    assert read_bad_nodes(path) == (OLD,)
    assert [one.name for one in path.parent.iterdir()] == ["bad.json"]


def test_a_node_that_fails_again_has_its_newest_reasons_and_others_stay():
    found = with_failed(
        [OLD, BadNode(node="node5", date="2026-11-02", reasons=())], {"node5": ["copy: slow"], "node7": ["clock: off"]}, NOW
    )
    assert [(one.node, one.date, one.reasons) for one in found] == [
        ("node3", OLD.date, OLD.reasons),
        ("node5", NOW, ("copy: slow",)),
        ("node7", NOW, ("clock: off",)),
    ]
    assert with_failed([OLD], {}, NOW) == (OLD,)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "[" * 100_000,
        '{"kind": "a plan", "version": 1, "nodes": []}',
        '{"kind": "meshwright bad nodes", "version": 2, "nodes": []}',
        json.dumps({"kind": "meshwright bad nodes", "version": 1, "nodes": [{"node": "a"}]}),
        json.dumps({"kind": "meshwright bad nodes", "version": 1, "nodes": [{"node": 1, "date": "x", "reasons": []}]}),
        json.dumps({"kind": "meshwright bad nodes", "version": 1, "nodes": 7}),
    ],
)
def test_a_damaged_list_is_refused_with_its_path(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a list of bad nodes") as caught:
        read_bad_nodes(path)
    assert caught.value.where == str(path) and caught.value.fix


def test_a_folder_or_other_bytes_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_bad_nodes(tmp_path)
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read"):
        read_bad_nodes(path)
