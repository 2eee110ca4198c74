"""Where a number comes from: the numbers of a table that no source vouches for."""

from __future__ import annotations

import pytest

from meshwright.describe.source import Source, unsourced


def test_an_unsourced_number_is_found():
    table = {"memory_GB": 80, "dense_TFLOP_per_s": {"bf16": 1, "fp8": 2}, "vendor": "x", "gated": True, "tiers": [{"n": 1}]}
    assert unsourced(table, {"memory_GB", "dense_TFLOP_per_s.bf16"}) == ["dense_TFLOP_per_s.fp8", "tiers.n"]
    assert unsourced(table, {"memory_GB", "dense_TFLOP_per_s", "tiers"}) == []
    assert unsourced(table, {"default"}) == []


@pytest.mark.parametrize(
    ("sources", "left"),
    [
        ((), ["memory_GB", "memory_GB_per_s"]),
        (("memory_GB",), ["memory_GB_per_s"]),  # a key that merely begins alike is another key
        (("memory",), ["memory_GB", "memory_GB_per_s"]),
        (("memory_GB", "memory_GB_per_s"), []),
    ],
)
def test_a_source_stands_for_its_whole_key_alone(sources, left):
    assert unsourced({"memory_GB": 80, "memory_GB_per_s": 3350.0}, sources) == left


def test_names_and_switches_need_no_source():
    assert unsourced({"name": "x", "gated": True, "aliases": ["a"], "deep": {"flag": False}}, ()) == []


def test_a_list_of_numbers_stands_under_its_key():
    assert set(unsourced({"tiers": [1, 2], "deep": {"lists": [[3]]}}, ())) == {"tiers", "deep.lists"}


def test_a_source_reads_as_text_and_date():
    assert str(Source("H100 data sheet", "2024-03")) == "H100 data sheet (2024-03)"
