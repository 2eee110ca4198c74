"""One rank's part of the model under a layout, ready to take steps: chunks, reductions, optimizer.

A step reads as the algorithm: every micro-batch forward and backward, gradients summed, clipped by the global norm, applied. Loss is
summed over tokens and divided by the tokens of the whole batch, so that the result is the same however the batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.describe.workload import Training, Workload
from meshwright.errors import InputError
from meshwright.plan.stack.own import check_trainable
from meshwright.predict.traffic import BUCKET_PARAMETERS, SMALLEST_BUCKETS
from meshwright.train.checkpoint import Piece
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels import flash_attention, fp8
from meshwright.train.kernels.fused_loss import summed_loss_in_fp8
from meshwright.train.kernels.layer_functions import HAS_KERNELS
from meshwright.train.model.compiled import compile_layers, compiles
from meshwright.train.model.transformer import Attention, Block, Transformer
from meshwright.train.parallel import context as context_parallel
from meshwright.train.parallel import tensor as tensor_parallel
from meshwright.train.parallel.alone import Alone
from meshwright.train.parallel.buckets import DataParallel, Numbers, add_across_tensor_ranks
from meshwright.train.parallel.fully_sharded import FullySharded
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.optimizer import AdamW
from meshwright.train.parallel.pipeline import MicroBatch, Stage, make_chunks
from meshwright.train.parallel.shards import Shard, square_sum

NUMBERS = {
    "fp32": Numbers(),
    "bf16": Numbers(compute=torch.bfloat16),
    "bf16-pure": Numbers(compute=torch.bfloat16, gradient=torch.bfloat16, state=torch.bfloat16),
    "fp8-current": Numbers(compute=torch.bfloat16, fp8=True),
    "fp8-current-pure": Numbers(compute=torch.bfloat16, gradient=torch.bfloat16, state=torch.bfloat16, fp8=True),
}

Fill = Callable[[Piece], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave, over all ranks."""

    loss: float  # per token that carries loss
    grad_norm: float
    num_tokens: int  # that carry loss
    stops: bool = False  # whether any rank was asked to stop
    own_norms: tuple[float, ...] = ()  # of each rank's gradients before replicas are summed; 0 where they are not known (ZeRO 3)
    own_losses: tuple[float, ...] = ()  # summed on each rank; 0 where a rank computes none
    saves: bool = False  # whether a checkpoint is due by rank 0's clock

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Rider(Protocol):
    """Numbers of every rank that travel with a sum: each has a row that the others leave at zero."""

    @property
    def values(self) -> tuple[float, ...]:
        """This rank's."""
        ...

    def arrive(self, everyones: Tensor) -> None:
        """Take the numbers of all ranks."""


