"""The highest scores of every row by a kernel: what a stable sort gives."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(("shape", "number"), [((1, 3, 8), 8), ((2, 5, 100), 6), ((3, 1), 1), ((4, 256), 4)], ids=str)
def test_a_stable_sort_gives_the_same(shape: tuple[int, ...], number: int, kernel_device: torch.device) -> None:
    from meshwright.train.kernels.scores_kernel import highest

    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(kernel_device)
    scores[0] = scores[0].round()  # some are equal
    scores[-1, ..., : shape[-1] // 2] = -torch.inf
    wanted = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :number]
    assert torch.equal(_called(highest, scores, number), wanted)


def test_what_is_not_a_number_still_gives_different_experts(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.scores_kernel import highest

    scores = torch.full((1, 8), torch.nan, device=kernel_device)
    assert _called(highest, scores, 3).tolist() == [[0, 1, 2]]


def _called(operator: object, scores: torch.Tensor, number: int) -> torch.Tensor:
    """An operator of torch, or on a processor the function that it is made of."""
    found: torch.Tensor = operator(scores, number) if scores.is_cuda else operator._init_fn(scores, number)  # type: ignore[attr-defined, operator]
    return found
