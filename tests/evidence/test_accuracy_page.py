"""The committed page on accuracy says what is computed now."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from meshwright.evidence.accuracy import evidence, headline
from meshwright.evidence.accuracy_page import headline_section, scatter, series

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def test_the_committed_page_says_what_is_computed_now() -> None:
    assert headline_section(headline()) in PAGE.read_text(encoding="utf-8"), "run `make accuracy`"


def test_the_plot_is_an_svg_and_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        scatter(tmp_path / name, evidence())
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_every_row_has_a_colour_of_the_legend() -> None:
    rows = evidence()
    names = {series(row) for row in (*rows.measured, *rows.published)}
    assert {"GPT-3 175B", "mixtures of experts", "chips of other vendors"} <= names
    text = PAGE.read_text(encoding="utf-8")
    for heading in (
        "## Targets and results",
        "## Whole campaigns",
        "### Software and chips treated as unknown",
        "## Memory and energy",
        "## Weak points",
    ):
        assert heading in text
