"""What every command prints with `--json`: one document that the published JSON Schema and the vocabulary know, key by key.

The cases are found by walking the command line: a command with `--json` and without a case here is a failure.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

import meshwright
from meshwright.cli.main import app, main
from meshwright.evidence import accuracy_page, refit
from meshwright.lab.cluster import write_description
from meshwright.lab.description import Lab
from meshwright.record.entries import Event
from meshwright.record.lock import RunLock
from meshwright.record.writer import append_event
from meshwright.say.vocabulary import problems, vocabulary
from meshwright.simulator import logs

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from small_run import Small, make_corpus, start

ROOT = Path(__file__).parents[2]
FIXTURES, CLAIMS = ROOT / "tests" / "fixtures", ROOT / "examples" / "claims"
SCHEMA = json.loads((ROOT / "docs" / "output.schema.json").read_text(encoding="utf-8"))
PUBLISHED = Draft202012Validator(SCHEMA)
JOB = "llama-3.1-8b dgx-h100-superpod mlperf-llama31-8b"
FIXED = "--gpus 64 --layout tp=2,cp=1,pp=1,vp=1,mbs=1,zero=1,recompute=none"
LOG, LOGGED = FIXTURES / "timer_every_step.log", "tp=2,dp=8,cuda_graphs=no"
Printed = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A command line and the kind of document that it prints. `{dir}` is a folder of files to read."""

    kind: str
    line: str

    @property
    def arguments(self) -> list[str]:
        """The words of the line."""
        return self.line.split()


