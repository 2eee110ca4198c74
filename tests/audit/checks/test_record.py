"""Claims against the table of submissions, and against a log that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_logs import lines, write
from statements import statements, verdicts

from meshwright.audit.checks.record import check
from meshwright.audit.submissions import Submission, find, submissions
from meshwright.errors import InputError


def is_alone(row: Submission) -> bool:
    same = find(round=row.round, benchmark=row.benchmark, accelerator=row.accelerator, gpus=row.gpus)
    return len(same) == 1 and row.minutes > 0 and row.chip is not None


def machine_of(row: Submission) -> dict[str, Any]:
    return {"round": row.round, "benchmark": row.benchmark, "accelerator": row.accelerator, "gpus": row.gpus}


ROW = next(row for row in submissions() if is_alone(row))
MACHINE = machine_of(ROW)
OWN = {**MACHINE, "submitter": ROW.submitter}
RUN_S = 22.0  # of a made-up log: 8 steps of 2 s and two evaluations of 3 s


@pytest.mark.parametrize("times, expected", [(1.0, "consistent"), (1.04, "consistent"), (3.0, "misleading"), (0.5, "misleading")])
def test_the_submitters_own_time_is_in_the_table(times: float, expected: str) -> None:
    assert verdicts(check, **OWN, minutes=times * ROW.minutes) == {"submission": expected}


def test_anothers_time_on_such_a_machine_may_be_missing_from_the_table() -> None:
    assert verdicts(check, **MACHINE, minutes=3 * ROW.minutes) == {"submission": "unknown"}
    assert verdicts(check, **{**MACHINE, "gpus": 7}, minutes=10) == {"submission": "unknown"}


def test_a_submission_is_on_record_without_a_time() -> None:
    found = statements(check, **OWN)["submission"]
    assert found.verdict == "consistent" and ROW.submitter in found.why


@pytest.mark.parametrize("times, expected", [(1.0, "consistent"), (1.1, "unsupported"), (1.5, "misleading"), (0.5, "misleading")])
def test_a_step_time_is_compared_with_the_submitters_logs(times: float, expected: str) -> None:
    assert verdicts(check, **OWN, step_s=times * ROW.step_s)["step time"] == expected


def test_a_step_time_of_no_known_run_is_unsupported() -> None:
    assert verdicts(check, accelerator="h100", gpus=7, step_s=1.0) == {"step time": "unsupported"}


def test_a_baseline_is_looked_up_too() -> None:
    found = verdicts(check, accelerator="h100", baseline={**OWN, "minutes": ROW.minutes})
    assert found == {"submission of the baseline": "consistent"}


@pytest.mark.parametrize("seconds, expected", [(RUN_S, "consistent"), (1.5 * RUN_S, "misleading")])
def test_a_log_says_how_long_the_run_took(tmp_path: Path, seconds: float, expected: str) -> None:
    write(tmp_path / "result_0.txt", lines())
    assert verdicts(check, tmp_path, log="result_0.txt", seconds=seconds) == {"time to train": expected}


@pytest.mark.parametrize("step_s, expected", [(2.0, "consistent"), (1.9, "misleading")])
def test_a_log_says_how_long_a_step_took(tmp_path: Path, step_s: float, expected: str) -> None:
    write(tmp_path / "result_0.txt", lines())
    assert verdicts(check, tmp_path, log="result_0.txt", step_s=step_s) == {"step time": expected}


def test_a_log_that_missed_its_target_supports_no_time(tmp_path: Path) -> None:
    write(tmp_path / "missed.txt", lines(quality=5.9, status="aborted"))
    assert verdicts(check, tmp_path, log="missed.txt", seconds=RUN_S) == {"time to train": "misleading"}
    assert verdicts(check, tmp_path, log="missed.txt") == {"log": "unsupported"}
    write(tmp_path / "whole.txt", lines())
    assert verdicts(check, tmp_path, log="whole.txt") == {"log": "consistent"}


def test_a_log_on_the_web_is_taken_and_one_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    assert verdicts(check, log="https://example.org/result_0.txt", seconds=RUN_S) == {"log": "consistent"}
    with pytest.raises(InputError, match=r"no log at nowhere\.txt"):
        verdicts(check, tmp_path, log="nowhere.txt")


def test_nothing_is_stated_about_a_run_that_names_neither_round_nor_step_nor_log() -> None:
    assert verdicts(check, benchmark="llama31_8b", accelerator="h100", gpus=8, minutes=10) == {}


def test_a_time_that_the_table_does_not_have_is_unknown() -> None:
    untimed = next(row for row in submissions() if row.chip and not any(one.minutes > 0 for one in find(**machine_of(row))))
    assert verdicts(check, **machine_of(untimed), minutes=10) == {"submission": "unknown"}
