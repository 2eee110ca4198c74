"""One rank of a plan on the device at hand: its chunks at full size, its micro-batches in its schedule's order, its optimizer's shard."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import torch

from meshwright.cost.schedule import BACKWARD, FORWARD, WEIGHT
from meshwright.describe.model import Model
from meshwright.describe.this_machine import memory_bytes, num_cores, processor_name
from meshwright.describe.workload import Training, Workload
from meshwright.errors import FitError
from meshwright.layout import Layout
from meshwright.predict.footprint import ADVICE, StageMemory
from meshwright.predict.rehearsed import ChunkTime, RankMemory, Rehearsal
from meshwright.train.model.initial import fill_piece
from meshwright.train.parallel.batches import micro_batch
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.rehearse.boundaries import Boundaries, Stopwatch
from meshwright.train.rehearse.gaps import idle_in_step_s
from meshwright.train.rehearse.memory import CpuMemory, GpuMemory, peak_of
from meshwright.train.rehearse.stand_in import Ledger, stand_in_world
from meshwright.train.replica import Replica
from meshwright.train.sums import Sums
from meshwright.units import gib

TRAINING = Training(learning_rate=1e-4)
UPDATE, OVER = "the optimizer's update", "the end of the step"
FAR = 1.5  # of a device's memory: a plan predicted to need more is not tried
SEED = 1
FULL = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")  # what torch says where it does not say it by the error's type
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which rank of which plan to run, and how long."""

    model: Model
    workload: Workload
    layout: Layout
    rank: int
    num_steps: int  # that are timed
    crowd: float = 1.0  # processes for each core, where ranks share cores: a second of this one alone is so many in company

    @property
    def stage(self) -> int:
        """The rank's pipeline stage."""
        return self.layout.coordinate(self.rank)["pp"]


class Rehearsed(Replica):
    """A rank's part of the model, whose loss and gradients mean nothing."""

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> Sums:
        """A whole step, with an update whatever its loss is; on a GPU the scale of the update is computed as in training."""
        sums = self.launched(batch)
        self.mesh.marks.do(UPDATE)
        self._apply(learning_rate, sums.scale(self.training.clip_norm, self._halted) if self.is_late else 1.0)
        self._publish()
        self.mesh.marks.do(OVER)
        return sums


@dataclass(slots=True)
class Stand:
    """A rank that is ready to take steps."""

    replica: Replica
    mesh: Mesh
    marks: Boundaries
    batch: list[MicroBatch]

    def step(self) -> None:
        """One step as the trainer takes it."""
        self.replica.step(self.batch, TRAINING.learning_rate)


def rehearse(part: Part, device: torch.device, report: Report) -> Rehearsal:
    """Run one rank alone and measure it; a FitError says where it ran out of memory."""
    marks = Boundaries()
    counter = CpuMemory(lambda: marks.doing) if device.type == "cpu" else None
    with stand_in_world(part.rank, part.layout.num_ranks, device) as ledger, _told(part, device, marks), counter or nullcontext():
        report(f"rank {part.rank} of {part.layout.num_ranks:,} (stage {part.stage}): its weights, gradients and optimizer states")
        ledger.tokens = part.workload.tokens_per_step
        stand = stand_of(part, device, marks)
        report("a first step")
        first_s = _wall_s(stand.step, device)
        report("a step whose memory is counted")
        memory = counted(stand, counter)
        report(f"{part.num_steps} timed steps of {len(stand.batch)} micro-batches")
        steps = [_timed(stand, ledger, part.crowd) for _ in range(part.num_steps)]
        idle_s = idle_in_step_s(stand.step) if device.type == "cuda" else None
        found = _rehearsal(part, stand, steps, memory, idle_s)
        stand.mesh.close()
    return found if counter else replace(found, first_step_s=first_s)  # counting slows a step


def stand_of(part: Part, device: torch.device, marks: Boundaries) -> Stand:
    """The rank with first weights and a batch of made-up tokens; a default process group must be there."""
    model, layout = part.model, part.layout
    ends_meet = layout.vp > 1 or model.ends_share_table
    mesh = make_mesh(
        layout, device, marks, key_copies=model.key_copies(layout.tp), ends_meet=ends_meet, has_experts=model.experts is not None
    )
    replica = Rehearsed(part.model, part.workload, mesh, TRAINING)
    replica.fill_base(fill_piece)
    replica.fill_weights(fill_piece)
    batch = [made_up_batch(part, mesh)] * replica.num_micro_batches
    return Stand(replica, mesh, marks, batch)


