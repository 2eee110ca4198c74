"""One of two replicas is killed, here and with torchft: how long until the next step, how many steps and samples are lost.

    python benchmarks/against_torchft.py --torchft PYTHON --trials 5

PYTHON is an interpreter of an environment with `torchft-nightly`: it is not among this project's packages. Both sides train a model of
about 70 K parameters with two replicas of one rank over gloo, and one replica is killed (SIGKILL) after some steps. Its process is started
again, at once, by the supervisor here and by this script there. Trials of the two sides alternate, so that both see the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fault_record import lines

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

STEPS_BEFORE = 30
PATIENCE_S = 120.0
PER_GROUP = 4  # samples of one group in a step, as in torchft_replica.py


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What the loss of a replica cost the other one."""

    next_step_s: float  # from the kill to the end of the next step that counts
    whole_s: float  # until both replicas take a step together again
    lost_steps: int  # attempts at a step that do not count
    lost_samples: int  # that were due in these steps, and were not trained on


def with_torchft(python: str, folder: Path) -> Loss:
    """Two groups under a lighthouse of torchft; the second is killed and started again."""
    program = str(Path(python).parent / "torchft_lighthouse")
    port = _free_port()
    options = ["--bind", f"127.0.0.1:{port}", "--min_replicas", "1", "--join_timeout_ms", "3000"]
    quiet: Mapping[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([program, *options], **quiet)]

    def group(name: str, log: str) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("torchft_replica.py"))
        started.append(subprocess.Popen([python, script, name, f"http://127.0.0.1:{port}", str(folder / log)], **quiet))
        return started[-1]

    try:
        group("a", "a.jsonl")
        second = group("b", "b.jsonl")
        _until(lambda: len([one for one in lines(folder / "a.jsonl") if one["num_groups"] == 2]) >= STEPS_BEFORE)
        killed_s = time.time()
        second.kill()
        second.wait()
        group("b", "again.jsonl")
        _until(lambda: _joined(lines(folder / "a.jsonl"), killed_s) is not None)
        return _lost(lines(folder / "a.jsonl"), killed_s)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _joined(attempts: Sequence[Mapping[str, Any]], killed_s: float) -> float | None:
    """When both groups took a step together again, after one without the other."""
    after = [one for one in attempts if one["time_s"] > killed_s and one["counts"]]
    alone = next((number for number, one in enumerate(after) if one["num_groups"] == 1), None)
    together = [one["time_s"] for one in after[alone:] if one["num_groups"] == 2] if alone is not None else []
    return together[0] if together else None


def _lost(attempts: Sequence[Mapping[str, Any]], killed_s: float) -> Loss:
    """The batch shrinks while a group is away: its samples are not trained on in these steps."""
    after = [one for one in attempts if one["time_s"] > killed_s]
    whole_s = _joined(attempts, killed_s)
    assert whole_s is not None
    alone = [one for one in after if one["counts"] and one["num_groups"] == 1 and one["time_s"] < whole_s]
    failed = [one for one in after if not one["counts"] and one["time_s"] < whole_s]
    return Loss(
        next_step_s=alone[0]["time_s"] - killed_s,
        whole_s=whole_s - killed_s,
        lost_steps=len(failed),
        lost_samples=PER_GROUP * len(alone) + 2 * PER_GROUP * len(failed),
    )


def with_meshwright(folder: Path, corpus: Path) -> Loss:
    """A run with `--keep-going`, of which the last rank is killed."""
    from small_run import Small, train

    plan = Small(corpus=corpus).plan_file(folder / "plan.json", "dp=2,zero=0", global_batch=2 * PER_GROUP, training={"most_samples": 10**6})
    command = train(folder, plan, "--name", "run", "--keep-going", "--profile", "none", "--steps", "100000", "--checkpoint-every", "0")
    run = folder / "runs" / "run"
    try:
        command.step(run, STEPS_BEFORE)
        killed_s = time.time()
        os.kill(max(command.others()), signal.SIGKILL)
        _until(lambda: any(event.get("reason") == "joined" for event in _memberships(run)))
        from_step = next(event["from_step"] for event in _memberships(run) if event.get("reason") == "joined")
        command.step(run, from_step)
    finally:
        os.kill(command.pid, signal.SIGTERM)
        command.wait(PATIENCE_S)
    return _recorded(run, killed_s, from_step)


def _recorded(run: Path, killed_s: float, joined_step: int) -> Loss:
    created_s = datetime.fromisoformat(json.loads((run / "run.json").read_text())["created"]).timestamp()
    (incident,) = [event for event in lines(run / "events.jsonl") if event["kind"] == "incident"]
    joined = next(event for event in _memberships(run) if event.get("reason") == "joined")
    first_s = next(step["step_s"] for step in lines(run / "steps.jsonl") if step["step"] == joined_step)
    steps = [step["step"] for step in lines(run / "steps.jsonl")]
    samples = {step["samples"] // step["step"] for step in lines(run / "steps.jsonl")}
    assert steps == list(range(1, steps[-1] + 1)) and samples == {2 * PER_GROUP}, "every sample is trained on once"
    return Loss(
        next_step_s=created_s + incident["time_s"] - killed_s,
        whole_s=created_s + joined["time_s"] + first_s - killed_s,
        lost_steps=incident["num_lost_steps"] + 1,  # with the one in flight
        lost_samples=0,
    )


def _memberships(run: Path) -> list[dict[str, Any]]:
    return [event for event in lines(run / "events.jsonl") if event["kind"] == "membership"]


def _until(met: Any) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < until_s, f"did not come about in {PATIENCE_S:.0f} s"
        time.sleep(0.02)


def _free_port() -> int:
    from small_run import free_port

    return int(free_port())


def table(found: Mapping[str, Sequence[Loss]]) -> str:
    """Medians and worst of both sides, in Markdown."""
    rows = ["| | next step after (s) | both again after (s) | steps lost | samples lost |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, losses in found.items():
        columns = [[getattr(loss, field) for loss in losses] for field in ("next_step_s", "whole_s", "lost_steps", "lost_samples")]
        cells = [f"{statistics.median(column):.2f} ({max(column):.2f})" for column in columns[:2]]
        cells += [f"{statistics.median(column):g} ({max(column)})" for column in columns[2:]]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    """Run both sides in turn, and print the table: medians, and the worst in brackets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchft", default=sys.executable, help="an interpreter with torchft")
    parser.add_argument("--trials", type=int, default=5)
    given = parser.parse_args()
    python = str(Path(given.torchft).absolute())
    if subprocess.run([python, "-c", "import torchft"], capture_output=True, check=False).returncode:
        print("torchft is not installed: nothing to compare with (pip install torchft-nightly, in an environment of its own)")
        return 0
    from small_run import make_corpus

    found: dict[str, list[Loss]] = {"meshwright --keep-going": [], "torchft": []}
    base = Path(tempfile.mkdtemp(prefix="meshwright-torchft-"))
    corpus = make_corpus(base / "made")
    for trial in range(given.trials):
        for name in found:
            folder = base / f"{name.split()[0]}-{trial}"
            folder.mkdir()
            found[name].append(with_torchft(python, folder) if name == "torchft" else with_meshwright(folder, corpus))
            print(f"trial {trial + 1}, {name}: {found[name][-1]}", file=sys.stderr)
    print(table(found))
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
