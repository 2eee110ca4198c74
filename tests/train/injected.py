"""Faults that a small run is given before its ranks are forked: patches of meshwright's own functions, by name."""

from __future__ import annotations

import errno
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.train import job, loop
from meshwright.train.checkpoint import saving
from meshwright.train.model.transformer import Block
from meshwright.train.parallel.buckets import DataParallel
from meshwright.train.parallel.pipeline import Stage


def slow_steps(seconds: float, of_rank: dict[int, float] | None = None) -> None:
    """Let every step compute for so long, and longer on some ranks: asleep, so that a busy machine changes nothing."""
    run = Stage.run

    def slowly(self: Stage, *arguments: Any) -> Any:
        time.sleep((of_rank or {}).get(dist.get_rank(), seconds))
        return run(self, *arguments)

    Stage.run = slowly  # type: ignore[method-assign]


def resting(seconds: float) -> None:
    """Slow steps; and ranks move their state to host memory before they make a new replica, as on a GPU without room for two."""
    from meshwright.train.elastic.carry import Carry

    slow_steps(seconds)
    agree = Carry.agree

    def agreed(self: Carry, *arguments: Any) -> Any:
        choice = agree(self, *arguments)
        self.make_room()
        return choice

    Carry.agree = agreed  # type: ignore[method-assign]


def drawn_times(seconds: float, spread: float, slowdown: dict[int, float]) -> None:
    """Let every rank report drawn times of its steps, some ranks longer ones."""
    from meshwright.train.record import measured

    parts_of = measured.parts_of

    def drawn(*arguments: Any) -> dict[str, float]:
        rank = dist.get_rank()
        rng = random.Random(1000 * rank + len(taken))
        taken.append(rank)
        compute_s = seconds * math.exp(spread * rng.gauss(0.0, 1.0)) * slowdown.get(rank, 1.0)
        return {**parts_of(*arguments), "compute": compute_s, "optimizer": 0.0}

    taken: list[int] = []
    measured.parts_of = drawn


def stuck(rank: int, step: int) -> None:
    """Let one rank sleep for ever inside a step."""
    run = Stage.run

    def until_then(self: Stage, *arguments: Any) -> Any:
        if dist.get_rank() == rank and self.mesh.marks.step == step:
            time.sleep(1e6)
        return run(self, *arguments)

    Stage.run = until_then  # type: ignore[method-assign]


def slow_evaluation(rank: int, seconds: float) -> None:
    """Let one rank take its time over evaluations, and over copies of the state."""
    evaluate, save = loop.Replica.evaluate, loop.Saves.save

    def slowly(self: Any, batch: Any) -> Any:
        time.sleep(seconds if dist.get_rank() == rank else 0.0)
        return evaluate(self, batch)

    def save_slowly(self: Any, progress: Any) -> Any:
        time.sleep(seconds if dist.get_rank() == rank else 0.0)
        return save(self, progress)

    loop.Replica.evaluate, loop.Saves.save = slowly, save_slowly  # type: ignore[method-assign]


def no_number(rank: int, step: int) -> None:
    """Let one rank's layers give NaN from one step on: on a GPU it is looked for when the next one has begun."""
    forward = Block.forward

    def spoilt(self: Block, *arguments: Any) -> Tensor:
        found = forward(self, *arguments)
        return found * math.nan if dist.get_rank() == rank and _steps_done() >= step else found

    Block.forward = spoilt  # type: ignore[method-assign]
    take = loop._step

    def counted(parts: Any, run: Any, *rest: Any) -> Any:
        os.environ["STEPS_DONE"] = str(run.progress.step)
        return take(parts, run, *rest)

    loop._step = counted


