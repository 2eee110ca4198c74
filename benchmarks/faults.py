"""Breaks runs on purpose, and checks that each goes on by itself and ends with the bits of a run without faults.

    python benchmarks/faults.py --faults 1200 --seed 1 --out faults.jsonl   seeded runs; stopped, they are continued by the same command
    python benchmarks/faults.py --summary faults.jsonl                      the tables of all runs in a file

Each run trains a small model with `meshwright train --keep-going` on a layout, and is struck by many faults, one after the other
(fault_plan.py draws them, fault_plant.py plants them in the ranks). Afterwards a second run follows the recorded memberships without any
fault. A run fails if it does not finish, if the weights of the two differ in a bit, if samples are lost or seen twice, or if a process or
a listening port is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fault_plan import CHECKPOINT_STEPS, PATIENCE_S, PER_RUN, STALL_S, Fault, batch_of, drawn, steps_of_run
from fault_plant import plant
from fault_record import lines, told
from fault_table import tables

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

EVALUATION_STEPS = 5
MOST_IDLE = 3  # runs in a row in which no fault struck


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the faults of one run."""

    number: int
    layout: str
    num_planned: int
    problem: str  # empty: all is well
    seconds: float  # both runs
    ettr: dict[str, float]  # how the time of the run was used
    faults: list[dict[str, Any]]  # those that struck: kind, phase, noticed_s, recovered_s, lost steps, how


