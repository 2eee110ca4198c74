"""Gradients that are far too large: the norm of a step is compared with the usual norm of the steps before it.

A step is a spike if the logarithm of its norm is above the running median by more than a fixed factor and by more than several times the
usual spread. A spike does not count as usual; if the norm stays high, the high value becomes the usual one, and the detector starts again.
Such a step is done again before it is applied (`gate`, `train.replay`). If it gives the same gradients, they are correct, and training
continues: clipping limits their effect.

The norm of each rank's own gradients, taken before replicas are summed, shows which rank caused the spike, and the largest part of these
gradients shows the parameter.

A single number that is far too large may leave the norm as it is. So the largest gradient of each bucket, in units of the root mean square
of the bucket, is compared with its own usual value (`shards.UsualPeaks`), and the highest ratio of each rank with the same of earlier
steps. This does not depend on the size of gradients in general.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from meshwright.record.summary import MAD_TO_STD
from meshwright.train.parallel.collectives import everyones_texts
from meshwright.train.parallel.shards import squares_of
from meshwright.train.replica import Replica

FACTOR = 10.0  # times the usual norm
SPREADS = 8.0  # and so many standard deviations of its logarithm above
NUM_USUAL = 50  # steps that define what is usual
NUM_USUAL_PEAKS = 20  # fewer: in the first steps of a run peaks vary far more than later
NUM_FIRST = 10  # steps before the first decision
NUM_STAYING = 5  # spikes in a row after which the high norm becomes the usual one
LEAST_RISE = 0.1  # of a loss, relative, below which it is no spike
PEAK_FACTOR = 8.0  # times the usual peak
SMALLEST = 1e-300
LARGEST_LOG = 700.0  # of a number that a float holds
LONGEST = 300  # bytes of a parameter's name


@dataclass(frozen=True, slots=True)
class Spike:
    """A step whose gradients were far larger than usual."""

    step: int
    norm: float
    usual: float
    ranks: tuple[int, ...]  # ranks whose own gradients were too large; empty: no single rank, or not known

    def words(self, parameter: str = "") -> str:
        """The message. `parameter` is the one with the largest gradients."""
        who = f", on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks[:8]))}" if self.ranks else ""
        where = f", most of it in {parameter}" if parameter else ""
        return f"the gradient norm of step {self.step} is {self.norm:.3g}, usually {self.usual:.3g}{who}{where}; training continues"


class Losses:
    """The losses of the last steps, and the loss beyond which a step is not believed."""

    def __init__(self, deviations: float) -> None:
        self.deviations = deviations  # standard deviations; 0: any finite loss is believed
        self._usual: deque[float] = deque(maxlen=NUM_USUAL)

    def update(self, loss: float) -> None:
        """Add the loss of a step that was applied."""
        self._usual.append(loss)

    def limit(self) -> float:
        """The median of the last losses plus so many standard deviations, and at least a tenth of it; infinite in the first steps."""
        if not self.deviations or len(self._usual) < NUM_FIRST:
            return math.inf
        past = np.array(self._usual)
        median = float(np.median(past))
        spread = MAD_TO_STD * float(np.median(np.abs(past - median)))
        return median + max(self.deviations * spread, LEAST_RISE * abs(median))


class Spikes:
    """The detector. All ranks give it the same numbers and get the same result."""

    def __init__(self) -> None:
        self._usual: deque[tuple[float, ...]] = deque(maxlen=NUM_USUAL)  # logarithms: of all gradients, then of each rank's own
        self._num_staying = 0

    def update(self, step: int, norm: float, own_norms: Sequence[float]) -> Spike | None:
        """Add the norms of a step; return the spike, if it is one."""
        logs = tuple(math.log(max(value, SMALLEST)) for value in (norm, *own_norms))
        excess = self._excess(logs)
        if excess is None or excess[0] <= 0.0:
            self._usual.append(logs)
            self._num_staying = 0
            return None
        usual = math.exp(float(np.median([entry[0] for entry in self._usual])))
        ranks = tuple(int(rank) for rank in np.flatnonzero(excess[1:] > 0.0))
        self._num_staying += 1
        if self._num_staying == NUM_STAYING:
            self._usual.clear()
            self._num_staying = 0
        return Spike(step, norm, usual, ranks if len(ranks) < len(own_norms) or len(ranks) == 1 else ())

    def limit(self) -> float:
        """The norm beyond which a step is a spike; infinite in the first steps."""
        limits = self._limits()
        return math.exp(min(limits[0], LARGEST_LOG)) if limits is not None else math.inf

    def _excess(self, logs: tuple[float, ...]) -> NDArray[np.float64] | None:
        """By how much each logarithm exceeds its limit; None in the first steps."""
        limits = self._limits()
        return None if limits is None else np.asarray(np.array(logs) - limits)

    def _limits(self) -> NDArray[np.float64] | None:
        return _limits_of(self._usual, FACTOR)


@dataclass(frozen=True, slots=True)
class Peak:
    """A step in which a rank's largest gradient stood out far more than usual."""

    step: int
    rank: int
    size: float  # divided by the usual one of its bucket
    usual: float

    def __str__(self) -> str:
        times = f"{self.size:.3g} times as large as the largest one of its bucket usually is"
        return f"one gradient of rank {self.rank} in step {self.step} is {times}; training continues"


