"""What NVIDIA's recipes say of experts."""

from __future__ import annotations

import csv

from meshwright.evidence.expert_recipes import FILE, expert_recipe
from meshwright.layout import RECOMPUTE, Layout

SHAPE = Layout(pp=4, vp=4, dp=64, ep=64)


def test_a_recipe_is_found_by_its_container_model_chip_and_layout() -> None:
    found = expert_recipe("26.02", "deepseek-v3", "gb200", "mxfp8", SHAPE)
    assert found is not None and found.practice.sends_once and found.recomputed == "mla_up_proj"
    assert expert_recipe("26.02", "deepseek-v3", "gb200", "mxfp8", Layout(pp=2, dp=128, ep=64)) is None
    assert expert_recipe("26.02", "llama-3.1-70b", "gb200", "mxfp8", SHAPE) is None
    assert expert_recipe("20.01", "deepseek-v3", "gb200", "mxfp8", SHAPE) is None


def test_later_containers_overlap_and_fuse() -> None:
    early, late = (expert_recipe(name, "deepseek-v3", "gb200", "mxfp8", SHAPE) for name in ("26.02", "26.06"))
    assert early is not None and late is not None
    assert not early.practice.overlaps and late.practice.overlaps and late.practice.graphs == "whole"


def test_every_recipe_has_a_source_and_names_parts_that_are_known() -> None:
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 30
    for row in rows:
        assert row["source"] and row["confidence"]
        assert row["recompute_modules"].replace("|", "+") in ("", *RECOMPUTE)
