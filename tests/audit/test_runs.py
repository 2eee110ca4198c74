from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_logs import lines, write

from meshwright.audit.log_memo import findings
from meshwright.audit.runs import ABORTED, DAMAGED, TRUNCATED, WHOLE, LoggedRun, read_run, read_runs
from meshwright.audit.score import read_submissions
from meshwright.errors import InputError

SHARED = Path(__file__).parents[2] / ".." / "shared" / "logs"


def test_a_log_is_reckoned_again(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "result_0.txt", lines()))
    assert (run.state, run.line, run.problem, run.flaws) == (WHOLE, 0, "", ())
    # 8 steps of 2 s and two evaluations of 3 s; 30 s before the clock
    assert (run.time_to_train_s, run.initialisation_s, run.evaluation_s, run.stepping_s, run.rest_s) == (22.0, 30.0, 6.0, 16.0, 0.0)
    assert (run.samples, run.num_steps, len(run.evaluations), run.quality, run.target, run.reached) == (512, 8, 2, 5.5, 5.6, True)
    assert run.steps is not None and run.steps.median_s == 2.0
    assert run.settings["opt_base_learning_rate"] == 8e-5 and "cache_clear" not in run.settings


def test_an_aborted_run_is_whole_but_says_so(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "a.txt", lines(status="aborted", quality=5.9)))
    assert (run.state, run.is_whole, run.reached) == (ABORTED, True, False)
    assert run.problem == "run_stop says aborted" and run.line == len(lines())


def test_a_log_that_ends_early_names_its_last_line(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "a.txt", lines()[:-1]))
    assert (run.state, run.line, run.problem) == (TRUNCATED, len(lines()) - 1, "it ends after eval_stop, without run_stop")
    assert run.samples == 512 and run.time_to_train_s is None


def test_a_log_cut_within_a_line_names_that_line(tmp_path: Path) -> None:
    text = "\n".join(lines())
    (tmp_path / "a.txt").write_text(text[:-30])
    run = read_run(tmp_path / "a.txt")
    assert (run.state, run.line, run.problem) == (TRUNCATED, len(lines()), "the last :::MLLOG line is cut")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    text = lines()
    text[5] = text[5][:40]
    run = read_run(write(tmp_path / "a.txt", text))
    assert (run.state, run.line) == (DAMAGED, 6) and run.problem.startswith("a damaged :::MLLOG line")


def damaged(folder: Path, *edits: tuple[str, int]) -> LoggedRun:
    """The log with the last line of each key cut to so many characters."""
    text = lines()
    for key, length in edits:
        number = max(i for i, one in enumerate(text) if f'"key": "{key}"' in one)
        text[number] = text[number][:length]
    return read_run(write(folder / "a.txt", text))


def test_a_damaged_line_leaves_the_rest_to_be_read(tmp_path: Path) -> None:
    run = damaged(tmp_path, ("opt_base_learning_rate", 60))
    assert (run.state, len(run.flaws), run.unknown) == (DAMAGED, 1, frozenset())
    assert (run.time_to_train_s, run.samples, run.num_evaluations, run.quality, run.reached) == (22.0, 512, 2, 5.5, True)
    assert "opt_base_learning_rate" not in run.settings and run.settings["global_batch_size"] == 64


@pytest.mark.parametrize(
    "edits, unknown",
    [
        ([("tracked_stats", 60)], set()),  # its key is legible
        ([("tracked_stats", 20)], {"evaluations"}),  # it may be one that came before the last
        ([("eval_accuracy", 60)], {"evaluations", "quality", "samples", "num_steps"}),
        ([("eval_stop", 20)], {"evaluations", "quality", "samples", "num_steps"}),
        ([("run_start", 60)], {"time_to_train_s"}),
        ([("init_stop", 60)], {"initialisation_s"}),
        ([("global_batch_size", 60)], {"samples", "num_steps", "steps"}),
        ([("global_batch_size", 20)], {"samples", "num_steps", "steps"}),
        ([("seed", 20)], set()),
        ([("seed", 20), ("run_start", 60)], {"time_to_train_s"}),
    ],
)
def test_what_depends_on_a_damaged_line_is_unknown(tmp_path: Path, edits: list[tuple[str, int]], unknown: set[str]) -> None:
    run = damaged(tmp_path, *edits)
    assert (run.state, run.unknown) == (DAMAGED, unknown)
    for name in unknown - {"evaluations"}:
        assert getattr(run, name) is None, name
    assert (run.num_evaluations is None) == (run.evaluation_s is None) == ("evaluations" in unknown)
    if "quality" in unknown:
        assert run.reached is None


def test_every_damaged_line_is_reported(tmp_path: Path) -> None:
    run = damaged(tmp_path, ("seed", 20), ("init_stop", 60), ("eval_stop", 60))
    assert run.log is not None and [flaw.line for flaw in run.flaws] == [one.line for one in run.log.damaged] and len(run.flaws) == 3
    assert run.line == run.flaws[0].line and run.problem.endswith("(and 2 more)")


