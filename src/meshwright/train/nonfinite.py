"""Where a number that is none first appeared: the step is run again, and every layer's output and gradient looked at.

The update was not made, so the weights are those of the step. What does not come back on the second try was no fault of the numbers but
of the machine, and that is said too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.train.pipeline_parallel import MicroBatch
from meshwright.train.replica import Replica

LONGEST = 400  # bytes of a rank's finding


def find_culprit(replica: Replica, batch: Sequence[MicroBatch]) -> str:
    """Rank, layer and samples where a NaN or infinity first appeared, in a sentence; all ranks must call it."""
    found: list[str] = []
    handles = []
    doing = replica.mesh.marks
    for chunk in replica.stage.chunks:
        for name, module in _watched(chunk):
            handles.append(module.register_forward_hook(_forward_hook(found, name, doing, batch)))
    bad_weights = [name for shard in replica.shards for name in shard.names_of(~torch.isfinite(shard.values.detach()))]
    if bad_weights:
        found.insert(0, f"weight {bad_weights[0]} itself")
    try:
        replica.gradients(batch)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        names = [name for shard in replica.shards if shard.gradient is not None for name in shard.names_of(~torch.isfinite(shard.gradient))]
        found += [f"the gradient of {name} (found after the sum over replicas)" for name in names[:1]]
    return _first(replica, found)


def _watched(chunk: nn.Module) -> list[tuple[str, nn.Module]]:
    parts = [(f"layer {number}", block) for number, block in chunk.layers.items()]
    ends = [(name, module) for name, module in (("the embedding", chunk.embed), ("the loss", chunk.head)) if module is not None]
    return ends[:1] + parts + ends[1:]


def _forward_hook(found: list[str], name: str, marks: object, batch: Sequence[MicroBatch]) -> Callable[..., None]:
    def look(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        if not bool(torch.isfinite(output).all()) and not found:
            number = _micro_batch_of(marks.doing)
            samples = ", ".join(str(sample) for sample in batch[number].samples)
            found.append(f"{name} in the forward of micro-batch {number} (samples {samples})")

    return look


def _micro_batch_of(doing: str) -> int:
    """The micro-batch that a mark speaks of: "forward of micro-batch 3, chunk 0"."""
    return int(doing.partition("micro-batch ")[2].partition(",")[0] or 0)


def _first(replica: Replica, found: Sequence[str]) -> str:
    """The finding of the earliest stage that has one; the same words on all ranks."""
    text = found[0].encode()[:LONGEST] if found else b""
    mine = torch.zeros(LONGEST, dtype=torch.uint8, device=replica.mesh.device)
    mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else 0
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    layout = replica.mesh.layout
    said = {rank: bytes(entry.cpu().tolist()).rstrip(b"\0").decode() for rank, entry in enumerate(everyones)}
    ranks = sorted(
        (rank for rank, words in said.items() if words), key=lambda rank: ("gradient" in said[rank], layout.coordinate(rank)["pp"], rank)
    )
    if not ranks:
        return "it did not come back when the step was run again, so the numbers of the model are sound and the machine is suspect"
    place = ", ".join(f"{axis} {index}" for axis, index in layout.coordinate(ranks[0]).items())
    return f"first on rank {ranks[0]} ({place}) in {said[ranks[0]]}"
