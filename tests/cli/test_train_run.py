"""The machine that a training run is priced on: as many accelerators as there are ranks, on one machine or on several."""

from __future__ import annotations

import json

import pytest

from meshwright.cli import train_run
from meshwright.cli.main import main
from meshwright.cli.train_arguments import newest_run
from meshwright.cli.train_run import INTERRUPTED, sized
from meshwright.describe.load import load_cluster
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.plan import Plan
from meshwright.plan.plan import plan_of as planned
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter


def sizes(cluster):
    return [tier.num_accelerators for tier in cluster.tiers]


def test_a_machine_of_the_right_size_is_left_as_it_is():
    machine = load_cluster("workstation-8x")
    assert sized(machine, 8) == (machine, "")


def test_fewer_ranks_are_a_part_of_it():
    cluster, note = sized(load_cluster("workstation-8x"), 2)
    assert (cluster.num_accelerators, note) == (2, "")


def test_ranks_on_several_machines_need_no_description_of_what_joins_them():
    machine = load_cluster("workstation-8x")
    cluster, note = sized(machine, 16)
    assert sizes(cluster) == [*sizes(machine), 16]
    assert cluster.is_fabric(cluster.tiers[-1])
    assert note.startswith("2 x workstation-8x: the network between them is assumed to be as fast as ")


def test_a_network_that_is_described_grows():
    cluster, note = sized(load_cluster("hgx-h200-ndr").resized(8), 16)
    assert (sizes(cluster), note) == ([8, 16], "")


@pytest.mark.parametrize("num_ranks", [9, 12])
def test_what_fills_no_whole_machines_is_refused_by_the_flag_that_was_given(num_ranks):
    with pytest.raises(InputError) as caught:
        sized(load_cluster("workstation-8x"), num_ranks)
    assert caught.value.where == "--layout"


@pytest.mark.parametrize("code, stays", [(INTERRUPTED, True), (1, False)])
def test_a_run_that_was_interrupted_before_its_first_step_stays(code, stays, tmp_path, monkeypatch, capsys) -> None:
    """So that `train --resume` finds it, and says that it has nothing to continue from, instead of taking an older run."""

    def ends_early(num_ranks, body, record):
        RunWriter.create(tmp_path, RunHeader(name="early", kind="trained", seed=0, num_ranks=num_ranks, machine="m"), None).close()
        return code

    monkeypatch.setattr("meshwright.train.launch.run_ranks", ends_early)
    words = ["train", "--layout", "dp=1,mbs=4", "--steps", "2", "--name", "early", "--profile", "none", "--runs", str(tmp_path)]
    assert main([*words, "--json"]) == code
    out = capsys.readouterr().out
    assert (tmp_path / "early" / "run.json").exists() is stays
    assert not stays or json.loads(out)["num_steps"] == 0
    assert not stays or newest_run(tmp_path) == "early"


def plan_for(cluster: str) -> Plan:
    """A small model's plan for four ranks of a cluster."""
    job = Job("llama-2m", load_cluster(cluster).resized(4), "python-stdlib")
    return planned(job.forecast("dp=4,mbs=2"))


@pytest.mark.parametrize(("ranks_per_gpu", "num_gpus", "fits"), [(1, 4, True), (1, 1, False), (4, 1, True), (3, 1, False), (3, 2, True)])
def test_ranks_that_share_gpus_need_fewer_of_them(ranks_per_gpu, num_gpus, fits, monkeypatch):
    monkeypatch.setattr(train_run, "gpu_names", lambda: ["NVIDIA H200"] * num_gpus)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    plan = plan_for("hgx-h200-ndr")
    if fits:
        train_run.check_place(plan, 4, True, ranks_per_gpu)
        return
    with pytest.raises(InputError, match=rf"this machine has {num_gpus} GPUs") as found:
        train_run.check_place(plan, 4, True, ranks_per_gpu)
    assert "ranks_per_gpu" in found.value.fix


def test_ranks_on_a_processor_do_not_share_gpus():
    with pytest.raises(InputError, match="which is no GPU"):
        train_run.check_place(plan_for("this-machine-2x4"), 4, False, 2)
