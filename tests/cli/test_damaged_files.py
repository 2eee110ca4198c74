"""No file that a command reads, however damaged, ends in a traceback: a number, or one message that says what is wrong."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from damage import damaged
from small_run import NO_RANKS, Small, make_corpus, start

import meshwright
from meshwright.cli.main import main

PACKAGE = Path(meshwright.__file__).parent
CATALOGUE, FIXTURES = PACKAGE / "describe" / "catalogue", Path(__file__).parents[1] / "fixtures"
CLAIMS = Path(__file__).parents[2] / "examples" / "claims"
LONGEST_S = 60.0  # for one command: more is a hang
QUICK, MANY = 2, 150  # damages of each file, in CI and in the long test


@dataclass(frozen=True)
class Case:
    """A file, and the commands that read it: `{}` is its path, `{dir}` its folder."""

    file: str
    commands: tuple[str, ...]


PREDICT = "predict {model} {cluster} {workload} --layout dp=8,mbs=1 --batch 64"
CASES = (
    Case("plan.json", ("simulate {} --steps 3 --name s --runs {dir}/sims", "train {} --name t --steps 1 --runs {dir}/t")),
    Case("plan.json", ("simulate {} --days 1 --name s --runs {dir}/sims",)),
    Case("runs/a/run.json", ("report {run} --out {dir}/r.html", "ledger {run}", "train --resume --name a --runs {dir}/runs")),
    Case("runs/a/steps.jsonl", ("report {run} --out {dir}/r.html", "ledger {run} --json", "report {run} --markdown")),
    Case("runs/a/events.jsonl", ("report {run} --out {dir}/r.html", "ledger {run}", "train --resume --name a --runs {dir}/runs")),
    Case(
        "runs/a/plan.json",
        ("report {run} --out {dir}/r.html", "generate {run} --prompt a --tokens 2", "train --resume --name a --runs {dir}/runs"),
    ),
    Case("runs/a/tokenizer.json", ("generate {run} --prompt a --tokens 2",)),
    Case("runs/a/tokenizer_config.json", ("generate {run} --prompt a --tokens 2",)),
    Case(
        "runs/a/checkpoints/step-00000003/manifest.json",
        ("generate {run} --prompt a --tokens 2", "train --resume --name a --runs {dir}/runs --steps 9"),
    ),
    Case("runs/a/mlperf.log", ("audit log {}", "audit log {} --json")),
    Case(
        "model.toml", ("describe {}", f"{PREDICT} --ignore-memory".replace("{model}", "{}"), "memory {} --serve --context 4096 --on h100")
    ),
    Case("cluster.toml", ("describe {}", PREDICT.replace("{cluster}", "{}"))),
    Case("workload.toml", ("describe {}", PREDICT.replace("{workload}", "{}"))),
    Case("weights/config.json", ("describe {}", "generate {dir}/weights --prompt a --tokens 2", PREDICT.replace("{model}", "{}"))),
    Case("weights/tokenizer_config.json", ("generate {dir}/weights --prompt a --tokens 2",)),
    Case("profile.json", ("train plan.json --layout dp=1 --profile {} --name t --steps 1 --runs {dir}/t",)),
    Case("software.json", (f"{PREDICT} --software {{}}", "simulate plan.json --steps 2 --software {} --name s --runs {dir}/sims")),
    Case("runs.csv", ("validate {}",)),
    Case("claim.toml", ("audit claim {}", "audit claim {} --json")),
    Case("failures.toml", ("simulate plan.json --days 1 --failures {} --name s --runs {dir}/sims",)),
    Case(
        "log.log",
        (
            "audit log {}",
            "calibrate {} --model llama-3.1-8b --cluster hgx-h200-ndr --workload mlperf-llama31-8b --gpus 8 --layout tp=2,dp=4,mbs=1",
        ),
    ),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are as they should be: descriptions, a plan, a run with its checkpoint, weights, logs, tables."""
    from dataclasses import replace

    from meshwright.predict.software import as_json, software

    folder = tmp_path_factory.mktemp("whole")
    Small(corpus=make_corpus(folder / "made")).plan_file(folder / "plan.json", "dp=1")
    trained = start(folder, ["train", folder / "plan.json", "--name", "a", "--steps", "3", "--budget", "5USD", "--price", "1USD/h"])
    assert trained.wait() == 0, trained.err
    assert main(["weights", str(folder / "runs" / "a"), "--out", str(folder / "weights")]) == 0
    for source, name in (
        (CATALOGUE / "models" / "mixtral-8x7b.toml", "model.toml"),
        (CATALOGUE / "clusters" / "workstation-8x.toml", "cluster.toml"),
        (CATALOGUE / "workloads" / "mlperf-llama31-8b.toml", "workload.toml"),
        (FIXTURES / "profile_of_cores.json", "profile.json"),
        (CLAIMS / "gpt3-cost.toml", "claim.toml"),
        (FIXTURES / "counts_tokens.log", "log.log"),
    ):
        shutil.copyfile(source, folder / name)
    rows = (PACKAGE / "evidence" / "published_runs.csv").read_text().splitlines(keepends=True)
    (folder / "runs.csv").write_text("".join(rows[:4]))
    (folder / "software.json").write_text(json.dumps(as_json(replace(software(), name="ours"))))
    (folder / "failures.toml").write_text(
        "detection_s = 60\nrestart_s = 300\ncheckpoint_s = 5\nrepair_h = 1\n[causes.gpu]\nper_accelerator_hour = 1e-5\nloses_node = true\n"
    )
    return folder


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once so many seconds have passed."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not over after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def outcome(command: str, path: Path, folder: Path) -> str:
    """What is wrong with how a command takes a damaged file; "" where it is right."""
    names = {"model": "llama-3.2-1b", "cluster": "workstation-8x", "workload": "pretrain-1t", "dir": folder, "run": folder / "runs" / "a"}
    arguments = [part.format(path, **names) for part in command.split(" ")]
    for made in ("sims", "t"):
        shutil.rmtree(folder / made, ignore_errors=True)
    err = io.StringIO()
    try:
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), redirect_stderr(err), warnings.catch_warnings(), within(LONGEST_S):
            warnings.simplefilter("ignore")
            code = main(arguments)
    except BaseException:
        last = traceback.format_exc().strip().splitlines()
        return f"{' '.join(arguments)}\n" + "\n".join(last[-5:])
    if code not in (0, 1, 2) or (code == 2 and not err.getvalue().startswith("meshwright: ")):
        return f"{' '.join(arguments)}: {code} {err.getvalue()[:300]}"
    return ""


