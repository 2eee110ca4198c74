from __future__ import annotations

from pathlib import Path

from made_logs import lines, submission, write

from meshwright.audit.log_page import log_memos
from meshwright.audit.score import read_submissions
from meshwright.say.memo import FAIL, OPEN, PASS, Memo


def memos(*folders: Path) -> list[Memo]:
    return log_memos(read_submissions(folders, with_compliance=False))


def checks(memo: Memo) -> dict[str, str]:
    return {one.about: one.verdict for one in memo.findings}


def test_a_whole_submission_has_its_score_in_the_headline(tmp_path: Path) -> None:
    [memo] = memos(submission(tmp_path))
    assert memo.headline.startswith("The score by MLPerf's rule is 0.380 minutes")
    found = checks(memo)
    assert (found["logs are whole"], found["target is reached"], found["time adds up"], found["score by MLPerf's rule"]) == (PASS,) * 4
    assert found["settings of the runs"] == PASS
    # 512 samples are far from what the reference needs, the checker was not run, and no such submission is on record
    assert {about for about, outcome in found.items() if outcome == OPEN} == {
        "samples to the target",
        "MLPerf's compliance checker",
        "result on record",
    }
    assert memo.outcome == OPEN and [table.title for part in memo.parts for table in part.tables] == ["runs", "step times"]


def test_what_is_wrong_comes_first(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_1.txt", lines(quality=5.9, learning_rate=9e-5))
    write(tmp_path / "result_2.txt", lines()[:-1])
    [memo] = memos(tmp_path)
    assert memo.outcome == FAIL
    failed = [one.about for one in memo.findings if one.verdict == FAIL]
    assert failed == ["logs are whole", "target is reached", "settings of the runs"] == [one.about for one in memo.findings][:3]
    assert memo.second.startswith("Logs are whole: result_2.txt is truncated at line")
    assert "there is no score" in memo.headline


def test_others_are_compared_in_the_first_memo(tmp_path: Path) -> None:
    first, second = memos(submission(tmp_path / "a"), submission(tmp_path / "b", (4.0, 4.2, 4.1)))
    assert len(first.parts[0].lines) == 1 and "times as fast" in first.parts[0].lines[0] and second.parts[0].lines == ()


def test_logs_that_cannot_be_read_have_no_time(tmp_path: Path) -> None:
    [memo] = memos(write(tmp_path / "a.txt", ["nothing"]))
    assert (memo.outcome, memo.headline) == (FAIL, "No time can be computed from these logs.")
