"""One run makes a software profile; the profile is right about the same software at other sizes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.evidence.calibrate import Calibration, LoggedRun, Observed, calibrate, described, observe
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.job import Job
from meshwright.layout import Layout, parse_layout
from meshwright.predict.software import as_json, read_profile, software
from meshwright.record.step_times import StepTimes

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOGS = Path(__file__).parents[2] / ".." / "shared" / "logs"
RUNS = read_runs(MEASURED_CSV).rows

EOS = "tp=8,cp=2,pp=8,vp=8,dp=4,mbs=1,order=tp-cp-dp-pp,overlap_tp=yes,cuda_graphs=no"
CARINA = "tp=4,cp=2,pp=8,vp=8,dp=8,mbs=1,overlap_tp=yes"
SMALL = parse_layout("tp=2,pp=1,dp=8,mbs=1")  # 16 accelerators: the two nodes of 8 that the fixture's platform names


def run_of(system: str, benchmark: str = "llama31_405b") -> MeasuredRun:
    return next(run for run in RUNS if run.system.startswith(system) and run.benchmark == benchmark)


def logged(run: MeasuredRun) -> LoggedRun:
    return LoggedRun(job=Job(run.model, run.cluster, run.workload), layout=run.layout)


def observed(seconds: float, **facts: object) -> Observed:
    steps = StepTimes(np.array([seconds]), np.array([False]), "by hand")
    return Observed(files=("by_hand.csv",), steps=steps, medians_s=(seconds,), **facts)  # type: ignore[arg-type]


def calibrated(run: MeasuredRun, release: str = "") -> Calibration:
    return calibrate(observed(run.measured_s), logged(run), release)


def error_pct(run: MeasuredRun, calibration: Calibration) -> float:
    return 100 * (logged(run).step_s(calibration.profile) / run.measured_s - 1)


def test_the_512_gpu_run_alone_predicts_the_same_software_at_2048_and_2560() -> None:
    calibration = calibrated(run_of("eos-dfw_n64"))
    assert abs(error_pct(run_of("eos-dfw_n256"), calibration)) < 1.5
    assert abs(error_pct(run_of("eos-dfw_n320"), calibration)) < 1.5


def test_512_gb200_alone_predict_1536_and_2048() -> None:
    calibration = calibrated(run_of("carina_ngpu512"))
    assert abs(error_pct(run_of("carina_ngpu1536"), calibration)) < 1.5
    assert abs(error_pct(run_of("carina_ngpu2048"), calibration)) < 1.5


@pytest.mark.skipif(not LOGS.is_dir(), reason="the real logs are not part of the repository")
@pytest.mark.parametrize(
    "folder, cluster, layout, others",
    [
        ("v5.0_eos-dfw_n64_llama31_405b", "dgx-h100-superpod", EOS, ("eos-dfw_n256", "eos-dfw_n320")),
        ("v5.0_carina_ngpu512_llama31_405b", "gb200-nvl72-ndr", CARINA, ("carina_ngpu1536", "carina_ngpu2048")),
    ],
)
def test_the_real_logs_of_512_gpus_predict_the_larger_runs(folder: str, cluster: str, layout: str, others: tuple[str, ...]) -> None:
    seen = observe(sorted((LOGS / folder).glob("result_*.txt")))
    run = described(seen, parse_layout(layout), cluster, precision="fp8")
    assert (len(seen.files), run.job.num_accelerators) == (3, 512)
    calibration = calibrate(seen, run)
    assert calibration.release.release == "v5.0"
    for other in others:
        assert abs(error_pct(run_of(other), calibration)) < 1.5


@pytest.mark.parametrize("system, benchmark", [("eos-dfw_n64", "llama31_405b"), ("theia_ngpu512", "llama31_405b"), ("eos_n64", "gpt3")])
def test_the_predicted_step_is_the_measured_one(system: str, benchmark: str) -> None:
    run = run_of(system, benchmark)
    calibration = calibrated(run)
    assert calibration.profile_step_s == pytest.approx(run.measured_s, rel=1e-9)
    assert calibration.profile.known


def test_the_release_it_starts_from_does_not_change_the_factor() -> None:
    run = run_of("eos-dfw_n64")
    factors = [calibrated(run, release).profile.log_factor for release in ("", "v3.0", "v5.1", "v6.0")]
    assert factors == pytest.approx([factors[0]] * 4, abs=1e-9)


def test_a_longer_step_is_slower_software_and_never_the_other_way() -> None:
    run = run_of("carina_ngpu512")
    times_s = run.measured_s * np.array([0.8, 0.9, 1.0, 1.1, 1.5, 3.0])
    factors = [calibrate(observed(float(s)), logged(run), "v5.0").profile.log_factor for s in times_s]
    assert all(np.diff(factors) > 0)


def test_a_run_at_the_speed_of_a_release_gives_that_release() -> None:
    run = logged(run_of("eos-dfw_n64"))
    v41 = software("v4.1")
    found = calibrate(observed(run.step_s(v41)), run)
    assert found.release.release == "v4.1"
    assert found.profile.log_factor == pytest.approx(v41.log_factor, abs=1e-9)
    assert found.change_pct == pytest.approx(0.0, abs=1e-6)


def test_only_releases_that_ran_on_the_chip_are_compared() -> None:
    assert calibrated(run_of("theia_ngpu512")).release.release in ("v5.1", "v6.0")  # NVFP4 came with v5.1
    run = logged(run_of("eos-dfw_n64"))
    untried = replace(run, job=run.job.changed("workload.precision=fp8-current"))
    assert calibrate(observed(untried.step_s(software("v3.1"))), untried).release.release == "v3.1"  # never measured: all are


def test_the_change_is_reported_in_words() -> None:
    run = logged(run_of("eos-dfw_n64"))
    slow = replace(software("v5.0"), log_factor=software("v5.0").log_factor + math.log(1.10))
    fast = replace(software("v5.0"), log_factor=software("v5.0").log_factor + math.log(0.96))
    assert calibrate(observed(run.step_s(slow)), run, "v5.0").verdict == "computes 10.0 % slower than release v5.0"
    assert calibrate(observed(run.step_s(fast)), run, "v5.0").verdict == "computes 4.0 % faster than release v5.0"
    assert not calibrate(observed(run.step_s(slow)), run, "v5.0").is_unusual
    assert calibrate(observed(3 * run.step_s(slow)), run, "v5.0").is_unusual


def test_adapters_get_a_factor_of_their_own_and_leave_pretraining_alone() -> None:
    run = next(r for r in RUNS if r.kind == "lora" and r.submitter == "Azure" and r.accelerator == "h200" and r.num_accelerators == 512)
    calibration = calibrated(run)
    start = software(calibration.release.release)
    assert calibration.profile_step_s == pytest.approx(run.measured_s, rel=1e-9)
    assert calibration.profile.log_factor == start.log_factor
    assert calibration.profile.finetuning["hopper"] != start.finetuning["hopper"]
    assert calibration.profile.finetuning["blackwell"] == start.finetuning["blackwell"]


def test_a_profile_read_again_predicts_the_same(tmp_path: Path) -> None:
    run = run_of("eos-dfw_n64")
    calibration = calibrated(run)
    calibration.write(tmp_path / "profile.json")
    again = read_profile(tmp_path / "profile.json")
    assert again == calibration.profile
    assert software(str(tmp_path / "profile.json")) == again
    assert logged(run).step_s(again) == calibration.profile_step_s


def test_a_profile_keeps_its_constants_when_the_package_is_fitted_again(tmp_path: Path) -> None:
    data = as_json(calibrated(run_of("eos-dfw_n64")).profile)
    data["constants"]["memory_efficiency"] = 0.5
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert read_profile(tmp_path / "old.json").constants.memory_efficiency == 0.5


def test_a_profile_says_which_run_made_it() -> None:
    run = run_of("eos-dfw_n64")
    calibration = calibrated(run)
    facts = calibration.as_json()["calibrated_on"]
    assert (facts["files"], facts["model"], facts["accelerator"]) == (["by_hand.csv"], "llama-3.1-405b", "h100")
    assert (facts["num_accelerators"], facts["global_batch"], facts["num_micro_batches"]) == (512, 1152, 288)
    assert (facts["step_s"], facts["precision"]) == (run.measured_s, "fp8")
    assert Layout(**{**facts["layout"], "order": tuple(facts["layout"]["order"].split("-"))}) == run.layout
    assert calibration.profile.note == (
        "calibrated on by_hand.csv: llama-3.1-405b on 512 h100 (tp=8,cp=2,pp=8,vp=8,dp=4,mbs=1), 55.131 s per step"
    )


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write profile\.json: No such file"):
        calibrated(run_of("eos-dfw_n64")).write(tmp_path / "nowhere" / "profile.json")


def test_a_log_says_the_job() -> None:
    seen = observe([FIXTURES / "timer_every_step.log"])
    assert (seen.benchmark, seen.global_batch, seen.num_micro_batches, seen.seq_len) == ("llama31_405b", 64, 8, 8192)
    assert (seen.num_nodes, seen.step_s, seen.run_spread_pct) == (2, 2.0, 0.0)
    job = described(seen, SMALL, "dgx-h100-superpod", precision="fp8").job
    assert (job.model.name, job.workload.name, job.cluster.num_accelerators) == ("llama-3.1-405b", "mlperf-llama31-405b", 16)
    assert (job.workload.global_batch, job.workload.precision) == (64, "fp8")


def test_several_logs_are_one_series_and_their_difference_is_the_spread(tmp_path: Path) -> None:
    whole = (FIXTURES / "timer_every_step.log").read_text()
    slower = tmp_path / "result_1.txt"
    slower.write_text(whole.replace('"train_step_time": 2.0,', '"train_step_time": 2.1,'))
    seen = observe([FIXTURES / "timer_every_step.log", slower])
    assert seen.medians_s == (2.0, 2.06)  # of 2.1, 2.02, 1.98, 2.1, 2.5, 1.98
    assert seen.run_spread_pct == pytest.approx(3.0)
    assert seen.step_s == pytest.approx(2.01)  # of both: 1.98 x 4, 2.0 x 2, 2.02 x 2, 2.1 x 2, 2.5 x 2


def test_a_csv_needs_the_job(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("step,step_s\n1,9.0\n2,2.0\n3,2.2\n4,2.1\n")
    seen = observe([table])
    assert (seen.step_s, seen.benchmark, seen.global_batch) == (2.1, "", 0)
    facts = {"workload": "mlperf-llama31-8b", "num_accelerators": 16, "global_batch": 64, "precision": "fp8"}
    job = described(seen, SMALL, "dgx-h100-superpod", **facts).job  # type: ignore[arg-type]
    assert (job.model.name, job.workload.global_batch, job.num_accelerators) == ("llama-3.1-8b", 64, 16)
    with pytest.raises(InputError, match="which workload was run"):
        described(seen, SMALL, "dgx-h100-superpod")
    with pytest.raises(InputError, match=r"workload pretrain-1t is for any model"):
        described(seen, SMALL, "dgx-h100-superpod", workload="pretrain-1t")


def test_a_model_given_by_name_wins_over_the_benchmarks() -> None:
    seen = observe([FIXTURES / "timer_every_step.log"])
    job = described(seen, SMALL, "dgx-h100-superpod", model="llama-3.1-70b", precision="fp8").job
    assert (job.model.name, job.workload.name) == ("llama-3.1-70b", "mlperf-llama31-405b")


def test_a_log_without_its_end(tmp_path: Path) -> None:
    cut = tmp_path / "cut.txt"
    lines = (FIXTURES / "timer_every_step.log").read_text().splitlines()
    cut.write_text("\n".join(line for line in lines if '"run_stop"' not in line))
    with pytest.raises(InputError, match="the log has no run_stop line") as caught:
        observe([cut])
    assert caught.value.fix == "use the whole log of a finished run"


@pytest.mark.parametrize("name, what", [("empty.txt", "no :::MLLOG line in the file"), ("empty.csv", "no column 'step'")])
def test_an_empty_file(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=what):
        observe([tmp_path / name])


@pytest.mark.parametrize(
    "old, new, what",
    [
        ('"llama31_405b"', '"llama31_8b"', "benchmark llama31_405b and llama31_8b"),
        ('"key": "global_batch_size", "value": 64', '"key": "global_batch_size", "value": 32', "global batch 64 and 32"),
        ('"gradient_accumulation_steps", "value": 8.0', '"gradient_accumulation_steps", "value": 4', "micro-batches of a step 8 and 4"),
        ('"max_sequence_length", "value": 8192', '"max_sequence_length", "value": 4096', "sequence length 8192 and 4096"),
        ("2xEXAMPLE-8", "4xEXAMPLE-8", "nodes 2 and 4"),
    ],
)
def test_logs_of_different_runs(tmp_path: Path, old: str, new: str, what: str) -> None:
    text = (FIXTURES / "timer_every_step.log").read_text()
    assert old in text
    (tmp_path / "other.txt").write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        observe([FIXTURES / "timer_every_step.log", tmp_path / "other.txt"])
    assert caught.value.what == f"the logs are of different runs: {what}"
    assert "other.txt" in caught.value.where


def test_a_log_beside_a_csv(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("step,step_s\n1,2.0\n")
    with pytest.raises(InputError, match="together with a log"):
        observe([FIXTURES / "timer_every_step.log", tmp_path / "steps.csv"])


@pytest.mark.parametrize(
    "layout, facts, what",
    [
        ("tp=2,dp=4", {}, "tp=2 x cp=1 x pp=1 x dp=4 = 8 accelerators, but dgx-h100-superpod has 16 in use"),
        ("tp=4,dp=4", {}, "the layout makes 16 micro-batches of a global batch of 64 (dp=4, mbs=1), but the log says 8"),
        ("tp=2,dp=8", {"global_batch": 32}, "batch says global batch 32, but the log says 64"),
        ("tp=2,dp=8", {"precision": "nvfp4"}, "h100 has no fp4 tensor cores, which precision 'nvfp4' needs"),
        ("tp=2,dp=8", {"num_accelerators": 32}, "tp=2 x cp=1 x pp=1 x dp=8 = 16 accelerators, but dgx-h100-superpod has 32 in use"),
    ],
)
def test_a_description_that_contradicts_the_log(layout: str, facts: dict[str, object], what: str) -> None:
    seen = observe([FIXTURES / "timer_every_step.log"])
    with pytest.raises(InputError) as caught:
        described(seen, parse_layout(layout), "dgx-h100-superpod", **{"precision": "fp8", **facts})  # type: ignore[arg-type]
    assert caught.value.what == what


def test_an_unknown_benchmark_needs_a_workload(tmp_path: Path) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text((FIXTURES / "timer_every_step.log").read_text().replace("llama31_405b", "bert"))
    with pytest.raises(InputError, match="which workload was run\\? benchmark 'bert' is not one of gpt3, ") as caught:
        described(observe([log]), SMALL, "dgx-h100-superpod")
    assert caught.value.fix == "add workload (and model)"


@pytest.mark.parametrize("seconds, side", [(0.5, "short"), (5000.0, "long")])
def test_a_step_that_no_software_explains(seconds: float, side: str) -> None:
    with pytest.raises(InputError, match=f"a step of {seconds:.4g} s is too {side} for this description") as caught:
        calibrate(observed(seconds), logged(run_of("eos-dfw_n64")))
    assert caught.value.where == "by_hand.csv as llama-3.1-405b on 512 h100, tp=8,cp=2,pp=8,vp=8,dp=4,mbs=1"
