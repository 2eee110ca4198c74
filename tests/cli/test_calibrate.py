"""`meshwright calibrate`: all it prints, the file it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.evidence.calibrate import Calibration, calibrate, described, observe
from meshwright.layout import Layout, parse_layout
from meshwright.predict.software import read_profile
from meshwright.say.vocabulary import problems
from meshwright.units import seconds

LOG = str(Path(__file__).parents[1] / "fixtures" / "timer_every_step.log")
LAYOUT = "tp=2,dp=8,cuda_graphs=no"  # 16 accelerators, 8 micro-batches of 64 sequences: as the log says
ARGUMENTS = ["calibrate", LOG, "--model", "llama-3.1-8b", "--cluster", "dgx-h100-superpod", "--precision", "fp8", "--layout", LAYOUT]


def expected() -> Calibration:
    """The same by the library: constants are fitted again from time to time, words are not."""
    seen = observe([LOG])
    return calibrate(
        seen,
        described(
            seen,
            parse_layout(LAYOUT, Layout(overlap_tp=True, cuda_graphs=False)),
            "dgx-h100-superpod",
            model="llama-3.1-8b",
            precision="fp8",
        ),
    )


def error_pct(predicted_s: float, measured_s: float) -> str:
    return f"{round(100 * (predicted_s / measured_s - 1), 2) + 0.0:+.2f} %"


def test_all_that_is_printed(capsys):
    assert main(ARGUMENTS) == 0
    calibration = expected()
    captured = capsys.readouterr()
    before = f"predicted before, release {calibration.release.release}"
    lines = [
        "software profile llama31_405b-16x-h100",
        f"{'from':32}{LOG}",
        f"{'job':32}llama-3.1-8b, 64 x 8192 tokens per step in fp8",
        f"{'cluster':32}16 h100 as in dgx-h100-superpod",
        f"{'layout':32}tp=2,cp=1,pp=1,vp=1,dp=8,ep=1,mbs=1,zero=1,recompute=none,order=tp-cp-pp-dp,overlap_tp=yes,cuda_graphs=no",
        f"{'measured step':32}2 s, median of 6 steady steps (timer of every step)",
        f"{'its spread':32}1.48 % from step to step",
        f"{before:32}{seconds(calibration.release_step_s)} ({error_pct(calibration.release_step_s, 2.0)})",
        f"{'predicted after':32}2 s (+0.00 %)",
        f"{'this software':32}{calibration.verdict}",
        "",
    ]
    if calibration.is_unusual:
        lines += [
            "A change this large usually means a wrong layout, precision or batch, not other software: compare them with the run.",
            "",
        ]
    lines += [
        "add --out profile.json to keep it; then use it with",
        f"  meshwright predict llama-3.1-8b dgx-h100-superpod mlperf-llama31-405b --layout {LAYOUT} "
        "--gpus 16 --set workload.global_batch=64 --set workload.seq_len=8192 --set workload.precision=fp8 --software profile.json",
        "",
    ]
    assert captured.err == ""
    assert captured.out.splitlines() == lines


def test_several_logs_show_their_spread(capsys):
    assert main(["calibrate", LOG, *ARGUMENTS[1:]]) == 0
    out = capsys.readouterr().out
    assert f"{'from':32}2 files\n" in out
    assert "1.48 % from step to step, 0.00 % from the fastest to the slowest file\n" in out


def test_json_has_the_file_that_out_writes(capsys, tmp_path):
    out = tmp_path / "ours.json"
    assert main([*ARGUMENTS, "--json", "--name", "ours", "--release", "v5.0", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert problems(printed) == []
    assert printed["profile"] == json.loads(out.read_text())
    assert printed["files"] == [{"what": "software profile", "path": str(out)}]
    assert (printed["name"], printed["release"], printed["profile"]["calibrated_on"]["step_s"]) == ("ours", "v5.0", 2.0)
    assert read_profile(out).name == "ours"


def test_the_file_is_named_where_it_was_written(capsys, tmp_path):
    out = tmp_path / "ours.json"
    assert main([*ARGUMENTS, "--out", str(out)]) == 0
    printed = capsys.readouterr().out.replace("\n", " ")
    assert f"written to {out}; use it with" in printed
    assert f"--software {out}" in printed


def test_replicas_fill_the_machine_where_dp_is_left_out(capsys):
    assert main([*ARGUMENTS[:-1], "tp=2,cuda_graphs=no"]) == 0
    assert f"{'layout':32}tp=2,cp=1,pp=1,vp=1,dp=8," in capsys.readouterr().out
    assert main([*ARGUMENTS[:-1], "tp=3"]) == 2
    assert "tp x cp x pp = 3 does not divide the 16 accelerators" in capsys.readouterr().err


def test_a_csv_of_step_times(capsys, tmp_path):
    table = tmp_path / "steps.csv"
    table.write_text("step,step_s\n1,9.0\n2,2.0\n3,2.2\n4,2.1\n")
    options = ["--workload", "mlperf-llama31-8b", "--batch", "64", "--gpus", "16", "--precision", "fp8", "--layout", "tp=2,dp=8"]
    assert main(["calibrate", str(table), "--cluster", "dgx-h100-superpod", *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("software profile mlperf-llama31-8b-16x-h100\n")
    assert "2.1 s, median of 3 steady steps (step-time CSV)\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["calibrate"],
            "meshwright: LOG is missing\n  where: meshwright calibrate\n"
            "  fix:   add LOG (MLPerf logs of one job, or CSV files with step,step_s)\n",
        ),
        (
            ["calibrate", LOG, "--cluster", "dgx-h100-superpod"],
            "meshwright: --layout is missing\n  where: meshwright calibrate\n  fix:   add --layout LAYOUT (Layout of the run: "
            "tp=8,cp=2,pp=8,vp=8,mbs=1,...; without dp, dp fills the cluster)\n",
        ),
        (
            ["calibrate", LOG, "--layout", LAYOUT],
            "meshwright: --cluster is missing\n  where: meshwright calibrate\n"
            "  fix:   add --cluster NAME|FILE (Cluster: a catalogue name or a TOML file)\n",
        ),
        (
            ["calibrate", "nothing.log", "--layout", LAYOUT, "--cluster", "dgx-h100-superpod"],
            "meshwright: cannot read the log: No such file or directory\n  where: nothing.log\n"
            "  fix:   give the path of a file that exists and can be read\n",
        ),
        (
            ["calibrate", LOG, "--layout", "tp=2,dp=4", "--cluster", "dgx-h100-superpod", "--precision", "fp8"],
            "meshwright: tp=2 x cp=1 x pp=1 x dp=4 = 8 accelerators, but dgx-h100-superpod has 16 in use\n"
            "  where: layout\n  fix:   use dp=8, or --gpus 8\n",
        ),
        (
            [*ARGUMENTS, "--cluster", "eoz"],
            "meshwright: no cluster named 'eoz'\n  where: the catalogue's clusters\n  fix:   did you mean eos?\n",
        ),
        (
            [*ARGUMENTS, "--release", "latest"],
            "meshwright: cannot read a version in software release 'latest'\n"
            "  where: --release\n  fix:   write a class (mlperf, nemo, megatron, torchtitan, fsdp, meshwright), "
            "a round such as v5.1, or nemo-26.04; unknown for software of no known class; or the file of a profile, which ends in .json\n",
        ),
        (
            [*ARGUMENTS, "--name", "v9.9"],
            "meshwright: a profile cannot be called 'v9.9': that is a release\n"
            "  where: --name\n  fix:   choose a name of its own, such as ours-16x-h100\n",
        ),
    ],
)
def test_what_is_refused(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


@pytest.mark.parametrize("option", ["--gpus", "--batch"])
def test_a_count_below_one_is_refused(capsys, option):
    assert main([*ARGUMENTS, option, "0"]) == 2
    assert capsys.readouterr().err.startswith(f"meshwright: {option} is '0'\n")
