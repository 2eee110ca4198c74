"""Steps that were not believed (`health.gate`): they are done again, and what both attempts gave decides how the run goes on.

- The second attempt is normal: the machine computed something wrong in the first. The second one is applied. The ranks whose own numbers
  changed are suspect; if they are all on one node, the node is put on the list of bad nodes.
- Large gradients are the same again: they are correct. They are applied, clipped, and reported.
- NaN, infinity, or a loss far above the usual ones again: the samples are skipped, a few times; then the run stops.
- A wrong sum again: the run stops. The weights are those from before the step.

Replicas whose states differ cannot be helped by this. The run stops, and checkpoints that may hold the wrong state are set aside.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from meshwright.errors import MeshwrightError
from meshwright.layout import Layout
from meshwright.record.bad_nodes import read_bad_nodes, with_failed, write_bad_nodes
from meshwright.train.health.gate import Gate, Guard, Trouble, Unsound
from meshwright.train.health.nonfinite import find_culprit
from meshwright.train.health.watch import Watch
from meshwright.train.job import TrainingJob
from meshwright.train.parallel.collectives import everyones_texts
from meshwright.train.parallel.digests import NUM_PARTS
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.record.logbook import Logbook
from meshwright.train.replica import Replica
from meshwright.train.saves import Saves, set_aside
from meshwright.train.sums import StepResult, Sums

PATIENCE_S = 600.0
SKIPS_WITHIN = 1000  # steps in which the number of skipped batches is limited
ROUNDING = {"cpu": 1e-6, "cuda": 1e-2}  # relative: by how much the numbers of a step differ when it is done again on sound hardware
PEAK_ROUNDING = 0.5  # the usual peak moves with every attempt, by a few per cent
LONGEST_HOST = 255  # bytes


class NotFinite(Unsound):
    """A loss or gradient that is NaN or infinite."""


class TooHigh(Unsound):
    """A loss far above those of the steps before."""


class Damaged(Unsound):
    """Replicas whose states differ, or a wrong sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A step that was not applied, because its result is not believed."""

    step: int  # its number
    first_sample: int
    batch: Sequence[MicroBatch]
    rate: float
    gate: Gate
    result: StepResult
    trouble: Trouble
    step_s: float

    @property
    def before(self) -> Before:
        """How far the run had come before the step."""
        return Before(self.step - 1, self.first_sample)


@dataclass(frozen=True, slots=True)
class Before:
    """How far a run had come before a step."""

    step: int
    samples: int


class Replays:
    """Decides about the held steps of a run. All ranks make the same calls and come to the same decisions."""

    def __init__(self, job: TrainingJob, replica: Replica, logbook: Logbook, watch: Watch, saves: Saves, guard: Guard) -> None:
        self.job, self.replica, self.logbook, self.watch, self.saves, self.guard = job, replica, logbook, watch, saves, guard
        self._skipped: deque[tuple[int, str]] = deque()  # step and reason

    def settle(self, held: Held) -> Sums | None:
        """Do a held step again. Return the sums of the attempt that was applied, or None if the samples are skipped."""
        self.logbook.flush()
        if held.trouble.kind == "state":
            raise self._damaged(held, held.trouble)
        started_s = time.perf_counter()
        with self.watch.allow(PATIENCE_S, "doing a step again"):
            self.replica.go_on(held.step - 1)
            self.replica.gate = held.gate
            sums = self.replica.step(held.batch, held.rate)
            again = sums.result()
            trouble = held.gate.trouble(again)
            lost_s = held.step_s + time.perf_counter() - started_s
            if trouble is None:
                self._suspect(held, again, lost_s)
                return sums
            self.replica.go_on(held.step - 1)
            if trouble.kind in ("sum", "state"):
                raise self._damaged(held, trouble)
            if trouble.kind in ("norm", "peak"):
                self.replica.update(again, held.rate)
                self.guard.confirmed(held.step)
                message = f"{held.trouble.message}; the step was done again and gave the same, so it is applied"
                self.logbook.replay(held.before, "same", held.trouble.kind, (), lost_s, message)
                return sums
            self._skip(held, trouble, again, lost_s)
            return None

    def _suspect(self, held: Held, again: StepResult, lost_s: float) -> None:
        """Record that only the first attempt was wrong, and put the node of the suspect ranks on the list of bad nodes."""
        ranks = suspects(self.job.layout, held.result, again, ROUNDING[self.replica.mesh.device.type])
        hosts = everyones_texts(socket.gethostname(), LONGEST_HOST, self.replica.mesh.device)
        who = f"{_named(ranks)} on {', '.join(sorted({hosts[rank] for rank in ranks}))}" if ranks else "a rank that is not known"
        message = f"{held.trouble.message}; the step was done again and was normal, so the hardware of {who} is suspect"
        self.logbook.replay(held.before, "sound", held.trouble.kind, ranks, lost_s, message)
        nodes = {hosts[rank] for rank in ranks}
        if len(nodes) == 1 and self.replica.mesh.rank == 0:
            self._list(nodes.pop(), f"run {self.job.name}, step {held.step}, {_named(ranks)}: {held.trouble.message}")

    def _list(self, node: str, reason: str) -> None:
        path = self.job.bad_nodes or self.job.runs / "bad-nodes.json"
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            write_bad_nodes(path, with_failed(read_bad_nodes(path), {node: [reason]}, date))
        except (OSError, MeshwrightError) as error:  # the run does not need the list
            self.logbook.say(f"the list of bad nodes was not written: {error}")

    def _skip(self, held: Held, trouble: Trouble, again: StepResult, lost_s: float) -> None:
        """Record that the samples of a step are left out; raise if that happened too often."""
        last = held.first_sample + self.job.plan.workload.global_batch - 1
        culprit = find_culprit(self.replica, held.batch, again) if trouble.kind == "nan" else ""
        if trouble.kind == "nan":
            self.replica.go_on(held.step - 1)
        what = f"{trouble.message.replace(f'step {held.step}', f'step {held.step} (samples {held.first_sample} to {last})')}"
        what += f": {culprit}" if culprit else ""
        while self._skipped and self._skipped[0][0] <= held.step - SKIPS_WITHIN:
            self._skipped.popleft()
        if len(self._skipped) >= self.job.skip_batches:
            raise self._refusal(held, trouble, what, culprit or trouble.message)
        self._skipped.append((held.step, what))
        message = f"{what}; it was the same when the step was done again, so these samples are skipped"
        detail = {"first_sample": held.first_sample, "last_sample": last, "num_skipped": len(self._skipped)}
        self.logbook.replay(held.before, "skipped", trouble.kind, (), lost_s, message, **detail)

    def _refusal(self, held: Held, trouble: Trouble, what: str, culprit: str) -> Unsound:
        """The error for a step that fails again and again. Neither this update nor a later one has been made."""
        last = held.first_sample + self.job.plan.workload.global_batch - 1
        kind = "nan" if trouble.kind == "nan" else "loss_spike"
        self.logbook.event(kind, held.before, message=culprit, first_sample=held.first_sample, last_sample=last)
        tried = f"; tried: the step was done again, and {len(self._skipped)} batches were skipped before" if self._skipped else ""
        error = NotFinite if trouble.kind == "nan" else TooHigh
        return error(
            what + tried,
            where=str(self.job.folder),
            fix="the weights are those from before the step; continue with --resume, with a lower learning rate, or with --skip-batches",
        )

    def _damaged(self, held: Held, trouble: Trouble) -> Damaged:
        """The error for replicas that do not agree."""
        detail = {"what": trouble.kind, "ranks": list(trouble.ranks), "message": trouble.message}
        self.logbook.event("damage", held.before, **detail)
        where = str(self.job.folder)
        if trouble.kind == "sum":
            fix = "the weights are those from before the step: continue with --resume, and check these machines (meshwright doctor)"
            return Damaged(f"{trouble.message}; it was so again when the step was repeated", where=where, fix=fix)
        sound = held.step - NUM_PARTS
        with suppress(MeshwrightError, OSError):
            self.saves.close(PATIENCE_S)  # one that is being written would be found later
            if self.replica.mesh.rank == 0:
                set_aside(self.job, sound)
        known = (
            f"a checkpoint of step {sound} or before is sound, later ones are set aside"
            if sound > 0
            else "no checkpoint is known to be sound"
        )
        return Damaged(
            trouble.message, where=where, fix=f"{known}: continue with --resume; check the machines of these ranks (meshwright doctor)"
        )


def suspects(layout: Layout, first: StepResult, again: StepResult, rounding: float) -> tuple[int, ...]:
    """The ranks whose own numbers changed between two attempts at a step, as near to the cause as the numbers show.

    A wrong loss makes gradients wrong too, and a wrong gradient makes the sum wrong that all replicas receive. Ranks of one replica compute
    its loss together, so all of them are suspect if it changed.
    """
    losses = _changed(first.own_losses, again.own_losses, rounding)
    if losses:
        replicas = {layout.coordinate(rank)["dp"] for rank in losses}
        return tuple(rank for rank in range(layout.num_ranks) if layout.coordinate(rank)["dp"] in replicas)
    own = _changed(first.own_norms, again.own_norms, rounding)
    own |= _changed([check.sent for check in first.checks], [check.sent for check in again.checks], rounding)
    own |= _changed([check.peak for check in first.checks], [check.peak for check in again.checks], PEAK_ROUNDING)
    received = _changed([check.received for check in first.checks], [check.received for check in again.checks], rounding)
    return tuple(sorted(own or received))


def _changed(before: Sequence[float], after: Sequence[float], rounding: float) -> set[int]:
    """Where two lists differ by more than rounding, or only one is finite."""
    return {
        place
        for place, (one, other) in enumerate(zip(before, after, strict=True))
        if not (one == other or math.isclose(one, other, rel_tol=rounding)) and not (math.isnan(one) and math.isnan(other))
    }


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {listed}"