class Replica:
    """This rank's chunks of the model, and what is needed to train them."""

    def __init__(self, model: Model, workload: Workload, mesh: Mesh, training: Training) -> None:
        layout = mesh.layout
        check_trainable(model, workload, layout)
        key_copies = mesh.same_keys.size if mesh.same_keys else 1
        assert key_copies == model.key_copies(layout.tp), "make_mesh must be given Model.key_copies"
        self.model, self.workload, self.mesh, self.training = model, workload, mesh, training
        self.numbers = NUMBERS[workload.precision]
        self.num_micro_batches = layout.num_micro_batches(workload.global_batch)
        num_tokens = workload.seq_len // layout.cp
        self.attention = chosen_attention(model, workload, mesh, self.numbers)
        chunks = make_chunks(model, mesh)
        for chunk in chunks:
            tensor_parallel.split(chunk, mesh.tp)
            context_parallel.split(chunk, mesh.cp, layout.cp_kind, workload.seq_len)
            set_recompute(chunk, layout.recompute)
            if self.numbers.fp8:
                use_fp8(chunk, mesh)
        self.data = [self._data_parallel(chunk) for chunk in chunks]
        if compiles(mesh.layout, mesh.device):
            for chunk in chunks:
                compile_layers(chunk)
        shape = (layout.micro_batch, num_tokens // layout.tp, model.hidden)
        self.stage = Stage(mesh, chunks, self.num_micro_batches, shape, self.numbers.compute)
        self.shards: list[Shard] = [shard for data in self.data for shard in data.shards]
        self.tied = [shard for shard in self.shards if model.tied_embeddings and layout.pp > 1 and _holds(shard, "embed.weight")]
        for shard in self.tied:
            shard.counted = mesh.pp.index == 0
        self.optimizer = AdamW(self.shards, training)
        self.rider: Rider | None = None  # values that every rank sends the others with the next sum
        self.wants_stop: Callable[[], bool] = bool  # whether this rank was asked to stop; all ranks learn it with the step's sum
        self.wants_save: Callable[[], bool] = bool  # whether this rank's clock says that a checkpoint is due: likewise

    def gradients(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Forward and backward of one batch; summed gradients are left in the shards, to be divided by the tokens."""
        for data in self.data:
            data.start()
        nominal = self.workload.tokens_per_step
        losses = self.stage.run(batch, self.data[0].loss_scale / nominal, self._add_gradient, self._before)
        for data in self.data:
            data.finish()
        add_across_tensor_ranks(self.shards, self.mesh)
        self._add_across_tied_ends()
        counted = [(micro_batch.labels != IGNORED_LABEL).sum() for micro_batch in batch]
        return self._summed(losses, counted, nominal)

    def update(self, result: StepResult, learning_rate: float) -> None:
        """Apply the gradients that `gradients` left, clipped by their global norm."""
        scale = self.workload.tokens_per_step / result.num_tokens
        if self.training.clip_norm and result.grad_norm > self.training.clip_norm:
            scale *= self.training.clip_norm / result.grad_norm
        with self.mesh.timer.part("optimizer"), torch.no_grad():
            self.optimizer.step(learning_rate, scale)
        for data in self.data:
            data.publish()

    def evaluate(self, batch: Sequence[MicroBatch]) -> tuple[float, int]:
        """Summed loss and tokens of micro-batches, over all ranks, nothing learned."""
        losses = self.stage.evaluate(batch, self._before)
        counted = [(micro_batch.labels != IGNORED_LABEL).sum() for micro_batch in batch]
        nothing = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        (loss, tokens, *_), _ = self._world_sum(losses, counted, nothing, nothing)
        return loss, round(tokens)

    def weights(self) -> Iterator[Piece]:
        """This rank's pieces of the weights, in the optimizer's precision."""
        for shard in self.shards:
            yield from shard.pieces(shard.values, "weights")

    def state(self) -> Iterator[Piece]:
        """Everything of this rank that a checkpoint holds: weights and both moments."""
        for shard, mean, square in zip(self.shards, self.optimizer.means, self.optimizer.squares, strict=True):
            yield from shard.pieces(shard.values, "weights")
            yield from shard.pieces(mean, "adam_mean")
            yield from shard.pieces(square, "adam_square")

    def owned_state(self) -> Iterator[Piece]:
        """The pieces of `state` that this rank saves: of copies, the first rank's."""
        for piece in self.state():
            if self._owns(piece.name.partition("/")[2]):
                yield piece

    def fill_weights(self, fill: Fill) -> None:
        """Draw or load the weights, piece by piece, and bring them to all ranks."""
        with torch.no_grad():
            for piece in self.weights():
                fill(piece)
        self.publish()

    def publish(self) -> None:
        """Bring values that were written into the shards into the weights."""
        with torch.no_grad():
            for shard in self.shards:
                shard.renew_copy()
            for data in self.data:
                data.publish()

    def set_num_updates(self, number: int) -> None:
        """Set how many updates the optimizer's moments have seen."""
        self.optimizer.num_updates = number

    def ready(self) -> None:
        """Wait for weights that are on their way."""
        for data in self.data:
            data.ready()

    def _data_parallel(self, chunk: Transformer) -> Alone | DataParallel | FullySharded:
        # A rank alone needs no buckets, unless gradients are to be added up in another precision than they come in.
        if self.mesh.num_replicas == 1 and (self.numbers.gradient == self.numbers.compute or self.num_micro_batches == 1):
            return Alone(chunk, self.mesh, self.numbers)
        if self.mesh.layout.zero_stage == 3 and self.mesh.num_replicas > 1:
            return FullySharded(chunk, self.mesh, self.numbers)
        size = sum(parameter.numel() for parameter in chunk.parameters())
        most = max(min(BUCKET_PARAMETERS, size // SMALLEST_BUCKETS), 1)
        return DataParallel(chunk, self.mesh, self.numbers, self.num_micro_batches, most)

    def _add_gradient(self, chunk: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        data = self.data[chunk]
        assert not isinstance(data, FullySharded), "check_trainable refuses to put off what fully_shard reduces"
        data.add(parameter, gradient)

    def _before(self, chunk: int) -> None:
        self.data[chunk].ready()

    def _add_across_tied_ends(self) -> None:
        """Add the embedding's and the head's gradients of one tied table, which stand on the first and the last stage."""
        axis = self.mesh.pp
        other = axis.size - 1 - axis.index
        for shard in self.tied:
            assert shard.gradient is not None, "every backward reaches the table"
            theirs = torch.empty_like(shard.gradient)
            works = [
                dist.isend(shard.gradient, axis.ranks[other], group=self.mesh.lane(axis.index, other)),
                dist.irecv(theirs, axis.ranks[other], group=self.mesh.lane(other, axis.index)),
            ]
            for work in works:
                axis.wait(work, "gradients of the tied table")
            shard.gradient.add_(theirs)

    def _summed(self, losses: Sequence[Tensor], counted: Sequence[Tensor], nominal: int) -> StepResult:
        squares = square_sum(self.shards, self.mesh.tp.index)
        (loss, tokens, total, stops, saves), own = self._world_sum(losses, counted, squares, self._own_squares(squares))
        num_tokens = round(tokens) if math.isfinite(tokens) else 0
        if num_tokens == 0:
            raise InputError("no token of the batch carries loss", where="corpus", fix="use longer documents")
        scale = nominal / num_tokens
        return StepResult(
            loss=loss / num_tokens,
            grad_norm=math.sqrt(total) * scale,
            num_tokens=num_tokens,
            stops=stops > 0,
            saves=saves > 0,
            own_norms=tuple(math.sqrt(squares) * scale for squares, _ in own),
            own_losses=tuple(loss for _, loss in own),
        )

    def _own_squares(self, summed: Tensor) -> Tensor:
        """Squares of this rank's gradients before replicas were summed: those of its shards, where it has no replicas."""
        if self.mesh.num_replicas == 1:
            return summed
        found = [squares for data in self.data if isinstance(data, DataParallel) for squares in data.own_squares]
        return torch.stack(found).sum() if found else torch.zeros_like(summed)

    def _world_sum(
        self, losses: Sequence[Tensor], counted: Sequence[Tensor], squares: Tensor, own_squares: Tensor
    ) -> tuple[list[float], list[list[float]]]:
        """Loss, tokens, squares of gradients, wishes to stop and to save over all ranks; and each rank's own squares and loss.

        All in one message: what is each rank's own is in a row that the others leave at zero.
        """
        rider, self.rider = self.rider, None
        riding = rider.values if rider else ()
        is_gpu = self.mesh.device.type == "cuda"
        num_ranks = dist.get_world_size()
        sent = torch.zeros(5 + (2 + len(riding)) * num_ranks, dtype=torch.float64, pin_memory=is_gpu)
        sent[3], sent[4] = float(self.wants_stop()), float(self.wants_save())
        if rider:
            sent[5 + 2 * num_ranks :].view(-1, len(riding))[self.mesh.rank] = torch.tensor(riding, dtype=torch.float64)
        totals = sent.to(self.mesh.device, non_blocking=True)  # a GPU is still at the backward, and all that follows is to wait there
        own = totals[5 : 5 + 2 * num_ranks].view(-1, 2)
        if losses:  # the last stage alone; its tensor-parallel ranks all know the same
            totals[0] = torch.stack([loss.double() for loss in losses]).sum() / self.mesh.tp.size
            totals[1] = torch.stack(list(counted)).sum() / self.mesh.tp.size
            own[self.mesh.rank, 1] = totals[0]
        totals[2] = squares
        own[self.mesh.rank, 0] = own_squares
        marks = self.mesh.marks
        marks.enter("sum of loss and norm", "world", range(num_ranks))
        with self.mesh.timer.part("wait_end"):
            dist.all_reduce(totals)
        marks.leave()
        found = totals.cpu()
        if rider:
            rider.arrive(found[5 + 2 * num_ranks :].view(-1, len(riding)))
        return found[:5].tolist(), found[5 : 5 + 2 * num_ranks].view(-1, 2).tolist()

    def _owns(self, name: str) -> bool:
        """Whether this rank saves its pieces of a parameter: the first of those that hold the same."""
        layout, mesh = self.mesh.layout, self.mesh
        sharded = layout.zero_stage > 0 and mesh.shard.size > 1
        first_replica = mesh.replicate.index == 0 and (sharded or mesh.shard.index == 0)
        num_same = tensor_parallel.copies_of(name, self.model.key_copies(layout.tp))
        first_of_tensor = mesh.tp.index % num_same == 0 if tensor_parallel.cut_dim(name) is not None else mesh.tp.index == 0
        is_copy = self.model.tied_embeddings and name == "embed.weight" and mesh.pp.index > 0
        return first_replica and first_of_tensor and not is_copy


def _holds(shard: Shard, name: str) -> bool:
    return any(cut.name == name for cut, *_ in shard.spans)


def chosen_attention(model: Model, workload: Workload, mesh: Mesh, numbers: Numbers) -> str:
    """The package and version that computes attention, if not torch: where one is installed, usable in this layout and correct."""
    layout = mesh.layout
    is_whole = layout.cp == 1 or layout.cp_kind == "all-to-all"  # other kinds write attention out piece by piece
    if numbers.compute != flash_attention.DTYPE or workload.packed or not is_whole:
        return ""
    return flash_attention.prepare(model.num_heads, model.num_kv_heads, model.head_dim, workload.seq_len, mesh.device)


def use_fp8(chunk: Transformer, mesh: Mesh) -> None:
    """Let the matrix products of a chunk run in fp8: all of its layers, and the head where the vocabulary is not cut."""
    fp8.use_fp8(chunk, mesh.device, remakes=HAS_KERNELS and compiles(mesh.layout, mesh.device))
    if chunk.head is not None and mesh.tp.size == 1:
        chunk.head.summed_loss = summed_loss_in_fp8


def set_recompute(chunk: nn.Module, kind: str) -> None:
    """Choose what the backward recomputes: nothing, attention, or whole layers."""
    for module in chunk.modules():
        if isinstance(module, Block):
            module.recomputes = kind == "full"
        elif isinstance(module, Attention):
            module.recomputes = kind == "selective"
