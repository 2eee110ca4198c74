"""The summary of a training run counts the time that its report and its ledger count, and names its parts as a prediction does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwright.cli.train_run import default_plan, wants_profile, with_measured_plan
from meshwright.cli.train_show import show_next, show_run, show_start
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.profile import load_profile, usual_path
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.ledger import ledger_of
from meshwright.plan.plan import Plan, plan_bytes, plan_of
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter
from meshwright.report.compare import parts_of
from meshwright.report.facts import facts_of, predicted_parts_s
from meshwright.report.training import training_document
from meshwright.say.vocabulary import problems
from meshwright.train.job import TrainingJob
from meshwright.units import seconds

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default plan is that of cores, whatever this machine has."""
    monkeypatch.setattr("meshwright.cli.train_run.gpu_names", tuple)


@pytest.fixture(scope="module")
def plan() -> Plan:
    workload = replace(load_workload("pretrain-1t"), global_batch=256, seq_len=4096)
    return plan_of(Job(load_model("llama-3.2-1b"), load_cluster("workstation-8x"), workload).forecast(Layout(dp=8, micro_batch=4)))


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    """A start of 2 s, ten steps of 0.5 s with an evaluation of 1 s and a save of 0.25 s behind them, and gaps of half a second."""
    header = RunHeader(name="first", kind="trained", seed=0, num_ranks=8, machine="a machine", sequence_length=4096)
    parts_s = {"compute": 0.3, "exposed_dp": 0.1, "data": 0.1}
    with RunWriter.create(tmp_path, header, plan_bytes(plan)) as writer:
        writer.event("start", 0, 2.0)
        writer.steps(StepRecord(step=n, samples=16 * n, loss=5.0, grad_norm=1.0, step_s=0.5, parts_s=parts_s) for n in range(1, 11))
        writer.event("evaluation", 10, 8.25, loss=4.5, seconds=1.0)
        writer.event("checkpoint", 10, 8.75, saved_step=10, stall_s=0.25)
        writer.finish("finished")
        return writer.folder


def test_train_report_and_ledger_count_one_time(folder: Path, plan: Plan) -> None:
    values = training_document(read_run(folder), plan).to_json()
    assert values["schema"] == "meshwright/training/1" and problems(values) == []
    assert values["run_s"] == facts_of(read_run(folder)).time.total_s == pytest.approx(8.75)
    assert values["run_s"] == pytest.approx(ledger_of(folder).wall_s)


