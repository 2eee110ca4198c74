from __future__ import annotations

from pathlib import Path

import pytest
from made_logs import lines, submission, write

from meshwright.audit.score import log_files, read_submissions
from meshwright.errors import InputError

SHARED = Path(__file__).parents[2] / ".." / "shared" / "logs"


def scored(folder: Path, **options: object):
    return read_submissions([folder], with_compliance=False, **options)[0]  # type: ignore[arg-type]


def test_the_fastest_and_the_slowest_are_dropped(tmp_path: Path) -> None:
    one = scored(submission(tmp_path))
    # 22.0, 23.6 and 22.8 s: the middle one is left
    assert one.score.minutes == pytest.approx(22.8 / 60)
    assert [Path(path).name for path in one.score.dropped] == ["result_0.txt", "result_1.txt"]
    assert one.score.rule == "3 runs; the fastest and the slowest are dropped, the other 1 averaged"
    assert (one.benchmark, one.round, one.is_round_inferred) == ("llama31_405b", "v5.1", True)
    assert one.run_spread == pytest.approx(0.1)


def test_ten_runs_are_averaged_without_two(tmp_path: Path) -> None:
    steps_s = (2.0, 3.0, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1)
    one = scored(submission(tmp_path, steps_s, benchmark="llama31_8b"))
    assert one.score.minutes == pytest.approx((8 * 2.1 + 6) / 60)
    assert [Path(run.path).name for run in one.runs][-1] == "result_9.txt"


def test_one_run_that_failed_stands_for_the_slowest(tmp_path: Path) -> None:
    submission(tmp_path)
    write(tmp_path / "result_0.txt", lines(step_s=1.0, status="aborted", quality=6.0))
    one = scored(tmp_path)
    assert one.score.minutes == pytest.approx(23.6 / 60)  # 22.8 is the fastest of those that ended well
    assert [Path(path).name for path in one.score.dropped] == ["result_2.txt", "result_0.txt"]


def test_two_runs_that_failed_leave_no_score(tmp_path: Path) -> None:
    submission(tmp_path)
    for number in (0, 1):
        write(tmp_path / f"result_{number}.txt", lines(status="aborted", seed=number))
    assert scored(tmp_path).score.minutes is None
    assert "2 runs did not reach the target" in scored(tmp_path).score.rule


@pytest.mark.parametrize("quality", [5.9, float("nan")])
def test_a_run_that_ended_above_the_target_is_not_scored(tmp_path: Path, quality: float) -> None:
    submission(tmp_path)
    write(tmp_path / "result_0.txt", lines(step_s=2.0, quality=quality))  # the fastest, and it says success
    assert scored(tmp_path).score.minutes == pytest.approx(23.6 / 60)
    write(tmp_path / "result_2.txt", lines(step_s=2.1, quality=quality))
    one = scored(tmp_path).score
    assert one.minutes is None and "2 runs did not reach the target" in one.rule


def test_a_log_that_is_there_twice_is_one_run(tmp_path: Path) -> None:
    folder = submission(tmp_path)
    (folder / "result_2.txt").write_text("a line of nobody's\n" + (folder / "result_0.txt").read_text())
    one = scored(tmp_path).score
    assert one.minutes is None and one.rule.endswith("result_0.txt and result_2.txt are the same log: no score")


def test_too_few_logs_have_no_score(tmp_path: Path) -> None:
    one = scored(submission(tmp_path, (2.0, 2.1)))
    assert one.score.minutes is None and one.score.rule.endswith("2 logs are here: no score")


def test_a_benchmark_without_a_rule_is_not_scored(tmp_path: Path) -> None:
    assert scored(submission(tmp_path, benchmark="our_own")).score.rule.startswith("no rule is known")


def test_mlperfs_factor_beside_the_logs_is_applied(tmp_path: Path) -> None:
    submission(tmp_path)
    (tmp_path / "scaling.json").write_text('{"scaling_factor": 1.5}')
    one = scored(tmp_path)
    assert (one.score.scaling, one.score.minutes) == (1.5, pytest.approx(1.5 * 22.8 / 60))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scaling_factor": -1}', '{"scaling_factor": "1"}', '{"scaling_factor": NaN}'])
def test_a_bad_factor_is_refused(tmp_path: Path, text: str) -> None:
    submission(tmp_path)
    (tmp_path / "scaling.json").write_text(text)
    with pytest.raises(InputError, match=r"scaling_factor(.|\n)*scaling\.json"):
        scored(tmp_path)


def test_runs_that_differ_in_more_than_the_seed_are_reported(tmp_path: Path) -> None:
    submission(tmp_path)
    assert scored(tmp_path).differing_settings == {}
    write(tmp_path / "result_2.txt", lines(learning_rate=9e-5))
    assert scored(tmp_path).differing_settings == {"opt_base_learning_rate": [8e-5, 8e-5, 9e-5]}


def test_folders_and_benchmarks_are_submissions_of_their_own(tmp_path: Path) -> None:
    submission(tmp_path / "a")
    submission(tmp_path / "b", benchmark="gpt3")
    write(tmp_path / "a" / "result_9.txt", ["nothing"])
    found = read_submissions([tmp_path / "a", tmp_path / "b"], with_compliance=False)
    assert [(one.benchmark, len(one.runs)) for one in found] == [("llama31_405b", 4), ("gpt3", 3)]


def test_a_round_that_is_given_is_taken(tmp_path: Path) -> None:
    one = scored(submission(tmp_path), round="v6.0")
    assert (one.round, one.is_round_inferred) == ("v6.0", False)


def test_result_10_comes_after_result_9_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    for number in (0, 2, 10, 9):
        (tmp_path / f"result_{number}.txt").write_text("x")
    assert [path.name for path in log_files([tmp_path])] == ["result_0.txt", "result_2.txt", "result_9.txt", "result_10.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no log in the folder"):
        log_files([tmp_path / "empty"])


# The published scores of these submissions, in minutes.
SCORES = [
    ("v3.1_eos_n64_gpt3", 58.302, "NVIDIA, 512 h100"),
    ("v4.1_azure_h200_512_llama2_70b_lora", 1.6085, "Azure, 512 h200"),
    ("v4.1_oracle_h100_512_llama2_70b_lora", 2.0649, "Oracle, 512 h100"),
    ("v5.0_carina_ngpu512_llama31_405b", 104.9469 * 1.1538, "IBM+CoreWeave+NVIDIA, 512 gb200"),
    ("v5.0_eos-dfw_n64_llama31_405b", 230.6756 * 1.1667, "NVIDIA, 512 h100"),
    ("v5.1_theia_ngpu512_llama31_405b", 64.6051, "NVIDIA, 512 gb300"),
]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("folder, minutes, row", SCORES, ids=[one[0] for one in SCORES])
def test_real_submissions_get_their_score_and_are_found_in_the_table(folder: str, minutes: float, row: str) -> None:
    one = scored(SHARED / folder)
    assert one.score.minutes == pytest.approx(minutes, rel=1e-3)
    assert one.round == folder[:4] and one.differing_settings == {}
    assert one.on_record is not None and row in one.on_record.name
