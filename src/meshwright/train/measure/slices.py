"""The trainer's own step on a few layers of a model: the time of a layer, and the time of the rest.

Two replicas, one with few layers and one with more, take turns, so that both run at the same clock and temperature. Their difference is the
time of the layers between them; the rest is the time of the ends. Both run as in training: compiled, with loss, norm and update.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from meshwright.describe.model import Model
from meshwright.describe.profile import Slice
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Adapters, Training, Workload
from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.plan.stack.own import check_trainable
from meshwright.predict.footprint import stages
from meshwright.predict.layer_work import layers_alike
from meshwright.train.kernels.runs import runs_of
from meshwright.train.measure.clock import now_s, release, synchronize
from meshwright.train.model.attention import Context
from meshwright.train.model.initial import apart, initial_weights
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import NUMBERS, Replica
from meshwright.units import gib

FEW, MORE = 2, 12  # layers: far apart, because noise in one of the two steps matters more if their difference is small
FEWEST = (1, 2)  # layers, where memory allows no more
ROOM = 0.85  # share of a GPU's memory that both replicas of a slice may use; the rest is for other processes that wait
WARM_STEPS = {"cuda": 2, "cpu": 1}  # the first compiles, the second allocates its memory
BLOCK_STEPS = {"cuda": 2, "cpu": 1}  # between two readings of the clock
ROUNDS, FEWEST_ROUNDS = 4, 2
TRAINING = Training(learning_rate=1e-4)
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The slice to be measured."""

    model: Model
    precision: str  # one that the trainer supports
    micro_batch: int
    seq_len: int
    packed: bool = False
    recompute: str = "none"
    adapters: Adapters | None = None  # beside a frozen base
    tp: int = 1  # ranks that share each layer; the default group must have tp x pp ranks
    pp: int = 1  # stages; a step then has as many micro-batches, so that the mean work of a rank is that of one micro-batch

    @property
    def words(self) -> str:
        """The slice in words."""
        again = f", {self.recompute} recompute" if self.recompute != "none" else ""
        tuned = f", adapters of rank {self.adapters.rank} and {self.adapters.base} base" if self.adapters else ""
        shared = "".join(f", {axis}={degree}" for axis, degree in (("tp", self.tp), ("pp", self.pp)) if degree > 1)
        return f"{self.model.name} in {self.precision}, {self.micro_batch} x {self.seq_len} tokens{tuned}{again}{shared}"

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
            adapters=self.adapters,
        )

    @property
    def alike(self) -> Model:
        """The model whose layers are cut: leading dense layers are left out, so that one layer more is one with experts."""
        return layers_alike(self.model)

    @property
    def layout(self) -> Layout:
        """The layout of the ranks."""
        return Layout(tp=self.tp, pp=self.pp, micro_batch=self.micro_batch, zero_stage=0, recompute=self.recompute)

    def check(self) -> None:
        """Raise an error if the trainer cannot run this slice. It has fewer layers than its model, and as many as its stages need."""
        check_trainable(replace(self.alike.cut_to(self.pp), name=self.model.name), self.workload, self.layout)

    @property
    def refusal(self) -> str:
        """Why the trainer cannot run this slice; empty if it can."""
        try:
            self.check()
        except InputError as error:
            return error.what
        return ""


