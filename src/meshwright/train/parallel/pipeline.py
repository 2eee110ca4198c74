"""Pipeline parallelism: the planner's own schedule, run operation by operation.

The order comes from `cost.schedule`, which the prediction also uses, so that the step that runs is the step that was priced: 1F1B,
interleaved or zero-bubble. A stage posts receives in the order in which its neighbour sends, one earlier than needed, and waits for its own
sends only at the end of the step, so no two stages can wait for each other. torch's schedule classes are not used, because their orders
differ from the priced ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from meshwright.cost.schedule import BACKWARD, FORWARD, Schedule, schedule_named
from meshwright.describe.model import Model
from meshwright.layout import Layout
from meshwright.predict.stages import chunk_share, stage_layers
from meshwright.train.kernels.grouped import GroupedLinear
from meshwright.train.kernels.linear import Linear, PutOff
from meshwright.train.model.attention import Context
from meshwright.train.model.transformer import Ahead, Transformer
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.timing import Moment, Timer

KINDS = ("forward", "backward", "weight gradients")
AHEAD = 1  # receives posted before they are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch on this rank: its share of the tokens, their labels, and their positions."""

    tokens: Tensor  # [B, T]
    labels: Tensor  # [B, T]
    context: Context
    samples: tuple[int, ...] = ()  # global numbers of the samples, for messages
    ahead: tuple[Ahead, ...] = ()  # tokens and labels of each layer of multi-token prediction


@dataclass(frozen=True, slots=True)
class Operation:
    """One pass of a micro-batch through a chunk of this stage, with what it receives and sends."""

    kind: int
    chunk: int
    micro_batch: int
    receives: tuple[int, int] | None  # from which stage, and the number of the message
    sends_to: int | None


def chunk_layers(model: Model, layout: Layout) -> list[list[range]]:
    """Layer numbers of every chunk, by stage and chunk."""
    split = stage_layers(model.num_layers, layout.pp, layout.vp, layout.first_stage_layers, layout.last_stage_layers)
    found: list[list[range]] = [[] for _ in range(layout.pp)]
    first = 0
    for chunk in range(layout.vp):
        for stage in range(layout.pp):
            size = chunk_share(int(split.at(stage)), layout.vp, chunk, short_at_the_end=stage == layout.pp - 1)
            found[stage].append(range(first, first + size))
            first += size
    assert first == model.num_layers, "a legal split holds every layer once"
    return found


def operations(schedule: Schedule, stage: int) -> tuple[list[Operation], Mapping[int, int]]:
    """This stage's operations in order; and how many messages each other stage will send it."""
    receiver = {int(waits): i for i, waits in enumerate(schedule.waits_for) if waits >= 0}
    number: dict[int, tuple[int, int]] = {}  # sending operation -> its stage, and the number of the message to the receiver
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for i in range(len(schedule.stage)):
        if i in receiver:
            pair = int(schedule.stage[i]), int(schedule.stage[receiver[i]])
            number[i] = pair[0], sent[pair]
            sent[pair] += 1
    mine = [i for i in range(len(schedule.stage)) if schedule.stage[i] == stage]
    made = [
        Operation(
            int(schedule.kind[i]),
            int(schedule.chunk[i]),
            int(schedule.micro_batch[i]),
            number[int(schedule.waits_for[i])] if schedule.waits_for[i] >= 0 else None,
            int(schedule.stage[receiver[i]]) if i in receiver else None,
        )
        for i in mine
    ]
    return made, {source: count for (source, target), count in sent.items() if target == stage}


