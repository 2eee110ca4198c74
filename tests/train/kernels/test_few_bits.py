"""Frozen weights in few bits: close to the original, the same for every cut, and products that use exactly what comes back."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.kernels.few_bits import KINDS, NF4, FewBits

CPU = torch.device("cpu")
WHOLE = torch.randn(10, 150, generator=torch.Generator().manual_seed(3))
WHOLE[4] = 0.0
WHOLE[5, 7] = 40.0  # an outlier: the other blocks of its row keep scales of their own


def stored(kind: str, columns: slice = slice(0, 150), dtype: torch.dtype = torch.float32) -> FewBits:
    few = KINDS[kind](10, columns, dtype, CPU)
    few.store(0, WHOLE[:6])
    few.store(6, WHOLE[6:])
    return few


@pytest.mark.parametrize(("kind", "error"), [("fp8", 0.04), ("nf4", 0.13)])
def test_weights_come_back_nearly_as_they_were(kind: str, error: float) -> None:
    found = stored(kind).weight()
    rows = [0, 1, 2, 3, 6, 7, 8, 9]
    assert float((found - WHOLE)[rows].norm() / WHOLE[rows].norm()) < error
    assert not found[4].any() and float(found[5, 7]) == pytest.approx(40.0, rel=0.01)
    assert float((found - WHOLE)[5, 64:].abs().max()) < 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [slice(0, 75), slice(75, 150), slice(50, 99), slice(149, 150)])
def test_a_part_of_the_columns_is_that_part_of_the_whole(kind: str, columns: slice) -> None:
    assert torch.equal(stored(kind, columns).weight(), stored(kind).weight()[:, columns])


def test_bytes_of_an_element() -> None:
    bits = {kind: sum(8 * held.nbytes for held in few_buffers(kind)) / (4096 * 64) for kind in KINDS}
    assert bits["fp8"] == pytest.approx(8 + 32 / 4096)
    assert bits["nf4"] == pytest.approx(4 + 8 / 64 + 32 / 4096)


def few_buffers(kind: str) -> list[torch.Tensor]:
    few = KINDS[kind](64, slice(0, 4096), torch.bfloat16, CPU)
    return list(few.buffers())


def test_the_values_are_those_of_the_authors() -> None:
    """Checked by their construction: quantiles of a normal distribution, eight above zero and seven below, scaled to one."""
    from scipy.stats import norm

    offset = 0.9677083
    above = norm.ppf(torch.linspace(offset, 0.5, 9)[:-1].numpy())
    below = -norm.ppf(torch.linspace(offset, 0.5, 8)[:-1].numpy())
    values = sorted([*above, 0.0, *below])
    assert torch.allclose(torch.tensor(values) / max(values), torch.tensor(NF4, dtype=torch.float64), atol=1e-4)
