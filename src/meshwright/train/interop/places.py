"""Where a tensor of ours is in a Hugging Face folder: under one name, one file entry for each expert, or as columns of a larger tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshwright.errors import InputError

Box = tuple[slice, ...]
Read = Callable[[str, Box], Tensor]  # the part of a stored tensor that a box names


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One stored tensor that holds a tensor of ours, or a part of it."""

    theirs: str
    shape: tuple[int, ...]  # of the stored tensor
    expert: int | None = None  # which entry along our first dimension it holds; None: all of them
    turned: bool = False  # whether its last two dimensions are exchanged
    offset: int = 0  # the first of its columns that are ours; a column is an entry of the last dimension as it is stored
    step: int = 1  # every how many columns is one of ours

    def read(self, box: Box, read: Read) -> Tensor:
        """The part of our tensor that a box names; for an expert, of that entry alone."""
        inner = list(box if self.expert is None else box[1:])
        if self.turned:
            inner[-2:] = inner[-1], inner[-2]
        columns = inner[-1]
        if self.step > 1:
            inner[-1] = slice(columns.start * self.step, columns.stop * self.step)
        held = read(self.theirs, tuple(inner))[..., self.offset :: self.step]
        return held.transpose(-1, -2) if self.turned else held

    def of(self, tensor: Tensor) -> Tensor:
        """What of our whole tensor is stored here, as it is stored."""
        held = tensor if self.expert is None else tensor[self.expert]
        return held.transpose(-1, -2) if self.turned else held


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A tensor of the model: its shape, and where it is stored."""

    shape: tuple[int, ...]
    places: tuple[Place, ...]
    keeps_fp32: bool = False  # whether it is stored in fp32 whatever the others are: values that no product reads

    @property
    def theirs(self) -> str:
        """The name of the tensor, or of its first part, in the folder."""
        return self.places[0].theirs

    def read(self, box: Box, read: Read) -> Tensor:
        """The part of the tensor that a box names."""
        if self.places[0].expert is None:
            return self.places[0].read(box, read)
        return torch.stack([self.places[expert].read(box, read) for expert in range(box[0].start, box[0].stop)])


@dataclass(slots=True)
class Assembly:
    """Stored tensors that are made of several of ours, while not all parts were given."""

    waiting: dict[str, tuple[Tensor, int]] = field(default_factory=dict)  # the stored tensor, and how many of its parts are still missing

    def add(self, tensor: Tensor, named: Named) -> Iterator[tuple[str, Tensor]]:
        """The stored tensors that are complete now that one of ours was given."""
        for place in named.places:
            held = place.of(tensor)
            if place.step == 1:
                yield place.theirs, held.contiguous()
                continue
            whole, missing = self.waiting.pop(place.theirs, (held.new_empty(place.shape), place.step))
            whole[..., place.offset :: place.step] = held
            if missing == 1:
                yield place.theirs, whole
            else:
                self.waiting[place.theirs] = whole, missing - 1


def stored_shapes(named: Mapping[str, Named]) -> dict[str, tuple[int, ...]]:
    """The shape of every stored tensor by its name."""
    return {place.theirs: place.shape for tensor in named.values() for place in tensor.places}


def check_experts(named: Mapping[str, Named], stored: Mapping[str, object], where: str) -> None:
    """Raise an error if some experts of a layer are stored and others are missing."""
    for name, tensor in named.items():
        absent = [place.expert for place in tensor.places if place.expert is not None and place.theirs not in stored]
        if absent and len(absent) < len(tensor.places):
            theirs = tensor.places[absent[0] or 0].theirs
            what = f"{theirs} is missing: {name} has {len(tensor.places)} experts, and {len(absent)} of them are not in the folder"
            raise InputError(what, where=where, fix="download all files again, or check that config.json states the number of experts")