def made_up_batch(part: Part, mesh: Mesh) -> MicroBatch:
    """One micro-batch of random tokens; where documents are packed, two to a sequence."""
    workload, rng = part.workload, np.random.default_rng(SEED)
    shape = (part.layout.micro_batch, workload.seq_len)
    tokens, labels = (rng.integers(0, part.model.vocab_size, shape) for _ in range(2))
    documents = np.broadcast_to((np.arange(workload.seq_len) >= workload.seq_len // 2).astype(np.int64), shape).copy()
    num_ahead = part.model.num_prediction_layers
    return micro_batch((tokens, labels, documents), range(part.layout.micro_batch), workload, mesh, num_ahead=num_ahead)


def counted(stand: Stand, counter: CpuMemory | None) -> RankMemory:
    """Take a step and count its memory; on a processor by a counter that was started before the rank was made."""
    marks, replica = stand.marks, stand.replica
    if counter is not None:
        counter.watch(replica)
    recorder = counter or GpuMemory(replica, lambda: marks.doing)
    marks.at = recorder.note
    stand.step()
    marks.at = None
    return peak_of(recorder.moments())


@dataclass(frozen=True, slots=True)
class _Step:
    """Seconds of one step: of its operations in order, of its end and of the optimizer; and of stand-ins."""

    operations_s: list[float]
    end_s: float
    optimizer_s: float
    step_s: float
    stand_in_s: float


def _timed(stand: Stand, ledger: Ledger, crowd: float) -> _Step:
    watch = Stopwatch(stand.mesh.device, ledger)
    stand.marks.at = watch.note
    stand.step()
    stand.marks.at = None
    stand.mesh.timer.later()  # nobody asks for the trainer's own times
    between = watch.read()
    *operations, end, update = between
    return _Step(
        [crowd * seconds for seconds, _ in operations],
        crowd * end[0],
        crowd * update[0],
        crowd * sum(seconds for seconds, _ in between),
        crowd * sum(stand_in_s for _, stand_in_s in between),
    )


def _rehearsal(part: Part, stand: Stand, steps: Sequence[_Step], memory: RankMemory, idle_s: float | None) -> Rehearsal:
    device = stand.mesh.device
    return Rehearsal(
        rank=part.rank,
        stage=part.stage,
        device=name_of(device),
        device_type=device.type,
        torch=torch.__version__,
        date=date.today().isoformat(),
        num_steps=len(steps),
        num_micro_batches=len(stand.batch),
        chunks=_chunk_times(stand, steps),
        end_s=statistics.median(step.end_s for step in steps),
        optimizer_s=statistics.median(step.optimizer_s for step in steps),
        step_s=statistics.median(step.step_s for step in steps),
        stand_in_s=statistics.median(step.stand_in_s for step in steps),
        idle_s=idle_s,
        memory=memory,
        crowd=part.crowd,
    )


def _chunk_times(stand: Stand, steps: Sequence[_Step]) -> tuple[ChunkTime, ...]:
    """Medians over micro-batches and steps."""
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        for operation, taken_s in zip(stand.replica.stage.operations, step.operations_s, strict=True):
            seconds[operation.kind, operation.chunk].append(taken_s)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    found = []
    for number, chunk in enumerate(stand.replica.stage.chunks):
        weight_s = median.get((WEIGHT, number), 0.0)
        both = median[FORWARD, number], median[BACKWARD, number] + weight_s
        found.append(ChunkTime(chunk=number, num_layers=len(chunk.layers), forward_s=both[0], backward_s=both[1], weight_s=weight_s))
    return tuple(found)


def _wall_s(step: Callable[[], None], device: torch.device) -> float:
    started_s = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_s


def device_here() -> torch.device:
    """The first GPU, or the processor."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def share_cores(num_ranks: int) -> float:
    """Use as many threads as the trainer gives one of so many ranks on this machine; how many threads then share a core."""
    if "OMP_NUM_THREADS" not in os.environ:  # torch has taken the user's own value
        torch.set_num_threads(max(num_cores() // num_ranks, 1))
    return max(num_ranks * torch.get_num_threads() / num_cores(), 1.0)


def name_of(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def room_of(device: torch.device) -> float:
    """Bytes of memory that the device has."""
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else memory_bytes()


def check_room(predicted: StageMemory, room_bytes: float, name: str, device_type: str) -> None:
    """Refuse a rank that is far too large for the device; on a processor also one that is a little: it would take others' memory."""
    static = {"weights": predicted.weights_bytes, "gradients": predicted.gradients_bytes, "optimizer": predicted.optimizer_bytes}
    far = predicted.peak_bytes > (FAR if device_type == "cuda" else 1.0) * room_bytes
    if not far and sum(static.values()) <= room_bytes:
        return
    largest = max(predicted.parts, key=lambda one: predicted.parts[one])
    parts = ", ".join(f"{one} {gib(size)}" for one, size in predicted.parts.items())
    raise FitError(
        f"a rank of stage {predicted.stage} should need {gib(predicted.peak_bytes)} at its peak, and {name} has {gib(room_bytes)}; "
        f"predicted: {parts}. It was not tried",
        where=f"memory of {name}",
        fix=f"{ADVICE[largest]}; or rehearse on a larger device",
    )


@contextmanager
def _told(part: Part, device: torch.device, marks: Boundaries) -> Iterator[None]:
    """Turn a failed allocation into an error that says what the rank was doing."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in FULL):
            raise
        doing = "its weights, gradients and optimizer states were made" if marks.doing == "starting" else marks.doing
        taken = (
            f"{gib(float(torch.cuda.max_memory_allocated(device)))} were in use at most" if device.type == "cuda" else "the memory was full"
        )
        raise FitError(
            f"rank {part.rank} (stage {part.stage}) ran out of memory, in: {doing}; {taken}",
            where=f"memory of {name_of(device)}: {gib(room_of(device))}",
            fix="split the rank's part further (tp, pp, cp), share its states out (zero), lower mbs, or recompute=full",
        ) from None
