"""The product of a frozen matrix and its pairs: equal to its plain definition, with its gradients, in every number format of the matrix."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.adapted import adapted, added
from meshwright.train.kernels.few_bits import KINDS, Held

NUM_IN, NUM_OUT, RANKS = 96, 40, 6


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def held_as(kind: str) -> tuple[Held, Tensor]:
    """A matrix in a number format, and what it stands for."""
    weight = drawn(NUM_OUT, NUM_IN, seed=1)
    if kind == "plain":
        return Held(weight), weight
    few = KINDS[kind](NUM_OUT, slice(0, NUM_IN), torch.float32, torch.device("cpu"))
    few.store(0, weight)
    return few.held(), few.weight()


def plain(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return F.linear(x, weight) + scale * F.linear(F.linear(x, a), b)


@pytest.mark.parametrize("kind", ["plain", *KINDS])
@pytest.mark.parametrize("ranks", [1, RANKS])
@pytest.mark.parametrize("is_apart", [False, True])
def test_product_and_gradients_equal_the_plain_definition(kind: str, ranks: int, is_apart: bool) -> None:
    held, weight = held_as(kind)
    inputs = [drawn(2, 3, NUM_IN, seed=2), drawn(ranks, NUM_IN, seed=3), drawn(NUM_OUT, ranks, seed=4)]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))
    x, a, b = ours
    found = added(x, held, F.linear(x, a), b, 0.7) if is_apart else adapted(x, held, a, b, 0.7)
    wanted = plain(theirs[0], weight, *theirs[1:], 0.7)
    gradient = drawn(2, 3, NUM_OUT, seed=5)
    found.backward(gradient)
    wanted.backward(gradient)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["plain", *KINDS])
def test_a_product_without_pairs_has_the_gradient_of_its_input(kind: str) -> None:
    held, weight = held_as(kind)
    x = drawn(2, 3, NUM_IN, seed=2).requires_grad_()
    found = added(x, held, None, x.new_empty(NUM_OUT, 0), 1.0)
    found.sum().backward()
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, weight.sum(0).expand(2, 3, NUM_IN), rtol=1e-5, atol=1e-5)


def test_what_is_computed_again_ends_before_the_last_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.checkpoint import checkpoint

    held, _ = held_as("fp8")
    made: list[int] = []
    weight = Held.weight
    monkeypatch.setattr(Held, "weight", lambda self, *given: made.append(1) or weight(self, *given))
    x, a, b = drawn(2, 3, NUM_IN, seed=2).requires_grad_(), drawn(2, NUM_IN, seed=3).requires_grad_(), drawn(NUM_OUT, 2, seed=4)

    def half(x: Tensor) -> Tensor:
        inner = torch.sin(x)
        return added(inner, held, F.linear(inner, a), b, 1.0)

    checkpoint(half, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert len(made) == 2  # forward, and the gradient of the input: not a third time


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_in_few_bits_is_not_kept_for_the_backward(kind: str) -> None:
    held, _ = held_as(kind)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    x, a, b = drawn(2, 3, NUM_IN, seed=2).requires_grad_(), drawn(2, NUM_IN, seed=3).requires_grad_(), drawn(NUM_OUT, 2, seed=4)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        adapted(x, held, a, b, 1.0)
    assert 0 < max(kept) <= NUM_OUT * NUM_IN  # bytes: the codes themselves; the weight would be four times as many


def test_compiled_functions_hold_the_product_whole() -> None:
    held, weight = held_as("nf4")
    x, a, b = drawn(2, 3, NUM_IN, seed=2), drawn(2, NUM_IN, seed=3), drawn(NUM_OUT, 2, seed=4)
    compiled = torch.compile(lambda x: adapted(x * 2, held, a, b, 0.5), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x * 2, weight, a, b, 0.5), rtol=1e-5, atol=1e-4)