@pytest.fixture
def desk(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the whole files to damage, with no rank that would train and no other process."""
    shutil.copytree(whole, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setattr("meshwright.train.launch.run_ranks", lambda num_ranks, body, *_: 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in NO_RANKS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "desk"


def faults(case: Case, desk: Path, seeds: range) -> list[str]:
    """What went wrong over so many damages of one file."""
    path, found = desk / case.file, []
    content = path.read_bytes()
    for seed in seeds:
        path.write_bytes(damaged(path, content, random.Random(f"{case.file} {seed}")))
        problems = [f"seed {seed}: {wrong}" for command in case.commands if (wrong := outcome(command, path, desk))]
        found += problems
        path.write_bytes(content)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.commands[0].split()[0]}")
def test_files_as_they_should_be_are_read(case: Case, desk: Path) -> None:
    assert [wrong for command in case.commands if (wrong := outcome(command, desk / case.file, desk))] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.commands[0].split()[0]}")
def test_a_damaged_file_is_no_traceback(case: Case, desk: Path) -> None:
    assert faults(case, desk, range(QUICK)) == []


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.commands[0].split()[0]}")
def test_many_damaged_files_are_no_traceback(case: Case, desk: Path) -> None:
    assert faults(case, desk, range(QUICK, MANY)) == []


def test_the_test_finds_a_traceback(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.record.run.read_header", lambda folder: 1 / 0)
    assert "ZeroDivisionError" in outcome("ledger {run}", desk / "plan.json", desk)


def test_the_damage_is_the_same_for_the_same_seed(desk: Path) -> None:
    path = desk / "plan.json"
    one, other = (damaged(path, path.read_bytes(), random.Random("a")) for _ in range(2))
    assert one == other != path.read_bytes()
    assert os.environ.get("RANK") is None
