"""Breaks runs on purpose, and checks that each goes on by itself and ends with the bits of a run without faults.

    python benchmarks/faults.py --faults 40 --seed 1 --out faults.jsonl     a seeded batch; stopped, it is continued by the same command
    python benchmarks/faults.py --summary faults.jsonl                      the table of all batches in a file

Each run trains a small model with `meshwright train --keep-going`, on a layout and with faults that are drawn from the seed: a kind of
fault, a phase of the run, a rank. The fault is planted in the rank before it is forked, so it strikes at that phase exactly. Afterwards a
second run follows the recorded memberships without any fault. The batch fails if a run does not finish, if the weights of the two differ
in a bit, if samples are lost or seen twice, or if a process or a listening port is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

KINDS = ("kill", "stop", "exception", "sockets", "full disk", "lost disk")
PHASES = ("start", "step", "evaluation", "save", "join", "end")
ON_DISK = ("full disk", "lost disk")  # strike when a checkpoint is written, whatever the phase
LAYOUTS = (
    "dp=2,zero=0",
    "dp=2,zero=1",
    "dp=3,zero=2,mbs=1",
    "dp=2,tp=2,zero=0",
    "dp=2,pp=2,zero=1",
    "dp=2,pp=2,vp=2,zero=2",
    "dp=2,cp=2,zero=1",
    "dp=4,zero=1,zero_ranks=2,mbs=1",
    "dp=2,zero=3",
    "dp=2,tp=2,pp=2,zero=0",
)
NUM_STEPS = 14
CHECKPOINT_STEPS = 4
STALL_S = 3.0  # --stall-timeout
PER_RUN = 4  # faults of one run
PATIENCE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what breaks, in which phase, from which step on, and on which rank."""

    kind: str
    phase: str
    step: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the faults of one run."""

    number: int
    layout: str
    faults: list[dict[str, Any]]
    problem: str  # empty: all is well
    run_s: float
    useful_s: float  # of the steps that count
    details: list[dict[str, Any]]  # for each fault that struck: kind, phase, noticed_s, recovered_s, lost steps, how


def drawn(seed: int, number: int) -> tuple[str, list[Fault]]:
    """The layout and the faults of one run."""
    rng = random.Random(f"{seed}/{number}")
    layout = LAYOUTS[(seed + number) % len(LAYOUTS)]
    num_ranks = ranks_of(layout)
    faults = []
    for i in range(PER_RUN):
        kind = rng.choice(KINDS)
        phase = "save" if kind in ON_DISK else rng.choice(PHASES)
        faults.append(Fault(kind=kind, phase=phase, step=2 + 3 * i + rng.randrange(2), rank=rng.randrange(num_ranks)))
    return layout, faults


def ranks_of(layout: str) -> int:
    """Ranks of a layout."""
    degrees = dict(part.split("=") for part in layout.split(","))
    return int(degrees["dp"]) * int(degrees.get("tp", 1)) * int(degrees.get("pp", 1)) * int(degrees.get("cp", 1))


def plant(faults: Sequence[dict[str, Any]], marks: str) -> None:
    """Patch the trainer so that each fault strikes once: before its ranks are forked. A file says that a fault has struck, and when."""
    import torch.distributed as dist

    from meshwright.train import session
    from meshwright.train.checkpoint import saver, shard
    from meshwright.train.elastic.carry import Carry
    from meshwright.train.loop import Replica
    from meshwright.train.parallel.pipeline import Stage

    folder = Path(marks)
    now = {"step": 0}

    def strike(phase: str) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        for number, fault in enumerate(faults):
            if fault["phase"] != phase or fault["kind"] in ON_DISK or fault["rank"] % max(dist.get_world_size(), 1) != rank:
                continue
            if phase in ("step", "evaluation", "save") and now["step"] < fault["step"]:
                continue
            if _claimed(folder / str(number)):
                _break(fault["kind"])

    run, evaluate, take_over, make_mesh = Stage.run, Stage.evaluate, Carry.take_over, session.make_mesh
    save, save_last, write_shard = saver.AsyncSaver.save, session._save_last, saver.write

    def at_step(self: Any, *arguments: Any, **named: Any) -> Any:
        now["step"] = self.mesh.marks.step
        strike("step")
        return run(self, *arguments, **named)

    def at_evaluation(self: Any, *arguments: Any, **named: Any) -> Any:
        strike("evaluation")
        return evaluate(self, *arguments, **named)

    def at_join(self: Any, *arguments: Any) -> Any:
        if self.holdings:
            strike("join")
        return take_over(self, *arguments)

    def at_start(*arguments: Any, **named: Any) -> Any:
        strike("start")
        return make_mesh(*arguments, **named)

    def at_save(self: Any, *arguments: Any, **named: Any) -> Any:
        taken = save(self, *arguments, **named)
        strike("save")
        return taken

    def at_end(*arguments: Any) -> Any:
        strike("end")
        return save_last(*arguments)

    def on_disk(attempt: Any, *arguments: Any) -> Any:
        for number, fault in enumerate(faults):
            if fault["kind"] in ON_DISK and attempt.step >= fault["step"] and attempt.step < NUM_STEPS and _claimed(folder / str(number)):
                if fault["kind"] == "full disk":
                    raise OSError(28, "No space left on device")
                shutil.rmtree(attempt.partial, ignore_errors=True)
        return write_shard(attempt, *arguments)

    Stage.run, Stage.evaluate, Carry.take_over, session.make_mesh = at_step, at_evaluation, at_join, at_start  # type: ignore[method-assign]
    saver.AsyncSaver.save, session._save_last, saver.write = at_save, at_end, on_disk  # type: ignore[method-assign]
    assert shard and Replica, "loaded before the ranks are forked"


def _claimed(path: Path) -> bool:
    """Whether this process is the first to strike; the file then says when."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.write(descriptor, f"{time.time()}".encode())
    os.close(descriptor)
    return True