def bad_samples(first: int, last: int) -> None:
    """Let the layers give NaN for some samples, whenever they are trained on."""
    forward, run = Block.forward, Stage.run
    is_bad: list[bool] = [False]

    def watched(self: Stage, batch: Any, *arguments: Any) -> Any:
        is_bad[0] = any(first <= sample <= last for one in batch for sample in one.samples)
        return run(self, batch, *arguments)

    def spoilt(self: Block, *arguments: Any) -> Tensor:
        found = forward(self, *arguments)
        return found * math.nan if is_bad[0] else found

    Stage.run, Block.forward = watched, spoilt  # type: ignore[method-assign]


def passing(what: str, rank: int, step: int, late: bool = False) -> None:
    """Let one rank compute something wrong in one attempt at a step: NaN, one exponent bit of a gradient, or of a summed gradient.

    `late`: results are read a step late, as on a GPU.
    """
    forward, add, land = Block.forward, DataParallel.add, DataParallel._land
    done: list[str] = []

    def is_now(kind: str) -> bool:
        now = what == kind and not done and dist.get_rank() == rank and loop_step[0] == step
        return now and not done.append(kind)  # type: ignore[func-returns-value]

    loop_step = [0]
    take = loop._step

    def counted(parts: Any, run: Any, *rest: Any) -> Any:
        loop_step[0] = run.progress.step + 1
        return take(parts, run, *rest)

    def spoilt(self: Block, *arguments: Any) -> Tensor:
        found = forward(self, *arguments)
        return found * math.nan if is_now("nan") else found

    def spoilt_gradient(self: DataParallel, parameter: Any, gradient: Tensor) -> None:
        if gradient.shape == (128, 32) and is_now("gradient"):  # gate and up of an MLP
            _flip_up(gradient, 26)
        add(self, parameter, gradient)

    def spoilt_sum(self: DataParallel, bucket: Any) -> None:
        land(self, bucket)
        if bucket is self.buckets[-1] and is_now("sum"):
            _flip_up(bucket.shard.gradient, 23)

    loop._step, Block.forward = counted, spoilt  # type: ignore[method-assign]
    DataParallel.add, DataParallel._land = spoilt_gradient, spoilt_sum  # type: ignore[method-assign]
    if late:
        read_late()


def _flip_up(gradient: Tensor, from_bit: int) -> None:
    """Flip the first exponent bit of the largest entry, from one on, that is not set: the entry becomes larger."""
    bits, place = gradient.view(-1).view(torch.int32), int(gradient.abs().argmax())
    bits[place] ^= 1 << next(bit for bit in range(from_bit, 31) if not int(bits[place]) >> bit & 1)


def read_late() -> None:
    """Read results a step late, as on a GPU: the update is launched before, and its scale, a tensor, says whether it changes anything."""
    from meshwright.train.parallel.optimizer import AdamW

    apply, make = AdamW.step, loop.Replica.__init__

    def launched(self: AdamW, learning_rate: float, scale: Any) -> None:
        if math.isnan(float(scale)):
            self.num_updates += 1
        else:
            apply(self, learning_rate, float(scale))

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.is_late = True

    AdamW.step, loop.Replica.__init__ = launched, made  # type: ignore[method-assign]


def _steps_done() -> int:
    return int(os.environ.get("STEPS_DONE", "0"))


def failing_disk(number: int, folder_part: str, from_step: int) -> None:
    """Let writes of checkpoints fail from a step on, with this error of the system."""
    write = saving.write

    def failing(attempt: Any, *rest: Any) -> Any:
        if attempt.step >= from_step:
            from meshwright.train.checkpoint.durable import explained

            with explained("cannot write the shard", Path(folder_part)):
                raise OSError(number, os.strerror(number), folder_part)
        return write(attempt, *rest)

    from meshwright.train.checkpoint import saver

    saver.write = failing  # type: ignore[attr-defined]


