"""`meshwright rehearse`: which rank is run, what is printed, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.job import Job
from meshwright.plan.plan import plan_of

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of four stages on eight ranks of this machine."""
    job = Job("llama-2m", "this-machine-2x4", "python-stdlib", profile="none").changed("workload.seq_len=32")
    path = tmp_path_factory.mktemp("rehearse") / "plan.json"
    plan_of(job.forecast("pp=4,dp=2,mbs=1", ignore_memory=True), "four stages").write(path)
    return path


def test_a_stage_is_rehearsed_and_shown_beside_the_forecast(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", str(plan), "--stage", "2", "--steps", "1"]) == 0
    out, err = capsys.readouterr()
    stride = Job("llama-2m", "this-machine-2x4", "python-stdlib", profile="none").layout("pp=4,dp=2,mbs=1").stride("pp")
    assert out.startswith(f"rank {2 * stride} of 8 (stage 2) of four stages")
    for title in ("compute of one micro-batch", "memory at the peak", "forecast of the whole plan", "the loss and the gradients"):
        assert title in out
    assert "meshwright: a first step" in err and "Traceback" not in err


def test_without_a_wish_the_fullest_stage_is_taken(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", str(plan), "--steps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stages = found["rehearsed_forecast"]["memory"]
    assert found["stage"] == max(stages, key=lambda stage: stage["peak_bytes"])["stage"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--rank", "1", "--stage", "1"], "a rank and a stage are given"),
        (["--rank", "8"], "the plan has no rank 8"),
        (["--stage", "4"], "the plan has no stage 4"),
    ],
)
def test_a_rank_that_is_not_there_is_refused(words: list[str], message: str, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", str(plan), *words]) == 2
    err = capsys.readouterr().err
    assert message in err and "fix:" in err


def test_a_rank_that_this_machine_cannot_hold_is_refused_before_it_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("llama-3.1-405b", "hgx-h200-ndr", "pretrain-1t", gpus=64)
    path = tmp_path / "large.json"
    plan_of(job.forecast("tp=8,pp=1,mbs=1,recompute=full", ignore_memory=True), "large").write(path)
    assert main(["rehearse", str(path)]) == 2
    err = capsys.readouterr().err
    assert "It was not tried" in err and "Traceback" not in err
