"""Runs of which a rank is killed on a GPU: what became of each, or a diagnosis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_loss_parts.diagnosis import diagnosis, events_of, text_of
from gpu_loss_parts.mps import PIPE

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "train"))

if TYPE_CHECKING:
    from small_run import Command

GPU_CLUSTER = "hgx-h200-ndr"
MODELS = {"1b": "llama-3.2-1b", "3b": "llama-3.2-3b", "small": ""}
LOSS_KILLED_AFTER, LOSS_MORE, MOST_STEPS = 12, 4, 10**5
RESTART_EVERY, RESTART_TOKENS = 40, 512  # steps between checkpoints, so that no second one is being written when the rank is killed
DRY_EVERY = 10
RESTART_BATCH = 2
STALL_S = 8.0
SAYS_MORE = {"NCCL_DEBUG": "WARN", "TORCH_CPP_LOG_LEVEL": "INFO"}
END_S = 20.0  # in which a run must stop when it is asked to
SPARE_MIB = 256  # of the card's memory, which MPS may keep for itself


class Late(Exception):
    """Something did not come about in time, or the run ended before it did."""


@dataclass
class Clock:
    """The time of the whole call."""

    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds left; some are kept back to end everything."""
        return self.limit_s - (time.monotonic() - self.began_s)


@dataclass
class Watched:
    """One run under watch."""

    command: Command
    run: Path
    clock: Clock
    mps: Path | None
    num_ranks: int

    def until(self, what: str, met: Callable[[], Any], within_s: float = 60.0) -> Any:
        """What `met` returns, once it is true; `Late` with the name of what was awaited otherwise."""
        within_s = min(within_s, self.clock.left_s)
        until_s = time.monotonic() + within_s
        while not (found := met()):
            if time.monotonic() > until_s:
                raise Late(f"waited {within_s:.0f} s in vain: {what}")
            if self.command.process.exitcode is not None:
                raise Late(f"the command ended with status {self.command.process.exitcode} before this: {what}")
            time.sleep(0.01)
        return found

    def ranks(self) -> list[int]:
        """The process ids of the ranks: the last children of the command. The process of the store was started first."""
        children = []
        for pid in self.command.others():
            with suppress(OSError, ValueError):  # it has ended meanwhile; a rank may have processes of its own, such as a compiler
                parent = int(text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1])
                children += [pid] if parent == self.command.pid else []
        return sorted(children)[-self.num_ranks :]

    def step(self) -> int:
        """The last step on record."""
        from small_run import last_step

        with suppress(ValueError, KeyError):  # the file is being written anew after a restart
            return last_step(self.run)
        return 0

    def told(self) -> str:
        """All that can be said about it now."""
        return diagnosis(self.command.out, self.command.err, self.run, self.ranks(), self.mps)

    def end(self) -> None:
        """Kill what is left of it."""
        from small_run import session

        for pid in [self.command.pid, *session(self.command.pid)]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.command.process.join(5.0)


def without_mps() -> None:
    """Let ranks share a GPU without MPS: the GPU gives each a slice of time, and no process sees how another one ends."""
    from meshwright.train import shared_gpu

    shared_gpu.check_sharing = lambda version, environment: None


def started(folder: Path, plan: Path, options: list[str], *, shares: str, mps: Path | None) -> Command:
    """`meshwright train --keep-going` in a session of its own. `shares`: mps, time or alone."""
    from small_run import start

    # Torch's own notes say when communicators are aborted, and how long that takes.
    environment: dict[str, str | None] = {name: os.environ.get(name, usual) for name, usual in SAYS_MORE.items()}
    if shares == "mps" and mps is not None:
        environment[PIPE] = str(mps)
    if shares == "time":
        (folder / "no-mps").mkdir(parents=True, exist_ok=True)
        environment[PIPE] = str(folder / "no-mps")
    arguments = ["train", plan, "--name", "run", "--keep-going", "--profile", "none", "--stall-timeout", str(STALL_S), *options]
    return start(folder, arguments, environment=environment, before=without_mps if shares == "time" else None)


