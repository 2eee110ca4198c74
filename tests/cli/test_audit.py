"""`meshwright audit`: what it prints, its JSON and Markdown, its exit codes and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from meshwright.audit.log_memo import BLOCKS, strip
from meshwright.cli.main import main
from meshwright.say.vocabulary import problems

CLAIMS = Path(__file__).parents[2] / "examples" / "claims"
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def verb():
    return "audit"


@pytest.fixture
def judged(answer):
    """The only claim of an answer."""

    def judged_claim(*arguments):
        found = answer(*arguments)
        assert problems(found) == []
        [one] = found["claims"]
        return one

    return judged_claim


def test_a_claim_as_a_memo(run):
    code, out, err = run("claim", str(CLAIMS / "gpt3-cost.toml"))
    assert (code, err) == (0, "")
    assert out == (
        "GPT-3 175B in 9.87 minutes on 1,024 H100 at a cost of $50,000\n"
        "impossible: $297 per GPU-hour is 24.15 times the highest list price\n"
        "source: a vendor's page\n"
        f"file: {CLAIMS / 'gpt3-cost.toml'}\n"
        "expected: impossible (as found)\n"
        "\n"
        "  impossible  price: $297 per GPU-hour is 24.15 times the highest list price\n"
        "      time: 1,024 GPUs x 592.2 s / 3,600 = 168.4 GPU-hours\n"
        "      price: $50,000 / 168.4 GPU-hours = $297 per GPU-hour\n"
        "      list prices of h100: $2.15 (nebius spot, 2026-07-22) to $12.29 (azure on-demand, 2026-11-09)\n"
        "      $297 is 24.15 times the highest list price\n"
        "\n"
    )


def test_a_claim_as_json(judged):
    found = judged("claim", str(CLAIMS / "weak-scaling-efficiency.toml"))
    assert found["verdict"] == "misleading"
    assert {"verdict", "why", "arithmetic"} <= set(found["statements"][0])


def test_several_claims_are_a_list(answer):
    found = answer("claim", *(str(path) for path in sorted(CLAIMS.glob("*.toml"))))
    assert problems(found) == []
    assert [one["verdict"] for one in found["claims"]] == [one["expected_verdict"] for one in found["claims"]]


def test_flags_make_a_claim(judged):
    facts = ("--benchmark", "gpt3", "--accelerator", "h100", "--gpus", "1024", "--minutes")
    assert judged("claim", *facts, "9.87", "--round", "v4.0")["verdict"] == "impossible"
    assert judged("claim", *facts, "25")["verdict"] == "consistent"
    assert judged("claim", *facts, "25", "--round", "v4.0")["verdict"] == "unknown"


@pytest.mark.parametrize(
    "flags, verdict",
    [
        ("--model llama-3.1-8b --tokens 15e12 --seq-len 8192 --accelerator h100 --gpus 1024 --days 60", "consistent"),
        ("--model llama-3.1-8b --tokens 15e12 --seq-len 8192 --accelerator h100 --gpus 1024 --days 4", "impossible"),
        ("--accelerator h100 --price 3", "consistent"),
        ("--accelerator h100 --price 297", "impossible"),
        ("--accelerator h100 --gpus 8 --minutes 60 --cost 32", "consistent"),
        ("--efficiency 99.8 --step-s 1.2712 --baseline-step-s 1.2734", "misleading"),
        ("--speedup 2 --minutes 10 --baseline-minutes 20", "consistent"),
        ("--speed-up 2 --minutes 20 --baseline-minutes 10", "misleading"),
        ("--speedup 2.3 --minutes 9.87 --benchmark gpt3 --round v4.0 --over-record", "impossible"),
        ("--record --minutes 3.7085 --benchmark gpt3 --round v4.0", "consistent"),
        ("--largest-of gb200 --gpus 8192 --accelerator gb200", "consistent"),
        ("--largest-of all --gpus 8192 --accelerator gb200", "impossible"),
        ("--mfu 120 --accelerator h100 --precision bf16", "impossible"),
        ("--tflops-per-gpu 400 --accelerator h100", "consistent"),
        ("--set part=148 --set total=419 --set share_pct=35.3", "consistent"),
        ("--set exposed_ms=20 --set exposed_pct=1.6 --step-s 1.2712 --set profile=https://example.org/x", "unsupported"),  # no log
        ("--set variation_pct=[0.04,0.05] --accelerator gb200 --gpus 8192", "unsupported"),
        ("--speedup 2 --minutes 10 --set baseline.minutes=10 --set baseline.minutes=20 --baseline-gpus 8", "consistent"),
    ],
)
def test_a_verdict_by_flags(judged, flags, verdict):
    assert judged("claim", *flags.split())["verdict"] == verdict


def test_a_flag_changes_a_file(judged):
    assert judged("claim", str(CLAIMS / "gpt3-cost.toml"), "--cost", "1000")["verdict"] == "consistent"
    assert judged("claim", str(CLAIMS / "weak-scaling-efficiency.toml"), "--efficiency", "100.2")["verdict"] == "unsupported"
    path = str(CLAIMS / "h200-28-percent-faster.toml")
    assert judged("claim", path, "--baseline-samples", "7440")["verdict"] == "consistent"


def test_a_claim_as_markdown(run):
    code, out, _ = run("claim", str(CLAIMS / "llama3-faulty-gpu.toml"), "--markdown")
    assert code == 0 and out.startswith("# faulty GPU: 148 interruptions") and "| share | misleading |" in out


@pytest.mark.parametrize("word, code", [("unsupported", 1), ("misleading", 1), ("implausible", 0), ("impossible", 0)])
def test_the_exit_status_follows_fail_on(run, word, code):
    assert run("claim", str(CLAIMS / "llama3-faulty-gpu.toml"), "--fail-on", word)[0] == code


def test_a_record_in_another_precision_is_reported(judged):
    claimed = ("claim", "--benchmark", "llama31_405b", "--accelerator", "gb200", "--gpus", "8192", "--round", "v6.0", "--step-s", "4")
    for precision, is_noted in (("bf16", True), ("nvfp4", False)):
        found = judged(*claimed, "--precision", precision)
        notes = [any("not like with like: on record is fp4 (nvfp4)" in line for line in one["arithmetic"]) for one in found["statements"]]
        assert any(notes) == is_noted, precision


def test_the_shipped_claims_are_listed(run):
    found = json.loads(run("claim", "--examples", "--json")[1])
    assert problems(found) == []
    listed = found["examples"]
    assert [Path(one["path"]) for one in listed] == sorted(CLAIMS.glob("*.toml")) and all(
        one["expected_verdict"] and one["claim"] for one in listed
    )
    code, out, _ = run("claim", "--examples")
    assert out.startswith(f"claims in {CLAIMS}\n")
    assert code == 0 and "gpt3-cost.toml" in out and len(out.splitlines()) == len(list(CLAIMS.glob("*.toml"))) + 3


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "no claim is given"),
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (["--gpus", "0"], "gpus is 0"),
        (["--gpus", "many"], "--gpus is 'many'"),
        (["--minutes", "-3"], "minutes is -3"),
        (["--minutes", "nan"], "minutes is nan"),
        (["--accelerator", "h101", "--price", "3"], "no accelerator named 'h101'"),
        (["--benchmark", "bert"], "no benchmark named 'bert'"),
        (["--gpus", "8"], "nothing in the claim can be checked"),
        (["--round", "soon", "--minutes", "3"], "'soon' is not a round"),
        (["--accelerator", "h100", "--price", "3", "--fail-on", "bad"], "no verdict named 'bad'"),
        (["--efficiency", "0.998"], "it is in per cent"),
        (["--gpu", "8"], "no option --gpu"),
        (["--scaling", "up", "--efficiency", "90"], "scaling is 'up'"),
        (["--minutes", "3", "--days", "3"], "minutes and days are both given"),
        (["--set", "gpus"], "'gpus' is not KEY=VALUE"),
        (["--set", "gpus=many"], "gpus is 'many'"),
        (["--set", "gpu=8"], "unknown key 'gpu'"),
        (["--set", "speed.up=8"], "unknown key 'speed'"),
    ],
)
def test_a_bad_claim_is_one_message(run, arguments, complaint):
    code, out, err = run("claim", *arguments)
    assert code == 2 and out == ""
    assert err.startswith("meshwright: ") and complaint in err and "Traceback" not in err


def test_an_unknown_key_lists_the_nearest_and_all(run, tmp_path):
    (tmp_path / "claim.toml").write_text("gpu = 8\n")
    code, _, err = run("claim", str(tmp_path / "claim.toml"))
    assert code == 2
    assert "unknown key 'gpu'" in err and "did you mean gpus?" in err and "known keys: benchmark, model" in err


WIDE = """\
llama31_405b, round not known, Example Labs, 2xEXAMPLE-8
log                   state  time to train [min]  before the clock [min]  samples  steps  evaluations  evaluating [%]  quality  target  \
compliance checker
timer_every_step.log  whole                0.398                    0.50      512      8            2            26.0      5.5     5.6  \
not run

