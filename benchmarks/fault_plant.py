"""Plants the faults of a run in its ranks, before they are forked, so that each strikes once and at its phase exactly.

Faults strike one after the other. A fault of a usual phase waits until all replicas are back from the one before, or for many steps; a
fault during a recovery strikes as soon as its phase comes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from fault_plan import DISK, Fault

MOST_RANKS = 64
WHOLE_STEPS = 2  # that all replicas must have taken together
PATIENCE_STEPS = 60  # after which a fault strikes also if a replica is missing
NEXT, STEP, WHOLE_SINCE, DP = range(4)  # fields of the shared numbers


class Planted:
    """The faults of one run. Its numbers are in memory that all ranks share, since they are forked from one process."""

    def __init__(self, faults: Sequence[Fault], marks: Path, planned_dp: int) -> None:
        self.faults, self.marks, self.planned_dp = faults, marks, planned_dp
        self.numbers = RawArray("q", 4)
        self.pids = RawArray("q", MOST_RANKS)

    def saw_step(self, step: int, dp: int) -> None:
        """A rank is about to take the step after `step`, with so many replicas."""
        if dp != self.numbers[DP] or step < self.numbers[STEP]:
            self.numbers[DP], self.numbers[WHOLE_SINCE] = dp, step
        self.numbers[STEP] = step

    def strike(self, phase: str, rank: int | None = None, num_ranks: int = 1) -> None:
        """Break this rank if the next fault is for it, in this phase. Without a rank, any process is meant."""
        fault = self._armed(phase)
        if fault is None or fault.kind in DISK or (rank is not None and fault.rank % num_ranks != rank):
            return
        if self._claimed(rank):
            self._break(fault, rank or 0, num_ranks)

    def strike_disk(self, phase: str, kinds: Sequence[str]) -> bool:
        """Whether the next fault is one of these, of the disk, in this phase; it has then struck."""
        fault = self._armed(phase)
        return fault is not None and fault.kind in kinds and self._claimed(None)

    def _armed(self, phase: str) -> Fault | None:
        number, step = self.numbers[NEXT], self.numbers[STEP]
        if number >= len(self.faults) or self.faults[number].phase != phase:
            return None
        fault = self.faults[number]
        is_whole = self.numbers[DP] == self.planned_dp and step >= self.numbers[WHOLE_SINCE] + WHOLE_STEPS
        if fault.is_second or phase == "end":
            return fault
        return fault if step >= fault.step and (is_whole or step >= fault.step + PATIENCE_STEPS) else None

    def _claimed(self, rank: int | None) -> bool:
        """Whether this process is the first to strike; a file then says when."""
        number = self.numbers[NEXT]
        try:
            descriptor = os.open(self.marks / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        mark = {"time_s": time.time(), "step": self.numbers[STEP], "dp": self.numbers[DP], "rank": rank}
        os.write(descriptor, json.dumps(mark).encode())
        os.close(descriptor)
        self.numbers[NEXT] = number + 1
        self.numbers[WHOLE_SINCE] = self.numbers[STEP]
        return True

    def _break(self, fault: Fault, rank: int, num_ranks: int) -> None:
        """Break this process, or its connections; and another one first, if the fault is two at once."""
        from meshwright.train.elastic.member import cut_connections

        if fault.kind == "two kills":
            other = (rank + 1 + fault.other % (num_ranks - 1)) % num_ranks if num_ranks > 1 else rank
            if other != rank and self.pids[other]:
                os.kill(self.pids[other], signal.SIGKILL)
        if fault.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind == "exception":
            raise MemoryError(f"planted fault {self.faults.index(fault)}")  # each is a fault of its own, and not one that comes again
        elif fault.kind == "sockets":
            cut_connections()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def plant(faults: Sequence[dict[str, Any]], marks: str, planned_dp: int) -> None:
    """Patch the trainer so that every fault strikes at its phase. Call it before the ranks are forked."""
    planted = Planted([Fault(**fault) for fault in faults], Path(marks), planned_dp)
    _plant_in_phases(planted)
    _plant_in_disk(planted)


def _plant_in_phases(planted: Planted) -> None:
    import torch.distributed as dist

    from meshwright.train import generations, session
    from meshwright.train.checkpoint import saver
    from meshwright.train.elastic.carry import Carry
    from meshwright.train.parallel.pipeline import Stage

    def strike(phase: str) -> None:
        planted.strike(phase, dist.get_rank(), dist.get_world_size())

    run, evaluate, fill, make_mesh = Stage.run, Stage.evaluate, Carry.fill, session.make_mesh
    save, save_last, check_job = saver.AsyncSaver.save, session._save_last, generations.check_job

    def at_step(self: Any, *arguments: Any, **named: Any) -> Any:
        planted.saw_step(self.mesh.marks.step, self.mesh.layout.dp)
        strike("step")
        return run(self, *arguments, **named)

    def at_evaluation(self: Any, *arguments: Any, **named: Any) -> Any:
        strike("evaluation")
        return evaluate(self, *arguments, **named)

    def at_join(self: Any, *arguments: Any) -> Any:
        strike("join")
        return fill(self, *arguments)

    def at_start(*arguments: Any, **named: Any) -> Any:
        planted.pids[dist.get_rank()] = os.getpid()
        strike("start")
        return make_mesh(*arguments, **named)

    def at_prepare(*arguments: Any, **named: Any) -> Any:
        planted.strike("prepare")
        return check_job(*arguments, **named)

    def at_save(self: Any, *arguments: Any, **named: Any) -> Any:
        taken = save(self, *arguments, **named)
        strike("save")
        return taken

    def at_end(*arguments: Any) -> Any:
        strike("end")
        return save_last(*arguments)

    Stage.run, Stage.evaluate, Carry.fill, session.make_mesh = at_step, at_evaluation, at_join, at_start  # type: ignore[method-assign]
    saver.AsyncSaver.save, session._save_last, generations.check_job = at_save, at_end, at_prepare  # type: ignore[method-assign]


def _plant_in_disk(planted: Planted) -> None:
    from meshwright.record.writer import RunWriter
    from meshwright.train.checkpoint import saver
    from meshwright.train.checkpoint.on_disk import DiskFiles

    write_shard, write_report, resumed = saver.write, DiskFiles.write_report, RunWriter._resumed

    def at_write(attempt: Any, *arguments: Any) -> Any:
        if planted.strike_disk("save", ("full disk",)) or planted.strike_disk("end", ("full disk",)):
            raise OSError(28, "No space left on device")
        return write_shard(attempt, *arguments)

    def at_report(self: Any, *arguments: Any) -> Any:
        if planted.strike_disk("save", ("lost disk",)):
            shutil.rmtree(self._partial, ignore_errors=True)
        return write_report(self, *arguments)

    def at_records(*arguments: Any) -> Any:
        if planted.strike_disk("join", ("full disk",)):
            raise OSError(28, "No space left on device")
        return resumed(*arguments)

    saver.write, DiskFiles.write_report = at_write, at_report  # type: ignore[method-assign]
    RunWriter._resumed = at_records  # type: ignore[method-assign, assignment]
