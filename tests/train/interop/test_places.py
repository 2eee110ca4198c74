"""Tensors in other shapes and under other names: what is written is read back, whole and in any box."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.interop.places import Assembly, Named, Place

WEIGHT = torch.arange(2 * 3 * 4.0).view(2, 3, 4)


@pytest.mark.parametrize(
    "named",
    [
        Named(shape=(2, 3, 4), places=(Place(theirs="a", shape=(2, 3, 4)),)),
        Named(shape=(2, 3, 4), places=tuple(Place(theirs=f"a.{i}", shape=(3, 4), expert=i) for i in range(2))),
        Named(shape=(2, 3, 4), places=(Place(theirs="a", shape=(2, 4, 3), turned=True),)),
        Named(shape=(2, 3, 4), places=(Place(theirs="a", shape=(2, 4, 6), turned=True, offset=1, step=2),)),
        Named(shape=(2, 3, 4), places=(Place(theirs="a", shape=(2, 3, 8), step=2),)),
    ],
    ids=["as it is", "by expert", "turned", "turned columns in turn", "columns in turn"],
)
def test_what_is_stored_is_read_back(named: Named) -> None:
    stored: dict[str, torch.Tensor] = {}
    assembly = Assembly()
    stored.update(assembly.add(WEIGHT, named))
    if named.places[0].step == 2:
        assert not stored
        (place,) = named.places
        other = Named(
            shape=named.shape, places=(Place(theirs="a", shape=place.shape, turned=place.turned, offset=1 - place.offset, step=2),)
        )
        stored.update(assembly.add(-WEIGHT, other))
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {place.theirs: place.shape for place in named.places}

    def read(theirs: str, box: tuple[slice, ...]) -> torch.Tensor:
        return stored[theirs][box]

    for box in [(slice(0, 2), slice(0, 3), slice(0, 4)), (slice(1, 2), slice(1, 3), slice(0, 1)), (slice(0, 1), slice(2, 3), slice(1, 4))]:
        assert torch.equal(named.read(box, read), WEIGHT[box])
