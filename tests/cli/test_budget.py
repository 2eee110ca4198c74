"""`--budget` and `--price` of train and simulate: not started, or saved and stopped, and going on with more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import faults
from small_run import EVALUATION, NO_RANKS, Small, events_of, make_corpus, steps_of, train

from meshwright.cli.main import main
from meshwright.ledger import evaluation_s, ledger_of, recorded_budget
from meshwright.plan.plan import plan_bytes, read_plan
from meshwright.record.run import read_run

JOB = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
LAYOUT = "tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1,order=tp-cp-pp-dp"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "racks.json"
    given = ("--gpus", "256", "--set", "workload.global_batch=32", "--layout", LAYOUT, "--no-explain", "--keep", "1", "--out", str(path))
    assert main(["plan", *JOB, *given]) == 0
    return path


@pytest.fixture
def racks(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(written)


def test_a_simulation_that_cannot_end_inside_is_not_started(run: Run, racks: str) -> None:
    cost = float(read_plan(Path(racks)).time_to_train_s) / 3600 * 256 * 10
    code, out, err = run("simulate", racks, "--price", "10USD/h", "--budget", "1kUSD")
    assert (code, out) == (2, "")
    assert f"the run is predicted to cost {cost:,.2f} USD" in err
    assert f"that is {cost - 1000:,.2f} USD over the budget of 1,000.00 USD" in err
    assert not Path("runs").exists()


def test_a_simulation_that_runs_over_ends_with_the_last_step_inside(run: Run, racks: str) -> None:
    plan = read_plan(Path(racks))
    step_s = plan.step_s
    budget = 256 * (20.4 * step_s + evaluation_s(plan))  # at a dollar a second, and without noise: 20 steps, their evaluation and a bit
    given = ("--steps", "20", "--price", "3600USD/h", "--budget", f"{budget:.2f}", "--slow-rank", "100=1.3", "--name", "cut", "--json")
    code, out, err = run("simulate", racks, *given)
    assert (code, err) == (0, "")
    document, folder = json.loads(out), read_run("runs/cut")
    assert document["over_budget"] and not document["complete"] and 10 < document["num_steps"] <= 20 and document["num_evaluations"] == 0
    assert folder.header.status == "stopped"
    assert [event.kind for event in folder.events][-2:] == ["budget", "stopped"] and folder.events[-1].detail["reason"] == "budget"
    took = ledger_of("runs/cut")
    assert float(took.usd) <= budget < float(took.usd) + 256 * (1.5 * step_s + evaluation_s(plan))
    assert float(took.usd) == pytest.approx(document["cost_usd"], abs=0.01)


def test_a_simulation_inside_its_budget_goes_to_its_end(run: Run, racks: str) -> None:
    code, out, _ = run("simulate", racks, "--steps", "5", "--budget", "1000000", "--name", "whole", "--json")
    document = json.loads(out)
    assert code == 0 and document["complete"] and not document["over_budget"] and document["num_steps"] == 5
    start = read_run("runs/whole").events[0]
    assert start.detail["budget_usd"] == "1000000" and start.detail["price"]["provider"] == "azure"


def test_weeks_end_when_their_budget_is_spent_spares_included(run: Run, racks: str) -> None:
    code, out, _ = run("simulate", racks, "--days", "54", "--price", "27USD/h", "--budget", "1MUSD", "--name", "weeks")
    assert (
        code == 0
        and "The budget of 1,000,000.00 USD ended the simulation" in out
        and "For 1,000,000.00 USD or less: 100.0 % of runs." in out
    )
    took = ledger_of("runs/weeks")
    assert took.status == "stopped" and abs(float(took.usd) - 1e6) < 0.02
    assert took.wall_s == pytest.approx(1e6 / 27 * 3600 / took.num_gpus, abs=0.01) and took.num_gpus == 260
    assert read_run("runs/weeks").events[-1].detail["reason"] == "budget"


def test_days_that_cost_less_than_the_workload_are_judged_by_their_days(run: Run, racks: str) -> None:
    given = ("--days", "0.1", "--price", "1USD/h", "--failures", "none", "--spares", "0")
    code, _, err = run("simulate", racks, *given, "--budget", "600")
    assert code == 2 and "predicted to cost 614.40 USD" in err
    assert run("simulate", racks, *given, "--budget", "615")[0] == 0
    assert ledger_of("runs/racks-seed0").status == "finished"


def test_a_machine_without_a_price_wants_one(run: Run, racks: str, tmp_path: Path) -> None:
    plan = read_plan(Path(racks))
    chip = replace(plan.cluster.accelerator, name="secret")
    secret = tmp_path / "secret.json"
    secret.write_bytes(plan_bytes(replace(plan, cluster=replace(plan.cluster, accelerator=chip))))
    code, _, err = run("simulate", str(secret), "--steps", "2", "--budget", "500USD")
    assert code == 2 and "no price is listed for secret" in err and "--price 2.5USD/h" in err
    assert run("simulate", str(secret), "--steps", "2", "--budget", "500USD", "--price", "2.5USD/h", "--name", "s")[0] == 0
    took = ledger_of("runs/s")
    assert took.price is not None and took.price.kind == "given" and took.price.source == "given as 2.5USD/h"


@pytest.mark.parametrize(
    "flags",
    [
        ("--budget", "much"),
        ("--budget", "0"),
        ("--budget", "-1"),
        ("--budget", "5EUR"),
        ("--price", "x"),
        ("--price", "0USD/h"),
        ("--budget", ""),
        ("--price", ""),
    ],
)
def test_what_is_no_amount_starts_nothing(run: Run, racks: str, flags: tuple[str, str]) -> None:
    code, out, err = run("simulate", racks, "--steps", "2", *flags)
    assert (code, out) == (2, "") and f"where: {flags[0]}" in err and not Path("runs").exists()


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