def failing_mkdir(rank: int, step: int) -> None:
    """Let one rank fail to make the folder of one save, which the others, who are later, would have made too."""
    from meshwright.train.checkpoint import saver

    mkdir, write = os.mkdir, saving.write

    def failing(path: Any, *rest: Any) -> None:
        if dist.is_initialized() and dist.get_rank() == rank and f"step-{step:08}.partial" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        mkdir(path, *rest)

    def later(*arguments: Any) -> Any:
        time.sleep(0.0 if dist.get_rank() == rank else 0.5)
        return write(*arguments)

    os.mkdir, saver.write = failing, later  # type: ignore[assignment, attr-defined]


def refused(rank: int) -> None:
    """Let one rank find something wrong with the job, once the run's folder is there."""
    from meshwright.errors import InputError
    from meshwright.train import session

    begin = session._begin

    def refusing(*arguments: Any) -> Any:
        if dist.get_rank() == rank:
            raise InputError("rank has no use for this job", where="the job", fix="give another")
        return begin(*arguments)

    session._begin = refusing


def hasty_clock(first_s: float, step_s: float) -> None:
    """Let the clock call for a first save after so long, in a run of slow steps."""
    from meshwright.train.checkpoint import clock

    clock.FIRST_S = first_s
    slow_steps(step_s)


def full_records(after_lines: int) -> None:
    """Let the disk be full once so many lines of steps are written."""
    from meshwright.record import writer

    append = writer._LineFile.append

    def failing(self: Any, line: bytes) -> None:
        if self.path.name == "steps.jsonl" and len(self.path.read_bytes().splitlines()) >= after_lines:
            self._file = _Full()
        append(self, line)

    writer._LineFile.append = failing  # type: ignore[method-assign]


class _Full:
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fileno(self) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        pass


def other_code() -> None:
    """Let the sources be others than they were."""
    job.code_digest = lambda: "0123456789abcdef"  # type: ignore[assignment]


def broken(rank: int, step: int) -> None:
    """Let one rank fail in a way that nobody foresaw."""
    run = Stage.run

    def until_then(self: Stage, *arguments: Any) -> Any:
        if dist.get_rank() == rank and self.mesh.marks.step == step:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        return run(self, *arguments)

    Stage.run = until_then  # type: ignore[method-assign]


def exits(rank: int, step: int, code: int) -> None:
    """Let one rank's process end in the middle of a step, as a library does that calls exit()."""
    run = Stage.run

    def until_then(self: Stage, *arguments: Any) -> Any:
        if dist.get_rank() == rank and self.mesh.marks.step == step:
            os._exit(code)
        return run(self, *arguments)

    Stage.run = until_then  # type: ignore[method-assign]


def large_gradient(rank: int, step: int, factor: float) -> None:
    """Let one entry of one rank's gradients be far too large in one step, before replicas are summed."""
    add = DataParallel.add

    def spoilt(self: DataParallel, parameter: Any, gradient: Tensor) -> None:
        if dist.get_rank() == rank and self.mesh.marks.step == step and gradient.shape == (128, 32):  # gate and up of an MLP
            gradient.view(-1)[7] += factor
        add(self, parameter, gradient)

    DataParallel.add = spoilt  # type: ignore[method-assign]


def flipped_bit(rank: int, step: int, bit: int, where: str) -> None:
    """Flip one bit on one rank: of a weight after the update of a step, or of a summed gradient before it."""
    from meshwright.train.replica import Replica

    apply = Replica._apply

    def spoilt(self: Replica, *arguments: Any) -> None:
        is_now = dist.get_rank() == rank and self.mesh.marks.step == step
        apply(self, *arguments)
        if is_now and where == "weight":
            self.shards[0].values.view(torch.int32)[3] ^= 1 << bit

    land = DataParallel._land

    def spoilt_sum(self: DataParallel, bucket: Any) -> None:
        land(self, bucket)
        if dist.get_rank() == rank and self.mesh.marks.step == step and where == "sum" and bucket is self.buckets[-1]:
            gradient = bucket.shard.gradient
            gradient.view(torch.int32)[int(gradient.abs().argmax())] ^= 1 << bit

    Replica._apply, DataParallel._land = spoilt, spoilt_sum  # type: ignore[method-assign]
