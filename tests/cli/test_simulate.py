"""`meshwright simulate`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.ledger import evaluation_s, ledger_of
from meshwright.plan.plan import plan_bytes, read_plan
from meshwright.record.entries import PART_NAMES
from meshwright.record.run import read_run
from meshwright.units import seconds


@pytest.fixture
def verb():
    return "simulate"


@pytest.fixture
def plan(racks_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(racks_plan)


def test_json_has_the_figures_of_a_run_and_names_its_folder(answer, plan, tmp_path):
    document = answer(plan, "--steps", "12", "--seed", "3", "--name", "first")
    for key in ("median_step_s", "robust_std_pct", "mean_exposed_s", "time_to_train_s", "goodput", "interruptions", "cost_usd"):
        assert key in document
    assert set(document["mean_exposed_s"]) == {"tp", "cp", "pp", "dp", "ep"}
    assert document["median_step_s"] > document["predicted_step_s"]
    run = read_run(tmp_path / "runs" / "first")
    assert (len(run.records), run.header.seed, run.complete) == (12, 3, True)


def test_a_batch_whose_samples_nobody_measured_is_reported(answer, run, plan):
    (note,) = answer(plan, "--steps", "2")["notes"]  # 32 sequences: MLPerf's runs have hundreds
    assert note.startswith("samples to the target of mlperf-llama31-405b were measured at batches from ")
    assert "note: samples to the target" in run(plan, "--steps", "2")[1]


def test_without_noise_it_is_the_plan(answer, plan):
    document = answer(plan, "--steps", "4", "--no-noise")
    assert document["median_step_s"] == pytest.approx(json.loads(Path(plan).read_text())["step_s"], rel=1e-12)
    assert document["robust_std_pct"] == pytest.approx(0.0, abs=1e-9)


def test_a_plan_made_with_a_profile_is_simulated_by_it(answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = (
        "llama-3.1-8b",
        "hgx-h200-ndr",
        "pretrain-1t",
        "--gpus",
        "8",
        "--set",
        "workload.global_batch=64",
        "--set",
        "workload.precision=bf16-pure",
    )
    profile = Path(__file__).parents[1] / "fixtures" / "profile_of_a_card.json"
    layout = ("--layout", "tp=2,pp=2,dp=2,recompute=full", "--no-explain", "--keep", "1")
    assert main(["plan", *job, *layout, "--profile", str(profile), "--out", "plan.json"]) == 0
    capsys.readouterr()
    for software in ((), ("--software", "v4.0")):  # of a release there is nothing left that this step would show
        document = answer("plan.json", "--steps", "3", "--no-noise", *software)
        assert document["median_step_s"] == pytest.approx(json.loads(Path("plan.json").read_text())["step_s"], rel=1e-12)


def test_the_same_seed_prints_and_writes_the_same(run, plan, tmp_path):
    one, again = (run(plan, "--steps", "8", "--seed", "1", "--runs", name, "--name", "same") for name in ("a", "b"))
    assert (one[0], one[1].replace("a/same", "b/same"), one[2]) == again
    for name in ("run.json", "steps.jsonl", "events.jsonl"):
        assert (tmp_path / "a/same" / name).read_bytes() == (tmp_path / "b/same" / name).read_bytes()


def test_a_folder_gets_a_free_name_unless_one_is_given(answer, run, plan):
    assert answer(plan, "--steps", "2")["folder"].endswith("racks-seed0")
    assert answer(plan, "--steps", "2")["folder"].endswith("racks-seed0-2")
    assert answer(plan, "--steps", "2", "--name", "mine")["folder"].endswith("mine")
    code, _, err = run(plan, "--steps", "2", "--name", "mine")
    assert code == 2 and "exists and is not empty" in err


def test_a_slow_rank_is_shown_beside_the_run_without_it(answer, run, plan):
    document = answer(plan, "--steps", "6", "--slow-rank", "100=1.3")
    assert document["median_step_s"] > 1.1 * document["without_slow_ranks"]["median_step_s"]
    assert "the slow rank costs +" in run(plan, "--steps", "6", "--slow-rank", "100=1.3")[1]


def test_lost_planes_and_hashed_routes_expose_more(answer, plan):
    exposed = [
        answer(plan, "--steps", "3", *flags)["mean_exposed_s"]["dp"]
        for flags in ((), ("--planes-lost", "1"), ("--planes-lost", "4"), ("--routing", "hashed"))
    ]
    assert exposed[0] < exposed[1] < exposed[2]
    assert exposed[0] < exposed[3]


def test_seeds_give_a_mean_and_an_interval(answer, plan):
    over = answer(plan, "--steps", "5", "--seeds", "4")["over_seeds"]["median_step_s"]
    assert over["low"] <= over["mean"] <= over["high"]


def test_weeks_tell_of_interruptions_and_what_they_cost(answer, run, plan):
    document = answer(plan, "--days", "54", "--seeds", "20", "--sizes", "--finish-by", "30d", "--budget", "1e7", "--name", "weeks")
    assert 0.9 < document["goodput"] < 1
    assert document["median_step_s"] > 0 and document["robust_std_pct"] > 0 and document["time_to_train_s"] > 0
    assert document["interruptions"] == pytest.approx(419 * 256 / 16384, rel=0.3)
    assert document["cost_usd"] > document["waste_usd"] > 0
    assert sum(document["interruptions_by_cause"].values()) == pytest.approx(document["interruptions"])
    assert [row["num_accelerators"] for row in document["sizes"]][-1] == 131072
    assert 0 <= document["chance_by"] <= 1 and 0 <= document["chance_under"] <= 1
    assert document["checkpoint"]["interval_s"] == pytest.approx(document["checkpoint"]["daly_s"], rel=0.01)
    printed = run(plan, "--days", "5", "--failures", "llama3", "--name", "again")[1]
    for words in ("interruptions by cause", "where the time goes", "checkpoint every", "spare nodes"):
        assert words in printed


def test_days_go_on_behind_the_workloads_end_and_say_so(answer, run, plan):
    document = answer(plan, "--days", "5", "--name", "over")
    assert document["workload_done"] == 1 and document["steps_done"]["mean"] > document["workload_steps"] > 0
    assert "times over: the simulated days continue after its end" in run(plan, "--days", "5", "--name", "beyond")[1]
    brief = answer(plan, "--days", "0.001", "--name", "brief")
    assert brief["workload_done"] == 0 and brief["steps_done"]["mean"] < brief["workload_steps"]
    out = run(plan, "--days", "54", "--budget", "30kUSD", "--name", "paid")[1]
    assert "ended the simulation" in out and "The workload was done before" in out


def test_weeks_broken_off_keep_what_is_done(run, plan, monkeypatch, tmp_path):
    from meshwright.simulator.campaign import _Loop

    def interrupted(loop):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Loop, "_progress", interrupted)
    code, out, err = run(plan, "--days", "54", "--name", "half")
    assert (code, err) == (130, "meshwright: interrupted\n") and "Interrupted" in out
    assert read_run(tmp_path / "runs" / "half").header.status == "stopped"


def test_one_step_alone_has_all_figures(answer, plan):
    document = answer(plan, "--steps", "1")
    assert sum(document["mean_parts_s"].values()) == pytest.approx(document["mean_step_s"], rel=1e-12)


def test_tables_name_the_parts(run, plan):
    code, out, err = run(plan, "--steps", "5")
    assert (code, err) == (0, "")
    for words in (
        "predicted step",
        "median step",
        "exposed dp",
        "this interval comes from the assumed uncertainty of the constants)",
        "Simulated parts are means of 4 steps; 1 that follows a start or an evaluation is left out.",
        "bubble",
        "written: runs/racks-seed0",
    ):
        assert words in out


@pytest.mark.parametrize(
    "flags, what",
    [
        (("--planes-lost", "8"), "8 planes, so 8 cannot be lost"),
        (("--seed", "many"), "--seed"),
        (("--steps", "0"), "--steps"),
        (("--jitter", "-1"), "--jitter"),
        (("--slow-rank", "256=1.3"), "there is no rank 256: the plan has 256 ranks"),
        (("--slow-rank", "x"), "cannot read 'x'"),
        (("--slow-rank", "5"), "write RANK=FACTOR"),
        (("--routing", "magic"), "no routing named 'magic'"),
        (("--links-lost", "1.5"), "--links-lost is 1.5"),
        (("--storage", "0"), "--storage is 0 GB/s"),
        (("--cluster", "dgx-h100-superpod"), "the plan is for azure-gb200-128 (256 gb200)"),
        (("--days", "3", "--failed-nodes", "65"), "--failed-nodes is 65, and the cluster has 64 nodes"),
        (("--days", "3", "--failures", "lama"), "no failures named 'lama'"),
        (("--days", "0"), "--days is 0"),
        (("--budget", "1"), "not started: the run is predicted"),
        (("--failures", "llama3"), "only valid with --days"),
        (("--spares", "3"), "only valid with --days"),
        (("--days", "3", "--steps", "5"), "--steps is not valid with --days"),
        (("--days", "3", "--checkpoint-every", "soon"), "where: --checkpoint-every"),
        (("--nics-hit", "4"), "--nics-hit is 4, and --planes-lost is 0"),
        (("--slow-rank", "5=1e300"), "times as slow"),
        (("--days", "3", "--finish-by", "soon"), "cannot read a duration"),
        (("--name", "../out"), "could lead out of the runs folder"),
    ],
)
def test_bad_input_is_one_message(run, plan, flags, what, tmp_path):
    code, out, err = run(plan, *flags)
    assert (code, out) == (2, "")
    assert what in err and err.startswith("meshwright: ")
    assert not (tmp_path / "runs").exists()


def test_rates_that_cannot_be_are_refused(run, plan, tmp_path):
    path = tmp_path / "own.toml"
    for rate in ("-1e-6", "1.5"):
        path.write_text(f"detection_s=1\nrestart_s=1\ncheckpoint_s=1\nrepair_h=1\n[causes]\ngpu = {{ per_accelerator_hour = {rate} }}\n")
        code, _, err = run(plan, "--days", "3", "--failures", str(path))
        assert code == 2 and "affects an accelerator" in err


def test_a_plan_for_another_machine_is_refused(run, plan, tmp_path):
    entry = json.loads(Path(plan).read_text())
    entry["step_s"] *= 1.01
    (tmp_path / "other.json").write_text(json.dumps(entry))
    code, _, err = run(str(tmp_path / "other.json"), "--steps", "2")
    assert code == 2 and "made for another machine or version" in err
    assert run(str(tmp_path / "nothing.json"))[0] == 2


def test_broken_off_it_keeps_what_is_done(run, plan, monkeypatch, tmp_path):
    from meshwright.simulator import step

    blocks = step._blocks

    def interrupted(job, num_steps):
        yield next(iter(blocks(job, 4)))
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "_blocks", interrupted)
    code, out, err = run(plan, "--steps", "100", "--name", "half")
    assert code == 130 and "interrupted" in err and "Interrupted" in out
    half = read_run(tmp_path / "runs" / "half")
    assert (len(half.records), half.header.status) == (4, "stopped")


def test_the_parts_for_people_are_those_of_the_json_and_of_the_report(run, answer, plan, capsys):
    document = answer(plan, "--steps", "3", "--name", "few")
    _, out, _ = run(plan, "--steps", "3", "--name", "again")
    lines = out.split("parts of the step\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = {cells[0]: cells[2] for line in lines if (cells := re.split(r"\s{2,}", line.strip()))}
    assert {name: seconds(document["mean_parts_s"][part]) for part, name in PART_NAMES.items() if name in rows} == {
        name: value for name, value in rows.items() if name in PART_NAMES.values()
    }
    assert rows["mean step"] == seconds(sum(document["mean_parts_s"].values()))
    assert main(["report", "runs/few", "--json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["runs"]
    assert reported["mean_parts_s"] == pytest.approx(document["mean_parts_s"], rel=1e-6)


def test_one_step_alone_leaves_none_out(run, plan):
    assert "left out" not in run(plan, "--steps", "1")[1]


def test_a_part_of_a_job_is_not_called_its_time_to_train(run, answer, plan, capsys):
    document = answer(plan, "--steps", "5", "--name", "part")
    steps = document["workload_steps"]
    evaluations = read_plan(Path(plan)).workload.num_evaluations(steps)
    whole_s = steps * document["mean_step_s"] + evaluations * document["evaluation_s"]
    assert document["num_steps"] == 5 < steps and document["time_to_train_is_extrapolated"]
    assert document["simulated_s"] < 0.1 * whole_s and document["time_to_train_s"] == pytest.approx(whole_s)
    _, out, _ = run(plan, "--steps", "5", "--name", "again")
    assert "\ntime to train" not in out and "\ntime of 5 steps" in out and f"{seconds(whole_s)} by extrapolation: {steps:,} steps" in out
    assert main(["report", "runs/part", "--json", "--out", "page.html"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["runs"]
    assert reported["time_name"] == "time of 5 simulated steps" and reported["run_s"] == pytest.approx(document["simulated_s"])
    assert reported["whole_job_extrapolated"]["time_to_train_s"] == pytest.approx(whole_s, rel=1e-5)
    page = Path("page.html").read_text()
    assert "Time to train" not in page and "Time of 5 simulated steps" in page and "Whole job, extrapolated" in page
    assert main(["report", "runs/part", "--markdown"]) == 0
    assert f"| whole job | {seconds(whole_s)} | by extrapolation" in capsys.readouterr().out
    assert main(["report", "runs/part"]) == 0
    assert f"{seconds(whole_s)} by extrapolation" in " ".join(capsys.readouterr().out.split())


def test_a_whole_job_has_a_time_to_train(answer, run, plan, capsys):
    whole = read_plan(Path(plan))
    few = replace(whole, workload=replace(whole.workload, convergence=None, num_tokens=6.0 * whole.workload.tokens_per_step))
    few.write(Path("few.json"))
    document = answer("few.json", "--name", "whole")
    assert document["time_to_train_s"] == document["simulated_s"] and document["time_to_train_is_extrapolated"] is False
    assert "time to train" in run("few.json", "--name", "again")[1]
    assert main(["report", "runs/whole", "--json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["runs"]
    assert reported["time_name"] == "time to train" and reported["whole_job_extrapolated"] is None


def test_a_simulation_that_cannot_end_inside_is_not_started(run, plan):
    cost = float(read_plan(Path(plan)).time_to_train_s) / 3600 * 256 * 10
    code, out, err = run(plan, "--price", "10USD/h", "--budget", "1kUSD")
    assert (code, out) == (2, "")
    assert f"the run is predicted to cost {cost:,.2f} USD" in err
    assert f"that is {cost - 1000:,.2f} USD over the budget of 1,000.00 USD" in err
    assert not Path("runs").exists()


def test_a_simulation_that_runs_over_ends_with_the_last_step_inside(run, plan):
    read = read_plan(Path(plan))
    step_s = read.step_s
    budget = 256 * (20.4 * step_s + evaluation_s(read))  # at a dollar a second, and without noise: 20 steps, their evaluation and a bit
    given = ("--steps", "20", "--price", "3600USD/h", "--budget", f"{budget:.2f}", "--slow-rank", "100=1.3", "--name", "cut", "--json")
    code, out, err = run(plan, *given)
    assert (code, err) == (0, "")
    document, folder = json.loads(out), read_run("runs/cut")
    assert document["over_budget"] and not document["complete"] and 10 < document["num_steps"] <= 20 and document["num_evaluations"] == 0
    assert folder.header.status == "stopped"
    assert [event.kind for event in folder.events][-2:] == ["budget", "stopped"] and folder.events[-1].detail["reason"] == "budget"
    took = ledger_of("runs/cut")
    assert float(took.usd) <= budget < float(took.usd) + 256 * (1.5 * step_s + evaluation_s(read))
    assert float(took.usd) == pytest.approx(document["cost_usd"], abs=0.01)


def test_a_simulation_inside_its_budget_goes_to_its_end(run, plan):
    code, out, _ = run(plan, "--steps", "5", "--budget", "1000000", "--name", "whole", "--json")
    document = json.loads(out)
    assert code == 0 and document["complete"] and not document["over_budget"] and document["num_steps"] == 5
    start = read_run("runs/whole").events[0]
    assert start.detail["budget_usd"] == "1000000" and start.detail["price"]["provider"] == "azure"


def test_weeks_end_when_their_budget_is_spent_spares_included(run, plan):
    code, out, _ = run(plan, "--days", "54", "--price", "27USD/h", "--budget", "1MUSD", "--name", "weeks")
    assert (
        code == 0
        and "The budget of 1,000,000.00 USD ended the simulation" in out
        and "For 1,000,000.00 USD or less: 100.0 % of runs." in out
    )
    took = ledger_of("runs/weeks")
    assert took.status == "stopped" and abs(float(took.usd) - 1e6) < 0.02
    assert took.wall_s == pytest.approx(1e6 / 27 * 3600 / took.num_gpus, abs=0.01) and took.num_gpus == 260
    assert read_run("runs/weeks").events[-1].detail["reason"] == "budget"


def test_days_that_cost_less_than_the_workload_are_judged_by_their_days(run, plan):
    given = ("--days", "0.1", "--price", "1USD/h", "--failures", "none", "--spares", "0")
    code, _, err = run(plan, *given, "--budget", "600")
    assert code == 2 and "predicted to cost 614.40 USD" in err
    assert run(plan, *given, "--budget", "615")[0] == 0
    assert ledger_of("runs/racks-seed0").status == "finished"


def test_a_machine_without_a_price_wants_one(run, plan, tmp_path):
    read = read_plan(Path(plan))
    chip = replace(read.cluster.accelerator, name="secret")
    secret = tmp_path / "secret.json"
    secret.write_bytes(plan_bytes(replace(read, cluster=replace(read.cluster, accelerator=chip))))
    code, _, err = run(str(secret), "--steps", "2", "--budget", "500USD")
    assert code == 2 and "no price is listed for secret" in err and "--price 2.5USD/h" in err
    assert run(str(secret), "--steps", "2", "--budget", "500USD", "--price", "2.5USD/h", "--name", "s")[0] == 0
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
def test_what_is_no_amount_starts_nothing(run, plan, flags):
    code, out, err = run(plan, "--steps", "2", *flags)
    assert (code, out) == (2, "") and f"where: {flags[0]}" in err and not Path("runs").exists()
