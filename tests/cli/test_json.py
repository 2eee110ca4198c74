"""What every command prints with `--json`: one document whose every key is in the published vocabulary, with its type."""

from __future__ import annotations

import json

import pytest

from meshwright.cli.main import main
from meshwright.say.vocabulary import problems

JOB = ("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b")
FIXED = ("--gpus", "64", "--layout", "tp=2,cp=1,pp=1,vp=1,mbs=1,zero=1,recompute=none")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert main(["plan", *JOB, *FIXED, "--keep", "1", "--no-explain", "--out", str(path)]) == 0
    return str(path)


@pytest.fixture
def printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def printed_by(*arguments, code=0):
        capsys.readouterr()
        assert main([*arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))

    return printed_by


def check(document, kind):
    """The document is of this kind, and the vocabulary knows all of it."""
    assert document["schema"] == f"meshwright/{kind}/1"
    assert problems(document) == []


def test_predict(printed):
    check(printed("predict", *JOB, *FIXED), "forecast")


def test_predict_where_little_is_known(printed):
    check(printed("predict", "llama-3.1-8b", "this-machine", "pretrain-1t", "--layout", "dp=1,mbs=1", "--ignore-memory"), "forecast")


def test_plan(printed):
    limits = ("--deadline", "9d", "--budget", "9000")
    check(printed("plan", *JOB, *FIXED, "--keep", "2", "--pareto", "--set", "fabric.planes=1", *limits, "--out", "plan.json"), "plan")


def test_plan_without_explanation(printed):
    check(printed("plan", *JOB, *FIXED, "--keep", "1", "--no-explain"), "plan")


def test_sweep(printed):
    check(printed("sweep", *JOB, "--gpus", "8,12,64", "--layout", FIXED[-1]), "sweep")


def test_simulate_steps(printed, plan):
    check(printed("simulate", plan, "--steps", "5", "--seeds", "2", "--slow-rank", "1=1.5"), "simulation-of-steps")


def test_simulate_one_seed(printed, plan):
    check(printed("simulate", plan, "--steps", "3", "--no-noise"), "simulation-of-steps")


def test_simulate_days(printed, plan):
    paid = ("--budget", "100000USD", "--price", "2USD/h")
    check(printed("simulate", plan, "--days", "2", "--seeds", "2", "--sizes", "--finish-by", "9d", *paid), "simulation-of-days")


def test_simulate_days_without_failures(printed, plan):
    check(printed("simulate", plan, "--days", "1", "--failures", "none"), "simulation-of-days")
