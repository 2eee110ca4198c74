"""`--budget` and `--price` of train: not started, or saved and stopped, and going on with more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import faults
from small_run import EVALUATION, NO_RANKS, Small, events_of, make_corpus, steps_of, train

from meshwright.cli.main import main
from meshwright.ledger import ledger_of, recorded_budget
from meshwright.plan.plan import plan_bytes
from meshwright.record.run import read_run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two ranks that is predicted to do a step in a millisecond."""
    folder = tmp_path_factory.mktemp("small")
    plan = Small(corpus=make_corpus(folder)).plan("dp=2", evaluation=EVALUATION)
    hasty = replace(plan, step_s=1e-3, low_s=1e-3, high_s=1e-3)
    (folder / "plan.json").write_bytes(plan_bytes(hasty))
    return folder / "plan.json"


DOLLAR_A_SECOND = ("--price", "3600USD/h")


def test_a_run_over_its_budget_is_saved_and_stopped_and_goes_on_with_more(small: Path, tmp_path: Path) -> None:
    given = ("--steps", "400", "--name", "a", *DOLLAR_A_SECOND)
    command = train(tmp_path, small, *given, "--budget", "10USD", before=faults.slow_steps, with_=(0.1,))
    assert command.wait() == 0, command.err
    run = tmp_path / "runs" / "a"
    done = len(steps_of(run))
    assert 1 <= done < 100 and read_run(run).header.status == "stopped"
    (over,) = events_of(run, "budget")
    (stopped,) = events_of(run, "stopped")
    assert (
        stopped["reason"] == "budget"
        and stopped["message"] == over["message"]
        and "another step would pass the budget of 10.00 USD" in over["message"]
    )
    assert [event["saved_step"] for event in events_of(run, "checkpoint")] == [done]
    assert "--resume --steps 400 --budget" in command.err and over["message"] in command.out
    took = ledger_of(run)
    assert float(over["spent_usd"]) == pytest.approx(2 * over["time_s"], rel=0.01)  # two ranks at a dollar a second
    assert float(took.usd) == pytest.approx(2 * stopped["time_s"], abs=0.02)

    assert recorded_budget(read_run(run)) == 10  # it stands until another is given
    less = train(tmp_path, "--name", "a", "--resume", "--steps", str(done + 2), "--budget", "1USD")
    assert less.wait() == 2 and "over the budget of 1.00 USD" in less.err and "of it spent already" in less.err
    more = train(tmp_path, "--name", "a", "--resume", "--steps", str(done + 2), "--budget", "100kUSD")
    assert more.wait() == 0, more.err
    (resumed,) = events_of(run, "resumed")
    assert float(resumed["spent_usd"]) == pytest.approx(float(took.usd), abs=0.02) and resumed["budget_usd"] == "100000"
    assert resumed["price"]["usd_per_gpu_hour"] == "3600"  # as it was given
    assert len(steps_of(run)) == done + 2 and read_run(run).header.status == "finished"
    assert ledger_of(run).usd > took.usd


def test_a_budget_outlives_the_files_it_was_recorded_in(small: Path, tmp_path: Path) -> None:
    given = ("--steps", "400", "--name", "a", *DOLLAR_A_SECOND)
    assert train(tmp_path, small, *given, "--budget", "10USD", before=faults.slow_steps, with_=(0.1,)).wait() == 0
    run = tmp_path / "runs" / "a"
    (run / "events.jsonl").unlink()
    silent = train(tmp_path, "--name", "a", "--resume")
    assert silent.wait() == 2
    assert silent.err.startswith("meshwright: the run's record of its money was changed: events.jsonl cannot be read")
    assert "a budget of 10.00 USD, " in silent.err and "--budget none" in silent.err
    more = train(tmp_path, "--name", "a", "--resume", "--budget", "1USD", *DOLLAR_A_SECOND)
    assert more.wait() == 2
    assert "of it spent already" in more.err  # the header remembers


@pytest.fixture
def here(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in NO_RANKS:
        monkeypatch.delenv(name, raising=False)
    return small


@pytest.mark.parametrize(
    "flags, what",
    [
        (("--budget", "0.01USD", *DOLLAR_A_SECOND), "predicted to cost 0.02 USD"),
        (("--budget", "lots"), "cannot read an amount of USD in 'lots'"),
        (("--budget", "0"), "0 is nothing"),
        (("--budget", ""), "no amount of USD"),  # of a shell variable that is not set
        (("--budget", "5EUR"), "cannot read an amount of USD in '5EUR'"),
        (("--price", "1e9"), "per accelerator-hour"),
        (("--budget", "5", "--no-save"), "a run that its budget stops must be saved"),
    ],
)
def test_training_that_cannot_be_paid_is_not_started(run: Run, here: Path, flags: tuple[str, ...], what: str) -> None:
    code, out, err = run("train", str(here), "--steps", "10", *flags)
    assert (code, out) == (2, "") and what in err
    assert not Path("runs").exists()
