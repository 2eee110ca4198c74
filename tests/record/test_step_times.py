"""Step times: what they are like, and how they are read from a CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.record.step_times import StepTimes, read_step_times

SHARED = Path(__file__).parents[2] / ".." / "shared"


def test_spread_and_drift_match_a_hand_worked_case() -> None:
    steps = StepTimes(np.array([9.0, 1.0, 1.0, 1.02, 1.04, 1.06]), np.array([True, *[False] * 5]), "by hand")
    # deviations from the median 1.02: 0.02 0.02 0 0.02 0.04; tenths of five steps are one step each
    assert steps.robust_std_pct == pytest.approx(100 * 1.4826 * 0.02 / 1.02)
    assert steps.std_pct == pytest.approx(100 * math.sqrt(2.72e-3 / 5) / 1.024, rel=0.01)
    assert steps.drift_pct == pytest.approx(6.0)


def test_the_worst_step_and_the_tail_match_a_hand_worked_case() -> None:
    steps = StepTimes(np.array([9.0, *[1.0] * 99, 2.0, 1.0]), np.array([True, *[False] * 101]), "by hand")
    assert steps.worst == (1, 9.0)
    # 101 steady steps: the 99th percentile is the hundredth of them in order, and one is longer
    assert steps.p99_over_p50 == 1.0
    assert StepTimes(steps.seconds[1:], ~steps.is_first[1:] & False, "by hand").worst == (100, 2.0)


def test_step_times_are_read_from_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("step,step_s\n1,3.0\n2,2.0\n3,2.2\n")
    steps = read_step_times(path)
    assert (steps.median_s, steps.is_first.tolist()) == (2.1, [True, False, False])
    path.write_text("step,step_s,first_after_eval\n1,3.0,1\n2,2.0,0\n3,2.5,1\n")
    assert read_step_times(path).median_s == 2.0
    path.write_text("step,step_time_s\n1,3.0\n2,2.0\n")  # the column's name in version 0.1
    assert read_step_times(path).median_s == 2.0


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "no column 'step'"),
        ("step,seconds\n1,2\n", "no column 'step_s'(.|\n)*line 1"),
        ("step,step_s\n", "no step"),
        ("step,step_s\n1,2.0\n2,fast\n", "'fast', not a positive number of seconds(.|\n)*line 3"),
        ("step,step_s\n1,-2\n", "'-2', not a positive"),
        ("step,step_s\n1,nan\n", "'nan', not a positive"),
        ("step,step_s\n1\n", "None, not a positive"),
    ],
)
def test_a_bad_csv_names_line_and_value(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_step_times(path)


@pytest.mark.skipif(not (SHARED / "data" / "step_times").is_dir(), reason="the step times are not here")
def test_the_step_times_of_other_runs_are_all_read() -> None:
    for path in (SHARED / "data" / "step_times").glob("*.csv"):
        with path.open() as file:
            assert len(read_step_times(path).seconds) == sum(1 for _ in csv.reader(file)) - 1


def test_a_missing_file_is_an_error_without_a_traceback() -> None:
    with pytest.raises(InputError, match="cannot read the step times"):
        read_step_times("nowhere/steps.csv")
