"""The words of a job that all engines share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.describe.load import EMULATED, load_model
from meshwright.engines.request import comments, exports, settings
from meshwright.engines.site import Site
from meshwright.job import Job
from meshwright.plan.plan import plan_of


def test_the_training_command_continues_a_run_that_is_there(request_of):
    assert request_of(options=("--steps", "5")).train("p.json") == [
        "-m", "meshwright", "train", "p.json", "--name", "first", "--runs", "/shared/runs", "--resume-if-exists", "--steps", "5",
    ]  # fmt: skip


def test_each_node_has_a_supervisor_where_replicas_may_come_and_go(request_of):
    request = request_of("replicas", name="a b", options=("--steps", "5"))
    assert request.keeps_going and request_of("cores").keeps_going
    assert request.supervised("p.json", "/j/secret", node="$N", address="$A", port=1) == (
        "python3 -m meshwright train p.json --name 'a b' --runs /shared/runs --resume-if-exists --secret /j/secret --steps 5 "
        "--keep-going --nodes 4 --node $N --meet $A:1"
    )
    asked = request_of("replicas", options=("--keep-going",)).supervised("p.json", "", node="0", address="a", port=1)
    assert asked.count("--keep-going") == 1
    assert "--nodes $COUNT --node" in request.supervised("p.json", "", num_nodes="$COUNT", node="0", address="a", port=1)
    assert not request_of("replicas", site=Site(restarts=0)).keeps_going


def test_a_job_says_what_becomes_of_it_after_a_fault(request_of, plans):
    experts = replace(plans["replicas"], model=load_model("mixtral-8x7b"))
    single = plan_of(Job("llama-2m", EMULATED, "python-stdlib", gpus=8, profile="none").forecast("tp=2,pp=4,mbs=4"), "one")
    for request, said in (
        (request_of("replicas"), "Each node has a supervisor: replicas that are lost do not end the others."),
        (request_of("replicas", site=Site(restarts=0)), "After a fault the job ends, because restarts = 0 in the site file."),
        (replace(request_of("replicas"), plan=experts), "because ranks of several replicas share the experts of the model."),
        (replace(request_of("cores"), plan=single), "because the plan has one replica."),
    ):
        assert request.after_a_fault.endswith(said)


def test_torchrun_starts_the_ranks_of_a_node(request_of):
    request = request_of(runs=Path("/a b"))
    command = request.torchrun("p.json", "/j/secret", num_nodes=2, num_local=4, node="$N", address="$A", port=1)
    assert command.startswith(
        "python3 -m torch.distributed.run --nnodes=2 --nproc-per-node=4 --max-restarts=3 --node-rank=$N --master-addr=$A --master-port=1"
    )
    once = request_of(site=Site(restarts=0)).torchrun("p.json", "", num_nodes=1, num_local=1, node="0", address="a", port=1)
    assert "--max-restarts" not in once
    assert "--runs '/a b'" in command and "--secret /j/secret" in command


def test_spares_are_asked_for_beyond_the_plan(request_of):
    assert request_of().num_nodes == 32 and request_of(num_spares=4).num_nodes == 36


def test_the_interface_is_told_to_gloo_and_nccl_unless_the_site_says_otherwise():
    site = Site(network_interface="eth0", environment={"NCCL_SOCKET_IFNAME": "ib0", "A": "b c"}, modules=["cuda/13"], setup=["ulimit -l 1"])
    assert settings(site) == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0", "A": "b c"}
    assert exports(site) == [
        "module load cuda/13",
        "ulimit -l 1",
        "export GLOO_SOCKET_IFNAME=eth0",
        "export NCCL_SOCKET_IFNAME=ib0",
        "export A='b c'",
    ]


def test_a_line_break_does_not_end_a_comment():
    assert comments(["a\nrm -r /"]) == ["# a rm -r /"]