def test_every_span_of_it_is_named(folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    spent_s = training_document(read_run(folder), plan).to_json()["spent_s"]
    assert spent_s == pytest.approx({"steps": 5.0, "evaluations": 1.0, "checkpoints": 0.25, "start": 2.0, "between steps": 0.5})
    assert show_run(folder, plan, as_json=False) == "finished"
    lines = capsys.readouterr().out.splitlines()
    spans = "steps 5 s, evaluations 1 s, checkpoints 250 ms, start 2 s, between steps 500 ms"
    assert f"time 8.75 s: {spans}" in [" ".join(line.split()) for line in lines]
    named = {re.split(r"\s{2,}", line)[0] for line in lines[lines.index("parts of the step") + 2 :]}
    assert {"compute", "exposed dp", "data", "overhead", "mean step"} <= named and not any("_" in name for name in named)


def test_exposed_times_on_shared_cores_are_not_predicted_without_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = default_plan("", "none")
    header = RunHeader(name="here", kind="trained", seed=0, num_ranks=8, machine="a machine", sequence_length=128)
    parts_s = {"compute": 0.3, "exposed_tp": 0.14, "bubble": 0.06}
    with RunWriter.create(tmp_path, header, plan_bytes(plan)) as writer:
        writer.event("start", 0, 2.0)
        writer.steps(StepRecord(step=n, samples=16 * n, loss=5.0, grad_norm=1.0, step_s=0.5, parts_s=parts_s) for n in range(1, 11))
        writer.finish("finished")
    assert plan.profile is None and plan.parts_s["exposed_tp"] > 0
    show_run(writer.folder, plan, as_json=False)
    out = capsys.readouterr().out
    assert re.search(r"^exposed tp +- +140 ms$", out, re.MULTILINE) and "Run `meshwright measure`" in " ".join(out.split())
    found = facts_of(read_run(writer.folder))
    tp = next(row for row in parts_of(found) if row.part == "exposed_tp")
    assert (tp.predicted_s, tp.measured_s) == (None, pytest.approx(0.14))
    assert any("Exposed times are not predicted" in note for note in found.notes)
    assert f"mean step {seconds(plan.step_s)}" in " ".join(out.split())  # the step is, though its parts are not


def test_a_profile_predicts_them(plan: Plan) -> None:
    assert predicted_parts_s(plan, "measured") == plan.parts_s  # of another machine
    here = default_plan("", "none")
    timed = replace(here, profile=load_profile(FIXTURES / "profile_of_cores.json"))
    assert predicted_parts_s(timed, "measured") == here.parts_s == predicted_parts_s(here, "simulated")


@pytest.mark.parametrize("prints_json", [False, True])
def test_the_start_is_printed_beside_the_result(prints_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = default_plan("", "none")
    job = TrainingJob(plan=plan, runs=tmp_path, name="first", corpus=Path("text"), seed=3, num_steps=40, prints_json=prints_json)
    show_start(job, "as --layout asks")
    show_next(job)
    captured = capsys.readouterr()
    shown, other = (captured.err, captured.out) if prints_json else (captured.out, captured.err)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert other == "" and lines[0].startswith("training llama-2m, ") and lines[0].endswith(" parameters, fp32")
    assert lines[1] == "on the corpus text, seed 3" and "at most 40 steps; " in shown and "(this-machine-2x4): as --layout asks" in shown
    assert f"all runs, live: meshwright serve {tmp_path}" in lines


def test_the_default_on_shared_cores_is_measured_once_and_planned_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, cores = default_plan(""), (FIXTURES / "profile_of_cores.json").read_text()
    wishes = SimpleNamespace(plan=None, layout="", profile="", resume=False)
    job = TrainingJob(plan=plan, runs=tmp_path, name="first", corpus=Path("text"))

    def profile_cores(report: Callable[[str], None]) -> None:
        report("timing")
        usual_path().parent.mkdir(parents=True, exist_ok=True)
        usual_path().write_text(cores)

    monkeypatch.setattr("meshwright.cli.measure.profile_cores", profile_cores)
    monkeypatch.setattr("meshwright.predict.profile_choice.processor_name", lambda: "AMD EPYC")
    assert wants_profile(wishes, plan) and plan.profile is None  # type: ignore[arg-type]
    planned = with_measured_plan(job, wishes)  # type: ignore[arg-type]
    assert planned.plan.profile == load_profile(FIXTURES / "profile_of_cores.json") and planned.plan_text == plan_bytes(planned.plan)
    assert planned.plan.parts_s["exposed_tp"] > 3 * plan.parts_s["exposed_tp"]
    assert str(usual_path()) in capsys.readouterr().err
    assert not wants_profile(wishes, default_plan(""))  # type: ignore[arg-type]


def test_a_machine_that_cannot_be_measured_trains_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def profile_cores(report: Callable[[str], None]) -> None:
        raise InputError("too little memory", where="this machine")

    monkeypatch.setattr("meshwright.cli.measure.profile_cores", profile_cores)
    job = TrainingJob(plan=default_plan(""), runs=tmp_path, name="first", corpus=Path("text"))
    assert with_measured_plan(job, SimpleNamespace(layout="")) is job  # type: ignore[arg-type]
    assert "could not be measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes", [{"plan": Path("plan.json")}, {"resume": True}, {"profile": "none"}], ids=["a plan", "a resumed run", "--profile none"]
)
def test_who_names_a_plan_or_a_profile_is_not_made_to_wait(changes: dict[str, object]) -> None:
    wishes = SimpleNamespace(**{"plan": None, "resume": False, "profile": "", **changes})
    assert not wants_profile(wishes, default_plan("", "none"))  # type: ignore[arg-type]


def test_a_run_without_a_step_is_printed_too(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = RunHeader(name="early", kind="trained", seed=0, num_ranks=8, machine="a machine", sequence_length=4096)
    with RunWriter.create(tmp_path, header, plan_bytes(plan)) as writer:
        folder = writer.folder
    assert show_run(folder, plan, as_json=True) == "running"
    printed = json.loads(capsys.readouterr().out)
    assert (printed["num_steps"], printed["loss"], printed["folder"]) == (0, None, str(folder)) and not problems(printed)
    show_run(folder, plan, as_json=False)
    assert "no step was done" in capsys.readouterr().out
