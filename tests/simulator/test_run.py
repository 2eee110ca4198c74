"""A simulated run: the record's length, its evaluations, its folder, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.ledger import ledger_of
from meshwright.record.run import read_run
from meshwright.record.summary import summary_of
from meshwright.report.facts import facts_of
from meshwright.simulator.fabric import Fabric
from meshwright.simulator.noise import QUIET
from meshwright.simulator.run import Conditions, OverSeeds, run_plan, write_run
from meshwright.simulator.step import Slow

RECORD_S = 424.118  # of the log


@pytest.fixture
def plan_file(racks, tmp_path):
    path = tmp_path / "racks.json"
    racks.write(path)
    return path


def test_the_record_run_takes_as_long_as_its_log_says(record):
    runs = [run_plan(record, Conditions(), seed=seed) for seed in (1, 2, 3)]
    assert [len(run.steps) for run in runs] == [324] * 3
    assert runs[0].evaluated_after == (270, 288, 306, 324)
    assert np.mean([run.time_to_train_s for run in runs]) == pytest.approx(RECORD_S, rel=0.03)


def test_the_step_after_an_evaluation_is_a_first_step(record):
    run = run_plan(record, Conditions(noise=QUIET), num_steps=300)
    assert np.flatnonzero(run.steps.is_first).tolist() == [0, 270, 288]


def test_a_run_without_a_target_needs_a_number_of_steps(racks):
    open_end = replace(racks, workload=replace(racks.workload, convergence=None, num_tokens=0.0))
    with pytest.raises(InputError, match="the number of steps"):
        run_plan(open_end, Conditions())
    assert len(run_plan(open_end, Conditions(), 3).steps) == 3


def test_evaluations_come_at_multiples_of_the_stated_samples(racks):
    workload = replace(racks.workload, global_batch=1024)
    assert run_plan(replace(racks, workload=workload), Conditions(noise=QUIET), 324).evaluated_after == (270, 288, 306, 324)


def test_the_folder_reads_back_and_the_same_seed_gives_the_same_bytes(racks, plan_file, tmp_path, loud):
    folders = []
    for runs in ("one", "two"):
        run = run_plan(racks, Conditions(noise=loud), 30, seed=5)
        folders.append(write_run(run, tmp_path / runs, "same", plan_file))
    for name in ("run.json", "steps.jsonl", "events.jsonl", "plan.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    read = read_run(folders[0])
    assert (read.header.kind, read.header.status, read.complete) == ("simulated", "finished", True)
    summary = summary_of(read)
    assert summary.median_step_s == pytest.approx(run.times.median_s, rel=1e-6)
    assert summary.robust_std_pct == pytest.approx(run.times.robust_std_pct, rel=1e-3)
    assert summary.unaccounted_s == pytest.approx(0.0, abs=1e-6)
    assert summary.mean_exposed_s == pytest.approx(run.mean_exposed_s, abs=1e-6)


def test_events_tell_of_evaluations_and_stalls(record, tmp_path):
    record.write(tmp_path / "record.json")
    noise = replace(QUIET, stalls_per_hour=0.05, stall_share=2.0)
    run = run_plan(record, Conditions(noise=noise), 300, seed=1)
    events = read_run(write_run(run, tmp_path, "record", tmp_path / "record.json")).events
    assert [event.step for event in events if event.kind == "evaluation"] == [270, 288, 300]
    stalled = [event for event in events if event.kind == "stall"]
    assert len(stalled) == int(np.sum(run.steps.stall_s > 0.02 * run.planned.step_s)) > 0
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)


@pytest.mark.parametrize(
    "slow, what", [(Slow(rank=256, factor=1.3), "no rank 256: the plan has 256"), (Slow(rank=0, factor=0.5), "0.5 times as slow")]
)
def test_slow_ranks_that_cannot_be_are_refused(racks, slow, what):
    with pytest.raises(InputError, match=what):
        run_plan(racks, Conditions(slow=(slow,)), 1)


def test_a_tier_without_planes_is_refused(racks):
    tiers = (*racks.cluster.tiers[:-1], replace(racks.cluster.tiers[-1], num_planes=0))
    with pytest.raises(InputError, match="0 planes"):
        Conditions().check(replace(racks, cluster=replace(racks.cluster, tiers=tiers)))


def test_numbers_over_seeds_worked_by_hand():
    summary = OverSeeds.of([1.0, 2.0, 3.0, 4.0])
    assert (summary.mean, summary.low, summary.high) == (2.5, 1.3, 3.7)
    assert summary.standard_error == pytest.approx(np.sqrt(5 / 3) / 2)


def test_a_runs_folder_says_what_the_machine_was_like(racks, plan_file, tmp_path):
    fabric = Fabric(planes_lost=1, links_lost=0.1)
    conditions = Conditions(jitter=2.0, fabric=fabric, slow=(Slow(rank=100, factor=1.3),), storage_bytes_per_s=5e9)
    summary = ("jitter 2 times that of logs", "1 plane of every NIC lost", "10 % of the links between switches lost")
    assert conditions.words == (*summary, "rank 100 1.3 times as slow", "storage of 5 GB/s")
    assert Conditions().words == ("noise as logs show it",) and Conditions(noise=QUIET).words == ("no noise",)
    assert Conditions(noise=replace(QUIET, stall_share=1e3)).words == ("other noise than logs show",)
    assert Conditions(jitter=0.25).words == ("jitter 0.25 times that of logs",)
    conditions = replace(conditions, fabric=Fabric(), slow=())
    folder = write_run(run_plan(racks, conditions, 3), tmp_path, "like", plan_file)
    assert read_run(folder).header.conditions == ("jitter 2 times that of logs", "storage of 5 GB/s")
    assert "Simulated with jitter 2 times that of logs, storage of 5 GB/s." in facts_of(read_run(folder)).notes
    damaged = (folder / "run.json").read_text().replace('"jitter 2 times that of logs"', "2")
    (folder / "run.json").write_text(damaged)
    with pytest.raises(InputError, match="conditions are not a list of texts"):
        read_run(folder)


def test_a_slow_replica_without_a_pipeline_is_exposed_time_in_the_ledger(small, tmp_path):
    plan = small("tp=2,dp=4", 8)
    plan = replace(plan, workload=replace(plan.workload, evaluation=None))  # three steps are short beside the one that ends the run
    plan.write(tmp_path / "plan.json")
    conditions = Conditions(noise=QUIET, slow=(Slow(rank=3, factor=2.0),))
    spent = ledger_of(write_run(run_plan(plan, conditions, 3), tmp_path, "slow", tmp_path / "plan.json")).gpu_seconds
    assert spent["bubble"] == 0 and spent["exposed"] > 0.3 * sum(spent.values())


def test_mean_parts_are_of_steady_steps(racks):
    run = run_plan(racks, Conditions(), 3)
    assert (len(run.steps), run.num_steady_steps) == (3, 2)
    assert run.mean_parts_s["overhead"] == pytest.approx(float(run.steps.parts_s["overhead"][1:].mean()))
    assert run_plan(racks, Conditions(), 1).num_steady_steps == 1