class RoundTrip:
    """What tells how long messages are under way between neighbouring stages, though their clocks differ.

    The stage before notes the time from its first message until the last one comes back, and the stage after the time from the first
    message that it receives until it sends its last one back. The difference is one message in each direction. Both stages have nothing
    else to do while they wait for these two messages, so a message that arrived late was late on its way, or was sent late; the second is
    what the difference leaves out.
    """

    def __init__(self, stage: int, timer: Timer, num_coming: Mapping[int, int], num_going: Mapping[int, int]) -> None:
        self.timer, self.before, self.after = timer, stage - 1, stage + 1
        self.last_from_after = num_coming.get(self.after, 0) - 1 if self.after in num_going else -1
        self.last_to_before = num_going.get(self.before, 0) - 1 if self.before in num_coming else -1
        self._sent: Moment | None = None
        self._received: Moment | None = None

    def sends(self, stage: int, number: int) -> None:
        """Called before a message is sent."""
        if stage == self.after and number == 0 and self.last_from_after >= 0:
            self._sent = self.timer.moment()
        elif stage == self.before and number == self.last_to_before and self._received is not None:
            self.timer.span("held", self._received, self.timer.moment())

    @contextmanager
    def receives(self, stage: int, number: int) -> Iterator[None]:
        """Around the wait for a message."""
        is_first = stage == self.before and number == 0 and self.last_to_before >= 0
        is_last = stage == self.after and number == self.last_from_after and self._sent is not None
        begun = self.timer.moment() if is_first or is_last else None
        yield
        if begun is None:
            return
        ended = self.timer.moment()
        self.timer.span("wait_after" if is_last else "wait_before", begun, ended)
        if is_first:
            self._received = ended
        if is_last and self._sent is not None:
            self.timer.span("away", self._sent, ended)


class Mailbox:
    """Messages between stages. Receives are posted in the order of the sender; sends are waited for only at the end.

    `num_coming` and `num_going` say how many messages are exchanged with each other stage; without the second no round trip is timed.
    """

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        dtype: torch.dtype,
        num_coming: Mapping[int, int],
        num_going: Mapping[int, int] | None = None,
    ) -> None:
        self.mesh, self.axis, self.shape, self.dtype = mesh, mesh.pp, tuple(shape), dtype
        self.num_coming = num_coming
        self.trip = RoundTrip(mesh.pp.index, mesh.timer, num_coming, num_going or {})
        self._posted: dict[int, list[tuple[Tensor, dist.Work] | None]] = defaultdict(list)
        self._sent: list[tuple[Tensor, dist.Work]] = []
        self._num_sent: dict[int, int] = defaultdict(int)

    def receive(self, stage: int, number: int) -> Tensor:
        """Message `number` of those that `stage` sends to this one."""
        self._post(stage, number + AHEAD)
        entry = self._posted[stage][number]
        assert entry is not None, "each message is taken once"
        self._posted[stage][number] = None
        tensor, work = entry
        axis = self.axis
        axis.marks.enter(f"message from stage {stage}", "pp", (axis.ranks[stage],))
        with axis.timer.part("wait_pp"), self.trip.receives(stage, number):
            work.wait()
        axis.marks.leave()
        return tensor

    def send(self, stage: int, tensor: Tensor) -> None:
        """Send `tensor` to `stage`. The tensor is kept until the step ends."""
        tensor = tensor.contiguous()
        group = self.mesh.lane(self.axis.index, stage)
        self.trip.sends(stage, self._num_sent[stage])
        work = dist.isend(tensor, self.axis.ranks[stage], group=group, tag=self._num_sent[stage])
        self._num_sent[stage] += 1
        assert work is not None, "both stages of a lane are in its group"
        self._sent.append((tensor, work))
        while self._sent and self._sent[0][1].is_completed():
            self._sent.pop(0)

    def close(self) -> None:
        """Wait until everything that was sent has arrived. A receive that is still posted would take a message of the next step."""
        assert all(entry is None for posted in self._posted.values() for entry in posted), "each posted message is taken"
        with self.axis.timer.part("exposed_pp") if self._sent else nullcontext():
            for _, work in self._sent:
                work.wait()
        self._sent.clear()

    def _post(self, stage: int, last: int) -> None:
        """Post receives up to number `last`, in the order in which they are sent."""
        posted = self._posted[stage]
        while len(posted) <= min(last, self.num_coming[stage] - 1):
            tensor = torch.empty(self.shape, dtype=self.dtype, device=self.axis.device)
            group = self.mesh.lane(stage, self.axis.index)
            work = dist.irecv(tensor, self.axis.ranks[stage], group=group, tag=len(posted))
            assert work is not None, "both stages of a lane are in its group"
            posted.append((tensor, work))


