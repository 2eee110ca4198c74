"""Bytes of one rank at the peak of a step, by part: by the allocator's own count on a GPU, by the profiler's on a processor."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from meshwright.predict.rehearsed import RankMemory
from meshwright.train.kernels.few_bits import FewBits
from meshwright.train.parallel.buckets import DataParallel
from meshwright.train.parallel.fully_sharded import local_of
from meshwright.train.replica import Replica

MARK = "meshwright: operation "


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What of a rank's memory belongs to the model, counted by storages."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """One operation of a step: what was held when it began, what all tensors took then, and the most they took until it ended."""

    doing: str
    held: Held
    begin_bytes: int
    peak_bytes: int


def held_by(replica: Replica) -> Held:
    """Bytes of weights, gradients and optimizer states of a rank, now."""
    parameters = [parameter for chunk in replica.stage.chunks for parameter in chunk.parameters()]
    few = (held for chunk in replica.stage.chunks for module in chunk.modules() if isinstance(module, FewBits) for held in module.buffers())
    weights = _storages([*(local_of(parameter.data) for parameter in parameters), *few])
    states = (
        tensor
        for kept in ((shard.values for shard in replica.shards), replica.optimizer.means, replica.optimizer.squares)
        for tensor in kept
    )
    optimizer = {key: size for key, size in _storages(states).items() if key not in weights}
    gradients = _storages(_gradients(replica, parameters))
    return Held(weights_bytes=sum(weights.values()), gradients_bytes=sum(gradients.values()), optimizer_bytes=sum(optimizer.values()))


def _gradients(replica: Replica, parameters: Iterable[Tensor]) -> Iterable[Tensor]:
    for parameter in parameters:
        if parameter.grad is not None:
            yield local_of(parameter.grad)
    for shard in replica.shards:
        if shard.gradient is not None:
            yield shard.gradient
    for data in replica.data:
        if isinstance(data, DataParallel):
            for bucket in data.buckets:
                yield from (held for held in (bucket.gradients, bucket.incoming) if held is not None)


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the storages behind tensors, each once, by its address."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
    return found


def peak_of(moments: Sequence[Moment]) -> RankMemory:
    """The fullest operation of a step, by part.

    What a forward leaves is held for its backward, and so is part of the activations when the forward itself is the fullest.
    """
    number = max(range(len(moments)), key=lambda i: moments[i].peak_bytes)
    fullest = moments[number]
    after = moments[number + 1] if fullest.doing.startswith("forward") and number + 1 < len(moments) else fullest
    activations = max(max(fullest.begin_bytes - fullest.held.total_bytes, after.begin_bytes - after.held.total_bytes), 0)
    held = fullest.held
    return RankMemory(
        weights_bytes=held.weights_bytes,
        gradients_bytes=held.gradients_bytes,
        optimizer_bytes=held.optimizer_bytes,
        activations_bytes=activations,
        working_bytes=fullest.peak_bytes - held.total_bytes - activations,
        peak_bytes=fullest.peak_bytes,
        peak_at=fullest.doing,
    )


class GpuMemory:
    """The allocator's count of a GPU, operation by operation."""

    def __init__(self, replica: Replica, doing: Callable[[], str]) -> None:
        self.replica, self.doing = replica, doing
        self._begun: list[tuple[str, Held, int]] = []
        self._peaks: list[int] = []

    def note(self) -> None:
        """An operation begins here, and the one before it ends."""
        device = self.replica.mesh.device
        self._peaks.append(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
        self._begun.append((self.doing(), held_by(self.replica), torch.cuda.memory_allocated(device)))

    def moments(self) -> list[Moment]:
        """What was seen; the last boundary only ends an operation."""
        return [Moment(*begun, peak) for begun, peak in zip(self._begun, self._peaks[1:], strict=False)]


class CpuMemory:
    """The profiler's count of tensors on a processor. It counts tensors that are made within its context."""

    def __init__(self, doing: Callable[[], str]) -> None:
        self.doing = doing
        self.replica: Replica | None = None
        self._begun: list[tuple[str, Held]] = []
        self._counts = False
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Self:
        """Count from here on."""
        gc.collect()  # what others left must not be given back meanwhile
        self._profile.start()
        self._counts = True
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Count no longer; what was seen can still be asked for."""
        if self._counts:
            self._profile.stop()
            self._counts = False

    def watch(self, replica: Replica) -> None:
        """Note the operations of this rank."""
        self.replica = replica

    def note(self) -> None:
        """An operation begins here, and the one before it ends."""
        assert self.replica is not None, "watch before a step is taken"
        with torch.profiler.record_function(f"{MARK}{len(self._begun)}"):
            pass
        self._begun.append((self.doing(), held_by(self.replica)))

    def moments(self) -> list[Moment]:
        """What was seen; the count ends with it."""
        self.stop()
        levels = levels_between(_changes(self._profile))
        return [Moment(doing, held, *level) for (doing, held), level in zip(self._begun, levels, strict=False)]


def _changes(profile: Any) -> list[tuple[int, int | None]]:
    """Bytes allocated or given back (below 0), and None at every boundary, in the order of time."""
    found: list[tuple[int, int, int | None]] = []
    for number, event in enumerate(profile.profiler.kineto_results.events()):
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
            found.append((event.start_ns(), number, event.nbytes()))
        elif event.name().startswith(MARK):
            found.append((event.start_ns(), number, None))
    return [(time, change) for time, _, change in sorted(found, key=lambda entry: entry[:2])]


def levels_between(changes: Iterable[tuple[int, int | None]]) -> list[tuple[int, int]]:
    """Bytes at every boundary but the last, and the most until the next."""
    level, peak, begun, found = 0, 0, [], []
    for _, change in changes:
        if change is None:
            found.append(peak)
            begun.append(level)
            peak = level
        else:
            level += change
            peak = max(peak, level)
    return [(begin, most) for (begin, _), most in zip(pairwise(begun), found[1:], strict=False)]
