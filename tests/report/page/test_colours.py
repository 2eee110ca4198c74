"""Colours read well on their grounds, and the arithmetic behind them is right."""

from __future__ import annotations

import pytest

from meshwright.predict.step import PARTS
from meshwright.report.page.colours import (
    PALETTE,
    RUN_COLOURS,
    contrast,
    ink_on,
    kind_colour,
    luminance,
    oklch,
    part_colour,
    resolved,
    run_colour,
    stage_colour,
    var,
)

TEXT = 4.5  # WCAG AA for text, 3 for marks
MARK = 3.0


def test_luminance_and_contrast_of_black_and_white() -> None:
    assert luminance("#ffffff") == pytest.approx(1.0) and luminance("#000000") == 0.0
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)


@pytest.mark.parametrize("colour, coordinates", [("#ffffff", (1.0, 0.0, 0.0)), ("#ff0000", (0.62796, 0.25768, 29.234))])
def test_oklch_matches_known_colours(colour: str, coordinates: tuple[float, float, float]) -> None:
    assert oklch(*coordinates) == colour


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "tp", "cp", "pp", "dp", "ep", "warn"])
def test_words_in_colour_read_well_in_both_modes(name: str, mode: int) -> None:
    assert contrast(PALETTE[name][mode], PALETTE["paper"][mode]) >= TEXT


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_remarks_on_tiles_read_well(mode: int) -> None:
    assert contrast(PALETTE["soft"][mode], PALETTE["panel"][mode]) >= TEXT


@pytest.mark.parametrize("count", [1, 2, 8, 16, 64])
def test_marks_on_stages_read_well_and_stages_differ(count: int) -> None:
    colours = [stage_colour(index, count) for index in range(count)]
    assert len(set(colours)) == count
    assert all(contrast(colour, ink_on(colour)) >= TEXT for colour in colours)


def test_passes_differ_in_every_chunk() -> None:
    assert len({kind_colour(kind, chunk, 8) for kind in range(3) for chunk in range(8)}) == 24


def test_every_part_of_a_step_has_a_colour() -> None:
    assert len({part_colour(part) for part in PARTS}) == len(PARTS)


def test_variables_are_written_out_for_slides() -> None:
    assert resolved('<rect fill="var(--tp)"/>') == f'<rect fill="{PALETTE["tp"][0]}"/>'


def test_runs_beside_each_other_have_colours_of_their_own_and_then_the_same_again() -> None:
    assert len({run_colour(number) for number in range(len(RUN_COLOURS))}) == len(RUN_COLOURS)
    assert run_colour(len(RUN_COLOURS)) == run_colour(0)


def test_a_colour_that_nobody_defined_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError):
        var("no such colour")


@pytest.mark.parametrize("coordinates", [(1.2, 0.5, 30.0), (-0.1, 0.4, 200.0), (0.5, 9.0, 90.0)])
def test_colours_beyond_what_a_screen_shows_are_cut(coordinates: tuple[float, float, float]) -> None:
    shown = oklch(*coordinates)
    assert len(shown) == 7 and 0 <= luminance(shown) <= 1