class Runner:
    """A replica of some layers of a model with random weights, and one batch for it."""

    def __init__(self, cut: Cut, num_layers: int, device: torch.device) -> None:
        model = cut.alike.cut_to(num_layers)
        self.device, self.num_layers = device, num_layers
        self.mesh: Mesh = make_mesh(cut.layout, device, key_copies=model.key_copies(cut.tp), has_experts=model.experts is not None)
        self.replica = Replica(model, cut.workload, self.mesh, TRAINING)
        first = initial_weights(cut.model, SEED)
        first = apart(first) if model.experts else first  # so that a router spreads tokens as one does in training
        self.replica.fill_base(first)
        self.replica.fill_weights(first)
        self.num_parameters = sum(piece.tensor.numel() for piece in self.replica.weights()) if cut.adapters else model.num_parameters
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
    context = Context(positions=torch.arange(cut.seq_len, device=device), samples=torch.arange(cut.micro_batch, device=device))
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one runner; all 0 on a processor, where they are not counted."""

    state: float = 0.0  # that stay between steps
    kept: float = 0.0  # that layers left for their backward, and the last hidden states, when the head begins
    loss: float = 0.0  # at most while the head runs
    peak: float = 0.0  # at most from there on


def layers_that_fit(cut: Cut, room_bytes: float) -> tuple[int, int]:
    """Two numbers of layers whose replicas fit into this memory together: few, and as many more as fit."""
    for pair in [(FEW, more) for more in range(MORE, FEW + 1, -1)] + [FEWEST]:
        few, more = (stages(cut.alike.cut_to(count), cut.workload, cut.layout, recipe(cut.precision), is_own=True)[0] for count in pair)
        waiting_bytes = few.weights_bytes + few.optimizer_bytes + few.gradients_bytes
        if waiting_bytes + more.peak_bytes <= room_bytes:
            return pair
    raise InputError(
        f"one and two layers of {cut.model.name} need more memory than {gib(room_bytes)}",
        where="the slices of the training step",
        fix="measure with shorter sequences (--seq), or in bf16-pure (--precision)",
    )


def room_of(device: torch.device) -> float:
    """Bytes of a GPU that the replicas of a slice may use."""
    return ROOM * torch.cuda.get_device_properties(device).total_memory


def slice_of(
    cut: Cut, device: torch.device, *, layers: tuple[int, int] | None = None, rounds: int = ROUNDS, within_s: float = math.inf
) -> Slice:
    """The times of a slice of a model with one batch in one precision; with fewer rounds if all would take longer than `within_s`.

    Without `layers`, as many as fit into the memory of a GPU.
    """
    until_s = time.perf_counter() + within_s
    runners, counted = [], []
    try:
        for count in layers or (layers_that_fit(cut, room_of(device)) if device.type == "cuda" else (FEW, MORE)):
            runner, memory = _warm(cut, count, device)
            runners.append(runner)
            counted.append(memory)
        times = _in_turn(runners, device, rounds, until_s)
        return _slice(cut, runners, times, counted)
    finally:
        for runner in runners:
            runner.close()
        runners.clear()
        release(device)


def _warm(cut: Cut, num_layers: int, device: torch.device) -> tuple[Runner, Memory]:
    """A runner that has taken its first steps, and its bytes."""
    release(device)
    before = _allocated(device)
    runner = Runner(cut, num_layers, device)
    synchronize(device)
    state_bytes = _allocated(device) - before
    for _ in range(WARM_STEPS[device.type]):
        runner.step()
    return runner, _memory(runner, before, state_bytes) if device.type == "cuda" else Memory()


def _memory(runner: Runner, before: int, state_bytes: int) -> Memory:
    """The bytes of one more step, read when the head begins and when it is done."""
    device, seen = runner.device, []
    head = runner.replica.stage.chunks[-1].head
    assert head is not None, "a slice holds a whole model"

    def begin(module: nn.Module, given: object) -> None:
        seen.append(torch.cuda.memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)

    def done(module: nn.Module, given: object, out: object) -> None:
        seen.append(torch.cuda.max_memory_allocated(device))

    hooks = [head.register_forward_pre_hook(begin), head.register_forward_hook(done)]
    runner.step()
    synchronize(device)
    for hook in hooks:
        hook.remove()
    held = before + state_bytes
    return Memory(state_bytes, seen[0] - held, seen[1] - held, torch.cuda.max_memory_allocated(device) - held)


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


def _slice(cut: Cut, runners: list[Runner], times: list[_Times], counted: Sequence[Memory]) -> Slice:
    model = cut.alike
    few, more = (runner.num_layers for runner in runners)
    work_s = [taken.step_s - taken.update_s for taken in times]
    layer_s = (work_s[1] - work_s[0]) / (more - few)
    if layer_s <= 0:  # the machine was disturbed: the step with more layers is then more reliable
        layer_s = work_s[1] / (more + 1)
    saved = max((counted[1].kept - counted[0].kept) / (more - few), 0.0)
    state = max((counted[1].state - counted[0].state) / (more - few), 0.0)
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
        state_bytes_per_parameter=counted[1].state / runners[1].num_parameters,
        layer_saved_bytes=saved,
        ends_bytes=max(counted[1].loss - more * saved, 0.0),
        latent=model.latent,
        experts=model.experts,
        adapters=cut.adapters,
        work_bytes=_work_bytes(cut, runners, counted[1], saved),
        layer_state_bytes=state,
        ends_state_bytes=max(counted[1].state - more * state, 0.0),
        tp=cut.tp,
        pp=cut.pp,
    )


def _work_bytes(cut: Cut, runners: Sequence[Runner], memory: Memory, saved: float) -> float:
    """Bytes that the backward of a layer takes besides gradients and what layers left; 0 if the peak of the step shows them nowhere.

    A step is fullest at the loss, in the backward of its last or first layer, or when all gradients are there.
    """
    model, more = cut.alike.cut_to(runners[1].num_layers), runners[1].num_layers
    element_bytes = NUMBERS[cut.precision].compute.itemsize
    per_layer = (runners[1].num_parameters - runners[0].num_parameters) / (more - runners[0].num_layers)
    head, table = (0, 0) if cut.adapters else (model.head_parameters, 0 if model.tied_embeddings else model.embedding_parameters)
    begun, ended, whole = (element_bytes * (head + part) for part in (per_layer, more * per_layer, more * per_layer + table))
    least = max(memory.loss, whole + element_bytes * model.hidden * cut.micro_batch * cut.seq_len)
    return max(memory.peak - max(more * saved + begun, saved + ended), 0.0) if memory.peak > least else 0.0


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