class Stage:
    """One pipeline stage of one replica: its chunks, and how a batch goes through them."""

    def __init__(self, mesh: Mesh, chunks: Sequence[Transformer], num_micro_batches: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        layout = mesh.layout
        self.mesh, self.chunks, self.shape, self.dtype = mesh, chunks, shape, dtype
        self.index, self.num_stages = mesh.pp.index, layout.pp
        # Without a pipeline, postponing gradients gains nothing.
        self.schedule_name = layout.schedule if layout.pp > 1 else "interleaved"
        self.set_num_micro_batches(num_micro_batches)
        self.put_off = [PutOff() for _ in chunks]
        if self.schedule_name == "zero-bubble":
            for chunk, put_off in zip(chunks, self.put_off, strict=True):
                for module in chunk.modules():
                    if isinstance(module, Linear | GroupedLinear):
                        module.put_off = put_off

    def set_num_micro_batches(self, number: int) -> None:
        """Set how many micro-batches a step of this replica has; all stages of the replica must do this between the same steps."""
        schedule = schedule_named(self.schedule_name, self.num_stages, self.mesh.layout.vp, number)
        self.operations, self.num_coming = operations(schedule, self.index)
        self.num_going = Counter(operation.sends_to for operation in self.operations if operation.sends_to is not None)

    def is_first(self, chunk: int) -> bool:
        """Whether a chunk of this stage holds the embedding."""
        return self.index == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Whether a chunk of this stage holds the loss."""
        return self.index == self.num_stages - 1 and chunk == len(self.chunks) - 1

    def run(
        self,
        batch: Sequence[MicroBatch],
        loss_scale: float,
        add_gradient: Callable[[int, torch.nn.Parameter, Tensor], None],
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> list[Tensor]:
        """Forward and backward of all micro-batches; returns the summed loss of each, on the stage that computes it.

        `before(chunk)` is called before the first forward pass of a chunk; `add_gradient(chunk, ...)` receives postponed gradients;
        `after(chunk)` is called when a chunk has all gradients of an operation.
        """
        mail = Mailbox(self.mesh, self.shape, self.dtype, self.num_coming, self.num_going)
        flight = Flight(self, batch, mail, loss_scale, add_gradient, before, after)
        for operation in self.operations:
            self.mesh.marks.do(f"{KINDS[operation.kind]} of micro-batch {operation.micro_batch}, chunk {operation.chunk}")
            if operation.kind == FORWARD:
                flight.forward(operation)
            elif operation.kind == BACKWARD:
                flight.backward(operation)
            else:
                flight.weight_gradients(operation)
        self.mesh.marks.do("end of the pipeline")
        mail.close()
        return flight.losses

    def try_chunk(self, chunk: int, micro_batch: MicroBatch, *, backward: bool = True) -> None:
        """Run one chunk by itself, forward and backward, on made-up values in place of a message."""
        module, is_first = self.chunks[chunk], self.is_first(chunk)
        self.mesh.marks.do(f"trial of chunk {chunk}")
        made = torch.zeros(tuple(self.shape), dtype=self.dtype, device=self.mesh.device)
        with torch.set_grad_enabled(backward):
            x = micro_batch.tokens if is_first else made.requires_grad_(backward)
            out = module(x, micro_batch.context, micro_batch.labels, micro_batch.ahead)
        if backward:
            torch.autograd.backward(out, None if self.is_last(chunk) else torch.zeros_like(out))
            for compute in self.put_off[chunk].take():
                compute()

    @torch.no_grad()
    def evaluate(self, batch: Sequence[MicroBatch], before: Callable[[int], None], *, counts_correct: bool = False) -> list[Tensor]:
        """The summed loss of each micro-batch, on the stage that computes it; nothing is kept for a backward pass.

        With `counts_correct`, each is a pair: the loss, and the tokens that are predicted correctly.
        """
        losses: list[Tensor] = []
        num_received = len(self.chunks) - self.is_first(0)  # the chunk with the embedding reads tokens, not messages
        coming = {(self.index - 1) % self.num_stages: len(batch) * num_received} if self.num_stages > 1 else {}
        mail = Mailbox(self.mesh, self.shape, self.dtype, coming)
        for chunk, module in enumerate(self.chunks):
            before(chunk)
            for number, micro_batch in enumerate(batch):
                self.mesh.marks.do(f"evaluation of micro-batch {number}, chunk {chunk}")
                turn = number + chunk * len(batch) if self.index > 0 else number + (chunk - 1) * len(batch)
                x = micro_batch.tokens if self.is_first(chunk) else mail.receive((self.index - 1) % self.num_stages, turn)
                out = module(x, micro_batch.context, micro_batch.labels, counts_correct=counts_correct)
                if self.is_last(chunk):
                    losses.append(out)
                else:
                    mail.send((self.index + 1) % self.num_stages, out)
        mail.close()
        return losses


class Flight:
    """The micro-batches of one step that have had their forward pass and not yet their backward pass."""

    def __init__(
        self,
        stage: Stage,
        batch: Sequence[MicroBatch],
        mail: Mailbox,
        loss_scale: float,
        add_gradient: Callable[[int, torch.nn.Parameter, Tensor], None],
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> None:
        self.stage, self.batch, self.mail = stage, batch, mail
        self.loss_scale, self.add_gradient, self.before, self.after = loss_scale, add_gradient, before, after
        self.losses: list[Tensor] = []
        self._held: dict[tuple[int, int], tuple[Tensor, Tensor | GradientEdge | None]] = {}
        self._put_off: dict[tuple[int, int], list[Callable[[], tuple[torch.nn.Parameter, Tensor]]]] = {}
        self._begun: set[int] = set()

    def forward(self, operation: Operation) -> None:
        """Run a chunk forward and send its output to the next."""
        chunk, micro_batch = operation.chunk, self.batch[operation.micro_batch]
        x = micro_batch.tokens if operation.receives is None else self.mail.receive(*operation.receives).requires_grad_()
        if chunk not in self._begun:
            self._begun.add(chunk)
            self.before(chunk)
        out = self.stage.chunks[chunk](x, micro_batch.context, micro_batch.labels, micro_batch.ahead)
        if operation.sends_to is None:
            self.losses.append(out.detach())
            out = out * self.loss_scale
        else:
            self.mail.send(operation.sends_to, out.detach())
        # The backward pass begins at the operation that made the output. The output itself is not needed after it was sent.
        # There is none where a chunk holds nothing that is trained: frozen embeddings.
        edge = get_gradient_edge(out) if out.requires_grad else None
        self._held[chunk, operation.micro_batch] = x, out if operation.sends_to is None else edge

    def backward(self, operation: Operation) -> None:
        """Run a chunk backward and send the gradient of its input."""
        x, out = self._held.pop((operation.chunk, operation.micro_batch))
        gradient = None if operation.receives is None else self.mail.receive(*operation.receives)
        if out is not None:
            torch.autograd.backward(out, gradient)
        if operation.sends_to is not None:
            assert x.grad is not None, "what came from another stage asks for its gradient"
            self.mail.send(operation.sends_to, x.grad)
        self._put_off[operation.chunk, operation.micro_batch] = self.stage.put_off[operation.chunk].take()
        self.after(operation.chunk)

    @torch.no_grad()
    def weight_gradients(self, operation: Operation) -> None:
        """Compute the gradients that the backward pass postponed."""
        for compute in self._put_off.pop((operation.chunk, operation.micro_batch)):
            self.add_gradient(operation.chunk, *compute())
        self.after(operation.chunk)


def make_chunks(model: Model, mesh: Mesh) -> list[Transformer]:
    """This stage's chunks of the model, whole and without storage."""
    layout = mesh.layout
    made = []
    for number, layers in enumerate(chunk_layers(model, layout)[mesh.pp.index]):
        is_first = mesh.pp.index == 0 and number == 0
        is_last = mesh.pp.index == layout.pp - 1 and number == layout.vp - 1
        with torch.device("meta"):
            made.append(Transformer(model, layers, is_first=is_first, is_last=is_last))
    return made