step times
log                   median [s]  spread [%]  std [%]  p99/p50  worst [s]  at step  first [s]  drift [%]  read from
timer_every_step.log           2       1.483    9.054   1.2380        2.6        1        2.5     -1.000  timer of every step

step times from the first to the last
log                   median of each stretch  from lowest to highest
timer_every_step.log  █▁▁▁▆▁▇▁                1.98 to 2.6 s

rule: 3 runs; the fastest and the slowest are dropped, the other 1 averaged. 1 log is here: no score
before the clock, and not scored: up to 0.5 min of initialisation, 0.5 of them warm-up
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


@pytest.mark.parametrize("words", [("log", str(FIXTURES / "counts_tokens.log")), ("claim", str(CLAIMS / "llama3-faulty-gpu.toml"))])
def test_json_and_markdown_together_are_refused(run, words):
    code, out, err = run(*words, "--json", "--markdown")
    assert (code, out) == (2, "") and "--json and --markdown are both given" in err


def test_logs_as_markdown(run):
    code, out, _ = run("log", str(FIXTURES / "counts_tokens.log"), "--no-compliance", "--markdown")
    assert code == 0 and out.startswith("# gpt3, v3.1 (by its date)") and "## Findings" in out


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["nowhere.txt"], "cannot read the log"),
        (["nope"], "fix:   give the path of a file that exists"),
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


def test_the_group_alone_shows_its_help(capsys):
    assert main(["audit", "--help"]) == 0
    out = capsys.readouterr().out
    assert "log" in out and "claim" in out
