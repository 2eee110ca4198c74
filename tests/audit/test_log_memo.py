"""What the logs of a submission say: tables, findings, the strip of step times, Markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_logs import line, lines, submission, write

from meshwright.audit import log_memo
from meshwright.audit.compliance import FAILED, NOT_RUN, PASSED, Compliance
from meshwright.audit.log_memo import (
    BLOCKS,
    RUN_COLUMNS,
    STEP_COLUMNS,
    UNKNOWN_WORDS,
    findings,
    logs_document,
    run_rows,
    step_rows,
    strip,
    title,
)
from meshwright.audit.score import LoggedSubmission, read_submissions
from meshwright.say.vocabulary import problems


def read(folder: Path) -> LoggedSubmission:
    return read_submissions([folder], with_compliance=False)[0]


def test_logs_as_markdown_and_findings(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_2.txt", lines(learning_rate=9e-5, step_s=2.1)[:-3])
    one = read_submissions([tmp_path], with_compliance=False)[0]
    findings = list(log_memo.findings(one))
    assert findings[0] == "result_2.txt is truncated at line 31: it ends after eval_start, without run_stop"
    assert "the runs differ in opt_base_learning_rate: 8e-05, 9e-05" in findings
    assert "before the clock, and not scored: up to 0.5 min of initialisation" in findings
    text = log_memo.as_markdown(one)
    assert text.startswith("# llama31\\_405b, v5.1 (by its date), Example Labs, 2xEXAMPLE\n")
    assert "| result\\_2.txt | truncated, line 31 |" in text


def test_a_log_without_results_says_that_its_target_is_open(tmp_path: Path) -> None:
    write(tmp_path / "result_0.txt", [one for one in lines() if "eval_accuracy" not in one])
    sentence = "result_0.txt has no result of its last evaluation (eval_accuracy): whether it reached the target is not known"
    assert sentence in findings(read(tmp_path))


def test_a_log_without_its_batch_names_what_is_missing_and_no_line(tmp_path: Path) -> None:
    write(tmp_path / "result_0.txt", [one for one in lines() if "global_batch_size" not in one])
    one = read(tmp_path)
    assert next(iter(findings(one))) == "result_0.txt is damaged: the log has no global_batch_size line"
    assert run_rows(one)[0][RUN_COLUMNS.index("samples>")] == "-"
    assert log_memo.submission_values(one)["logged_runs"][0]["line"] is None


def test_logs_as_json_say_where_they_stop_being_whole(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_1.txt", [*lines()[:4], ":::MLLOG {broken", *lines()[4:]])
    found = log_memo.submission_values(read_submissions([tmp_path], with_compliance=False)[0])
    states = [(log["state"], log["is_whole"], log["line"]) for log in found["logged_runs"]]
    assert states == [("whole", True, None), ("damaged", False, 5), ("whole", True, None)]
    assert found["logged_runs"][0]["step_times"]["median_step_s"] == 2.0 and found["logged_runs"][0]["time_to_train_s"] == 22.0


def test_a_title_names_benchmark_round_and_who(tmp_path: Path) -> None:
    assert title(read(submission(tmp_path))) == "llama31_405b, v5.1 (by its date), Example Labs, 2xEXAMPLE"


def test_a_title_without_names_says_so_and_obeys_nobody(tmp_path: Path) -> None:
    for number in range(2):
        text = [one for one in lines(seed=number) if "submission_benchmark" not in one and "submission_org" not in one]
        write(tmp_path / f"result_{number}.txt", [*text[:4], line(0, "submission_org", "\x1b[2J\nLabs"), *text[4:]])
    shown = title(read(tmp_path))
    assert shown.startswith("no benchmark named, ") and "\\x1b[2J Labs" in shown


def test_a_row_for_each_log_worked_by_hand(tmp_path: Path) -> None:
    # 8 steps of 2 s and two evaluations of 3 s: 22 s, of which 6 are evaluations
    submission(tmp_path, steps_s=(2.0,))
    (row,) = run_rows(read(tmp_path))
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    assert (values["log"], values["state"]) == ("result_0.txt", "whole")
    assert (values["time to train [min]>"], values["before the clock [min]>"]) == ("0.367", "0.50")
    assert (values["samples>"], values["steps>"], values["evaluations>"], values["evaluating [%]>"]) == ("512", "8", "2", "27.3")
    assert (values["quality>"], values["target>"], values["compliance checker"]) == ("5.5", "5.6", NOT_RUN)


def test_steps_of_one_length_have_no_spread(tmp_path: Path) -> None:
    (row,) = step_rows(read(submission(tmp_path, steps_s=(2.0,))))
    values = dict(zip(STEP_COLUMNS, row, strict=True))
    assert (values["median [s]>"], values["spread [%]>"], values["p99/p50>"], values["drift [%]>"]) == ("2", "0.000", "1.0000", "+0.000")


def test_runs_that_differ_are_compared(tmp_path: Path) -> None:
    said = list(findings(read(submission(tmp_path, steps_s=(2.0, 2.5, 2.25)))))
    assert any("result_1.txt is the slowest, result_0.txt the fastest" in one for one in said)
    assert any(one.startswith("rule: ") for one in said)
    alike = list(findings(read(submission(tmp_path / "alike", steps_s=(2.0, 2.001, 2.0)))))
    assert not any("is the slowest" in one for one in alike)


def test_a_run_that_misses_its_target_is_named(tmp_path: Path) -> None:
    submission(tmp_path, steps_s=(2.0, 2.0))
    write(tmp_path / "result_1.txt", lines(quality=5.9, status="aborted"))
    said = list(findings(read(tmp_path)))
    assert any(one.startswith("result_1.txt ") and "5.9" in one for one in said)


@pytest.mark.parametrize(
    ("compliance", "words"),
    [
        (None, NOT_RUN),
        (Compliance(state=NOT_RUN, rules="", complaints=(), why="not installed"), NOT_RUN),
        (Compliance(state=PASSED, rules="6.0.0", complaints=(), why=""), PASSED),
        (Compliance(state=FAILED, rules="6.0.0", complaints=("a", "b"), why=""), "2 complaint(s)"),
    ],
)
def test_what_the_checker_said_in_a_word(compliance: Compliance | None, words: str) -> None:
    assert log_memo._compliance_words(compliance) == words


@pytest.mark.parametrize(
    ("seconds", "drawn"),
    [
        ([2.0, 2.0, 2.0], BLOCKS[0] * 3),
        ([2.0, 2.001, 2.0], BLOCKS[0] * 3),  # a thousandth is noise
        ([1.0, 8.0], BLOCKS[0] + BLOCKS[-1]),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], BLOCKS),
        ([3.0], BLOCKS[0]),
    ],
)
def test_a_strip_is_as_high_as_its_steps(seconds: list[float], drawn: str) -> None:
    assert strip(np.array(seconds)) == drawn


def test_a_strip_of_many_steps_shows_the_median_of_each_stretch() -> None:
    seconds = np.repeat([1.0, 3.0, 2.0], 100)
    seconds[::50] = 99.0  # a few stalls change no median
    assert strip(seconds, width=3) == BLOCKS[0] + BLOCKS[-1] + BLOCKS[4]
    assert len(strip(np.linspace(1, 2, 1000))) == log_memo.STRIP_WIDTH


@pytest.mark.parametrize(
    ("value", "form", "text"), [(None, ".3f", "-"), (float("nan"), ".3f", "-"), (0.0, ".1f", "0.0"), (1234.4, ",.0f", "1,234")]
)
def test_what_is_not_known_is_a_dash(value: float | None, form: str, text: str) -> None:
    assert log_memo._number(value, form) == text


def test_a_document_has_every_table_and_json_of_known_words(tmp_path: Path) -> None:
    found = [read(submission(tmp_path / name, steps_s=steps_s)) for name, steps_s in (("a", (2.0, 2.1)), ("b", (4.0, 4.2)))]
    document = logs_document(found)
    values = document.to_json()
    assert len(values["submissions"]) == 2 and len(values["comparisons"]) == 1 and problems(values) == []
    json.dumps(values, allow_nan=False)
    assert log_memo.comparison_lines(found)[0].startswith(f"{found[1].folder} against {found[0].folder}: ")


def test_every_value_that_can_be_unknown_has_words() -> None:
    assert all(UNKNOWN_WORDS.values()) and len(set(UNKNOWN_WORDS.values())) == len(UNKNOWN_WORDS)
