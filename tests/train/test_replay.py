"""A step that is not believed is done again: what the run computes, what it records, and when it gives up."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import injected
import pytest
from small_run import Small, events_of, steps_of, train

from meshwright.layout import Layout
from meshwright.record.bad_nodes import read_bad_nodes
from meshwright.train.replay import suspects
from meshwright.train.sums import Check, StepResult

NUM_STEPS = 34
FAULTY = 32  # the step that is disturbed: by then the detectors know what is usual


def shards(run: Path) -> dict[str, bytes]:
    """The files of the last checkpoint that hold tensors."""
    (folder,) = [path for path in (run / "checkpoints").iterdir() if path.is_dir() and not path.name.endswith(".partial")]
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors" or "shard" in path.name}


@pytest.fixture(scope="module")
def undisturbed(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float], dict[str, bytes]]]:
    """The runs without a fault: plan, losses and weights, by layout."""
    found = {}
    for layout in ("dp=2,mbs=2,zero=0", "dp=2,pp=2,mbs=2,zero=1"):
        folder = tmp_path_factory.mktemp("undisturbed")
        plan = small.plan_file(folder / "plan.json", layout)
        command = train(folder, plan, "--steps", str(NUM_STEPS), "--name", "a", "--keep", "1")
        assert command.wait() == 0, command.err
        assert events_of(folder / "runs" / "a", "replay") == []
        found[layout] = plan, [step["loss"] for step in steps_of(folder / "runs" / "a")], shards(folder / "runs" / "a")
    return found


@pytest.mark.parametrize(
    "what, layout, late, rank, reason",
    [
        ("nan", "dp=2,mbs=2,zero=0", False, 1, "nan"),
        ("nan", "dp=2,mbs=2,zero=0", True, 1, "nan"),
        ("gradient", "dp=2,pp=2,mbs=2,zero=1", False, 2, "peak"),
        ("gradient", "dp=2,mbs=2,zero=0", True, 1, "peak"),
        ("sum", "dp=2,mbs=2,zero=0", False, 1, "sum"),
        ("sum", "dp=2,mbs=2,zero=0", True, 1, "sum"),
    ],
)
def test_an_error_that_passes_leaves_no_trace_in_the_weights(
    undisturbed: dict[str, tuple[Path, list[float], dict[str, bytes]]],
    tmp_path: Path,
    what: str,
    layout: str,
    late: bool,
    rank: int,
    reason: str,
) -> None:
    plan, losses, weights = undisturbed[layout]
    arguments = ("--steps", str(NUM_STEPS), "--name", "a", "--keep", "1", "--bad-nodes", str(tmp_path / "bad.json"))
    command = train(tmp_path, plan, *arguments, before=injected.passing, with_=(what, rank, FAULTY, late))
    assert command.wait() == 0, command.err
    run = tmp_path / "runs" / "a"
    (event,) = events_of(run, "replay")
    assert (event["outcome"], event["reason"], event["step"], event["ranks"]) == ("sound", reason, FAULTY - 1, [rank])
    assert f"rank {rank} on {socket.gethostname()} is suspect" in event["message"] and event["message"] in command.out
    assert [step["loss"] for step in steps_of(run)] == losses
    assert shards(run) == weights
    (bad,) = read_bad_nodes(tmp_path / "bad.json")
    assert bad.node == socket.gethostname() and f"run a, step {FAULTY}, rank {rank}: " in bad.reasons[0]


def test_samples_that_always_fail_are_skipped(small: Small, tmp_path: Path) -> None:
    plan, run = small.plan_file(tmp_path / "plan.json", "dp=2,mbs=2"), tmp_path / "runs" / "a"
    command = train(tmp_path, plan, "--steps", "6", "--name", "a", before=injected.bad_samples, with_=(26, 27))
    assert command.wait() == 0, command.err
    (event,) = events_of(run, "replay")
    assert (event["outcome"], event["first_sample"], event["last_sample"]) == ("skipped", 24, 31)
    assert "(samples 26, 27)" in event["message"] and "these samples are skipped" in event["message"]
    assert [(step["step"], step["samples"]) for step in steps_of(run)] == [(1, 8), (2, 16), (3, 24), (4, 40), (5, 48), (6, 56)]
    assert all(math.isfinite(step["loss"]) for step in steps_of(run))
    assert not (tmp_path / "runs" / "bad-nodes.json").exists()


def test_a_run_that_skips_too_often_stops_and_says_what_was_tried(small: Small, tmp_path: Path) -> None:
    plan, run = small.plan_file(tmp_path / "plan.json", "dp=2,mbs=2"), tmp_path / "runs" / "a"
    arguments = ("--steps", "6", "--name", "a", "--skip-batches", "2")
    command = train(tmp_path, plan, *arguments, before=injected.bad_samples, with_=(24, 10**6))
    assert command.wait() == 1
    assert [event["outcome"] for event in events_of(run, "replay")] == ["skipped", "skipped"]
    assert "the loss of step 4 (samples 40 to 47) is NaN or infinite: first on rank" in command.err
    assert "tried: the step was done again, and 2 batches were skipped before" in command.err
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert len(steps_of(run)) == 3


def test_a_state_that_differs_goes_back_to_a_sound_checkpoint(small: Small, tmp_path: Path) -> None:
    plan, run = small.plan_file(tmp_path / "plan.json", "dp=3,mbs=1,zero=0", global_batch=3), tmp_path / "runs" / "a"
    arguments = ("--steps", "80", "--name", "a", "--keep-going", "--checkpoint-every", "3", "--keep", "50")
    command = train(tmp_path, plan, *arguments, before=injected.flipped_bit, with_=(1, 5, 0, "weight"))
    assert command.wait() in (0, 1), (
        command.err
    )  # the same bit is flipped again after the restart, because the fault is a patch of the code
    damage = events_of(run, "damage")
    assert damage[0]["what"] == "state" and damage[0]["ranks"] == [1]
    assert "the ranks are started again" in command.err
    aside = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith("unsound-step-")]
    assert aside


def test_a_slow_replica_gets_fewer_micro_batches_and_the_losses_stay(small: Small, tmp_path: Path) -> None:
    """The times of the ranks are drawn, because on a busy machine other ranks may be as slow."""
    plan = small.plan_file(tmp_path / "plan.json", "dp=2,mbs=1", global_batch=12)
    for name in ("even", "dealt"):
        options = ("--rebalance",) if name == "dealt" else ()
        arguments = ("--steps", "60", "--name", name, "--no-save", *options)
        command = train(tmp_path, plan, *arguments, before=injected.drawn_times, with_=(0.2, 0.02, {1: 2.0}))
        assert command.wait() == 0, command.err
    even, dealt = (steps_of(tmp_path / "runs" / name) for name in ("even", "dealt"))
    (event,) = events_of(tmp_path / "runs" / "dealt", "rebalanced")
    assert (event["step"], event["deal"], event["ranks"]) == (50, [8, 4], [1])
    assert [step["loss"] for step in dealt] == pytest.approx([step["loss"] for step in even], rel=1e-5)
    assert [step["samples"] for step in dealt] == [step["samples"] for step in even]


def result(losses: list[float], norms: list[float], received: list[float] | None = None) -> StepResult:
    checks = tuple(Check(1.0, 2.0, one, 3.0) for one in received or [5.0] * len(norms))
    return StepResult(loss=1.0, grad_norm=1.0, num_tokens=8, own_norms=tuple(norms), own_losses=tuple(losses), checks=checks)


@pytest.mark.parametrize(
    "first, expected",
    [
        (result([0.0, math.nan, 0.0, 7.0], [math.nan] * 4), (1, 3)),  # the replica with the bad loss
        (result([0.0, 6.0, 0.0, 7.0], [1.0, 1.0, 9.0, 1.0]), (2,)),
        (result([0.0, 6.0, 0.0, 7.0], [1.0] * 4, [5.0, 5.0, 5.0, 5.5]), (3,)),
        (result([0.0, 6.0, 0.0, 7.0], [1.0] * 4), ()),
    ],
)
def test_the_ranks_whose_own_numbers_changed_are_suspect(first: StepResult, expected: tuple[int, ...]) -> None:
    layout = Layout(tp=1, pp=2, dp=2)
    again = result([0.0, 6.0, 0.0, 7.0], [1.0] * 4)
    if math.isnan(first.own_losses[1]):
        places = [layout.coordinate(rank)["dp"] for rank in range(4)]
        expected = tuple(rank for rank in range(4) if places[rank] == places[1])
    assert suspects(layout, first, again, 1e-6) == expected
