"""`meshwright train`: what it refuses before a rank is started. tests/train/test_end_to_end.py has what it does."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from small_run import EVALUATION, MODEL, NO_RANKS, WORKLOAD, Small, make_corpus

from meshwright.cli.train_run import is_launched
from meshwright.describe.load import EMULATED, load_cluster, load_model, load_workload
from meshwright.describe.profile import load_profile
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.plan.plan import plan_bytes, plan_of
from meshwright.predict.software import on_profile, software
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter


@pytest.fixture
def verb() -> str:
    return "train"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(corpus=make_corpus(tmp_path_factory.mktemp("small")))


@pytest.fixture(autouse=True)
def here(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with plan.json, corpus/ and nothing else; nothing may be added to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in NO_RANKS:
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(small.corpus, tmp_path / "corpus")
    small.plan_file(tmp_path / "plan.json", "dp=2", evaluation=EVALUATION)
    yield tmp_path
    assert not list(tmp_path.glob("runs/*/run.json")), "nothing was started"


@pytest.fixture
def refused(run: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """The error for arguments that cannot be run: one message, with where it is and how to fix it."""

    def message_of(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), err
        assert err.startswith("meshwright: ") and err.count("meshwright: ") == 1
        assert "\n  where: " in err or "\n  fix:   " in err
        return err.removeprefix("meshwright: ")

    return message_of


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("none.json",), "cannot read the plan: No such file or directory"),
        (("plan.json", "--steps", "0"), "--steps is '0'"),
        (("plan.json", "--seed", "99999999999999999999"), "--seed is '99999999999999999999'"),
        (("plan.json", "--layout", "dp=3"), "dp=3 x mbs=2 = 6 does not divide the global batch 8"),
        (("plan.json", "--layout", "tp=3"), "tensor degree 3 does not divide 8 attention heads"),
        (("plan.json", "--layout", "pp=8"), "4 layers do not divide over 8 pipeline stages"),
        (("plan.json", "--layout", "cp=64"), "a sequence of 32 tokens does not divide into 128 pieces (cp=64, tp=1)"),
        (("plan.json", "--layout", "dp=0"), "dp is 0\n"),
        (("plan.json", "--layout", "xp=2"), "cannot read 'xp=2' in the layout"),
        (("plan.json", "--corpus", "nothing"), "no finished corpus: cannot read its manifest: No such file or directory"),
        (("plan.json", "--name", "../x"), "the run name '../x' could lead out of the runs folder"),
        (("plan.json", "--name", ".x"), "the run name '.x' could lead out of the runs folder"),
        (("plan.json", "--name", "a/b"), "the run name 'a/b' could lead out of the runs folder"),
        (("plan.json", "--name", " "), "the run name ' ' is empty"),
        (("plan.json", "--name", "x" * 300), f"the run name '{'x' * 300}' is 300 bytes long"),
        (("plan.json", "--name", "a\x1bb"), "the run name 'a\\x1bb' holds a control character"),
        (("--resume",), "there is no run to continue"),
        (("--resume-if-exists",), "which run should be started or continued?"),
        (("--resume", "--name", "a"), "no run named 'a'"),
        (("--resume", "--name", "../x"), "the run name '../x' could lead out of the runs folder"),
        (("plan.json", "--benchmark", "llama31_8c", "--name", "a"), "no benchmark named 'llama31_8c'"),
        (("plan.json", "--benchmark", "llama31_8b", "--name", "a"), "the run is not MLPerf's llama31_8b: "),
        (("plan.json", "--start-from", "nothing"), "no such folder\n  where: nothing"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_it_refuses(refused: Callable[..., str], arguments: tuple[str, ...], message: str) -> None:
    assert refused(*arguments).startswith(message)


def test_who_is_launched() -> None:
    assert is_launched({"RANK": "0", "WORLD_SIZE": "1"})
    assert not is_launched({"WORLD_SIZE": "1"})


def test_a_run_does_not_go_on_by_somebody_elses_plan(refused: Callable[..., str], here: Path) -> None:
    header = RunHeader(name="mine", kind="trained", seed=1, num_ranks=1, machine="here")
    RunWriter.create(here / "runs", header, (here / "plan.json").read_bytes()).finish("stopped")
    plan = json.loads((here / "plan.json").read_text())
    (here / "runs" / "mine" / "plan.json").write_text(json.dumps({**plan, "name": "another"}))
    message = refused("--resume", "--name", "mine")
    assert message.startswith("plan.json is not the run's own plan (its digest is ")
    assert "meshwright train PLAN --resume --name mine" in message
    shutil.rmtree(here / "runs")


def test_a_plan_that_is_none(refused: Callable[..., str], here: Path) -> None:
    (here / "garbage.json").write_bytes(b"\x00\xff no plan")
    assert "garbage.json" in refused("garbage.json")
    plan = json.loads((here / "plan.json").read_text())
    (here / "newer.json").write_text(json.dumps({**plan, "version": plan["version"] + 1}))
    assert f"plan version {plan['version'] + 1}, but this is written for version {plan['version']}" in refused("newer.json")


def test_a_plan_for_gpus_where_there_are_none(
    refused: Callable[..., str], small: Small, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.cli.train_run.gpu_names", lambda: [])
    workload = replace(small.plan("dp=2").workload, precision="bf16")
    plan = plan_of(Job(MODEL, load_cluster("hgx-h200-ndr").resized(2), workload).forecast(Layout(dp=2, micro_batch=2)), "big")
    (here / "gpus.json").write_bytes(plan_bytes(plan))
    message = refused("gpus.json")
    assert message.startswith("the plan needs 2 ") and "here, and this machine has no NVIDIA GPU\n  where: plan big\n" in message


def test_other_degrees_of_a_plan_are_priced_by_its_own_profile() -> None:
    from meshwright.cli.train_run import with_layout

    profile = load_profile(Path(__file__).parents[1] / "fixtures" / "profile_of_cores.json")
    job = load_model("llama-2m"), load_cluster(EMULATED), load_workload("python-stdlib")
    plan = plan_of(Job(*job, on_profile(software(), profile)).forecast(Layout(dp=8)))
    assert with_layout(plan, "tp=2,dp=4").parts_s["exposed_tp"] == pytest.approx(4 * (4 * 8 + 6) * 2e-3)  # collectives of 2 ms
    assert with_layout(plan, "tp=2,dp=4").profile == profile and with_layout(plan, "tp=2,dp=4", "none").profile is None


def test_a_workload_that_does_not_say_how_to_train(refused: Callable[..., str], here: Path) -> None:
    plan = plan_of(Job(MODEL, load_cluster(EMULATED).resized(2), WORKLOAD).forecast(Layout(dp=2, micro_batch=2)))
    (here / "bare.json").write_bytes(plan_bytes(replace(plan, workload=replace(WORKLOAD, training=None))))
    assert "the workload small does not say how to train: it has no [training]" in refused("bare.json", "--corpus", "corpus")
    assert refused("bare.json").startswith("no corpus to train on\n  where: workload.training.corpus\n")


def test_a_corpus_shorter_than_a_batch(refused: Callable[..., str], here: Path) -> None:
    make_corpus(here / "short", num_documents=3, num_words=20, vocab_size=300)
    assert "samples of 32 tokens; one batch needs 8" in refused("plan.json", "--corpus", "short/corpus")


def test_a_corpus_of_more_tokens_than_the_model_knows(refused: Callable[..., str], small: Small, here: Path) -> None:
    small.plan_file(here / "narrow.json", "dp=2", model=replace(MODEL, vocab_size=256))
    message = refused("narrow.json")
    assert message.startswith("the corpus has tokens up to 511 and the model a vocabulary of 256\n")


def test_a_truncated_corpus(refused: Callable[..., str], here: Path) -> None:
    path = here / "corpus" / "train.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    assert refused("plan.json", "--corpus", "corpus").startswith("train.tokens is cut short: ")


def test_a_corpus_changed_at_equal_size(refused: Callable[..., str], here: Path) -> None:
    path = here / "corpus" / "train.index"
    index = np.fromfile(path, dtype="<i8")
    index[1:-1] += 1
    index.tofile(path)
    assert refused("plan.json", "--corpus", "corpus").startswith("train.index was changed after the corpus was built: ")


def test_a_folder_that_is_taken(refused: Callable[..., str], here: Path) -> None:
    (here / "runs" / "a").mkdir(parents=True)
    (here / "runs" / "a" / "something").touch()
    assert refused("plan.json", "--name", "a") == (
        "the run's folder exists and is not empty\n  where: runs/a\n  fix:   use another name, or continue it with --resume\n"
    )


def test_runs_in_a_file(refused: Callable[..., str], here: Path) -> None:
    (here / "runs").write_text("a file")
    assert refused("plan.json", "--name", "a").startswith("runs is no folder\n  where: runs/a\n")