class Peaks:
    """The detector of single gradients that are too large."""

    def __init__(self) -> None:
        self._usual: deque[list[float]] = deque(maxlen=NUM_USUAL_PEAKS)  # logarithms, by rank

    def update(self, step: int, peaks: Sequence[float]) -> Peak | None:
        """Add the peaks of a step, by rank; return the one that stands out, if one does."""
        if not peaks or not all(0.0 < peak < math.inf for peak in peaks):
            return None  # not known, or not finite, which other checks report
        logs = [math.log(peak) for peak in peaks]
        limits = _limits_of(self._usual, PEAK_FACTOR)
        rank = int((np.array(logs) - limits).argmax()) if limits is not None else 0
        usual = math.exp(float(np.median([entry[rank] for entry in self._usual]))) if self._usual else 0.0
        self._usual.append(logs)
        return Peak(step, rank, peaks[rank], usual) if limits is not None and logs[rank] > limits[rank] else None

    def limits(self) -> tuple[float, ...]:
        """The peak of each rank beyond which it stands out; empty in the first steps."""
        limits = _limits_of(self._usual, PEAK_FACTOR)
        return tuple(np.exp(np.minimum(limits, LARGEST_LOG)).tolist()) if limits is not None else ()


def _limits_of(usual: Sequence[Sequence[float]], factor: float) -> NDArray[np.float64] | None:
    """The limit of each logarithm: so many times the median, and several spreads above it; None in the first steps."""
    if len(usual) < NUM_FIRST:
        return None
    past = np.array(usual)
    median = np.median(past, axis=0)
    spread = MAD_TO_STD * np.median(np.abs(past - median), axis=0)
    return np.asarray(median + np.maximum(math.log(factor), SPREADS * spread))


def largest_parameter(replica: Replica) -> str:
    """The parameter with the largest gradient on all ranks. All ranks must call it, and it waits for the device."""
    spans = [
        (cut.name, shard.gradient[offset : offset + last - first])
        for shard in replica.shards
        if shard.gradient is not None
        for cut, first, last, offset in shard.spans
        if last > first
    ]
    mine = ""
    if spans:
        with torch.no_grad():
            squares = squares_of([gradient for _, gradient in spans]).cpu()
        mine = f"{float(squares.max())} {spans[int(squares.argmax())][0]}"
    sent = [text.partition(" ") for text in everyones_texts(mine, LONGEST, replica.mesh.device) if text]
    return max(sent, key=lambda entry: float(entry[0]))[2] if sent else ""
