from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.record.log_steps import step_times
from meshwright.record.mllog import Log, parse_log, read_log, salvage
from meshwright.record.mllog_lines import DamagedLog
from meshwright.record.step_times import StepTimes

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHARED = Path(__file__).parents[2] / ".." / "shared"
FORMS = ["timer_every_step", "counts_tokens", "progress_lines_apart", "blocks_only"]


def fixture(name: str) -> Log:
    return read_log(FIXTURES / f"{name}.log")


def lines_of(name: str) -> list[str]:
    return (FIXTURES / f"{name}.log").read_text().splitlines()


def test_a_log_says_what_was_run() -> None:
    log = fixture("timer_every_step")
    assert (log.benchmark, log.organisation, log.platform) == ("llama31_405b", "Example Labs", "2xEXAMPLE-8")
    assert (log.global_batch_size, log.gradient_accumulation_steps, log.seq_len) == (64, 8, 8192)
    assert (log.complete, log.status) == (True, "success")


def test_a_log_says_how_long_the_run_and_its_parts_took() -> None:
    log = fixture("timer_every_step")
    # two blocks of 8.6 and 8.88 s with 0.1 s at their end each, evaluations of 3.0 and 3.2 s
    assert log.time_to_train_s == pytest.approx(8.6 + 0.1 + 3.0 + 8.88 + 0.1 + 3.2)
    assert log.initialisation_s == pytest.approx(30.0)  # from the first of two init_start lines
    assert [(e.seconds, e.quality, e.samples) for e in log.evaluations] == [(3.0, 5.9, 256.0), (3.2, 5.5, 512.0)]
    assert (log.num_evaluations, log.samples_to_target) == (2, 512.0)


def test_a_log_that_counts_tokens_gives_the_same_samples_and_steps() -> None:
    log = fixture("counts_tokens")
    assert log.samples_to_target == 96.0
    assert [log.samples_at(event) for event in log.progress][:2] == [16.0, 32.0]
    assert step_times(log).seconds.tolist() == [11.5, 11.0, 11.1, 11.2, 10.9, 11.0]
    assert log.status == "aborted"


def test_tokens_are_known_by_the_rules_of_the_benchmark_where_no_line_has_the_length_of_a_sequence() -> None:
    lines = [line.replace("max_sequence_length", "another_length") for line in lines_of("counts_tokens")]
    log = parse_log("\n".join(lines), "without a length")
    assert log.seq_len is None
    assert log.samples_to_target == fixture("counts_tokens").samples_to_target


@pytest.mark.parametrize("name", FORMS)
def test_without_a_batch_no_samples_are_counted_in_an_unknown_unit(name: str) -> None:
    log = parse_log("\n".join(line for line in lines_of(name) if '"global_batch_size"' not in line), "without a batch")
    assert log.num_evaluations == fixture(name).num_evaluations
    assert [one.samples for one in log.evaluations] == [None] * log.num_evaluations
    with pytest.raises(InputError, match="no global_batch_size line"):
        _ = log.num_steps


def test_an_evaluation_after_every_step_leaves_all_steps_in() -> None:
    steps = StepTimes(np.array([2.0, 4.0, 3.0]), np.array([True, True, True]), "by hand")
    assert steps.median_s == 3.0


def test_several_runs_join_into_one_series() -> None:
    joined = StepTimes.joined([step_times(fixture("timer_every_step")), step_times(fixture("counts_tokens"))])
    assert (len(joined.seconds), joined.is_first.sum(), joined.method) == (14, 4, "timer of every step")


def test_a_log_says_its_steps_and_its_target() -> None:
    assert (fixture("timer_every_step").num_steps, fixture("timer_every_step").target) == (8, None)
    line = ':::MLLOG {"time_ms": 1, "key": "target_accuracy", "value": 5.6}'
    assert parse_log(line, "x").target == 5.6


def test_what_is_cut_or_damaged_names_its_line() -> None:
    lines = lines_of("blocks_only")
    cut = parse_log("\n".join(lines)[:-40], "x.log")
    assert (cut.cut, cut.cut_line, cut.empty_line) == (True, len(lines), 0)
    lines[4] = lines[4][:60]
    with pytest.raises(DamagedLog) as error:
        parse_log("\n".join(lines), "x.log")
    assert error.value.line == 5


def test_what_is_whole_of_a_damaged_log_is_read() -> None:
    lines = lines_of("blocks_only")
    whole = parse_log("\n".join(lines), "x.log")
    lines[4] = lines[4][:20]
    lines[6] = lines[6][:-1]  # its end is gone, and its key is not
    log = salvage("\n".join(lines), "x.log")
    assert [(one.line, one.key) for one in log.damaged] == [(5, ""), (7, whole.events[6].key)]
    assert all(one.why for one in log.damaged) and not (log.cut or log.complete)
    assert log.events == tuple(event for event in whole.events if event.line not in (5, 7))
    cut = salvage("\n".join(lines)[:-40], "x.log")
    assert (len(cut.damaged), cut.cut, cut.cut_line) == (2, True, len(lines))


def test_zero_bytes_between_lines_are_noticed() -> None:
    lines = lines_of("blocks_only")
    lines[7:7] = ["\x00" * 512]
    assert parse_log("\n".join(lines), "x.log").empty_line == 8


@pytest.mark.parametrize("name", FORMS)
def test_a_log_cut_within_its_last_line_is_read_and_known_to_be_incomplete(name: str) -> None:
    text = "\n".join(lines_of(name))
    log = parse_log(text[:-40], "cut.log")
    assert log.cut and not log.complete and log.status in ("", "success", "aborted")
    assert step_times(log).median_s == pytest.approx(step_times(fixture(name)).median_s)


