"""Collectives between processes are timed at the sizes that they are written down with, by all ranks alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from on_exchanges import sent, timed
from ranks import Pools

from meshwright.train.measure import exchanges
from meshwright.train.measure.exchanges import GROUP_SIZES, KINDS, PAYLOADS, SEQUENCES, WIDTH


def test_every_kind_and_size_is_timed_and_all_ranks_know_the_same(pools: Pools) -> None:
    ranks = pools.of(4).run(timed, 1)
    found, reported = ranks[0]
    assert all(other == found for other, _ in ranks)  # the mean over all of them
    wanted = {(kind, size, payload) for size in (2, 4) for kind in KINDS for payload in PAYLOADS if kind != "message" or size == 2}
    assert {one[:3] for one in found} == wanted and len(found) == len(wanted)
    assert all(seconds >= 1e-6 for *_, seconds in found)
    assert reported == ["timing collectives of 2 processes", "timing collectives of 4 processes"]


@pytest.mark.parametrize("payload", PAYLOADS[:2])
def test_what_is_exchanged_has_the_bytes_that_are_written_down(payload: int, pools: Pools) -> None:
    pool = pools.of(4)
    for size in (2, 4):
        assert pool.run(sent, "all-gather", payload, size) == [[payload // size, payload]] * 4
        assert pool.run(sent, "reduce-scatter", payload, size) == [[payload, payload // size]] * 4
        assert pool.run(sent, "all-reduce", payload, size) == [[payload, payload]] * 4
    assert pool.run(sent, "message", payload, 2) == [[payload, partner] for partner in (1, 0, 3, 2)]


@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_payload_divides_into_tokens_of_every_rank(payload: int, size: int) -> None:
    """Else another number of bytes would be timed than the profile says."""
    assert payload % (4 * size * SEQUENCES * WIDTH) == 0


def test_an_exchange_costs_what_a_round_takes_beyond_its_product(monkeypatch: pytest.MonkeyPatch) -> None:
    # a product takes 2 s and an exchange 3 s, called once before the clock starts
    now_s, calls = 0.0, 0

    def work() -> None:
        nonlocal now_s, calls
        now_s, calls = now_s + 3.0, calls + 1

    class Side:
        def __matmul__(self, other: object) -> None:
            nonlocal now_s
            now_s += 2.0

    monkeypatch.setattr(exchanges, "now_s", lambda: now_s)
    monkeypatch.setattr(exchanges, "torch", SimpleNamespace(ones=lambda *shape: Side()))
    monkeypatch.setattr(exchanges, "dist", SimpleNamespace(barrier=lambda: None))
    assert exchanges._seconds(work, 4) == 5.0 and calls == 5


@pytest.mark.parametrize("num_ranks", [1, 3, 5, 7])
def test_processes_that_make_no_group_time_nothing(num_ranks: int) -> None:
    assert exchanges.collectives_s(num_ranks, 1, pytest.fail) == []


def test_a_time_below_that_of_no_exchange_is_a_small_one_and_not_below_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "_group_of", lambda size, num_ranks: (None, 0))
    monkeypatch.setattr(exchanges, "exchange", lambda *given: lambda: None)
    seconds = iter([5.0, *[4.0] * 1000])  # the round without an exchange was disturbed
    monkeypatch.setattr(exchanges, "_seconds", lambda work, calls: next(seconds))
    monkeypatch.setattr(exchanges, "_mean_over_ranks", lambda each, num_ranks: each)
    assert {one.seconds for one in exchanges.collectives_s(2, 1, str)} == {1e-6}


def test_shares_are_of_four_bytes(world: None) -> None:
    work = exchanges.exchange("all-gather", 8192, torch.distributed.group.WORLD, 2, 1)
    assert work().shape == (SEQUENCES, 8192 // 4 // 2 // SEQUENCES // WIDTH, WIDTH)  # alone, a rank keeps its share