def test_a_run_that_was_stopped_before_its_first_evaluation_is_no_damage(tmp_path: Path) -> None:
    text = lines(status="aborted")
    stop = next(i for i, one in enumerate(text) if '"key": "block_stop"' in one)
    run = read_run(write(tmp_path / "a.txt", [*text[:stop], text[-1]]))
    assert (run.state, run.problem, run.samples, run.num_steps, run.num_evaluations) == (ABORTED, "run_stop says aborted", 256, 4, 0)
    success = read_run(write(tmp_path / "b.txt", [*text[:stop], text[-1].replace("aborted", "success")]))
    assert (success.state, success.problem) == (DAMAGED, "no evaluation says how many samples came before it")


def test_a_log_without_a_batch_is_damaged(tmp_path: Path) -> None:
    text = [one for one in lines() if '"global_batch_size"' not in one]
    run = read_run(write(tmp_path / "a.txt", text))
    assert (run.state, run.problem) == (DAMAGED, "the log has no global_batch_size line")


@pytest.mark.parametrize("text", ["", "no log\n", "\x00\x01\x02", "{}"])
def test_a_file_that_is_no_log_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    run = read_run(tmp_path / "a.txt")
    assert (run.state, run.line, run.is_whole) == (DAMAGED, 1, False) and "no :::MLLOG line" in run.problem


def test_an_empty_file_and_one_that_is_packed_as_a_folder_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", "\n".join(lines()))
    assert read_run(tmp_path / "a.txt").problem.endswith("which is empty")
    assert read_run(tmp_path / "b.zip").problem.endswith("which is packed by zip: unpack it first")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        read_run(tmp_path / "nowhere.txt")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_mutilated_log_is_never_taken_for_another_run(tmp_path: Path, data: st.DataObject) -> None:
    """What is cut out is noticed, or no result is computed from it."""
    text = lines()
    index = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["cut", "drop", "blank", "garble"]))
    changed = {
        "cut": [*text[:index], text[index][: len(text[index]) // 2]],
        "drop": text[:index] + text[index + 1 :],
        "blank": [*text[:index], "", *text[index + 1 :]],
        "garble": [*text[:index], text[index].replace('"', "\x00", 3), *text[index + 1 :]],
    }[kind]
    run = read_run(write(tmp_path / "a.txt", changed))
    if kind in ("cut", "garble"):
        assert not run.is_whole and run.line > 0 and run.problem
    elif run.is_whole:
        assert (run.time_to_train_s, run.samples) == (22.0, 512)


def test_steps_that_are_longer_than_their_run_are_an_error_and_no_row(tmp_path: Path) -> None:
    text = [one.replace('"train_step_time": 2.0', '"train_step_time": 3.0') for one in lines()]
    run = read_run(write(tmp_path / "a.txt", text))
    # 8 steps of 3 s and two evaluations of 3 s in 22 s
    assert (run.state, run.line, run.rest_s) == (DAMAGED, len(text), None)
    assert run.problem == "its steps (24.0 s) and evaluations (6.0 s) take longer than the run (22.0 s)"


def test_a_file_of_several_runs_is_read_run_by_run(tmp_path: Path) -> None:
    later = [re.sub(r'"time_ms": (\d+)', lambda found: f'"time_ms": {int(found[1]) + 90_000}', one) for one in lines(step_s=3.0, seed=2)]
    path = write(tmp_path / "all.txt", [*lines(), *later])
    found = read_runs(path)
    assert [(Path(run.path).name, run.state, run.time_to_train_s) for run in found] == [
        ("all.txt (run 1 of 2)", WHOLE, 22.0),
        ("all.txt (run 2 of 2)", WHOLE, 30.0),
    ]
    with pytest.raises(InputError, match="the file holds 2 runs"):
        read_run(path)
    again = [*lines()[:-1], *later]  # the first has no end: one run that was started twice
    assert [run.state for run in read_runs(write(tmp_path / "again.txt", again))] == [DAMAGED]


# Logs of which a time cannot be told, and the line of `audit log` that says so.
UNTIMED = "does not say when its evaluations begin (no eval_start)"
NOT_TOLD = {"v3.1_google_v5e_pax_gpt3": UNTIMED, "v4.0_juniper_h100_n4_lora": UNTIMED, "v4.1_google_v6e_512_gpt3": UNTIMED}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not here")
def test_real_logs_are_whole_and_cut_ones_are_not(tmp_path: Path) -> None:
    for path in sorted(SHARED.glob("*/result_*.txt")):
        run = read_run(path)
        assert (run.state, run.reached) == (WHOLE, True), path
        assert run.steps is not None and run.time_to_train_s is not None
        reason = NOT_TOLD.get(path.parent.name, "")
        if reason:
            assert run.rest_s is None and run.evaluation_s is None
            [one] = read_submissions([path], with_compliance=False)
            assert [line for line in findings(one) if reason in line], path
        else:
            # what is left is less than a fiftieth of the run: timers before v5.0 leave out that much
            assert run.rest_s is not None and 0 <= run.rest_s < 0.02 * run.time_to_train_s, path
        text = path.read_text(encoding="utf-8", errors="replace")
        (tmp_path / "cut.txt").write_text(text[: int(0.9 * text.index('"run_stop"'))])
        cut = read_run(tmp_path / "cut.txt")
        assert cut.state == TRUNCATED and 0 < cut.line <= text.count("\n")
