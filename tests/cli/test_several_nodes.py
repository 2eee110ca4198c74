"""Commands for several nodes: what they must say, and how a plan's ranks are dealt to nodes. Whole runs: train/test_end_to_end.py."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from meshwright.cli import several_nodes
from meshwright.cli.main import main
from meshwright.cli.several_nodes import OF_ONE_NODE, _bodies, checked, follow_run
from meshwright.cli.train_arguments import Wishes
from meshwright.cli.train_run import TRAIN, default_plan, local_ranks, node_sizes, run
from meshwright.errors import InputError
from meshwright.train.elastic.nodes import Nodes
from meshwright.train.job import TrainingJob

WISHES = Wishes(
    plan=None,
    layout="",
    steps=None,
    name="a",
    runs=Path("runs"),
    resume=False,
    corpus=None,
    start_from=None,
    seed=0,
    benchmark="",
    checkpoint_every=None,
    keep=3,
    stall_timeout_s=10.0,
    grace_s=30.0,
    rendezvous_timeout_s=60.0,
    allow_changed=(),
    as_json=False,
    keep_going=True,
    nodes=2,
    meet="10.0.0.1:29400",
)


def test_where_nodes_meet() -> None:
    assert checked(WISHES) == ("10.0.0.1", 29400)
    assert checked(replace(WISHES, meet="node0.cluster:1")) == ("node0.cluster", 1)


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"meet": ""}, "where do the nodes meet?"),
        ({"meet": "10.0.0.1"}, "not a host and a port"),
        ({"meet": ":29400"}, "not a host and a port"),
        ({"meet": "10.0.0.1:0"}, "not a host and a port"),
        ({"meet": "10.0.0.1:65536"}, "not a host and a port"),
        ({"keep_going": False}, "only a run that keeps going has a supervisor on each node"),
        ({"name": ""}, "supervisors of several nodes need the run's name"),
    ],
)
def test_a_command_that_cannot_be_meant_for_several_nodes_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as raised:
        checked(replace(WISHES, **changes))
    assert raised.value.what == what


def test_too_few_nodes_have_an_exit_status_of_their_own_which_all_nodes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job on Slurm is queued again for it, and not for wrong input."""
    told: list[int] = []
    close = Nodes.close
    monkeypatch.setattr(Nodes, "close", lambda self, code, why="": (told.append(code), close(self, code, why))[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plan = tmp_path / "plan.json"
    default_plan("dp=2", "none").write(plan)
    place = ["--keep-going", "--nodes", "2", "--node", "0", "--meet", f"127.0.0.1:{port}", "--rendezvous-timeout", "1"]
    assert main(["train", str(plan), "--name", "a", "--runs", str(tmp_path / "runs"), "--steps", "1", *place]) == 69
    assert told == [69]


def test_the_number_of_a_node_alone_does_not_train_the_whole_plan_there() -> None:
    with pytest.raises(InputError) as raised:
        run(replace(WISHES, nodes=1, node=1, meet="", given=frozenset({"node"})))
    assert (raised.value.what, raised.value.where) == ("where do the nodes meet?", "--node 1")


def test_a_node_that_follows_a_run_that_is_over_ends_well_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.cli.several_nodes.settled", lambda wishes: replace(wishes, resume=True))
    monkeypatch.setattr("meshwright.cli.train_run.read_header", lambda folder: SimpleNamespace(status="target_reached"))
    verb = replace(TRAIN, job_of=lambda wishes: SimpleNamespace(plan=None))
    assert follow_run(replace(WISHES, node=1, resume_if_exists=True), verb) == 0


def test_ranks_are_dealt_to_nodes_in_their_order() -> None:
    plan = default_plan("tp=2,dp=4")
    assert node_sizes(plan, 1) == [8]
    assert node_sizes(plan, 2) == [4, 4]
    assert node_sizes(plan, 3) == [3, 3, 2]
    assert node_sizes(plan, 8) == [1] * 8
    with pytest.raises(InputError, match="8 ranks cannot be dealt to 9 nodes"):
        node_sizes(plan, 9)
    assert [local_ranks(plan, replace(WISHES, nodes=3, node=node)) for node in range(4)] == [3, 3, 2, 3]  # the last one is a spare


def test_what_the_leading_supervisor_alone_decides_are_options_of_a_job() -> None:
    assert all(name.removeprefix("option ") in TrainingJob.__slots__ for name in OF_ONE_NODE)


def test_a_rank_finds_out_itself_what_the_run_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a corpus may take long, and the supervisor of a node must show signs of life meanwhile."""
    made: list[TrainingJob] = []
    monkeypatch.setattr(several_nodes, "_job_now", lambda *_: made.append(SimpleNamespace()) or _Job())
    monkeypatch.setattr("meshwright.train.generations.run_member", lambda member, made, is_gpu: made())
    life = _bodies(WISHES, TRAIN, _Job(), False)({"resume": True, "after": None})  # type: ignore[arg-type]
    assert not made
    life(SimpleNamespace())  # type: ignore[arg-type]
    assert len(made) == 1


@dataclass(frozen=True)
class _Job:
    """As much of a job as a rank's life changes."""

    resume: bool = False
    after: object = None