CASES = (
    Case("catalogue", "describe"),
    Case("accelerator", "describe h100"),
    Case("link", "describe nvlink-4"),
    Case("model", "describe mixtral-8x7b"),
    Case("cluster", "describe dgx-h100-superpod"),
    Case("workload", "describe mlperf-llama31-8b"),
    Case("region", "describe norway"),
    Case("facility", "describe google"),
    Case("provider", "describe nebius"),
    Case("recipe", "describe nvfp4"),
    Case("forecast", f"predict {JOB} {FIXED}"),
    Case("forecast", "predict llama-3.1-8b this-machine pretrain-1t --layout dp=1,mbs=1 --ignore-memory"),  # where little is known
    Case("plan", f"plan {JOB} {FIXED} --keep 2 --pareto --set fabric.planes=1 --deadline 9d --budget 9000 --out {{dir}}/other.json"),
    Case("plan", f"plan {JOB} {FIXED},order=tp-cp-pp-dp,cuda_graphs=no --keep 1 --no-explain"),
    Case("sweep", f"sweep {JOB} --gpus 8,12,64 --layout {FIXED.split()[-1]}"),
    Case("simulation-of-steps", "simulate {dir}/plan.json --steps 5 --seeds 2 --slow-rank 1=1.5"),
    Case("simulation-of-steps", "simulate {dir}/plan.json --steps 3 --no-noise"),
    Case("simulation-of-days", "simulate {dir}/plan.json --days 2 --seeds 2 --sizes --finish-by 9d --budget 100000USD --price 2USD/h"),
    Case("simulation-of-days", "simulate {dir}/plan.json --days 1 --failures none"),
    Case("simulation-of-faults", "simulate {dir}/plan.json --faults {dir}/faults.toml"),
    Case("report", "report {dir}/runs/trained"),
    Case("report", "report {dir}/runs/simulated"),
    Case("report", "report {dir}/runs/simulated {dir}/runs/again {dir}/runs/larger {dir}/runs/trained"),
    Case("report", "report {dir}/runs/weeks"),
    Case("report", "report {dir}/runs/alone"),  # without a plan
    Case("profile", "report {dir}/trace.json"),
    Case("ledger", "ledger {dir}/runs/trained"),
    Case("ledger", "ledger {dir}/runs/simulated --price 2.5USD/h --region norway"),
    Case("ledger", "ledger {dir}/runs/weeks"),
    Case("ledger", "ledger {dir}/runs/alone"),
    Case("generation", "generate {dir}/runs/trained --prompt a --tokens 3"),
    Case("tuning-samples", "tune {dir}/runs/trained {dir}/short.jsonl --show 1"),
    Case("weights", "weights {dir}/runs/trained --out {dir}/weights"),
    Case("scale", "scale {dir}/runs/elastic --dp 2"),
    Case("measurement", "measure"),
    Case("rehearsal", "rehearse {dir}/small.json --steps 1"),
    Case("doctor", "doctor"),
    Case("serving-memory", "memory llama-3.1-8b --serve --on h100 --context 8192 --concurrency 4"),
    Case("calibration", f"calibrate {LOG} --model llama-3.1-8b --cluster dgx-h100-superpod --precision fp8 --layout {LOGGED}"),
    Case("validation", "validate {dir}/runs.csv --rows"),
    Case("fit", "fit --out {dir}"),
    Case("noise", "noise --seeds 1"),
    Case("accuracy", "accuracy --out {dir}/accuracy.md"),
    Case("corpus", "corpus build {dir}/made/texts --tokenizer train:280 --out {dir}/corpus"),
    Case("corpus", "corpus show {dir}/made/corpus"),
    Case("lab", "lab up"),
    Case("lab", "lab status"),
    Case("lab", "lab link rack0 --rate 50mbit"),
    Case("lab", "lab host r0h1 --down"),
    Case("lab-scaling", "lab scaling"),
    Case("lab-faults", "lab faults"),
    Case("lab-removed", "lab down"),
    Case("mapping", "lab mapping {dir}/lab-plan.json --dry-run"),
    Case("logs", f"audit log {FIXTURES / 'llama31_8b_h200.log'} {LOG}"),
    Case("claims", f"audit claim {CLAIMS / 'weak-scaling-efficiency.toml'} {CLAIMS / 'gpt3-cost.toml'}"),
    Case("claim-examples", "audit claim --examples"),
)
FAULTS = """
num_steps = 9
checkpoint_steps = 3
recovery = { step_s = 1.0, notice_s = { kill = 0.5 }, regroup_s = 1.0, return_s = 3.0, join_s = 0.2, restart_s = 10.0 }
faults = [{ time_s = 4.5, what = "kill", num_replicas = 1 }]
"""
TRAINED = Case("training", "train {dir}/small.json --name trained --steps 3 --budget 5USD --price 1USD/h")


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line, with the words that call it."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def has_json(command: Any) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Plans, runs, a corpus and a table; the JSON that training the run printed is in trained.json."""
    found = tmp_path_factory.mktemp("json")
    Small(corpus=make_corpus(found / "made")).plan_file(found / "small.json", "dp=1")
    trained = start(found, [*filled(TRAINED, found), "--json"])
    assert trained.wait() == 0, trained.err
    (found / "trained.json").write_text(trained.out)
    write_description(Lab(), found / "lab.toml")
    (found / "faults.toml").write_text(FAULTS)
    made = f"--runs {found}/runs --steps 12"
    for line in (
        f"plan {JOB} {FIXED} --keep 1 --no-explain --out {found}/plan.json",
        f"plan {JOB} {FIXED.replace('64', '128')} --set workload.global_batch=64 --keep 1 --no-explain --out {found}/larger.json",
        f"plan llama-2m {found}/lab.toml python-stdlib --layout tp=2,pp=2,dp=2,mbs=4 --profile none --out {found}/lab-plan.json",
        f"simulate {found}/plan.json --name simulated {made}",
        f"simulate {found}/plan.json --name again --seed 2 {made}",
        f"simulate {found}/larger.json --name larger {made}",
        f"simulate {found}/plan.json --name weeks --runs {found}/runs --days 9",
        f"simulate {found}/plan.json --name alone {made}",
    ):
        assert main(line.split()) == 0
    (found / "runs" / "alone" / "plan.json").unlink()
    rows = (Path(meshwright.__file__).parent / "evidence" / "published_runs.csv").read_text().splitlines(keepends=True)
    (found / "runs.csv").write_text("".join(rows[:4]))
    kernels = (("gemm", 7, 0, 10), ("ncclDevKernel_AllReduce(x)", 20, 8, 12), ("gemm", 7, 20, 10))
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at, "dur": length} for name, stream, at, length in kernels
    ]
    (found / "trace.json").write_text(json.dumps({"traceEvents": events}))
    (found / "short.jsonl").write_text(json.dumps({"prompt": "a b", "completion": " c d"}) + "\n")  # fits into the sequences of the run
    elastic = shutil.copytree(found / "runs" / "trained", found / "runs" / "elastic")
    append_event(elastic, Event(time_s=0.0, kind="membership", step=0, detail={"from_step": 1, "dp": 1}))
    with RunLock.take(elastic):  # as the process does that trains it
        yield found


