"""`meshwright report`: the page it writes, all it prints for people and for programs, and what bad input gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter


@pytest.fixture
def verb():
    return "report"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name: str, step_s: float = 0.5, num_steps: int = 20) -> Path:
    header = RunHeader(
        name=name, kind="trained", seed=0, num_ranks=2, machine="a machine", sequence_length=128, created="2026-11-15T08:00:00+00:00"
    )
    with RunWriter.create("runs", header) as writer:
        writer.steps(
            StepRecord(step=n, samples=16 * n, loss=5.0, grad_norm=1.0, step_s=step_s, parts_s={"compute": step_s})
            for n in range(1, num_steps + 1)
        )
        writer.event("start", 0, 1.0)
        writer.event("evaluation", num_steps, 1.0 + step_s * num_steps + 2.0, loss=4.5, seconds=2.0)
        writer.finish("finished")
    return Path("runs") / name


@pytest.fixture
def trace(here):
    rows = (("gemm", 7, 0, 10), ("ncclDevKernel_AllReduce(x)", 20, 8, 12), ("gemm", 7, 20, 10))
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
        for name, stream, start, length in rows
    ]
    Path("trace.json").write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": events}))
    return "trace.json"


WHOLE = """\
run first: trained, finished
machine             a machine, 2 ranks, seed 0
time of the run     13 s     320 samples x 31.25 ms + 3 s
tokens per second   4,096    over the steady steps
loss                4.5000
cost                unknown  no price is listed
energy at the wall  unknown  no power is stated
energy of the site  unknown  industry, 2024, PUE 1.58
carbon              unknown  usa, 2023, lifecycle
water on site       unknown  no litres per kWh are published for the industry
memory              not recorded
events              1 start, 1 evaluation

where the time went
what         time     share  of
samples      10 s   76.92 %  320 x 31.25 ms per sample
evaluations   2 s   15.38 %  1 evaluation
start         1 s    7.69 %  before the first step, after each start
total        13 s  100.00 %

step time
median step   500 ms     95 %: +0 to +0 %
mean step     500 ms     what the parts below add up to
spread        0 %        robust standard deviation; stalls do not count
p99 / p50     1.000      how slow the slow steps are
worst         500 ms     of all steps
drift         +0.00 %    last tenth against the first
noise floor   0 %        least difference that jitter within the run does not explain; single runs of one job lie up to 2 % apart
correlation   1.0 steps  19 steps are worth 19 independent ones
steady steps  19         of 20; not those after a start, evaluation or checkpoint

parts of the step
part       measured
compute      500 ms
mean step    500 ms

evaluations
after step  samples    loss
        20      320  4.5000

note: What was predicted is not shown: the run's plan cannot be read: cannot read the plan: No such file or directory.
95 % interval of the median step time by a bootstrap over blocks of neighbouring steps, so that their correlation counts.
page: report.html
"""


def test_one_run_is_a_page_and_a_summary(run, here):
    assert run(str(make_run("first"))) == (0, WHOLE, "")
    assert (here / "report.html").read_text().startswith("<!doctype html>")


def test_several_runs_are_compared(run, here):
    code, out, err = run(str(make_run("first")), str(make_run("second", 0.6)), "--out", "both.html")
    assert (code, err) == (0, "") and out.startswith("2 runs compared\n") and out.endswith("page: both.html\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "second unknown measured 2 16 20 600 ms 0 % 1.000 3.413 k 15 s 4.5000 unknown unknown" in lines
    assert {"first 13 s 10 s 2 s 1 s", "second 15 s 12 s 2 s 1 s"} <= set(lines)  # total, samples, evaluations, start
    assert {"first measured 500 ms 500 ms", "second measured 600 ms 600 ms"} <= set(lines)  # compute, mean step
    assert "2 runs compared" in (here / "both.html").read_text()
    assert not (here / "report.html").exists()


def test_json_and_markdown_print_and_write_no_page(answer, run, here):
    folder = str(make_run("first"))
    assert answer(folder)["runs"][0]["run_s"] == pytest.approx(13.0)
    code, out, err = run(folder, "--markdown")
    assert (code, err) == (0, "") and out.startswith("## run first: trained, finished\n")
    assert "| evaluations | 2 s | 15.38 % | 1 evaluation |" in out
    assert not (here / "report.html").exists()


def test_a_page_may_be_asked_for_beside_json(answer, here):
    printed = answer(str(make_run("first")), "--out", "page.html")
    assert (here / "page.html").exists() and printed["files"] == [{"what": "page", "path": "page.html"}]
    assert answer("runs/first")["files"] == []


PROFILE = """\
trace.json
process        window  compute  exposed  copies    idle  communication   hidden
rank 1, GPU 0   30 us  66.67 %  33.33 %  0.00 %  0.00 %          12 us  16.67 %

communication by stream
process        stream  events  communication  exposed  of the window
rank 1, GPU 0  20           1          12 us    10 us        33.33 %

page: report.html
"""


def test_a_trace_gives_exposed_communication_per_stream(run, answer, trace, here):
    assert run(trace) == (0, PROFILE, "")
    assert "rank 1, GPU 0" in (here / "report.html").read_text()
    assert answer(trace)["processes"][0]["streams"][0]["exposed_s"] == pytest.approx(10e-6)
    assert run(trace, "--markdown")[1].startswith("## trace.json\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "there is no such run"),
        (["runs"], "this is a folder of 1 runs, not a run"),
        (["runs/first", "runs/first"], "the same run is given twice"),
        (["runs/first", "trace.json"], "runs and traces do not go on one page"),
        (["runs/first", "--json", "--markdown"], "--json and --markdown are both given"),
        (["runs/first", "--out", "nowhere/page.html"], "cannot write page.html: No such file or directory"),
        (["runs/first/run.json"], "this is not a Chrome trace: it has no traceEvents"),
        (["runs/first/steps.jsonl"], "this is not a Chrome trace: it has no traceEvents"),
        ([], "RUN is missing"),
        (["runs/first", "--pdf"], "no option --pdf"),
        (["newer"], "the run's format is 2; this meshwright reads up to 1"),
        (["empty"], "the run has no step yet"),
    ],
)
def test_bad_input_gets_one_message(run, trace, here, arguments, message):
    make_run("first")
    (here / "newer").mkdir()
    header = json.loads(Path("runs/first/run.json").read_text())
    (here / "newer" / "run.json").write_text(json.dumps({**header, "format": 2}))
    RunWriter.create(here, RunHeader(name="empty", kind="trained", seed=0, num_ranks=1, machine="m")).close()
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and err.startswith("meshwright: ") and message.lower() in err.lower() and "fix:" in err
    assert not Path("report.html").exists()


def test_help_is_there(capsys):
    assert main(["report", "--help"]) == 0
    assert "Make a page about runs or profiles" in capsys.readouterr().out
