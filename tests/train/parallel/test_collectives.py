"""One axis's collectives by hand on two ranks: rank r holds [[r, r + 10], [r + 20, r + 30]]."""

from __future__ import annotations

from on_axis import bookkeeping, collectives, texts
from ranks import Pools


def test_what_two_ranks_get(pools: Pools) -> None:
    first, second = pools.of(2).run(collectives)
    for one in (first, second):
        assert one["gather 0"] == [[0, 10], [20, 30], [1, 11], [21, 31]]
        assert one["gather 1"] == [[0, 10, 1, 11], [20, 30, 21, 31]]
        assert one["sum"] == [[1, 21], [41, 61]] and one["max"] == [[1, 11], [21, 31]]
    assert (first["scatter 0"], second["scatter 0"]) == ([[1, 21]], [[41, 61]])
    assert (first["scatter 1"], second["scatter 1"]) == ([[1], [41]], [[21], [61]])
    assert (first["switch"], second["switch"]) == ([[0, 10], [1, 11]], [[20, 30], [21, 31]])


def test_gradients_go_back_the_other_way(pools: Pools) -> None:
    """Rank r's gradient is (r + 1) times [[1, 2], [3, 4]]: what every rank used is summed, what was summed goes to everyone."""
    first, second = pools.of(2).run(collectives)
    assert (first["back of gather"], second["back of gather"]) == ([[3, 6]], [[9, 12]])
    assert first["back of scatter"] == second["back of scatter"] == [[1, 2], [2, 4]]
    assert (first["back of switch"], second["back of switch"]) == ([[1, 2], [2, 4]], [[3, 4], [6, 8]])


def test_waits_are_booked_on_their_axis_and_marked_while_they_last(pools: Pools) -> None:
    for parts, is_waiting, num_moves in pools.of(2).run(bookkeeping):
        assert parts == ["exposed_tp", "exposed_tp"]
        assert not is_waiting and num_moves == 4


def test_long_texts_arrive_whole(pools: Pools) -> None:
    assert pools.of(2).run(texts) == [["a", "b" * 5000]] * 2
