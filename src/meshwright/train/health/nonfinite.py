"""Finds where a NaN or infinity first appeared: the step is run again, and the output and gradient of every module are checked.

The update was not applied, so the weights are still those of the step. If all values are finite the second time, a fault of the machine is
likely, and the message says so. It then names the rank whose own loss or gradients, before they were summed, were not finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from meshwright.describe.model import Model
from meshwright.layout import Layout
from meshwright.train.model.compiled import compiles
from meshwright.train.model.transformer import Transformer, views_of
from meshwright.train.parallel.collectives import everyones_texts
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.parallel.shards import Shard
from meshwright.train.replica import Replica
from meshwright.train.sums import StepResult

LONGEST = 600  # bytes of a rank's finding
WEIGHT, FORWARD, BACKWARD, SUM, GONE = range(5)  # a smaller number is nearer to the cause


@dataclass(frozen=True, slots=True)
class Finding:
    """The first bad value that one rank saw: at which point of the step, and where."""

    phase: int
    stage: int  # pipeline stage, counted in the order of the backward pass: from the last stage on
    look: int  # number of checks before; ranks of one stage make the same checks
    where: str  # in words

    def __lt__(self, other: Finding) -> bool:
        return (self.phase, self.stage, self.look) < (other.phase, other.stage, other.look)


def find_culprit(replica: Replica, batch: Sequence[MicroBatch], result: StepResult) -> str:
    """One sentence with rank, layer and samples where a NaN or infinity first appeared in the step of `result`. All ranks must call it."""
    gradients = _names(replica.shards, lambda shard: shard.gradient)
    looker = Looker(replica, batch)
    for name in _names(replica.shards, lambda shard: shard.values.detach())[:1]:
        looker.note(WEIGHT, 0, f"weight {name} itself")
    with looker, torch.compiler.set_stance("force_eager") if compiles(replica.mesh.layout, replica.mesh.device) else nullcontext():
        replica.gradients(batch)  # compiled layers would hide what is inside
    for name in _names(replica.shards, lambda shard: shard.gradient)[:1]:
        looker.note(SUM, 0, f"the gradient of {name}, summed over replicas (no layer's own was seen)")
    for name in gradients[:1]:
        looker.note(GONE, 0, f"the gradient of {name}")
    return _in_words(replica.mesh.layout, _gathered(looker.first, replica.mesh.device), result)


def _names(shards: Sequence[Shard], tensor: Callable[[Shard], Tensor | None]) -> list[str]:
    """Names of the parameters with a NaN or infinity in a tensor of the shards."""
    pairs = [(shard, found) for shard in shards if (found := tensor(shard)) is not None]
    return [name for shard, found in pairs for name in shard.names_of(~torch.isfinite(found))]


class Looker:
    """Checks the output of every module, forward and backward, and the gradients of weights, and keeps the first bad one."""

    def __init__(self, replica: Replica, batch: Sequence[MicroBatch]) -> None:
        self.replica, self.batch = replica, batch
        self.first: Finding | None = None
        self._num_looks = 0
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Looker:
        stage = self.replica.stage
        for number, chunk in enumerate(stage.chunks):
            place = number * stage.num_stages + stage.index
            for name, module in _modules(chunk):
                self._handles.append(module.register_forward_hook(self._forward(name, place)))
            for name, parameter in chunk.named_parameters():
                self._handles.append(parameter.register_hook(self._weight_gradient(name, chunk.model, -place)))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def note(self, phase: int, stage: int, where: str) -> None:
        """Keep a finding, if it is the first."""
        found = Finding(phase, stage, self._num_looks, where)
        if self.first is None or found < self.first:
            self.first = found

    def _look(self, tensor: Tensor, phase: int, stage: int, what: str) -> None:
        self._num_looks += 1
        if self.first is None and not bool(torch.isfinite(tensor.detach()).all()):
            self.note(phase, stage, f"{what} of {_where(self.replica.mesh.marks, self.batch)}")

    def _forward(self, name: str, place: int) -> Callable[..., None]:
        def look(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            output = output[-1] if isinstance(output, tuple) else output  # a norm returns its input too
            if not isinstance(output, Tensor):
                return
            self._look(output, FORWARD, place, f"{name} in the forward")
            if output.requires_grad:
                output.register_hook(self._gradient(f"what came back to {name} in the backward", -place))

        return look

    def _gradient(self, what: str, place: int) -> Callable[[Tensor], None]:
        return lambda gradient: self._look(gradient, BACKWARD, place, what)

    def _weight_gradient(self, name: str, model: Model, place: int) -> Callable[[Tensor], None]:
        layout = self.replica.mesh.layout

        def look(gradient: Tensor) -> None:
            for tensor, part in views_of(name, gradient, model, model.key_copies(layout.tp), layout.etp):
                self._look(part, BACKWARD, place, f"the gradient of {tensor}")

        return look


def _modules(chunk: Transformer) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a chunk that are called, inner ones too, with their names in words."""
    ends = {"embed": "the embedding", "head": "the loss"}
    for name, module in chunk.named_modules():
        kind, _, rest = name.partition(".")
        if kind in ends:
            yield ends[kind] + (f" ({rest})" if rest else ""), module
        elif kind == "layers" and rest:
            number, _, part = rest.partition(".")
            yield f"layer {number}" + (f" ({part})" if part else ""), module