def tried(seed: int, number: int, corpus: Path, per_run: int, slow_s: float) -> Outcome:
    """One run with its faults, and the run without faults that it is compared with. Its folder is kept if a recovery took `slow_s`."""
    layout, faults = drawn(seed, number, per_run)
    folder = Path(tempfile.mkdtemp(prefix="meshwright-faults-"))
    (folder / "marks").mkdir()
    begun_s, ports = time.monotonic(), listening()
    run = folder / "runs" / "broken"
    problem = in_both(folder, corpus, layout, faults) or left_behind(ports)
    found = list(told(run, folder / "marks", faults)) if (run / "events.jsonl").is_file() else []
    outcome = Outcome(
        number=number,
        layout=layout,
        num_planned=len(faults),
        problem=problem,
        seconds=time.monotonic() - begun_s,
        ettr=used(run),
        faults=found,
    )
    if problem or any(fault.get("recovered_s", 0.0) >= slow_s for fault in found):
        print(f"kept in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return outcome


def in_both(folder: Path, corpus: Path, layout: str, faults: Sequence[Fault]) -> str:
    """Run with faults and without; what is wrong with the first, empty if nothing."""
    from small_run import EVALUATION, Small, train

    batch, num_steps = batch_of(layout), steps_of_run(len(faults))
    evaluation = type(EVALUATION)(num_samples=EVALUATION.num_samples, every_samples=EVALUATION_STEPS * batch)
    plan = Small(corpus=corpus).plan_file(
        folder / "plan.json", layout, global_batch=batch, evaluation=evaluation, training={"most_samples": 10**6}
    )
    common = ("--steps", str(num_steps), "--checkpoint-every", str(CHECKPOINT_STEPS), "--keep-going", "--profile", "none")
    planted = ([asdict(fault) for fault in faults], str(folder / "marks"), int(layout[3]))
    broken = train(folder, plan, "--name", "broken", "--stall-timeout", str(STALL_S), *common, before=plant, with_=planted)
    try:
        if code := broken.wait(PATIENCE_S):
            return f"exit status {code}: {said(broken.err)}"
        run = folder / "runs" / "broken"
        clean = train(folder / "clean", plan, "--name", "clean", "--memberships", run, *common)
        if code := clean.wait(PATIENCE_S):
            return f"the run without faults: {said(clean.err)}"
        return compared(run, folder / "clean" / "runs" / "clean", num_steps)
    except AssertionError as error:
        return said(str(error))


def said(text: str) -> str:
    """The first lines of a text, and the last that are ours: torch's stack traces are long."""
    lines = text.splitlines()
    return "\n".join([*lines[:1], *[line for line in lines[1:] if line.startswith("meshwright")][-5:]])


def compared(run: Path, clean: Path, num_steps: int) -> str:
    """What differs between a run and the one without faults; empty if nothing does."""
    import numpy as np
    from small_run import steps_of, tensors_of

    steps = steps_of(run)
    if [step["step"] for step in steps] != list(range(1, num_steps + 1)):
        return "steps are missing from the record, or in it twice"
    if len({step["samples"] // step["step"] for step in steps}) != 1:
        return "the counter of samples is wrong"
    if [step["loss"] for step in steps] != [step["loss"] for step in steps_of(clean)]:
        return "losses differ"
    found = []
    for folder in (run, clean):
        newest = max((folder / "checkpoints").glob("step-*"))
        if not newest.name.startswith(f"step-{num_steps:08}"):
            return f"the newest checkpoint of {folder.name} is {newest.name}"
        found.append(tensors_of(newest))
    one, other = found
    differ = [name for name in one if not np.array_equal(one[name].view(np.int32), other[name].view(np.int32))]
    return f"{len(differ)} tensors differ in bits: {differ[:3]}" if differ or one.keys() != other.keys() else ""


def used(run: Path) -> dict[str, float]:
    """Seconds of a run from its first membership to its end: all of them, and those of steps that count."""
    events, steps = lines(run / "events.jsonl"), lines(run / "steps.jsonl")
    starts = [event["time_s"] for event in events if event["kind"] == "membership"]
    if not starts or not steps:
        return {"run_s": 0.0, "work_s": 0.0}
    other_s = sum(float(event.get("seconds", 0.0)) for event in events if event["kind"] == "evaluation")
    return {"run_s": events[-1]["time_s"] - starts[0], "work_s": sum(step["step_s"] for step in steps) + other_s}


def listening() -> set[str]:
    """Ports on which a process of this machine listens."""
    found = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=False).stdout if shutil.which("ss") else ""
    return {line.split()[3] for line in found.splitlines()}


def left_behind(before: set[str]) -> str:
    """Whether a process of a run that has ended is still there. `Command.wait` has looked for processes of its session."""
    mine = [line for line in (listening() - before) if _is_mine(line)]
    return f"ports are still open: {mine}" if mine else ""


def _is_mine(address: str) -> bool:
    """Whether a process that descends from this one listens on an address: other work on the machine opens ports too."""
    found = subprocess.run(["ss", "-ltnpH", f"src {address}"], capture_output=True, text=True, check=False).stdout
    pids = [part.partition(",")[0] for part in found.split("pid=")[1:]]
    return any(_descends(int(pid)) for pid in pids if pid.isdigit())


def _descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def main() -> int:
    """Run until so many faults have struck, or sum up a file of runs; the exit status is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=PER_RUN, help="faults that must have struck, in all runs of this seed")
    parser.add_argument("--per-run", type=int, default=PER_RUN, help="faults planted in one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"), help="one line per run; runs that are in it are not repeated")
    parser.add_argument("--summary", type=Path, nargs="+", help="print the tables of these files, and do nothing else")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further run after this time")
    parser.add_argument("--slow", type=float, default=15.0, help="keep the folder of a run with a recovery of this many seconds or more")
    given = parser.parse_args()
    if given.summary:
        outcomes = [outcome for path in given.summary for outcome in lines(path)]
        print(tables(outcomes))
        return int(any(one["problem"] for one in outcomes))
    _batch(given.seed, given.faults, given.per_run, given.out, given.slow, time.monotonic() + given.seconds)
    print(tables(lines(given.out)))
    return int(any(one["problem"] for one in lines(given.out)))


def _batch(seed: int, num_faults: int, per_run: int, out: Path, slow_s: float, until_s: float) -> None:
    """Add runs of a seed to a file until so many faults have struck."""
    from small_run import make_corpus

    done = {one["number"]: len(one["faults"]) for one in lines(out) if one["seed"] == seed}
    number, struck, num_idle = 0, sum(done.values()), 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder) / "made")
        while struck < num_faults and time.monotonic() < until_s:
            if number not in done:
                outcome = tried(seed, number, corpus, per_run, slow_s)
                struck += len(outcome.faults)
                num_idle = 0 if outcome.faults else num_idle + 1
                with open(out, "a") as file:
                    file.write(json.dumps({"seed": seed, **asdict(outcome)}) + "\n")
                words = f"{len(outcome.faults)} faults struck in {outcome.seconds:.0f} s"
                print(f"run {number} ({outcome.layout}): {outcome.problem or 'recovered'}, {words}", flush=True)
                if num_idle == MOST_IDLE:
                    raise SystemExit(f"no fault struck in {num_idle} runs in a row: the faults or the runs themselves are wrong")
            number += 1


if __name__ == "__main__":
    sys.exit(main())
