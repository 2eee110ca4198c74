"""One rank's part of the model under a layout: chunks, reductions, optimizer.

A step follows the algorithm: forward and backward of every micro-batch, sum of the gradients, clipping by the global norm, update. The loss
is summed over tokens and divided by the tokens of the whole batch, so that the result does not depend on how the batch is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.describe.workload import Training, Workload
from meshwright.plan.stack.own import check_trainable
from meshwright.predict.parameters import BUCKET_PARAMETERS, SMALLEST_BUCKETS
from meshwright.train.checkpoint import Piece
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels import attention_parts, flash_attention, fp8
from meshwright.train.kernels.fused_loss import summed_loss_in_fp8
from meshwright.train.kernels.layer_functions import HAS_KERNELS
from meshwright.train.membership import num_rounds
from meshwright.train.model.adapters import Dropout, add_adapters, take_keys
from meshwright.train.model.attention import Attention
from meshwright.train.model.compiled import compile_layers, compiles
from meshwright.train.model.experts import is_routed
from meshwright.train.model.transformer import Block, Transformer
from meshwright.train.parallel import context as context_parallel
from meshwright.train.parallel import expert as expert_parallel
from meshwright.train.parallel import tensor as tensor_parallel
from meshwright.train.parallel.alone import Alone
from meshwright.train.parallel.balance import Routers, Routing, is_untrained
from meshwright.train.parallel.batches import Deal
from meshwright.train.parallel.buckets import DataParallel, Numbers, add_across_tensor_ranks
from meshwright.train.parallel.digests import Digests
from meshwright.train.parallel.frozen import Frozen, connect
from meshwright.train.parallel.fully_sharded import FullySharded
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.optimizer import AdamW
from meshwright.train.parallel.pipeline import MicroBatch, Stage, make_chunks
from meshwright.train.parallel.shards import Shard, UsualPeaks, square_sum
from meshwright.train.sums import Gate, Graded, Own, Rider, StepResult, Sums, send, update_scale

NUMBERS = {
    "fp32": Numbers(),
    "bf16": Numbers(compute=torch.bfloat16),
    "bf16-pure": Numbers(compute=torch.bfloat16, gradient=torch.bfloat16, state=torch.bfloat16),
    "fp8-current": Numbers(compute=torch.bfloat16, fp8=True),
    "fp8-current-pure": Numbers(compute=torch.bfloat16, gradient=torch.bfloat16, state=torch.bfloat16, fp8=True),
}

Fill = Callable[[Piece], None]


class Replica:
    """This rank's chunks of the model, and what is needed to train them.

    `reads_late`: whether a GPU may be given the next step before the host has read the sums of this one.
    """

    def __init__(self, model: Model, workload: Workload, mesh: Mesh, training: Training, seed: int = 0, *, reads_late: bool = True) -> None:
        layout, adapters = mesh.layout, workload.adapters
        if workload.global_batch % (layout.dp * layout.micro_batch) == 0:  # a run that has lost a replica deals its batch unevenly
            check_trainable(model, workload, layout)
        key_copies = mesh.same_keys.size if mesh.same_keys else 1
        assert key_copies == model.key_copies(layout.tp), "make_mesh must be given Model.key_copies"
        self.model, self.workload, self.mesh, self.training = model, workload, mesh, training
        self.numbers = NUMBERS[workload.precision]
        self.num_micro_batches = num_rounds(layout, workload.global_batch)
        num_tokens = workload.seq_len // layout.cp
        self.attention = chosen_attention(model, workload, mesh, self.numbers)
        chunks = make_chunks(model, mesh)
        for chunk in chunks:
            chunk.prediction_weight = training.prediction_weight
        dropout = Dropout(adapters.dropout if adapters else 0.0, seed)
        for chunk in chunks:
            if adapters:
                add_adapters(chunk, adapters)
            tensor_parallel.split(chunk, mesh.tp, keeps_inputs=layout.recompute == "full")
            expert_parallel.split(chunk, mesh)
            context_parallel.split(chunk, mesh.cp, layout.cp_kind, workload.seq_len)
            set_recompute(chunk, layout.recompute)
            if self.numbers.fp8:
                use_fp8(chunk, mesh)
            if adapters:
                connect(chunk, adapters, dropout, mesh.tp, mesh.device)
        self.is_sharded = layout.zero_stage == 3 and mesh.shard.size > 1  # with one rank each, whole copies are summed as in ZeRO 0
        self.frozen = [Frozen(chunk, mesh, self.numbers, adapters.base) for chunk in chunks if adapters and not self.is_sharded]
        self.data = [self._data_parallel(chunk) for chunk in chunks]
        self.routers = Routers(model, chunks, mesh, training.balance)
        self._routed: Tensor | None = None  # what routers counted in the last step, summed, on the device
        for chunk in chunks:
            if compiles(mesh.layout, mesh.device):
                compile_layers(chunk, layout, packed=workload.packed)
            if dropout.share:
                take_keys(chunk, dropout)
        shape = (layout.micro_batch, num_tokens // layout.tp, model.hidden)
        self.stage = Stage(mesh, chunks, self.num_micro_batches, shape, self.numbers.compute)
        self.shards: list[Shard] = [shard for data in self.data for shard in data.shards]
        self.tied = [shard for shard in self.shards if model.ends_share_table and layout.pp > 1 and _holds(shard, "embed.weight")]
        for shard in self.tied:
            shard.counted = mesh.pp.index == 0
        self.optimizer = AdamW(self.shards, training)
        self._owes_trial = mesh.device.type == "cuda" and layout.pp > 1
        self.is_late = reads_late and self.optimizer.scales_on_device  # whether results of a step are read while the next one runs
        self._halted = torch.zeros((), dtype=torch.bool, device=mesh.device)  # on the device: a step gave no numbers
        self._digests = Digests(self._equal_tensors())
        self._peaks = UsualPeaks()
        self.gate: Gate | None = None  # decides which steps are applied; None: all that are finite
        self.rider: Rider | None = None  # values that every rank sends the others with the next sum
        self.is_cut: Callable[[], bool] = bool  # whether this rank was cut off from the others, because replicas change
        self.wants_stop: Callable[[], bool] = bool  # whether this rank was asked to stop; all ranks learn it with the step's sum
        self.wants_save: Callable[[], bool] = bool  # whether this rank's clock says that a checkpoint is due: likewise
        self.wants_change: Callable[[], bool] = bool  # whether replicas are to join or leave: likewise
        self.sums: Sums | None = None  # of the last step, and the learning rate of the step that was begun last
        self.rate = 0.0
        self.is_uncounted = False  # whether an update was applied that the loop has not counted yet

    def set_deal(self, deal: Deal) -> None:
        """Use another number of micro-batches on each replica from the next step on. All ranks must call it between the same steps.

        `deal_refusal` says for which layouts this is possible.
        """
        assert sum(deal) * self.mesh.layout.micro_batch >= self.workload.global_batch, "a deal gives each sample to a replica"
        self.num_micro_batches = deal[self.mesh.dp.index]
        self.stage.set_num_micro_batches(self.num_micro_batches)
        for data in self.data:
            if isinstance(data, DataParallel):
                data.num_contributions = self.num_micro_batches

    def gradients(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Forward and backward of one batch; summed gradients are left in the shards, to be divided by the tokens."""
        return self.launched(batch).result()

    def update(self, result: StepResult, learning_rate: float) -> None:
        """Apply the gradients that `gradients` left, clipped by their global norm."""
        self.update_shards(result, learning_rate)
        self._publish()

    def update_shards(self, result: StepResult, learning_rate: float) -> None:
        """The same without sending the new weights to other ranks: they may have gone."""
        self._apply(learning_rate, update_scale(result, self.workload.tokens_per_step, self.training.clip_norm))

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> Sums:
        """A whole step, whose update is left out where loss or gradients are not finite, or do not pass the gate.

        Where results come late the host does not wait for them: it may begin the next step before it reads what this one gave. A step that
        follows one that was left out changes nothing either, until `go_on` is called.
        """
        self.rate = learning_rate
        self.sums = sums = self.launched(batch)
        if self.is_late:
            self._apply(learning_rate, sums.scale(self.training.clip_norm, self._halted, self.gate))
            self._publish()
        elif (result := sums.result()).is_finite and (self.gate is None or self.gate.passes(result)):
            self.update(result, learning_rate)
        return sums

    def go_on(self, num_updates: int) -> None:
        """Apply steps again after one was left out. `num_updates` have been made; what was launched after them changed nothing."""
        self._halted.zero_()
        self.set_num_updates(num_updates)
        self.rider = None

    def launched(self, batch: Sequence[MicroBatch]) -> Sums:
        """Forward and backward of one batch, and the sums of it under way."""
        self._pay_trial(batch)
        for data in self.data:
            data.start()
        seed = self.data[0].loss_scale / self.workload.tokens_per_step
        self.routers.begin(seed)
        losses = self.stage.run(batch, seed, self._add_gradient, self._before, self._after)
        for data in self.data:
            data.finish()
        add_across_tensor_ranks(self.shards, self.mesh)
        self._add_across_tied_ends()
        squares = square_sum(self.shards, self.mesh.tp.index)
        sums = self._sent(losses, batch, squares, *self._own_measures(squares), routed=self.routers.counted())
        self._routed = sums.routed
        return sums

    def _pay_trial(self, batch: Sequence[MicroBatch]) -> None:
        if self._owes_trial and batch:
            self._owes_trial = False
            self.try_chunks(batch[0])

    def try_chunks(self, micro_batch: MicroBatch) -> None:
        """Run every chunk once by itself and drop its gradients: stages on GPUs need this before their first message.

        CUDA loads a kernel when it is first called, and may wait meanwhile for all that runs on the GPU. A receive runs until its message
        comes, so two stages that each load a kernel and wait for the other would wait for ever. What is compiled is compiled here, too.
        """
        for chunk, data in enumerate(self.data):
            data.ready()
            if isinstance(data, DataParallel):
                data.takes = False
            # A backward of fully sharded weights would sum gradients over the replicas: its kernels are loaded with the first step.
            self.stage.try_chunk(chunk, micro_batch, backward=not isinstance(data, FullySharded))
            if isinstance(data, DataParallel):
                data.takes = True
            elif isinstance(data, Alone):
                data.forget()
        if self.mesh.device.type == "cuda":
            torch.cuda.synchronize(self.mesh.device)

    def _sent(
        self,
        losses: Sequence[Tensor],
        batch: Sequence[MicroBatch],
        squares: Tensor,
        own_squares: Tensor,
        checks: Tensor | None = None,
        routed: Tensor | None = None,
        correct: Sequence[Tensor] = (),
    ) -> Sums:
        rider, self.rider = self.rider, None
        own = Own(
            losses=losses,
            counted=[(micro_batch.labels != IGNORED_LABEL).sum() for micro_batch in batch],
            squares=squares,
            own_squares=own_squares,
            checks=checks,
            routed=routed,
            stops=self.wants_stop(),
            saves=self.wants_save(),
            correct=correct,
            changes=self.wants_change(),
        )
        sums = send(own, self.mesh, self.workload.tokens_per_step, rider)
        sums.is_cut = self.is_cut
        return sums

    def _apply(self, learning_rate: float, scale: float | Tensor) -> None:
        with self.mesh.timer.part("optimizer"), torch.no_grad():
            self.optimizer.step(learning_rate, scale)
            if self._routed is not None and len(self._routed):
                self.routers.update(self._routed, torch.isfinite(scale) if isinstance(scale, Tensor) else True)
        self.is_uncounted = True

    def _publish(self) -> None:
        for data in self.data:
            data.publish()

    def evaluate(self, batch: Sequence[MicroBatch]) -> tuple[float, int]:
        """Summed loss and tokens of micro-batches, over all ranks, without training."""
        graded = self.graded(batch)
        return graded.loss, graded.num_tokens

    def graded(self, batch: Sequence[MicroBatch], *, counts_correct: bool = False) -> Graded:
        """The result of an evaluation over all ranks; counting tokens that are predicted correctly takes another product of the head."""
        self._pay_trial(batch)
        outs = self.stage.evaluate(batch, self._before, counts_correct=counts_correct)
        losses, correct = ([out[0] for out in outs], [out[1] for out in outs]) if counts_correct else (outs, [])
        nothing = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        loss, tokens, *_, num_correct = self._sent(losses, batch, nothing, nothing, correct=correct).values()
        return Graded(loss, round(tokens), round(num_correct) if counts_correct else None)

    def routing(self, sums: Sums) -> tuple[Routing, ...]:
        """What the routers of all layers did in a step; empty without experts. Waits for the device."""
        return self.routers.results(sums.routed_here(), self.workload.tokens_per_step) if sums.num_routed else ()

    def weights(self) -> Iterator[Piece]:
        """This rank's pieces of the weights, in the optimizer's precision."""
        for shard in self.shards:
            yield from shard.pieces(shard.values, "weights")
        yield from self._changing_biases()

    def state(self) -> Iterator[Piece]:
        """All state of this rank that a checkpoint contains: weights and both moments."""
        for shard, mean, square in zip(self.shards, self.optimizer.means, self.optimizer.squares, strict=True):
            yield from shard.pieces(shard.values, "weights")
            yield from shard.pieces(mean, "adam_mean")
            yield from shard.pieces(square, "adam_square")
        yield from self._changing_biases()
        yield from self.routers.state()

    def _changing_biases(self) -> Iterator[Piece]:
        """The selection biases of routers, which beside adapters are frozen with the rest of the base."""
        return self.routers.weights() if self.workload.adapters is None else iter(())

    def owned_state(self) -> Iterator[Piece]:
        """The pieces of `state` that this rank saves. If several ranks hold the same piece, the first of them saves it."""
        for piece in self.state():
            if self._owns(piece.name.partition("/")[2]):
                yield piece

    def fill_weights(self, fill: Fill) -> None:
        """Initialize or load the weights, piece by piece, and send them to all ranks."""
        with torch.no_grad():
            for piece in self.weights():
                fill(piece)
        self.publish()

    def fill_base(self, fill: Fill) -> None:
        """Load the weights that are not trained, piece by piece."""
        with torch.no_grad():
            for piece in self.routers.weights() if self.workload.adapters else ():
                fill(piece)
            for frozen in self.frozen:
                frozen.fill(fill)
            for data in self.data:
                for shard in data.frozen if isinstance(data, FullySharded) else ():
                    for piece in shard.pieces(shard.values, "weights"):
                        fill(piece)

    def publish(self) -> None:
        """Copy values that were written into the shards to the weights."""
        with torch.no_grad():
            for shard in self.shards:
                shard.renew_copy()
            for data in self.data:
                data.publish()

    def set_num_updates(self, number: int) -> None:
        """Set the number of updates that the optimizer's moments include."""
        self.optimizer.num_updates = number

    def ready(self) -> None:
        """Wait for weights that are still being received."""
        for data in self.data:
            data.ready()

    def _equal_tensors(self) -> list[Tensor]:
        """Tensors that all replicas hold alike: weights and, unless they are divided among replicas, moments."""
        parts = [data for data in self.data if isinstance(data, DataParallel)]
        held = [tensor for data in parts for tensor in data.equal()]
        alike = {id(shard) for data in parts for shard in data.equal_shards()}
        for moments in (self.optimizer.means, self.optimizer.squares):
            held += [moment for shard, moment in zip(self.shards, moments, strict=True) if id(shard) in alike]
        return held

    def _data_parallel(self, chunk: Transformer) -> Alone | DataParallel | FullySharded:
        # A single rank needs no buckets, unless gradients are added up in another precision than they are computed in.
        has_replicas = self.mesh.num_replicas > 1 or (self.model.experts is not None and self.mesh.expert_replicas.size > 1)
        if not has_replicas and (self.numbers.gradient == self.numbers.compute or self.num_micro_batches == 1):
            return Alone(chunk, self.mesh, self.numbers)
        if self.is_sharded:
            return FullySharded(chunk, self.mesh, self.numbers)
        size = sum(parameter.numel() for _, parameter in chunk.trained_parameters())
        most = max(min(BUCKET_PARAMETERS, size // SMALLEST_BUCKETS), 1)
        return DataParallel(chunk, self.mesh, self.numbers, self.num_micro_batches, most)

    def _add_gradient(self, chunk: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        data = self.data[chunk]
        assert not isinstance(data, FullySharded), "check_trainable refuses to put off what fully_shard reduces"
        data.add(parameter, gradient)

    def _before(self, chunk: int) -> None:
        self.data[chunk].before_forward()

    def _after(self, chunk: int) -> None:
        data = self.data[chunk]
        if isinstance(data, DataParallel):
            data.after_backward()

    def _add_across_tied_ends(self) -> None:
        """Add the gradients of a table that the first and the last stage both hold: as a tied head, or to predict further tokens."""
        axis = self.mesh.pp
        other = axis.size - 1 - axis.index
        for shard in self.tied:
            assert shard.gradient is not None, "every backward reaches the table"
            theirs = torch.empty_like(shard.gradient)
            # Both in one group and one call: NCCL then runs them together, so that neither end waits for the other to receive first.
            group = self.mesh.lane(0, axis.size - 1)
            ops = [(dist.isend, shard.gradient), (dist.irecv, theirs)]
            for work in dist.batch_isend_irecv([dist.P2POp(op, tensor, axis.ranks[other], group) for op, tensor in ops]):
                axis.wait(work, "gradients of the tied table")
            shard.gradient.add_(theirs)

    def _own_measures(self, summed: Tensor) -> tuple[Tensor, Tensor | None]:
        """Squares of this rank's gradients before replicas are summed, and its fields of `Check`.

        Without replicas the squares are those of its shards, and there is nothing to check.
        """
        parts = [data for data in self.data if isinstance(data, DataParallel)]
        if self.mesh.num_replicas == 1:
            return summed, None
        if not parts:
            return torch.zeros_like(summed), None
        squares, sent, largest = torch.stack([own for data in parts for own in data.own]).unbind(dim=1)
        peak = self._peaks.highest(largest)
        received = torch.stack([data.landed for data in parts if data.landed is not None]).sum()
        return squares.sum(), torch.stack((self._digests.next(), sent.sum(), received, peak))

    def _owns(self, name: str) -> bool:
        """Whether this rank saves its pieces of a parameter: it is the first of the ranks that hold the same pieces."""
        layout, mesh = self.mesh.layout, self.mesh
        replicas = mesh.expert_replicas if is_routed(name) else mesh.replicas
        sharded = layout.zero_stage > 0 and replicas.shard.size > 1 and not is_untrained(name)
        first_replica = replicas.replicate.index == 0 and (sharded or replicas.shard.index == 0)
        if is_routed(name):
            return first_replica
        num_same = tensor_parallel.copies_of(name, self.model.key_copies(layout.tp))
        first_of_tensor = mesh.tp.index % num_same == 0 if tensor_parallel.cut_dim(name) is not None else mesh.tp.index == 0
        is_copy = self.model.ends_share_table and name == "embed.weight" and mesh.pp.index > 0
        return first_replica and first_of_tensor and not is_copy


def _holds(shard: Shard, name: str) -> bool:
    return any(cut.name == name for cut, *_ in shard.spans)


def chosen_attention(model: Model, workload: Workload, mesh: Mesh, numbers: Numbers) -> str:
    """The package and version that computes attention, if not torch: it must be installed, usable with this layout, and correct."""
    layout = mesh.layout
    if numbers.compute != flash_attention.DTYPE:
        return ""
    num_keys = model.num_heads if model.latent else model.num_kv_heads * model.key_copies(layout.tp)  # copies share fewer queries each
    heads = (model.num_heads, num_keys, model.attended_dim)
    is_whole = layout.cp == 1 or layout.cp_kind == "all-to-all"  # other kinds attend to one block of keys after another
    num_windowed = model.num_windowed_layers if 0 < model.window < workload.seq_len else 0
    names = []
    if num_windowed and is_whole:  # otherwise windows are attended to in bands, by written-out arithmetic
        names.append(attention_parts.prepare(*heads, mesh.device, packed=workload.packed, cut=False, windowed=True))
    if num_windowed == model.num_layers:
        return flash_attention.installed() if flash_attention.PACKAGE in names else ""
    if is_whole and not workload.packed and not model.attention_sinks:
        return flash_attention.prepare(*heads, workload.seq_len, mesh.device)
    names.append(attention_parts.prepare(*heads, mesh.device, packed=workload.packed, cut=not is_whole))
    return flash_attention.installed() if flash_attention.PACKAGE in names else ""


def use_fp8(chunk: Transformer, mesh: Mesh) -> None:
    """Use fp8 for the matrix products of a chunk: in all its layers, and in the head if the vocabulary is not split."""
    fp8.use_fp8(chunk, mesh.device, remakes=HAS_KERNELS and compiles(mesh.layout, mesh.device))
    if chunk.head is not None and mesh.tp.size == 1:
        chunk.head.summed_loss = summed_loss_in_fp8


def set_recompute(chunk: nn.Module, kind: str) -> None:
    """Set what the backward pass computes again: nothing, attention, the MLP, or whole layers."""
    for module in chunk.modules():
        if isinstance(module, Block):
            module.recomputes = kind == "full"
            module.recomputes_mlp = kind == "mlp"
        elif isinstance(module, Attention):
            module.recomputes = kind == "selective"