def lost(
    folder: Path, corpus: Path, clock: Clock, victim: int, *, layout: str, shares: str, per_gpu: int, mps: Path | None, is_dry: bool
) -> dict[str, Any]:
    """One rank of two is killed: when the other one goes on, and when both are together again."""
    from small_run import Small

    small = Small(corpus=corpus) if is_dry else Small(corpus=corpus, cluster=GPU_CLUSTER)
    plan = small.plan_file(folder / "plan.json", layout, training={"most_samples": 10**7})
    options = ["--steps", str(MOST_STEPS), "--checkpoint-every", "100", *([] if is_dry else ["--ranks-per-gpu", str(per_gpu)])]
    before_mib = memory_mib()
    watched = Watched(started(folder, plan, options, shares=shares, mps=mps), folder / "runs" / "run", clock, mps, 2)
    row: dict[str, Any] = {"what": f"rank {victim} of {layout} killed", "shares": shares}
    try:
        begun_s = time.monotonic()
        watched.until("the first steps", lambda: watched.step() >= LOSS_KILLED_AFTER, 90.0)
        row["started_s"] = time.monotonic() - begun_s
        killed_s, step = time.time(), watched.step()
        os.kill(watched.ranks()[victim], signal.SIGKILL)
        incident = watched.until("a step after the loss", lambda: incidents(watched.run), 45.0)[-1]
        row |= {"killed_after_step": step, **recovery(watched.run, incident, killed_s)}
        gone_on = watched.step()
        watched.until("more steps", lambda: watched.step() >= gone_on + LOSS_MORE, 30.0)
        joined = watched.until("the lost replica's return", lambda: returns(watched.run, incident["step"]), 60.0)[-1]
        row["joined_after_s"] = created_s(watched.run) + joined["time_s"] - killed_s
        row["join_stall_s"] = joined.get("change_s", 0.0)
        gone_on = watched.step()
        watched.until("steps of both", lambda: watched.step() >= gone_on + LOSS_MORE, 30.0)
        return ended(watched, row, before_mib, is_dry)
    except Late as error:
        return {**row, "trouble": str(error), "told": watched.told()}
    finally:
        watched.end()


def restarted(
    folder: Path, corpus: Path, clock: Clock, *, model: str, replicas: int, shares: str, mps: Path | None, is_dry: bool
) -> dict[str, Any]:
    """A rank of a larger model is killed: from the kill to the next step. One rank alone comes back from its newest checkpoint."""
    from small_run import MODEL, Small

    from meshwright.describe.load import load_model

    small = Small(corpus=corpus) if is_dry else Small(corpus=corpus, cluster=GPU_CLUSTER)
    shape = MODEL if is_dry or not MODELS[model] else load_model(MODELS[model])
    sizes: dict[str, Any] = {"global_batch": RESTART_BATCH * replicas}
    if not is_dry:
        sizes |= {"precision": "bf16-pure", "seq_len": RESTART_TOKENS}
    layout, every = f"dp={replicas},zero=0,mbs={RESTART_BATCH}", DRY_EVERY if is_dry else RESTART_EVERY
    plan = small.plan_file(folder / "plan.json", layout, model=shape, training={"most_samples": 10**7}, **sizes)
    options = ["--steps", str(MOST_STEPS), "--checkpoint-every", str(every), "--keep", "1", "--grace", "5"]
    options += [] if is_dry or replicas == 1 else ["--ranks-per-gpu", str(replicas)]
    before_mib = memory_mib()
    watched = Watched(started(folder, plan, options, shares=shares, mps=mps), folder / "runs" / "run", clock, mps, replicas)
    row: dict[str, Any] = {"what": f"a rank of {shape.name}, {layout}, killed", "shares": shares, "parameters": shape.num_parameters}
    try:
        begun_s = time.monotonic()
        watched.until("the first step", lambda: watched.step() >= 1, 120.0)
        row["started_s"] = time.monotonic() - begun_s
        if replicas == 1:
            watched.until("the step of the first checkpoint", lambda: watched.step() >= every, 90.0)
            begun_s = time.monotonic()
            saved = watched.until("the first checkpoint", lambda: events_of(watched.run, "checkpoint"), 120.0)[-1]
            row |= {"save_s": time.monotonic() - begun_s, "saved_bytes": saved.get("num_bytes"), "saved": saved}
        else:
            watched.until("the first steps", lambda: watched.step() >= LOSS_KILLED_AFTER, 90.0)
        killed_s, step = time.time(), watched.step()
        os.kill(watched.ranks()[0], signal.SIGKILL)
        incident = watched.until("a step after the loss", lambda: incidents(watched.run), 90.0)[-1]
        row |= {"killed_after_step": step, **recovery(watched.run, incident, killed_s)}
        return ended(watched, row, before_mib, is_dry, asks=False)
    except Late as error:
        return {**row, "trouble": str(error), "told": watched.told()}
    finally:
        watched.end()


