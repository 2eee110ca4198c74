"""`--budget` and `--price` of train: not started, or saved and stopped, and going on with more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli.train_budget import _given_before, _kept_usd, _saved_step, _spent_usd, more_money, with_budget
from meshwright.errors import InputError
from meshwright.ledger import Budget, read_budget, read_rate
from meshwright.plan.plan import read_plan
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter
from meshwright.train.job import TrainingJob

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import injected
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
    command = train(tmp_path, small, *given, "--budget", "10USD", before=injected.slow_steps, with_=(0.1,))
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
    assert train(tmp_path, small, *given, "--budget", "10USD", before=injected.slow_steps, with_=(0.1,)).wait() == 0
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
        (("--budget", "0"), "0 is not above 0"),
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


GIVEN = read_rate("3600USD/h")


@pytest.fixture
def job(small: Path, tmp_path: Path) -> TrainingJob:
    return TrainingJob(plan=read_plan(small), runs=tmp_path / "runs", name="a", corpus=tmp_path, num_steps=10)


def begun(job: TrainingJob, *events: tuple[str, int, float, dict[str, Any]], num_done: int = 5, **header: Any) -> TrainingJob:
    """The job, to go on from a run that did some steps of a second."""
    made = RunHeader(name="a", kind="trained", seed=0, num_ranks=2, machine="m", **header)
    with RunWriter.create(job.runs, made, plan_bytes(job.plan)) as writer:
        for kind, step, time_s, detail in events:
            writer.event(kind, step, time_s, **detail)
        writer.steps(StepRecord(step=n, samples=n, loss=1.0, grad_norm=1.0, step_s=1.0) for n in range(1, num_done + 1))
    return replace(job, resume=True)


def test_a_budget_comes_with_its_price_and_none_without(job: TrainingJob) -> None:
    kept = with_budget(job, "100USD", "3600USD/h")
    assert kept.budget is not None and (kept.budget.usd, kept.budget.num_gpus, kept.budget.spent_usd) == (100, 2, 0)
    assert kept.rate is not None and kept.rate.usd_per_gpu_hour == 3600
    assert with_budget(job, None, None).budget is None and with_budget(job, " None ", "1USD/h").budget is None


def test_a_run_that_goes_on_keeps_its_budget_its_price_and_what_it_spent(job: TrainingJob) -> None:
    again = begun(job, ("start", 0, 0.0, {"budget_usd": "500", "price": GIVEN.to_json()}), ("checkpoint", 3, 3.0, {"saved_step": 3}))
    kept = with_budget(again, None, None)
    assert kept.budget is not None and kept.budget.usd == 500 and kept.rate == GIVEN
    assert kept.budget.spent_usd == pytest.approx(Decimal(10))  # two ranks, five seconds, a dollar each
    other = with_budget(again, "900USD", "7200USD/h")
    assert other.budget is not None and other.budget.usd == 900 and other.rate is not None and other.rate.usd_per_gpu_hour == 7200
    assert with_budget(again, "none", None).budget is None


def test_a_price_of_the_catalogue_is_looked_up_again(job: TrainingJob) -> None:
    listed = {**GIVEN.to_json(), "kind": "on-demand"}
    assert _given_before(None) is None
    assert _given_before(read_run(begun(job, ("start", 0, 0.0, {"price": listed})).folder)) is None


def test_what_a_header_remembers_to_be_spent_is_not_less(job: TrainingJob) -> None:
    money = {"budget_usd": "500", "spent_usd": "42.5"}
    again = begun(job, ("start", 0, 0.0, {"price": GIVEN.to_json()}), money=money)
    assert _spent_usd(read_run(again.folder), job.plan, GIVEN) == Decimal("42.5")


@pytest.mark.parametrize("value", ["x", "-1", "NaN", "Infinity", None, [], {}])
def test_an_amount_in_a_header_that_is_none_is_nothing(job: TrainingJob, value: object) -> None:
    run = read_run(begun(job, money={"budget_usd": value}).folder)
    assert _kept_usd(run, "budget_usd") is None and _kept_usd(run, "spent_usd") is None


def test_a_record_of_money_that_was_changed_is_refused_unless_a_budget_is_given(job: TrainingJob) -> None:
    again = begun(job, ("start", 0, 0.0, {"price": GIVEN.to_json()}), money={"budget_usd": "500", "spent_usd": "1"})
    with pytest.raises(InputError) as caught:
        with_budget(again, None, None)
    assert "its header has a budget of 500.00 USD, 1.00 USD of it spent" in caught.value.what and "--budget none" in caught.value.fix
    kept = with_budget(again, "600USD", None)
    assert kept.budget is not None and kept.budget.usd == 600


@pytest.mark.parametrize("saved, step", [([], 0), ([3, 7, 5], 7), (["x", None, 2], 2)])
def test_a_run_goes_on_from_its_last_save(job: TrainingJob, saved: list[object], step: int) -> None:
    events = [("checkpoint", 1, 1.0, {"saved_step": one}) for one in saved]
    assert _saved_step(read_run(begun(job, *events).folder)) == step and _saved_step(None) == 0


def test_a_run_that_its_budget_stopped_is_told_what_to_add(job: TrainingJob) -> None:
    start = ("start", 0, 0.0, {"price": GIVEN.to_json()})
    stopped = begun(job, start, ("stopped", 5, 5.0, {"reason": "budget"}))
    paid = replace(stopped, budget=Budget(usd=Decimal(10), rate=GIVEN, num_gpus=2))
    steps, number, budget, amount = more_money(paid)
    assert (steps, number, budget) == ("--steps", "10", "--budget") and read_budget(amount) > 10
    assert more_money(replace(paid, num_steps=None))[0] == "--budget" and more_money(stopped) == []


def test_a_run_that_stopped_for_another_reason_needs_no_money(job: TrainingJob) -> None:
    stopped = begun(job, ("stopped", 5, 5.0, {"reason": "signal"}))
    assert more_money(replace(stopped, budget=Budget(usd=Decimal(10), rate=GIVEN, num_gpus=2))) == []
