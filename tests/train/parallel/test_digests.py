"""Digests of a state: any bit shows, all of it is looked at in turn, and replicas look at the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.train.parallel.digests import NUM_PARTS, Digests


def state(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, generator=generator).to(dtype) for size in (1000, 7, 1, 300)]


def all_parts(tensors: list[torch.Tensor]) -> list[float]:
    digests = Digests(tensors)
    return [float(digests.next()) for _ in range(NUM_PARTS)]


@settings(deadline=None, max_examples=40)
@given(tensor=st.integers(0, 3), element=st.integers(0, 10**6), bit=st.integers(0, 31))
def test_any_bit_changes_one_part(tensor: int, element: int, bit: int) -> None:
    damaged = state()
    bits = damaged[tensor].view(torch.int32)
    bits[element % len(bits)] ^= 1 << bit if bit < 31 else -(2**31)
    assert sum(a != b for a, b in zip(all_parts(state()), all_parts(damaged), strict=True)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_they_are_whole_numbers_that_a_sum_carries_and_come_again(dtype: torch.dtype) -> None:
    digests = Digests(state(dtype))
    first = [digests.next() for _ in range(NUM_PARTS)]
    assert all(one.dtype == torch.float64 and float(one) == int(one) < 2**52 for one in first)
    assert [float(digests.next()) for _ in range(NUM_PARTS)] == [float(one) for one in first]


def test_nothing_to_compare_is_zero() -> None:
    assert float(Digests([]).next()) == 0.0