def test_a_log_that_ends_before_the_run_does_names_what_is_missing() -> None:
    log = parse_log("\n".join(lines_of("timer_every_step")[:-1]), "result_0.txt")
    assert not log.complete and not log.cut
    with pytest.raises(InputError) as error:
        _ = log.time_to_train_s
    assert str(error.value) == (
        "the log has no run_stop line\n"
        "  where: result_0.txt: 35 :::MLLOG lines, the last is line 38 (eval_stop)\n"
        "  fix:   use the whole log of a finished run"
    )


def test_a_damaged_line_in_the_middle_names_the_line() -> None:
    lines = lines_of("blocks_only")
    lines[4] = lines[4][:60]
    with pytest.raises(InputError, match=r"a damaged :::MLLOG line(.|\n)*result_0.txt: line 5"):
        parse_log("\n".join(lines), "result_0.txt")


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('{"key": "run_start"}', "time_ms is missing"),
        ('{"time_ms": "noon", "key": "run_start"}', "time_ms is 'noon'"),
        ('{"time_ms": NaN, "key": "run_start"}', "time_ms is nan"),
        ('{"time_ms": 1}', "key is missing"),
        ('{"time_ms": 1, "key": "run_start", "metadata": 3}', "metadata is not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ("", "Expecting value"),
    ],
)
def test_a_line_without_what_every_line_has_is_damaged(line: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_log(f":::MLLOG {line}\n{lines_of('blocks_only')[0]}\n", "result_0.txt")


def test_a_batch_size_that_is_none_names_its_line() -> None:
    text = "\n".join(lines_of("blocks_only")).replace('"global_batch_size", "value": 8', '"global_batch_size", "value": -8')
    with pytest.raises(InputError, match=r"global_batch_size is -8(.|\n)*x.log: line 5"):
        step_times(parse_log(text, "x.log"))


def test_a_run_that_stops_before_it_starts_is_an_error() -> None:
    text = ':::MLLOG {"time_ms": 5000, "key": "run_start"}\n:::MLLOG {"time_ms": 2000, "key": "run_stop"}'
    with pytest.raises(InputError, match=r"run_stop \(line 2\) is 3.000 s before run_start \(line 1\)"):
        _ = parse_log(text, "x.log").time_to_train_s


def test_a_missing_file_is_an_error_without_a_traceback() -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        read_log("nowhere/result_0.txt")


@given(data=st.data(), name=st.sampled_from(FORMS))
def test_a_mutilated_log_gives_numbers_or_an_input_error(data: st.DataObject, name: str) -> None:
    text = (FIXTURES / f"{name}.log").read_text()
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 400)))
    filling = data.draw(st.sampled_from(["", "x", "null", "-1", "1e999", "[" * 9999, '"', "\x00", "0", "{}"]))
    try:
        log = parse_log(text[:start] + filling + text[stop:], "x.log")
        median_s = step_times(log).median_s
        _ = log.evaluations, log.samples_to_target, log.time_to_train_s, log.initialisation_s
    except InputError:
        return
    assert math.isfinite(median_s) and median_s > 0


# Real logs: medians over the logs of a row, against measured_runs.csv.
REAL = [
    ("v3.1_eos_n64_gpt3", 11.05287, 1e-5, 589824, 24, 58.3019),
    ("v4.1_azure_h200_512_llama2_70b_lora", 0.5715, 1e-5, 7488, 9.5, 1.6085),
    ("v4.1_oracle_h100_512_llama2_70b_lora", 0.55967, 1e-5, 8832, 19, 2.0649),
    ("v5.0_carina_ngpu512_llama31_405b", 19.31231, 1e-5, 279552, 6, 104.9469),
    ("v5.0_eos-dfw_n64_llama31_405b", 55.13067, 1e-5, 276480, 6, 230.6756),
    ("v5.1_theia_ngpu512_llama31_405b", 13.1466, 1e-5, 331776, 4, 64.6051),
    ("v3.1_google_v5e_pax_gpt3", 9.08567, 5e-4, 589824, 24, 44.6848),  # two of three logs from here on
    ("v3.1_intel_gaudi2_n48_gpt3", 27.91567, 5e-4, 589824, 24, 153.5813),
    ("v4.1_google_v6e_512_gpt3", 15.87937, 2e-3, 589824, 24, 102.0795),
    ("v5.1_amd_mi355x_8b", 1.04303, 5e-4, 184320, 14.5, 99.3113),  # two of ten
    ("v5.1_theia_ngpu8_llama31_8b", 0.34663, 5e-3, 184320, 15, 67.3733),  # two of the row's ten logs, which spread by 1 %
]


@pytest.mark.skipif(not (SHARED / "logs").is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("folder, step_s, tolerance, samples, evaluations, minutes", REAL, ids=[row[0] for row in REAL])
def test_real_logs_agree_with_the_table_of_runs(
    folder: str, step_s: float, tolerance: float, samples: float, evaluations: float, minutes: float
) -> None:
    logs = [read_log(path) for path in sorted((SHARED / "logs" / folder).glob("*.txt"))]
    assert all(log.complete and log.status == "success" for log in logs)
    assert StepTimes.joined([step_times(log) for log in logs]).median_s == pytest.approx(step_s, rel=tolerance)
    assert np.median([log.samples_to_target for log in logs]) == pytest.approx(samples, rel=0.04)
    assert np.median([log.num_evaluations for log in logs]) == pytest.approx(evaluations, abs=0.5)
    assert np.median([log.time_to_train_s / 60 for log in logs]) == pytest.approx(minutes, rel=0.02)