def _break(kind: str) -> None:
    """Break this process, or its connections."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exception":
        raise MemoryError("a planted fault")
    elif kind == "sockets":
        from meshwright.train.elastic.member import cut_connections

        cut_connections()


def tried(seed: int, number: int, corpus: Path, *, keep: bool = False) -> Outcome:
    """One run with its faults, and the run without faults that it is compared with."""
    from small_run import EVALUATION, Small, train

    layout, faults = drawn(seed, number)
    folder = Path(tempfile.mkdtemp(prefix="meshwright-faults-"))
    (folder / "marks").mkdir()
    small = Small(corpus=corpus)
    plan = small.plan_file(folder / "plan.json", layout, global_batch=12 if "dp=3" in layout else 8, evaluation=EVALUATION)
    common = ("--steps", str(NUM_STEPS), "--checkpoint-every", str(CHECKPOINT_STEPS), "--keep-going", "--profile", "none")
    ports = listening()
    command = train(
        folder,
        plan,
        "--name",
        "broken",
        "--stall-timeout",
        str(STALL_S),
        *common,
        before=plant,
        with_=([asdict(fault) for fault in faults], str(folder / "marks")),
    )
    problem, run = "", folder / "runs" / "broken"
    try:
        code = command.wait(PATIENCE_S)
        problem = f"exit status {code}: {command.err[-2000:]}" if code else ""
        if not problem:
            clean = train(folder / "clean", plan, "--name", "clean", "--memberships", run, *common)
            code = clean.wait(PATIENCE_S)
            problem = f"the run without faults: {clean.err[-2000:]}" if code else compared(run, folder / "clean" / "runs" / "clean")
        problem = problem or left_behind(ports)
    except AssertionError as error:
        problem = str(error)[-2000:]
    details = list(told(run, folder / "marks", faults)) if (run / "events.jsonl").is_file() else []
    run_s, useful_s = times_of(run)
    if not keep and not problem:
        shutil.rmtree(folder)
    elif problem:
        print(f"kept in {folder}", file=sys.stderr)
    return Outcome(
        number=number,
        layout=layout,
        faults=[asdict(fault) for fault in faults],
        problem=problem,
        run_s=run_s,
        useful_s=useful_s,
        details=details,
    )


def compared(run: Path, clean: Path) -> str:
    """What differs between a run and the one without faults; empty if nothing does."""
    import numpy as np
    from small_run import steps_of, tensors_of

    if [step["step"] for step in steps_of(run)] != list(range(1, NUM_STEPS + 1)):
        return "steps are missing from the record, or in it twice"
    if len({step["samples"] // step["step"] for step in steps_of(run)}) != 1:
        return "the counter of samples is wrong"
    found = []
    for folder in (run, clean):
        newest = max((folder / "checkpoints").glob("step-*"))
        if not newest.name.startswith(f"step-{NUM_STEPS:08}"):
            return f"the newest checkpoint of {folder.name} is {newest.name}"
        found.append(tensors_of(newest))
    one, other = found
    differ = [name for name in one if not np.array_equal(one[name].view(np.int32), other[name].view(np.int32))]
    return f"{len(differ)} tensors differ in bits: {differ[:3]}" if differ or one.keys() != other.keys() else ""


def told(run: Path, marks: Path, faults: Sequence[Fault]) -> Iterator[dict[str, Any]]:
    """For each fault that struck: when it was noticed and when the run took the next step, in seconds after it, and what it cost."""
    from datetime import datetime

    from small_run import events_of

    created_s = datetime.fromisoformat(json.loads((run / "run.json").read_text())["created"]).timestamp()
    incidents = events_of(run, "incident")
    for number, fault in enumerate(faults):
        mark = marks / str(number)
        if not mark.is_file():
            continue
        struck_s = float(mark.read_text())
        entry: dict[str, Any] = {"kind": fault.kind, "phase": fault.phase}
        after = [event for event in incidents if created_s + event["time_s"] >= struck_s and "down_s" in event]
        if after and fault.kind not in ON_DISK:
            event = after[0]
            recovered_s = created_s + event["time_s"] - struck_s
            step_s = next((s["step_s"] for s in steps(run) if s["step"] == event["step"]), 0.0)
            entry |= {"recovered_s": recovered_s - step_s, "noticed_s": max(recovered_s - step_s - event["down_s"], 0.0)}
            entry |= {"lost_steps": event["num_lost_steps"], "how": event["action"].split(" ")[0]}
        yield entry


def steps(run: Path) -> list[dict[str, Any]]:
    """The steps on record."""
    from small_run import steps_of

    return steps_of(run)


def times_of(run: Path) -> tuple[float, float]:
    """Seconds of a run from its first step to its end, and of the steps that count."""
    if not (run / "steps.jsonl").is_file() or not (run / "events.jsonl").is_file():
        return 0.0, 0.0
    from small_run import events_of

    events = events_of(run)
    starts = [event["time_s"] for event in events if event["kind"] == "membership"]
    done = steps(run)
    if not starts or not done:
        return 0.0, 0.0
    return events[-1]["time_s"] - starts[0], statistics.median(step["step_s"] for step in done) * len(done)


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


def summary(outcomes: Sequence[dict[str, Any]]) -> str:
    """The table of all outcomes, in Markdown."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for outcome in outcomes:
        for detail in outcome["details"]:
            rows[detail["kind"], ""].append(detail)
            rows["all", ""].append(detail)
    lines = [
        "| fault | struck | noticed after (s): median, worst | next step after (s): median, worst | steps lost: mean, most | from disk |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in (*KINDS, "all"):
        found = rows.get((kind, ""), [])
        timed = [one for one in found if "recovered_s" in one]
        restarts = sum(one["how"] == "restarted" for one in timed)
        lost = [one["lost_steps"] for one in timed]
        mean = f"{statistics.mean(lost):.2f}, {max(lost)}" if lost else "-"
        lines.append(f"| {kind} | {len(found)} | {_spread(timed, 'noticed_s')} | {_spread(timed, 'recovered_s')} | {mean} | {restarts} |")
    failed = [outcome for outcome in outcomes if outcome["problem"]]
    ratio = sum(one["useful_s"] for one in outcomes) / max(sum(one["run_s"] for one in outcomes), 1e-9)
    whole = (
        f"{len(outcomes)} runs, {len(rows['all', ''])} faults struck, {len(failed)} runs failed; useful time {ratio:.0%} of the runs' time"
    )
    return "\n".join([*lines, "", whole, *(f"- run {one['number']} ({one['layout']}): {one['problem'][:300]}" for one in failed)])


def _spread(found: Sequence[dict[str, Any]], name: str) -> str:
    values = sorted(one[name] for one in found)
    return f"{statistics.median(values):.2f}, {values[-1]:.2f}" if values else "-"


def read(path: Path) -> list[dict[str, Any]]:
    """The outcomes in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def main() -> int:
    """Run a batch, or sum up a file of batches; the exit status is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=40, help="faults to plant, in runs of four")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"), help="one line per run; runs that are in it are not repeated")
    parser.add_argument("--summary", type=Path, help="print the table of this file, and do nothing else")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further run after this time")
    given = parser.parse_args()
    if given.summary:
        print(summary(read(given.summary)))
        return int(any(one["problem"] for one in read(given.summary)))
    from small_run import make_corpus

    begun_s = time.monotonic()
    done = {(one["seed"], one["number"]) for one in read(given.out)}
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder) / "made")
        for number in range(-(-given.faults // PER_RUN)):
            if (given.seed, number) in done or time.monotonic() - begun_s > given.seconds:
                continue
            outcome = tried(given.seed, number, corpus)
            with open(given.out, "a") as file:
                file.write(json.dumps({"seed": given.seed, **asdict(outcome)}) + "\n")
            print(f"run {number} ({outcome.layout}): {outcome.problem or 'recovered'}, {len(outcome.details)} faults struck", flush=True)
    print(summary(read(given.out)))
    return int(any(one["problem"] for one in read(given.out)))


if __name__ == "__main__":
    sys.exit(main())
