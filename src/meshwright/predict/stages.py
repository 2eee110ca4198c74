"""How a model's layers are split over pipeline stages.

Every argument may be a number or an array; they broadcast, so one call splits the model for all candidate layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.errors import InputError

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Layers on the first, a middle and the last stage. Where `legal` is false, no layers divide and the counts mean nothing.

    With one stage, first, middle and last are that stage; with two, `middle` is what a middle stage would hold.
    """

    first: IntArray
    middle: IntArray
    last: IntArray
    pp: IntArray
    legal: NDArray[np.bool_]

    def at(self, stage: ArrayLike) -> IntArray:
        """Layers on pipeline stage number `stage`."""
        number = np.asarray(stage, dtype=np.int64)
        inner = np.where(number == self.pp - 1, self.last, self.middle)
        return np.where(number == 0, self.first, inner)

    def leading_at(self, num_leading: int, vp: ArrayLike, stage: ArrayLike) -> IntArray:
        """How many of the model's `num_leading` first layers are on `stage`: those within its first chunk."""
        chunks, number = np.asarray(vp, dtype=np.int64), np.asarray(stage, dtype=np.int64)
        before = np.where(number == 0, 0, self.first // chunks + (number - 1) * (self.middle // chunks))
        return np.asarray(np.clip(num_leading - before, 0, self.at(number) // chunks), dtype=np.int64)


def stage_layers(num_layers: ArrayLike, pp: ArrayLike, vp: ArrayLike = 1, first: ArrayLike = 0, last: ArrayLike = 0) -> Split:
    """Layers on the first, a middle and the last of `pp` stages of `vp` chunks each, and whether they divide.

    `first` and `last` are layers stated for those stages (0: not stated); the other stages share the rest evenly.
    With neither stated the layers divide by pp x vp, or else layers + 2 do: then the embedding and the loss count
    as a layer each, and the first and the last chunk hold one layer less (126 + 2 = 128 over pp 8 and vp 8, as
    NVIDIA's Llama 3.1 405B runs do).
    """
    layers, stages, chunks, head, tail = (np.asarray(a, dtype=np.int64) for a in np.broadcast_arrays(num_layers, pp, vp, first, last))
    stated = (head > 0) | (tail > 0)
    counted = (layers % (stages * chunks) != 0) & ~stated & (stages > 1)
    num_sharing = stages - (head > 0) - (tail > 0)
    to_share = layers - head - tail + 2 * counted
    # Where both ends are stated and nothing lies between them, half of the layers: chunks are timed as so much more or less than that.
    middle = np.where(num_sharing > 0, to_share // np.maximum(num_sharing, 1), np.maximum(layers // 2, 1))
    divides = np.where(num_sharing > 0, (to_share % np.maximum(num_sharing * chunks, 1) == 0) & (to_share > 0), to_share == 0)
    alone = stages == 1
    first_layers = np.where(head > 0, head, middle - counted)
    last_layers = np.where(tail > 0, tail, middle - counted)
    legal = np.where(alone, ((head == 0) | (head == layers)) & ((tail == 0) | (tail == layers)), divides & (first_layers >= 0))
    return Split(
        first=np.where(alone, layers, first_layers),
        middle=np.where(alone, layers, middle),
        last=np.where(alone, layers, last_layers),
        pp=stages,
        legal=legal.astype(np.bool_),
    )


def chunk_share(count: int, vp: int, chunk: int, *, short_at_the_end: bool) -> int:
    """Layers of one of `vp` chunks that share `count`: where they do not divide, those beside the embedding or the loss have fewer."""
    each, rest = divmod(count, vp)
    return each + (chunk < rest if short_at_the_end else chunk >= vp - rest)


def check_split(num_layers: int, pp: int, vp: int = 1, first: int = 0, last: int = 0) -> None:
    """Raise an InputError that says which stages would divide, where `num_layers` do not divide over these."""
    if stage_layers(num_layers, pp, vp, first, last).legal:
        return
    what = f"{num_layers} layers do not divide over {pp} pipeline stages"
    if vp > 1:
        what += f" of {vp} chunks"
    if first or last:
        what += f" with {first or 'an even share of'} layers on the first and {last or 'an even share'} on the last"
    degrees = np.arange(1, num_layers + 3)
    stages = _numbers(degrees[stage_layers(num_layers, degrees, vp, first, last).legal & ((degrees > 1) | (vp == 1))])
    chunks = _numbers(degrees[stage_layers(num_layers, pp, degrees, first, last).legal])
    fix = f"with vp={vp} these divide: pp = {stages}; with pp={pp}: vp = {chunks}; or state first_stage_layers and last_stage_layers"
    raise InputError(what, where="layout.pp", fix=fix)


def _numbers(values: IntArray) -> str:
    return ", ".join(map(str, values.tolist())) or "none"
