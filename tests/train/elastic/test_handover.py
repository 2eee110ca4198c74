"""A state that moves between ranks, whatever each of them holds and wants."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from on_elastic import flipped, handed, moved_in_parts
from ranks import Pools

from meshwright.train.elastic import handover

Rows = dict[int, tuple[int, int]]


@pytest.mark.parametrize(
    ("rows", "wants", "sources"),
    [
        ({0: (0, 8)}, {0: (0, 8), 1: (0, 8)}, [[0]]),  # a newcomer is filled from its twin
        ({0: (0, 4), 1: (4, 8)}, {0: (0, 8), 1: (0, 8)}, [[0, 1]]),  # shards are put together
        ({0: (0, 8), 1: (0, 8)}, {0: (0, 3), 1: (3, 8)}, [[0], [1]]),  # a whole state is divided
        ({1: (0, 8)}, {0: (2, 7), 1: (0, 8)}, [[1]]),
        ({0: (0, 5), 1: (5, 8)}, {0: (0, 4), 1: (4, 8)}, [[0, 1]]),  # divided in another way
    ],
)
def test_every_rank_gets_what_it_wants(pools: Pools, rows: Rows, wants: Rows, sources: list[list[int]]) -> None:
    found = pools.of(2).run(handed, rows, wants, sources)
    assert found == [
        [float(value + 100 * kind) for kind in range(3) for value in range(3 * first, 3 * last)] for first, last in (wants[0], wants[1])
    ]


def test_pieces_of_a_replica_that_leaves_arrive_message_by_message(pools: Pools) -> None:
    assert pools.of(2).run(moved_in_parts)[1] == [[10.0 * kind + value for value in range(5)] for kind in range(3)]


def test_messages_have_a_largest_size() -> None:
    with patch.object(handover, "MESSAGE_BYTES", 10):
        assert handover.messages_of([4, 6, 1, 20, 3, 3]) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 6)]
        assert handover.messages_of([]) == []


def test_a_flipped_bit_is_found(pools: Pools) -> None:
    assert pools.of(2).run(flipped) == ["the state that rank 0 sent arrived with other bits"] * 2
