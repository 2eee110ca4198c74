"""Readings reach rank 0 as they were."""

from __future__ import annotations

from dataclasses import replace

from sick import card_node, healthy

from meshwright.doctor.reading import Reading, gathered_of, reading_of


def test_a_reading_comes_back_from_text():
    for reading in (card_node(1), Reading(node="cores"), replace(card_node(0), gpu_users=("a", "b"), failed={"disk": "gone"})):
        assert reading_of(reading.to_text()) == reading


def test_what_was_gathered_comes_back_from_text():
    found = replace(healthy(), silent={9: "node9"}, stuck=((1, 2),), pairs_failed="late", notes=("a note",), took_s=1.5)
    assert gathered_of(found.to_text()) == found


def test_a_rank_has_a_node_even_where_it_said_nothing():
    found = replace(healthy(), silent={9: "node9"})
    assert [found.node_of(rank) for rank in (1, 9, 11)] == ["node1", "node9", "the node of rank 11"]
