from __future__ import annotations

import pytest
from made_logs import START_MS, line, lines

from meshwright.audit.flaws import Flaw, flaws
from meshwright.record.mllog import parse_log


def found(text: list[str]) -> tuple[Flaw, ...]:
    return flaws(parse_log("\n".join(text), "x.log"))


def at(text: list[str], key: str, number: int = 0) -> int:
    """Index of the line with `key`, the first or a later one."""
    return [index for index, one in enumerate(text) if f'"{key}"' in one][number]


def test_a_whole_log_has_none() -> None:
    assert found(lines()) == ()


@pytest.mark.parametrize(
    "key, number, complaint, is_damage",
    [
        ("eval_start", 0, "eval_stop without eval_start", True),
        ("eval_stop", 0, "eval_start again, though that of line 22 has no end", True),
        ("block_stop", 0, "block_start again, though that of line 16 has no end", False),
        ("block_start", 1, "block_stop without block_start", False),
        ("run_start", 0, "run_stop without run_start", True),
    ],
)
def test_a_missing_line_is_seen_by_its_partner(key: str, number: int, complaint: str, is_damage: bool) -> None:
    text = lines()
    del text[at(text, key, number)]
    assert [(flaw.what, flaw.is_damage) for flaw in found(text)] == [(complaint, is_damage)]


def test_a_line_that_is_there_twice_names_both() -> None:
    text = lines()
    index = at(text, "run_stop")
    later = line(START_MS + 60_000, "run_stop", status="aborted")
    assert found([*text, later]) == (Flaw(index + 2, f"a second run_stop; the first is line {index + 1}"),)
    assert found([*text, text[index]]) == ()  # the same from another process


def test_a_clock_that_goes_back_is_seen() -> None:
    text = lines()
    text[at(text, "run_stop")] = line(START_MS + 40_000, "run_stop", status="success")
    assert "run_stop is 12.000 s before eval_stop of line 33" in found(text)[0].what


def test_evaluations_must_move_on() -> None:
    text = lines()
    text[at(text, "eval_start", 1)] = line(START_MS + 49_000, "eval_start", samples_count=256)
    assert found(text)[0].what == "an evaluation after 256, when one after 256 is on line 22"


def test_steps_without_a_line_are_seen() -> None:
    text = lines()
    index = at(text, "tracked_stats", 2)
    del text[index : index + 1]
    assert found(text) == (Flaw(index + 1, f"steps without a line of their own since line {index} (after 128): 1", is_damage=False),)


def test_zero_bytes_are_seen() -> None:
    text = lines()
    text.insert(10, "\x00" * 50)
    assert found(text) == (Flaw(11, "zero bytes"),)


def test_a_resumed_run_may_have_broken_off_anywhere() -> None:
    text = lines()
    cut = at(text, "block_stop")
    resumed = [*text[:cut], line(START_MS + 37_000, "resumed", True), line(START_MS + 37_000, "block_start"), *text[cut:]]
    assert found(resumed) == ()