def ended(watched: Watched, row: dict[str, Any], before_mib: int, is_dry: bool, *, asks: bool = True) -> dict[str, Any]:
    """The row with what is to be said at the end; `asks` the run to stop, otherwise it is killed, because a large one would save first."""
    damaged = events_of(watched.run, "damage")
    if damaged:
        raise Late(f"the states of the replicas differ: {damaged[-1].get('message')}")
    if asks:
        begun_s = time.monotonic()
        os.kill(watched.command.pid, signal.SIGTERM)
        watched.command.process.join(min(END_S, max(watched.clock.left_s, 1.0)))
        if watched.command.process.exitcode != 0:
            raise Late(f"it did not end well when it was asked to: exit status {watched.command.process.exitcode}")
        row["ended_s"] = time.monotonic() - begun_s
    watched.end()
    until_s = time.monotonic() + 5.0
    while not is_dry and (left := memory_mib() - before_mib) > SPARE_MIB and time.monotonic() < until_s:
        time.sleep(0.2)
    if not is_dry:
        row["left_on_gpu_mib"] = left
    return {**row, "trouble": ""}


def incidents(run: Path) -> list[dict[str, Any]]:
    """The faults that the run has gone on from."""
    return [dict(event) for event in events_of(run, "incident") if "down_s" in event]


def returns(run: Path, after_step: int) -> list[dict[str, Any]]:
    """The joins of a replica after a fault."""
    return [dict(event) for event in events_of(run, "membership") if event.get("reason") == "joined" and _int(event["step"]) >= after_step]


def recovery(run: Path, incident: dict[str, Any], killed_s: float) -> dict[str, Any]:
    """From the kill to the notice and to the next step: to its begin and to its end."""
    times_s = {step["step"]: step["step_s"] for step in entries(run / "steps.jsonl")}
    ended_s = created_s(run) + incident["time_s"] - killed_s
    began_s = ended_s - times_s.get(incident["step"], 0.0)
    found = {"noticed_s": max(began_s - incident["down_s"], 0.0), "next_step_s": began_s, "next_step_ended_s": ended_s}
    return {**found, "lost_steps": incident.get("num_lost_steps"), "how": incident.get("action")}


def entries(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file with an object in each."""
    return [json.loads(line) for line in text_of(path).splitlines(keepends=True) if line.endswith("\n")]


def created_s(run: Path) -> float:
    """When the run was created, by the clock on the wall."""
    from meshwright.record.header import read_header

    return datetime.fromisoformat(read_header(run).created).timestamp()


def memory_mib() -> int:
    """Memory of the first GPU that is taken, by the driver; 0 without one."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=5.0).stdout.strip()
        return int(found) if found.isdigit() else 0
    return 0


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
