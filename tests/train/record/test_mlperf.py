"""MLPerf's own checker accepts our logs, and an official name is kept for runs that are that benchmark."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logged import LLAMA_8B, LORA_70B, SMALL

from meshwright.audit.runs import read_run
from meshwright.errors import InputError
from meshwright.record.log_steps import step_times
from meshwright.record.mllog import read_log
from meshwright.train.benchmark.settings import OWN, LogSettings
from meshwright.train.record.mlperf import MlperfLog, check_log

pytest.importorskip("mlperf_logging")


def write(path: Path, benchmark: str, settings: LogSettings, losses: tuple[float, ...], num_steps: int = 4) -> str:
    """Write the log of a run that evaluates after every `num_steps`, with these evaluation losses; return its status."""
    log = MlperfLog(path, benchmark, settings)
    log.init_start()
    log.init_stop()
    log.run_start()
    step = samples = 0
    for loss in losses:
        log.block_start(samples, step)
        for _ in range(num_steps):
            step, samples = step + 1, samples + settings.global_batch
            log.step(step, samples, 2.0 * loss, step_s=0.25 + step / 1000, lr=1e-3)
        log.block_stop(samples, step)
        log.evaluation_start(samples, step)
        log.evaluation(samples, step, loss)
    status = log.run_stop(samples, step)
    log.close()
    return status


def test_the_checker_passes_a_run_of_our_benchmark_and_says_by_which_rules(tmp_path: Path) -> None:
    assert write(tmp_path / "mlperf.log", OWN, SMALL, (5.0, 3.2)) == "success"
    result = check_log(tmp_path / "mlperf.log")
    assert str(result) == "MLPerf compliance checker, official common rules of ruleset 6.0.0 + meshwright's own benchmark file: passed"
    assert (result.passed, result.complaints) == (True, ())


def test_a_run_of_ours_that_misses_its_target_gets_that_one_complaint(tmp_path: Path) -> None:
    assert write(tmp_path / "mlperf.log", OWN, SMALL, (5.0, 3.5)) == "aborted"
    result = check_log(tmp_path / "mlperf.log")
    assert result.complaints == ("Failed checks for eval_accuracy :  0.0 < v['value'] <= s['target']",)
    assert not result.passed


@pytest.mark.parametrize(
    "key, complaint",
    [
        ("cache_clear", "Required AT_LEAST_ONE occurrence of 'cache_clear' but found 0"),
        ("submission_org", "Required EXACTLY_ONE occurrence of 'submission_org' but found 0"),
        ("run_start", "CHECK for 'run_stop' failed"),
        ("opt_adamw_beta_2", "Required EXACTLY_ONE occurrence of 'opt_adamw_beta_2' but found 0"),
    ],
)
def test_the_official_common_rules_and_ours_both_hold_our_benchmark(tmp_path: Path, key: str, complaint: str) -> None:
    path = tmp_path / "mlperf.log"
    write(path, OWN, SMALL, (3.0,))
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if f'"key": "{key}"' not in line))
    result = check_log(path)
    assert not result.passed
    assert any(complaint in found for found in result.complaints), result.complaints


def test_the_checker_passes_llama31_8b_at_its_target(tmp_path: Path) -> None:
    assert write(tmp_path / "mlperf.log", "llama31_8b", LLAMA_8B, (6.0, 3.29)) == "success"
    result = check_log(tmp_path / "mlperf.log")
    assert result.passed, result.complaints
    assert result.rules == "official common rules of ruleset 6.0.0 + the official benchmark file"


def test_a_shortened_llama31_8b_gets_only_the_complaint_that_it_missed_the_target(tmp_path: Path) -> None:
    assert write(tmp_path / "mlperf.log", "llama31_8b", LLAMA_8B, (6.0,)) == "aborted"
    result = check_log(tmp_path / "mlperf.log")
    assert result.complaints == ("Failed checks for eval_accuracy : (v['value'] <= 3.3) and v['value'] > 0.0",)


def test_other_data_than_the_benchmarks_is_no_success(tmp_path: Path) -> None:
    settings = replace(LLAMA_8B, dataset="source code")
    assert write(tmp_path / "mlperf.log", "llama31_8b", settings, (3.0,)) == "aborted"


def test_a_shortened_llama2_70b_lora_gets_only_the_complaint_that_it_missed_the_target(tmp_path: Path) -> None:
    assert write(tmp_path / "mlperf.log", "llama2_70b_lora", LORA_70B, (1.3,)) == "aborted"
    result = check_log(tmp_path / "mlperf.log")
    assert result.complaints == ("Failed checks for eval_accuracy : (v['value'] <= 0.925) and v['value'] > 0.0",)
    assert write(tmp_path / "other.log", "llama2_70b_lora", replace(LORA_70B, dataset="my data"), (0.9,)) == "aborted"
    with pytest.raises(InputError, match="lora_rank is 8, not 16"):
        MlperfLog(tmp_path / "third.log", "llama2_70b_lora", replace(LORA_70B, lora_rank=8))
    with pytest.raises(InputError, match="lora_matrices is"):
        MlperfLog(tmp_path / "third.log", "llama2_70b_lora", replace(LORA_70B, lora_matrices=("q", "v")))


@pytest.mark.parametrize(
    "changes, messages",
    [
        ({"model": SMALL.model}, "model.num_layers is 4, not 32; model.hidden is 256, not 4096"),
        ({"sequence_length": 4096}, "sequence_length is 4096, not 8192"),
        ({"eval_samples": 512}, "eval_samples is 512, not 1024"),
        ({"epsilon": 1e-8}, "epsilon is 1e-08, not 1e-05"),
        ({"target": 3.5}, "target is 3.5, not 3.3"),
        ({"warmup_steps": 0}, "warm-up and decay take 1199984 steps, not 1200000"),
    ],
)
def test_an_official_name_is_refused_to_a_run_that_is_not_it(tmp_path: Path, changes: dict[str, object], messages: str) -> None:
    with pytest.raises(InputError) as caught:
        MlperfLog(tmp_path / "mlperf.log", "llama31_8b", replace(LLAMA_8B, **changes))  # type: ignore[arg-type]
    assert messages in caught.value.what
    assert not (tmp_path / "mlperf.log").exists()


def test_our_reader_reads_step_times_and_evaluations_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, step_of = [1e9], MlperfLog.step

    def step(log: MlperfLog, *given: Any, step_s: float, **more: Any) -> None:
        now_s[0] += step_s  # a timer that is far from the wall clock would not be believed
        step_of(log, *given, step_s=step_s, **more)

    monkeypatch.setattr("meshwright.train.record.mlperf.time", SimpleNamespace(time=lambda: now_s[0], monotonic=lambda: now_s[0]))
    monkeypatch.setattr(MlperfLog, "step", step)
    write(tmp_path / "mlperf.log", OWN, SMALL, (5.0, 3.0), num_steps=3)
    log = read_log(tmp_path / "mlperf.log")
    times = step_times(log)
    assert log.complete
    assert times.seconds == pytest.approx([0.251, 0.252, 0.253, 0.254, 0.255, 0.256])
    assert list(times.is_first) == [True, False, False, True, False, False]
    assert [one.quality for one in log.evaluations] == [5.0, 3.0]
    assert log.samples_to_target == 6 * 16


def test_time_stamps_never_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlperf.log"
    write(path, OWN, SMALL, (3.0,))
    times_ms = [event.time_ms for event in read_log(path).events]
    assert times_ms == sorted(times_ms)
    monkeypatch.setattr("time.time", lambda: 0.0)  # the wall clock was set back between two lives of the run
    log = MlperfLog(path, OWN, SMALL)
    log.block_start(64, 4)
    log.close()
    assert read_log(path).events[-1].time_ms >= times_ms[-1]


@pytest.mark.parametrize("num_lost", [0, 30])
def test_a_run_that_was_stopped_or_killed_goes_on_in_the_same_log_and_still_passes(tmp_path: Path, num_lost: int) -> None:
    path = tmp_path / "mlperf.log"
    write(path, OWN, SMALL, (5.0,))
    text = path.read_text()
    path.write_text(text[: len(text) - num_lost])  # 30: killed while it wrote run_stop

    write(path, OWN, SMALL, (3.0,))

    assert check_log(path).complaints == ()
    log = read_log(path)
    assert [sum(event.key == key for event in log.events) for key in ("run_start", "resumed", "run_stop")] == [1, 1, 1]


def test_the_log_of_a_run_that_was_stopped_again_and_again_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlperf.log"
    now_s = 1e9
    monkeypatch.setattr("meshwright.train.record.mlperf.time", SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s))
    for life in range(3):  # each ends before an evaluation
        log = MlperfLog(path, OWN, SMALL)
        log.init_start()
        log.init_stop()
        log.run_start()
        log.block_start(16 * life, life)
        now_s += 0.25  # a run shorter than its steps would be damaged
        log.step(life + 1, 16 * (life + 1), 4.0, step_s=0.25, lr=1e-3)
        assert log.run_stop(16 * (life + 1), life + 1) == "aborted"
        log.close()
        run = read_run(path)
        assert (run.state, run.flaws, run.samples, run.num_steps) == ("aborted", (), 16 * (life + 1), life + 1)


def test_no_path_leaves_the_machine_out_of_the_log(tmp_path: Path) -> None:
    write(tmp_path / "mlperf.log", OWN, SMALL, (3.0,))
    assert {event.metadata["file"] for event in read_log(tmp_path / "mlperf.log").events} == {"meshwright/train/record/mlperf.py"}


def test_without_the_package_there_is_a_sentence_and_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_logging.mllog.mllog", None)
    messages: list[str] = []
    log = MlperfLog(tmp_path / "mlperf.log", OWN, SMALL, missing=messages.append)
    log.init_start()
    log.evaluation(64, 4, 3.0)
    assert log.run_stop(64, 4) == "success"
    assert messages == ["no MLPerf log: the package mlperf-logging is not installed"]
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    log = MlperfLog(None, OWN, SMALL, missing=lambda text: pytest.fail(text))
    log.init_start()
    log.close()
    assert list(tmp_path.iterdir()) == []