def _where(marks: Marks, batch: Sequence[MicroBatch]) -> str:
    """The micro-batch that a mark names ("forward of micro-batch 3, chunk 0"), with its samples."""
    number = int(marks.doing.partition("micro-batch ")[2].partition(",")[0] or 0)
    return f"micro-batch {number} (samples {', '.join(str(sample) for sample in batch[number].samples)})"


def _gathered(mine: Finding | None, device: torch.device) -> dict[int, Finding]:
    """The findings of all ranks; the same result on all ranks."""
    text = json.dumps([mine.phase, mine.stage, mine.look, mine.where[: LONGEST // 2]]) if mine else ""
    texts = everyones_texts(text, LONGEST, device)
    return {rank: Finding(*json.loads(text)) for rank, text in enumerate(texts) if text}


def _in_words(layout: Layout, found: dict[int, Finding], result: StepResult) -> str:
    """The earliest finding, in words."""
    gone = "it did not appear again when the step was repeated, so the model is sound and the machine is suspect"
    lasting = {rank: one for rank, one in found.items() if one.phase != GONE}
    if lasting:
        rank = min(lasting, key=lambda rank: (lasting[rank].phase, lasting[rank].stage, lasting[rank].look, rank))
        return f"first on {_named(layout, rank)} in {lasting[rank].where}"
    seen = _seen(layout, result)
    if seen:
        return f"{seen}; {gone}"
    if found:
        rank = min(found)
        return f"{found[rank].where}, held by {_named(layout, rank)}, after replicas were summed: each rank's own was finite; {gone}"
    return gone


def _seen(layout: Layout, result: StepResult) -> str:
    """What was not finite in the step itself, and on which rank; empty if all was finite.

    Losses come before gradients, because gradients follow from them. Ranks of one replica send activations to each other, so a bad value
    can come from another rank.
    """
    losses, norms = (_bad(values) for values in (result.own_losses, result.own_norms))
    replicas = {layout.coordinate(rank)["dp"] for rank in losses}
    ranks = [rank for rank in range(layout.num_ranks) if layout.coordinate(rank)["dp"] in replicas] if losses else norms
    what = "the loss" if losses else "the gradient"
    if len(ranks) == 1:
        return f"{what} of {_named(layout, ranks[0])}"
    return f"{what} of ranks {', '.join(map(str, ranks))}, it is not known on which of them it began" if ranks else ""


def _bad(values: Sequence[float]) -> list[int]:
    return [rank for rank, value in enumerate(values) if not math.isfinite(value)]


def _named(layout: Layout, rank: int) -> str:
    return f"rank {rank} ({', '.join(f'{axis} {index}' for axis, index in layout.coordinate(rank).items())})"
