"""Logs in the forms of many submitters give the same run, whatever is left out of them or written around them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.record.log_steps import FROM_LOSSES, TIMERS, WITH_EVALUATION, step_times
from meshwright.record.mllog import Log, parse_log, read_log, salvage

from .submitters import (
    BATCH,
    BLOCKS,
    DATA_SET,
    EVALUATION_S,
    FIRST_S,
    FORMS,
    LESS,
    NUM_STEPS,
    QUALITIES,
    RUN_S,
    SAME,
    SAMPLES,
    SEQ_LEN,
    STEP_S,
    cuts,
    entries_of,
    recounted,
    text_of,
)

REAL = sorted((Path(__file__).parents[2] / ".." / "shared" / "logs").glob("*/result_0.txt"))
BY_BLOCK = "wall clock of a block / its steps"
WITH_EVALUATION_S = STEP_S + EVALUATION_S / BLOCKS[1]
FIRST_BLOCK_S = (FIRST_S + (BLOCKS[0] - 1) * STEP_S) / BLOCKS[0]

# By form: how steps are read, their median, the run's first step, and whether evaluations are timed.
READ = {
    "megatron": (TIMERS, STEP_S, FIRST_S, True),
    "maxtext": (WITH_EVALUATION, WITH_EVALUATION_S, math.nan, False),
    "pax": (WITH_EVALUATION, WITH_EVALUATION_S, math.nan, False),
    "gaudi": (BY_BLOCK, STEP_S, math.nan, True),
    "deepspeed": (FROM_LOSSES, STEP_S, math.nan, False),
    "rocm": (BY_BLOCK, STEP_S, math.nan, True),
}


def results(log: Log) -> tuple[object, ...]:
    """What MLPerf would ask of a log."""
    found = log.evaluations
    return log.status, log.time_to_train_s, log.samples_to_target, log.num_steps, len(found), [one.quality for one in found]


RESULTS = ("success", RUN_S, SAMPLES, NUM_STEPS, len(BLOCKS), list(QUALITIES))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", SAME)
def test_the_form_of_a_log_changes_nothing(form: str, change: str) -> None:
    log = parse_log(SAME[change](text_of(FORMS[form]())).replace("\r\n", "\n"), "x.log")
    assert results(log) == RESULTS
    method, median_s, first_s, is_timed = READ[form]
    steps = step_times(log)
    assert (steps.method, steps.median_s) == (method, pytest.approx(median_s, abs=2e-3))
    assert steps.first_step_s == pytest.approx(first_s, nan_ok=True)
    assert [one.seconds for one in log.evaluations] == [pytest.approx(EVALUATION_S, abs=0.01) if is_timed else None] * len(BLOCKS)
    assert [one.samples for one in log.evaluations] == [1280, 1920, 2560]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", LESS)
def test_lines_that_are_left_out_leave_the_results(form: str, change: str) -> None:
    log = parse_log(LESS[change](text_of(FORMS[form]())), "x.log")
    assert results(log) == RESULTS
    steps = step_times(log)
    assert steps.median_s == pytest.approx(WITH_EVALUATION_S if steps.method == WITH_EVALUATION else STEP_S), steps.method
    evaluating = [one.seconds for one in log.evaluations]
    assert evaluating in ([None] * len(BLOCKS), [EVALUATION_S] * len(BLOCKS))


def test_without_eval_start_an_evaluation_begins_where_its_block_stops_if_that_is_earlier() -> None:
    text = LESS["no eval_start"](text_of(FORMS["rocm"]()))
    assert [one.seconds for one in parse_log(text, "x.log").evaluations] == [EVALUATION_S] * len(BLOCKS)
    assert step_times(parse_log(text, "x.log")).method == BY_BLOCK


@pytest.mark.parametrize("form", ["megatron", "rocm", "deepspeed"])
@pytest.mark.parametrize(
    "name, per_sample",
    [
        ("epoch_num", 1),
        ("epoch_num", SEQ_LEN),
        ("samples_count", SEQ_LEN),
        ("step", 1),
        ("step", SEQ_LEN),
        ("step", 1 / BATCH),
        ("step_num", 1 / BATCH),
    ],
)
def test_a_counter_is_known_by_its_name_and_its_values(form: str, name: str, per_sample: float) -> None:
    text = recounted(text_of(FORMS[form]()), name, per_sample)
    if form == "rocm":  # its result is a step behind its evaluation
        text = LESS["no total"](text)
    log = parse_log(text, "x.log")
    assert results(log) == RESULTS
    assert step_times(log).median_s == pytest.approx(STEP_S)


def test_epochs_need_the_size_of_the_data_set() -> None:
    text = recounted(text_of(FORMS["deepspeed"]()), "epoch_num", 1 / DATA_SET)
    assert results(parse_log(text, "x.log"))[2] == pytest.approx(SAMPLES)
    with pytest.raises(InputError, match="epoch_num counts neither samples nor tokens nor steps of 32 samples"):
        _ = parse_log(LESS["no total"](text), "x.log").samples_to_target


def test_a_total_stands_in_for_evaluations_that_say_no_count() -> None:
    entries = FORMS["rocm"]()
    for entry in entries:
        if str(entry["key"]).startswith("eval_"):
            entry["metadata"] = {}
    assert parse_log(text_of(entries), "x.log").samples_to_target == SAMPLES


def test_a_throughput_is_the_last_resort_and_must_fit_into_the_run() -> None:
    text = recounted(text_of(FORMS["rocm"]()), "nothing", 1)
    steps = step_times(parse_log(text, "x.log"))
    assert (steps.method, steps.median_s) == ("throughput that the log states", STEP_S)
    with pytest.raises(InputError, match="no whole step"):
        step_times(parse_log(text.replace(f'"throughput": {BATCH / STEP_S}', '"throughput": 3.0'), "x.log"))


def test_a_timer_that_is_not_in_seconds_is_not_taken_for_one() -> None:
    text = text_of(FORMS["megatron"]()).replace('"train_step_time": 2.0', '"train_step_time": 2000.0')
    steps = step_times(parse_log(text, "x.log"))
    assert (steps.method, steps.median_s) == ("wall clock between progress lines", STEP_S)


def test_a_clock_that_was_set_back_is_not_put_in_order() -> None:
    entries = FORMS["gaudi"]()
    for entry in entries[len(entries) // 2 :]:
        entry["time_ms"] = int(str(entry["time_ms"])) - 100_000
    assert parse_log(text_of(entries), "x.log").unordered_line == 0
    assert parse_log(SAME["lines in no order"](text_of(FORMS["gaudi"]())), "x.log").unordered_line > 0


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: data.decode().encode("utf-16")])
def test_a_packed_log_is_unpacked(tmp_path: Path, pack) -> None:
    (tmp_path / "result_0.txt").write_bytes(pack(text_of(FORMS["gaudi"]()).encode()))
    assert results(read_log(tmp_path / "result_0.txt")) == RESULTS


def test_a_packed_log_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = gzip.compress(text_of(FORMS["megatron"]()).encode())
    (tmp_path / "result_0.txt.gz").write_bytes(data[: len(data) // 2])
    assert not read_log(tmp_path / "result_0.txt.gz").complete


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_log_never_ends_and_never_gives_more_than_the_whole(form: str) -> None:
    for text in cuts(text_of(FORMS[form]()), 1):
        log = salvage(text, "x.log")
        assert not log.complete and log.num_evaluations <= len(BLOCKS)
        for samples in (log.samples_trained, *(one.samples for one in log.evaluations)):
            assert samples is None or samples <= SAMPLES
        try:
            median_s = step_times(log).median_s
        except InputError:
            continue
        assert median_s <= max(WITH_EVALUATION_S, FIRST_S, FIRST_BLOCK_S + EVALUATION_S)


@pytest.mark.skipif(not REAL, reason="the real logs are not here")
@pytest.mark.parametrize("path", REAL, ids=[path.parent.name for path in REAL])
def test_real_logs_in_other_forms_give_the_same_run(path: Path) -> None:
    text = text_of(entries_of(path.read_text(encoding="utf-8", errors="replace")))
    log = parse_log(text, path.name)
    whole, steps = results(log), step_times(log)
    assert whole == results(read_log(path))
    for change, rule in SAME.items():
        other = parse_log(rule(text).replace("\r\n", "\n"), path.name)
        assert results(other) == whole, change
        assert step_times(other).method == steps.method and step_times(other).median_s == pytest.approx(steps.median_s, rel=1e-3), change
    for change, rule in LESS.items():
        other = parse_log(rule(text), path.name)
        assert results(other) == whole, change
        # a block with its evaluation, or with the losses of its first steps, is a little longer than a step of its own
        assert step_times(other).median_s == pytest.approx(steps.median_s, rel=0.65), change
    for cut in cuts(text, 97):
        assert not salvage(cut, path.name).complete
