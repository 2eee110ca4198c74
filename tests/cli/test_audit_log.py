"""`meshwright audit log`: tables, JSON and Markdown of logs, damaged ones apart, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.audit.log_memo import BLOCKS, strip
from meshwright.cli.audit_log import _are_whole
from meshwright.say.vocabulary import problems

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def verb():
    return "audit"


WIDE = """\
llama31_405b, round not known, Example Labs, 2xEXAMPLE-8
log                   state  time to train [min]  before the clock [min]  samples  steps  evaluations  evaluating [%]  quality  target  \
compliance checker
timer_every_step.log  whole                0.398                    0.50      512      8            2            26.0      5.5     5.6  \
not run

step times
log                   median [s]  spread [%]  std [%]  p99/p50  worst [s]  at step  first [s]  after a start [s]  drift [%]  read from
timer_every_step.log           2       1.483    9.054   1.2380        2.6        1        2.6                2.5     -1.000  \
timer of every step

step times from the first to the last
log                   median of each stretch  from lowest to highest
timer_every_step.log  █▁▁▁▆▁▇▁                1.98 to 2.6 s

rule: 3 runs; the fastest and the slowest are dropped, the other 1 averaged. 1 log is here: no score
before the clock, and not scored: up to 0.5 min of initialisation, 0.5 of them warm-up
timer_every_step.log trained on 512 samples, 0.001634 times the samples that MLPerf's reference needs at this batch: its counter may not \
count samples
"""


def test_a_log_as_tables(run):
    assert run("log", str(FIXTURES / "timer_every_step.log"), "--no-compliance") == (0, WIDE, "")


def test_logs_as_json(answer, tmp_path):
    for number in range(3):
        text = (FIXTURES / "timer_every_step.log").read_text()
        (tmp_path / f"result_{number}.txt").write_text(text.replace("submission_platform", f"submission_platform_{number}", 1))
    found = answer("log", str(tmp_path), "--no-compliance", "--round", "5.1")
    assert problems(found) == []
    [one] = found["submissions"]
    assert (one["benchmark"], one["round"], one["is_round_inferred"]) == ("llama31_405b", "v5.1", False)
    assert one["score_s"] == pytest.approx(23.88)
    assert [log["is_whole"] for log in one["logged_runs"]] == [True] * 3


def test_two_submissions_are_compared(run, answer, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(FIXTURES / "timer_every_step.log", tmp_path / folder / "result_0.txt")
    arguments = ("log", str(tmp_path / "a"), str(tmp_path / "b"), "--no-compliance")
    found = answer(*arguments)
    assert problems(found) == []
    [one] = found["comparisons"]
    assert (one["time_ratio"], one["throughput_ratio"], one["convergence_ratio"], one["loop_ratio"]) == (1, 1, 1, 1)
    assert "1.000 times as fast" in " ".join(run(*arguments)[1].split()) and "1.000 throughput" in run(*arguments, "--markdown")[1]


def test_a_truncated_and_a_damaged_log_are_distinguished_and_exit_with_1(run, tmp_path):
    lines = (FIXTURES / "timer_every_step.log").read_text().splitlines()
    (tmp_path / "result_0.txt").write_text("\n".join(lines[:30]))
    (tmp_path / "result_1.txt").write_text("\n".join([*lines[:20], lines[20][:50], *lines[21:]]))
    (tmp_path / "result_2.txt").write_text("\n".join(lines))
    code, out, err = run("log", str(tmp_path), "--no-compliance")
    assert (code, err) == (1, "")
    assert "result_0.txt  truncated, line 30" in out and "result_1.txt  damaged, line 21" in out and "result_2.txt  whole" in out
    found = json.loads(run("log", str(tmp_path), "--no-compliance", "--json")[1])["submissions"][0]["logged_runs"]
    assert [(log["state"], log["line"]) for log in found] == [("truncated", 30), ("damaged", 21), ("whole", None)]


def test_logs_as_markdown(run):
    code, out, _ = run("log", str(FIXTURES / "counts_tokens.log"), "--no-compliance", "--markdown")
    assert code == 0 and out.startswith("# gpt3, v3.1 (by its date)") and "## Findings" in out


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["nowhere.txt"], "cannot read the log"),
        ([], "LOG is missing"),
        ([str(FIXTURES / "timer_every_step.log"), "--round", "last"], "'last' is not a round"),
        ([str(FIXTURES / "timer_every_step.log"), "--rounds", "v5.1"], "no option --rounds"),
    ],
)
def test_bad_input_for_logs_is_one_message(run, arguments, complaint):
    code, out, err = run("log", *arguments)
    assert (code, out) == (2, "") and complaint in err


def test_an_empty_folder_is_refused(run, tmp_path):
    code, _, err = run("log", str(tmp_path))
    assert code == 2 and "no log in the folder" in err


def test_a_strip_is_flat_where_steps_are_and_high_where_they_stall():
    import numpy as np

    assert strip(np.full(600, 2.0)) == BLOCKS[0] * 60
    drawn = strip(np.array([1.0] * 30 + [3.0] * 30), width=4)
    assert drawn == BLOCKS[0] * 2 + BLOCKS[-1] * 2


def test_one_damaged_run_of_any_submission_is_not_whole():
    def submission(*are_whole):
        return SimpleNamespace(runs=[SimpleNamespace(is_whole=is_whole) for is_whole in are_whole])

    assert _are_whole([]) and _are_whole([submission(True, True), submission(True)])
    assert not _are_whole([submission(True), submission(True, False)])


def test_logs_as_a_page(run, tmp_path):
    page = tmp_path / "memo.html"
    found = json.loads(run("log", str(FIXTURES / "timer_every_step.log"), "--no-compliance", "--html", str(page), "--json")[1])
    assert problems(found) == [] and found["files"] == [{"what": "page", "path": str(page)}]
    assert "computed again from the logs" in page.read_text() and "timer_every_step.log" in page.read_text()
    code, _, err = run("log", str(FIXTURES / "timer_every_step.log"), "--no-compliance", "--html", str(tmp_path / "nowhere" / "memo.html"))
    assert code == 2 and "choose a folder that exists" in err
