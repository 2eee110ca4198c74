"""One process in one generation of a run: what it brings along, and what it tells the others."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.errors import MeshwrightError
from meshwright.record.writer import RunWriter
from meshwright.train.elastic.carry import Carry, Choice, Counts, Holding, Keeping, Uncovered
from meshwright.train.elastic.copies import copies_for
from meshwright.train.elastic.handover import HandedOver
from meshwright.train.elastic.member import HANG, Announcement, Member
from meshwright.train.health.gate import Unsound
from meshwright.train.health.signals import StopSignal
from meshwright.train.health.watch import Diagnosis
from meshwright.train.job import TrainingJob
from meshwright.train.launch import ReportedElsewhere
from meshwright.train.material import Material
from meshwright.train.membership import changes_after, dealt, dp_at, num_rounds
from meshwright.train.replica import Replica

REASONS = {  # of a generation, in words
    "start": "the ranks were started",
    "lost": "others were lost, or connections were made anew",
    "joined": "replicas joined",
    "scaled": "as was asked",
    "planned": "as the list of memberships says",
}


@dataclass(slots=True, kw_only=True)
class Regroup:
    """What one process has when a generation begins."""

    member: Member
    announced: Announcement
    carry: Carry
    material: Material
    stop: StopSignal
    choice: Choice | None = None
    taken: tuple[Choice, HandedOver] | None = None

    @property
    def is_planned(self) -> bool:
        """Whether the generation before ended at a step boundary, with all that follows its last step done."""
        return not self.is_first and self.announced.incident is None

    @property
    def is_first(self) -> bool:
        """Whether this is the first generation, which has no state in memory yet."""
        return self.announced.generation == 0

    def agree(self, job: TrainingJob, device: torch.device) -> None:
        """Agree with the other ranks on the state that the run goes on from. It comes before a new replica, which may need its room."""
        self.choice = self.carry.agree(job.plan.layout, device, job.ranks_per_gpu)
        if self.choice is None and not self.is_first:
            raise Uncovered("no rank has a state yet", where="the start of the run", fix="start the ranks again")

    def take_over(self, replica: Replica, job: TrainingJob) -> Choice | None:
        """The state that the run goes on from, once the replica is filled with it; None in the first generation."""
        if self.choice is not None:
            self.taken = self.choice, self.carry.fill(replica, self.choice, job.plan.layout)
        return self.choice

    def kept_writer(self, step: int) -> RunWriter | None:
        """The writer of the records that this process has open, if they end with this step; any other is closed."""
        writer, self.carry.writer = self.carry.writer, None
        if writer is not None and not (self.is_planned and writer.newest_step == step):
            writer.close()
            return None
        return writer

    def keep(self, replica: Replica, progress: Counts, job: TrainingJob, is_saving: Callable[[], bool]) -> Keeping:
        """Keep the state of this generation from now on, and what the loop does for that after every step."""
        copies = copies_for(replica, job.memory_steps, self.announced.apart)
        source = self.choice.generation if self.choice else None
        self.carry.hold(Holding.of(self.announced.generation, replica, progress, copies), source)
        if copies is not None and not self.is_planned:  # the generation before has a whole state, and is kept until all ranks have copies
            copies.take(progress.step, progress.samples)
        return Keeping(
            carry=self.carry,
            copies=copies,
            wants_change=lambda: self.member.wants_change() and not is_saving(),
            changes_after=changes_after(job.memberships),
            leaving=lambda step: self._leaving(job, step),
        )

    def _leaving(self, job: TrainingJob, step: int) -> list[int]:
        """Positions of the replicas that leave after a step: by the list of memberships, or by what the supervisor says."""
        replicas = self.announced.replicas
        if job.memberships:
            return list(range(dp_at(job.memberships, step + 1), len(replicas)))
        return [replicas.index(number) for number in self.member.leaving() if number in replicas]

    def membership(self, job: TrainingJob, progress: Counts) -> dict[str, Any]:
        """What the record says about the replicas of this generation."""
        layout, batch = job.layout, job.plan.workload.global_batch
        shares = dealt(layout, batch)
        detail: dict[str, Any] = {
            "from_step": progress.step + 1,
            "dp": layout.dp,
            "replicas": list(self.announced.replicas),
            "micro_batches": shares,
            "rounds": num_rounds(layout, batch),
            "reason": self.announced.reason,
            "layout": str(layout),
            "num_ranks": layout.num_ranks,
            "generation": self.announced.generation,
        }
        detail["message"] = f"{layout.dp} replicas from step {progress.step + 1} on: {REASONS[self.announced.reason]}"
        if self.announced.incident is None and not math.isnan(self.carry.left_s):
            detail["change_s"] = time.monotonic() - self.carry.left_s
        if self.taken:
            choice, cost = self.taken
            detail |= {"from_memory_of_step": choice.step, "from_copies": choice.from_copies}
            detail |= {"handed_over_bytes": cost.num_bytes, "handed_over_s": cost.seconds}
        return detail

    def report_hang(self, found: Diagnosis) -> None:
        """Tell the supervisor which ranks hang: it ends their replicas."""
        self.member.say(HANG, json.dumps({"text": found.text, "ranks": found.culprits, "generation": self.announced.generation}))

    def survives(self, error: BaseException) -> bool:
        """Whether an error is only how this rank notices that others have gone."""
        if isinstance(error, ReportedElsewhere):  # the rank that reports it ends, and the supervisor decides how the others go on
            return True
        if isinstance(error, MeshwrightError):  # a rank that has gone may have been about to save, or to send what is read here
            return self.is_cut() and not isinstance(error, Unsound)
        return self.member.survives(error)

    def is_cut(self) -> bool:
        """Whether this generation is over, because a newer one was announced."""
        return self.member.newest > self.member.current