def filled(case: Case, folder: Path) -> list[str]:
    return [word.format(dir=folder) for word in case.arguments]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands that need minutes, or a quiet machine, have a result at once: the carried constants, two logs, a stored profile, a node."""
    import meshwright.doctor.gather as gather
    import meshwright.train.measure.machine as machine
    from meshwright.describe.profile import load_profile
    from meshwright.doctor.reading import Gathered, Reading

    node = Reading(
        node="a", memory_bytes=2e10, available_bytes=1e10, disk_write_bytes_per_s=1e9, clock_ahead_s=0.0, versions={"torch": "2.13.0"}
    )
    monkeypatch.setattr(gather, "alone", lambda *_: Gathered(num_ranks=1, readings=(node,)))
    files = [json.loads((refit.HERE / name).read_text()) for name in ("constants.json", "residuals.json")]
    all_logs = logs.step_logs
    monkeypatch.setattr(refit, "refit", lambda *_: refit.Refit(*files))
    monkeypatch.setattr(logs, "step_logs", lambda: all_logs()[:2])
    monkeypatch.setattr(accuracy_page, "write_page", lambda out, *_: [out])
    _pretend_labs(monkeypatch, tmp_path)
    monkeypatch.setattr(machine, "measure", lambda *_, **__: load_profile(FIXTURES / "profile_of_cores.json"))


def _pretend_labs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A lab whose commands are not run: making one needs root. Before `lab up` none is there."""
    from meshwright.lab import guard, nodes, paced, state, system, trials
    from meshwright.lab.description import Lab

    kept = folder / "lab"
    monkeypatch.setattr(system, "check_able", lambda: None)
    monkeypatch.setattr(system, "execute", lambda command: "")
    monkeypatch.setattr(guard, "guarded", lambda *_: nullcontext())
    monkeypatch.setattr(state, "up", lambda lab, **_: state.State(lab=lab))
    monkeypatch.setattr(state, "read_state", lambda name: state.State(lab=Lab(name=name, has_ssh=True)))
    monkeypatch.setattr(nodes, "stop_host", lambda lab, host: 0)
    steps = paced.Steps(step_s=tuple([0.5] * 32))
    monkeypatch.setattr(trials, "run_paced", lambda *_: steps)
    monkeypatch.setattr(state, "change_link", lambda made, *_, **__: made)
    monkeypatch.setattr(state, "down", lambda name: state.Removed(7, 0))
    monkeypatch.setattr(state, "description_path", lambda name: kept / f"{name}.toml")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What a command prints as JSON, from an empty folder."""
    monkeypatch.chdir(tmp_path)

    def printed_by(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        return read(capsys.readouterr().out)

    return printed_by


def read(text: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return values


def check(document: dict[str, Any], kind: str) -> None:
    """The document is of this kind; the vocabulary knows each of its keys, and the published schema accepts it."""
    assert next(iter(document)) == "schema" and document["schema"] == f"meshwright/{kind}/1"
    assert problems(document) == []
    definition = PUBLISHED.evolve(schema={"$ref": f"#/$defs/{kind}-document", "$defs": SCHEMA["$defs"]})
    assert [f"{error.json_path}: {error.message}" for error in definition.iter_errors(document)] == []
    assert PUBLISHED.is_valid(document)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.line.replace("{dir}/", "").replace(f"{ROOT}/", "")[:60])
def test_a_command_prints_what_is_published(case: Case, folder: Path, printed: Printed) -> None:
    check(printed(*filled(case, folder)), case.kind)


def test_train_prints_what_is_published(folder: Path) -> None:
    check(read((folder / "trained.json").read_text()), "training")


def test_train_report_and_ledger_have_the_same_values(folder: Path, printed: Printed) -> None:
    trained = read((folder / "trained.json").read_text())
    [run] = printed("report", str(folder / "runs" / "trained"))["runs"]
    ledger = printed("ledger", str(folder / "runs" / "trained"))
    shared = trained.keys() & run.keys() - {"folder"}
    assert len(shared) > 25 and {key for key in shared if trained[key] != run[key]} == set()
    assert {key: ledger[key] for key in run["ledger"]} == run["ledger"]
    assert (trained["cost_usd"], trained["energy_kwh"]) == (ledger["cost_usd"], ledger["energy_kwh"])


def test_fixed_choices_have_the_names_of_a_layout(printed: Printed) -> None:
    found = printed(*f"plan {JOB} --gpus 64 --layout tp=2,pp=1,mbs=1,zero=2,order=tp-cp-pp-dp --keep 1 --no-explain".split())
    assert found["fixed"] == {"tp": 2, "pp": 1, "mbs": 1, "zero": 2, "order": "tp-cp-pp-dp"}
    assert found["fixed"].items() <= found["plans"][0]["layout"].items()


def test_the_published_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_command_with_json_has_a_case() -> None:
    walked = {path for path, command in commands() if has_json(command)}
    tried = {path for path in walked for case in (*CASES, TRAINED) if tuple(case.arguments[: len(path)]) == path}
    assert walked - tried == set(), "add a case for each of these commands"
    assert {path for path, command in commands() if not has_json(command)} == {("serve",), ("launch",), ("lab", "run"), ("lab", "login")}


def test_every_kind_is_printed_by_a_command() -> None:
    assert {case.kind for case in (*CASES, TRAINED)} == set(vocabulary().kinds)


def test_a_wrong_document_is_refused(printed: Printed) -> None:
    right = printed(*f"predict {JOB} {FIXED}".split())
    for wrong in ({"step_s": "1 s"}, {"layout": "tp=2"}, {"schema": "meshwright/plan/1"}, {"notes": None}):
        assert not PUBLISHED.is_valid(right | wrong)
