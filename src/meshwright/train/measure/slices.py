"""The trainer's own step on a few layers of a model: the time of a layer, and the time of the rest.

Two replicas, one with few layers and one with more, take turns, so that both run at the same clock and temperature. Their difference is the
time of the layers between them; the rest is the time of the ends. Both run as in training: compiled, with loss, norm and update.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from meshwright.describe.model import Model
from meshwright.describe.profile import Slice
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Training, Workload
from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.plan.stack.own import check_trainable
from meshwright.train.kernels.runs import runs_of
from meshwright.train.measure.clock import now_s, release, synchronize
from meshwright.train.model.attention import Context
from meshwright.train.model.initial import fill_piece
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import NUMBERS, Replica

FEW, MORE = 2, 12  # layers: far apart, because noise in one of the two steps matters more if their difference is small
WARM_STEPS = {"cuda": 2, "cpu": 1}  # the first compiles, the second allocates its memory
BLOCK_STEPS = {"cuda": 2, "cpu": 1}  # between two readings of the clock
ROUNDS, FEWEST_ROUNDS = 4, 2
TRAINING = Training(learning_rate=1e-4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The slice to be measured."""

    model: Model
    precision: str  # one that the trainer supports
    micro_batch: int
    seq_len: int
    packed: bool = False
    recompute: str = "none"
    tp: int = 1  # ranks that share each layer; the default group must have tp x pp ranks
    pp: int = 1  # stages; a step then has as many micro-batches, so that the mean work of a rank is that of one micro-batch

    @property
    def words(self) -> str:
        """The slice in words."""
        again = f", {self.recompute} recompute" if self.recompute != "none" else ""
        shared = "".join(f", {axis}={degree}" for axis, degree in (("tp", self.tp), ("pp", self.pp)) if degree > 1)
        return f"{self.model.name} in {self.precision}, {self.micro_batch} x {self.seq_len} tokens{again}{shared}"

    @property
    def workload(self) -> Workload:
        """The workload of one step."""
        return Workload(
            name="slice",
            model="",
            seq_len=self.seq_len,
            global_batch=self.micro_batch * self.pp,
            precision=self.precision,
            packed=self.packed,
        )

    @property
    def layout(self) -> Layout:
        """The layout of the ranks."""
        return Layout(tp=self.tp, pp=self.pp, micro_batch=self.micro_batch, zero_stage=0, recompute=self.recompute)

    @property
    def refusal(self) -> str:
        """Why the trainer cannot run this slice; empty if it can."""
        try:
            # A slice has fewer layers than its model, and as many as its stages need.
            check_trainable(replace(self.model.cut_to(self.pp), name=self.model.name), self.workload, self.layout)
        except InputError as error:
            return error.what
        return ""


class Runner:
    """A replica of some layers of a model with random weights, and one batch for it."""

    def __init__(self, cut: Cut, num_layers: int, device: torch.device) -> None:
        model = cut.model.cut_to(num_layers)
        self.device, self.num_layers = device, num_layers
        self.mesh: Mesh = make_mesh(cut.layout, device, key_copies=model.key_copies(cut.tp), has_experts=model.experts is not None)
        self.replica = Replica(model, cut.workload, self.mesh, TRAINING)
        self.replica.fill_weights(fill_piece)
        self.num_parameters = model.num_parameters
        self.batch = [random_batch(cut, device)] * cut.pp

    def step(self) -> None:
        """One step of the trainer."""
        self.replica.update(self.replica.gradients(self.batch), TRAINING.learning_rate)

    def close(self) -> None:
        """Release the weights and the groups."""
        mesh = self.mesh
        del self.replica, self.batch
        mesh.close()


