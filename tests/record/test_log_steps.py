"""Step times of logs: a timer for every step, lines several steps apart, blocks alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.record.log_steps import step_times, stretches
from meshwright.record.mllog import Log, parse_log, read_log

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture(name: str) -> Log:
    return read_log(FIXTURES / f"{name}.log")


def lines_of(name: str) -> list[str]:
    return (FIXTURES / f"{name}.log").read_text().splitlines()


def test_a_timer_of_every_step_is_read_without_the_summaries_of_the_blocks() -> None:
    steps = step_times(fixture("timer_every_step"))
    assert steps.method == "timer of every step"
    assert steps.seconds.tolist() == [2.6, 2.0, 2.02, 1.98, 2.4, 2.0, 2.5, 1.98]
    assert steps.is_first.tolist() == [True, False, False, False, True, False, False, False]
    assert (steps.median_s, steps.first_median_s) == (2.0, 2.5)


def test_progress_lines_apart_give_the_wall_clock_between_them() -> None:
    steps = step_times(fixture("progress_lines_apart"))
    # the second block begins after 10 of 12 steps since the last line: its first line ends 2 steps
    assert steps.method == "wall clock between progress lines"
    assert steps.seconds.tolist() == pytest.approx([0.35, 0.30, 0.35, 0.31, 0.32])
    assert steps.is_first.tolist() == [True, False, True, False, False]
    assert steps.median_s == pytest.approx(0.31)


def test_blocks_alone_give_their_time_over_their_steps_without_the_first() -> None:
    steps = step_times(fixture("blocks_only"))
    assert steps.method == "wall clock of a block / its steps"
    assert steps.seconds.tolist() == pytest.approx([20 / 24, 0.6, 0.58, 0.59])
    assert steps.median_s == pytest.approx(0.59)
    assert fixture("blocks_only").seq_len is None


def test_a_log_without_a_whole_step_says_so() -> None:
    log = parse_log("\n".join(lines_of("blocks_only")[:10]), "result_0.txt")
    with pytest.raises(InputError, match="no whole step"):
        step_times(log)


def test_stretches_hold_all_steps_up_to_the_last_evaluation() -> None:
    log = fixture("timer_every_step")
    found = list(stretches(log))
    assert sum(one.num_steps for one in found) == log.num_steps
    assert not any(one.is_with_evaluation for one in found)
