"""What becomes of the faults of a run that keeps going."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from meshwright.cli.keep_going import MOST_STARTS, Faults, _starts_again, replicas_may_go
from meshwright.describe.load import load_model
from meshwright.layout import Layout
from meshwright.train.incidents import LOSSES, Incident
from meshwright.train.job import TrainingJob
from meshwright.train.launch import Failure


def faults(folder: Path) -> Faults:
    (folder / "a").mkdir()
    (folder / "a" / "steps.jsonl").write_text('{"step": 6, "step_s": 0.5}\n{"step": 7, "step_s": 0.25}\n')
    return Faults(TrainingJob(plan=None, runs=folder, name="a", corpus=folder))  # type: ignore[arg-type]


def test_the_same_loss_at_the_same_step_is_borne_a_few_times(tmp_path: Path) -> None:
    book, failure = faults(tmp_path), Failure(reason="exception", rank=1, message="rank 1 failed", noticed_s=1.0)
    verdicts = [book.judged(failure) for _ in range(LOSSES.most_alike + 1)]
    assert all(isinstance(verdict, Incident) for verdict in verdicts[:-1])
    assert isinstance(verdicts[-1], str)
    first = verdicts[0]
    assert isinstance(first, Incident) and (first.step, first.step_times_s) == (7, {6: 0.5, 7: 0.25})


def test_kills_at_one_step_are_borne_until_the_run_comes_no_further(tmp_path: Path) -> None:
    book, failure = faults(tmp_path), Failure(reason="signal", rank=1, message="rank 1 was killed", noticed_s=1.0, from_outside=True)
    verdicts = [book.judged(failure) for _ in range(LOSSES.most_without_progress + 1)]
    assert all(isinstance(verdict, Incident) and verdict.from_outside for verdict in verdicts[:-1])
    assert verdicts[-1] == "6 losses of replicas in a row came no further than step 7"


def test_a_run_without_a_folder_is_started_again_a_few_times(tmp_path: Path) -> None:
    book, failure = faults(tmp_path), Failure(reason="signal", rank=1, message="rank 1 was killed")
    assert [_starts_again(book, failure) for _ in range(MOST_STARTS)] == [True] * (MOST_STARTS - 1) + [False]
    assert not _starts_again(faults_of_input(book), Failure(reason="input", rank=0, message="wrong"))


def faults_of_input(book: Faults) -> Faults:
    book.num_starts = 0
    return book


@pytest.mark.parametrize("model, dp, may_go", [("mixtral-8x7b", 2, False), ("mixtral-8x7b", 1, True), ("llama-2m", 2, True)])
def test_replicas_of_a_mixture_of_experts_do_not_come_and_go(model: str, dp: int, may_go: bool, tmp_path: Path) -> None:
    plan = SimpleNamespace(model=load_model(model), layout=Layout(dp=dp))
    job = TrainingJob(plan=plan, runs=tmp_path, name="a", corpus=tmp_path)  # type: ignore[arg-type]
    assert replicas_may_go(job) == may_go