def random_batch(cut: Cut, device: torch.device) -> MicroBatch:
    """Random tokens, the same in every call; if documents are packed, two to a sequence."""
    shape, generator = (cut.micro_batch, cut.seq_len), torch.Generator(device).manual_seed(1)
    tokens, labels = (torch.randint(0, cut.model.vocab_size, shape, device=device, generator=generator) for _ in range(2))
    context = Context(positions=torch.arange(cut.seq_len, device=device))
    if cut.packed:
        documents = (torch.arange(cut.seq_len, device=device) >= cut.seq_len // 2).long().expand(shape).contiguous()
        runs = runs_of(documents.cpu().numpy()).moved(lambda starts: starts.to(device))
        context = replace(context, documents=documents, everyones_documents=documents, runs=(runs,))
    return MicroBatch(tokens=tokens, labels=labels, context=context)


@dataclass(slots=True)
class _Times:
    """Seconds of a runner's steps, by block."""

    steps_s: list[float]
    updates_s: list[float]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def update_s(self) -> float:
        return statistics.median(self.updates_s)


def slice_of(
    cut: Cut, device: torch.device, *, layers: tuple[int, int] = (FEW, MORE), rounds: int = ROUNDS, within_s: float = math.inf
) -> Slice:
    """The times of a slice of a model with one batch in one precision; with fewer rounds if all would take longer than `within_s`."""
    until_s = time.perf_counter() + within_s
    runners, peaks, states = [], [], []
    try:
        for count in layers:
            runner, state_bytes, peak_bytes = _warm(cut, count, device)
            runners.append(runner)
            states.append(state_bytes)
            peaks.append(peak_bytes)
        times = _in_turn(runners, device, rounds, until_s)
        return _slice(cut, runners, times, states, peaks)
    finally:
        for runner in runners:
            runner.close()
        runners.clear()
        release(device)


def _warm(cut: Cut, num_layers: int, device: torch.device) -> tuple[Runner, float, float]:
    """A runner that has taken its first steps; the bytes that it keeps, and those that the peak of a step adds (both 0 on a processor)."""
    release(device)
    before = _allocated(device)
    runner = Runner(cut, num_layers, device)
    synchronize(device)
    state_bytes = _allocated(device) - before
    for _ in range(WARM_STEPS[device.type]):
        runner.step()
    if device.type != "cuda":
        return runner, 0.0, 0.0
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    runner.step()
    synchronize(device)
    return runner, state_bytes, torch.cuda.max_memory_allocated(device) - before - state_bytes


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _in_turn(runners: list[Runner], device: torch.device, rounds: int, until_s: float = math.inf) -> list[_Times]:
    """Times of the steps of runners, which take turns: at least the fewest rounds, and as many more as can begin before `until_s`."""
    times, count = [_Times([], []) for _ in runners], BLOCK_STEPS[device.type]
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() >= until_s:
            break
        for runner, taken in zip(runners, times, strict=True):
            step_s, update_s = (_timed_on_stream if device.type == "cuda" else _timed_on_cores)(runner, count)
            taken.steps_s.append(step_s)
            taken.updates_s.append(update_s)
    return times


def _timed_on_stream(runner: Runner, count: int) -> tuple[float, float]:
    """Seconds of a step, and of its update as the trainer's own timer gives it; steps follow each other as in training."""
    runner.mesh.timer.take()
    synchronize(runner.device)
    started_s = time.perf_counter()
    for _ in range(count):
        runner.step()
    synchronize(runner.device)
    step_s = (time.perf_counter() - started_s) / count
    return step_s, sum(runner.mesh.timer.take()["optimizer"]) / count


def _timed_on_cores(runner: Runner, count: int) -> tuple[float, float]:
    """The same, with the clock for shared processors."""
    step_s = update_s = 0.0
    for _ in range(count):
        started_s = now_s()
        result = runner.replica.gradients(runner.batch)
        middle_s = now_s()
        runner.replica.update(result, TRAINING.learning_rate)
        step_s, update_s = step_s + now_s() - started_s, update_s + now_s() - middle_s
    return step_s / count, update_s / count


def _slice(cut: Cut, runners: list[Runner], times: list[_Times], states: list[float], peaks: list[float]) -> Slice:
    model = cut.model
    few, more = (runner.num_layers for runner in runners)
    work_s = [taken.step_s - taken.update_s for taken in times]
    layer_s = (work_s[1] - work_s[0]) / (more - few)
    if layer_s <= 0:  # the machine was disturbed: the step with more layers is then more reliable
        layer_s = work_s[1] / (more + 1)
    saved = max((peaks[1] - peaks[0]) / (more - few), 0.0)
    return Slice(
        model=model.name,
        hidden=model.hidden,
        ffn_hidden=model.ffn_hidden,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        tied=model.tied_embeddings,
        gated=model.gated,
        precision=cut.precision,
        number_format=number_format(cut.precision),
        packed=cut.packed,
        recompute=cut.recompute,
        micro_batch=cut.micro_batch,
        seq_len=cut.seq_len,
        num_layers=(few, more),
        steps_s=(work_s[0], work_s[1]),
        layer_s=layer_s,
        ends_s=max(work_s[1] - more * layer_s, 1e-9),
        num_parameters=(runners[0].num_parameters, runners[1].num_parameters),
        updates_s=(times[0].update_s, times[1].update_s),
        state_bytes_per_parameter=states[1] / runners[1].num_parameters,
        layer_saved_bytes=saved,
        ends_bytes=max(peaks[1] - more * saved, 0.0),
        tp=cut.tp,
        pp=cut.pp,
    )


def number_format(precision: str) -> str:
    """The number format of the products in a recipe of the trainer."""
    return recipe(precision).profile_format


def runs(precision: str) -> bool:
    """Whether the trainer supports a precision."""
    return precision in NUMBERS


def alone(device: torch.device) -> Callable[[], None]:
    """Make a process group of this process alone, because the trainer needs one; undo it at the end."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1, device_id=device if is_gpu else None
    )
    return dist.destroy_process_group
