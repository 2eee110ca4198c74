"""Backwards between a layer's products, as kernels: the gradients that torch finds in fp64, for every shape of a layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.layer_functions import rotate

NUMBERS = [(torch.float32, 1e-5), (torch.bfloat16, 8e-3)]
MANY_ROWS = 65_536 + 3  # more tokens than a grid's second dimension has places


def drawn(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def off(found: Tensor, wanted: Tensor) -> float:
    assert bool(torch.isfinite(found).all())
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def gate_exact(gate_up: Tensor, d_inner: Tensor) -> Tensor:
    x = gate_up.double().requires_grad_()
    gate, up = x.chunk(2, dim=-1)
    (F.silu(gate) * up).backward(d_inner.double())
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("shape", [(2, 33, 48), (1, 7, 2500), (5, 1), (3, 2048), (3, 2049)], ids=str)
@pytest.mark.parametrize(("dtype", "bound"), NUMBERS, ids=str)
def test_the_gradient_of_gate_and_up(shape: tuple[int, ...], dtype: torch.dtype, bound: float, kernel_device: torch.device) -> None:
    from meshwright.train.kernels.layer_kernels import gate_back

    gate_up = drawn(*shape[:-1], 2 * shape[-1], dtype=dtype, device=kernel_device)
    d_inner = drawn(*shape, dtype=dtype, device=kernel_device, seed=2)
    assert off(gate_back(gate_up, d_inner), gate_exact(gate_up, d_inner)) <= bound


def heads_exact(heads: Tensor, num_keys: int, cosine: Tensor, sine: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
    x = heads.double().requires_grad_()
    query, key, value = x.split([x.shape[-2] - 2 * num_keys, num_keys, num_keys], dim=-2)
    turned = (rotate(query, cosine.double(), sine.double()), rotate(key, cosine.double(), sine.double()), value * 1)
    torch.autograd.backward(turned, [gradient.double() for gradient in gradients])
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(("num_queries", "num_keys", "width"), [(8, 2, 64), (3, 3, 16), (32, 8, 128), (5, 1, 48), (200, 1, 128)])
@pytest.mark.parametrize(("dtype", "bound"), NUMBERS, ids=str)
def test_the_gradient_of_turned_heads(
    num_queries: int, num_keys: int, width: int, dtype: torch.dtype, bound: float, kernel_device: torch.device
) -> None:
    from meshwright.train.kernels.layer_kernels import heads_back

    given = {"dtype": dtype, "device": kernel_device}
    angles = drawn(9, 1, width // 2, dtype=torch.float32, device=kernel_device)
    cosine, sine = (torch.cat((x, x), dim=-1).to(dtype) for x in (angles.cos(), angles.sin()))
    gradients = tuple(drawn(2, 9, count, width, seed=seed, **given) for seed, count in enumerate((num_queries, num_keys, num_keys)))
    heads = drawn(2, 9, num_queries + 2 * num_keys, width, **given)
    assert off(heads_back(*gradients, cosine, sine), heads_exact(heads, num_keys, cosine, sine, gradients)) <= bound


def test_a_quarter_turn_worked_by_hand(kernel_device: torch.device) -> None:
    # forward: (a, b) becomes (-b, a); so a gradient (p, q) comes back as (q, -p), and values come back as they are
    from meshwright.train.kernels.layer_kernels import heads_back

    gradient = torch.tensor([3.0, 5.0], device=kernel_device).view(1, 1, 1, 2)
    cosine, sine = torch.zeros(1, 1, 2, device=kernel_device), torch.ones(1, 1, 2, device=kernel_device)
    found = heads_back(gradient, 2 * gradient, 4 * gradient, cosine, sine)
    assert found.view(3, 2).tolist() == [[5.0, -3.0], [10.0, -6.0], [12.0, 20.0]]


def norm_exact(d_normed: Tensor, d_past: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    inputs, factor = x.double().requires_grad_(), weight.double().requires_grad_()
    normed = inputs * torch.rsqrt(inputs.square().mean(dim=-1, keepdim=True) + 1e-5) * factor
    torch.autograd.backward([inputs * 1, normed], [d_past.double(), d_normed.double()])
    assert inputs.grad is not None and factor.grad is not None
    return inputs.grad, factor.grad


@pytest.mark.parametrize("shape", [(2, 33, 96), (1, 300, 512), (3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize(("dtype", "bound"), NUMBERS, ids=str)
def test_the_gradient_of_a_norm_and_of_what_goes_past_it(
    shape: tuple[int, ...], dtype: torch.dtype, bound: float, kernel_device: torch.device
) -> None:
    from meshwright.train.kernels.layer_kernels import norm_back

    given = {"dtype": dtype, "device": kernel_device}
    x, d_normed, d_past = (drawn(*shape, seed=seed, **given) for seed in (1, 2, 3))
    weight = 1 + 0.1 * drawn(shape[-1], seed=4, **given)
    scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + 1e-5)
    d_x, partial = norm_back(d_normed, d_past, x, weight, scale)
    wanted_x, wanted_weight = norm_exact(d_normed, d_past, x, weight)
    assert off(d_x, wanted_x) <= bound and off(partial.sum(dim=0), wanted_weight) <= bound
    assert partial.dtype == torch.float32 and partial.shape[0] <= x.numel() // shape[-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its grids are what has a limit")
def test_a_micro_batch_may_have_more_tokens_than_a_grid_has_places_in_its_second_dimension() -> None:
    from meshwright.train.kernels.layer_kernels import gate_back, heads_back, norm_back

    device = torch.device("cuda")
    given = {"dtype": torch.float32, "device": device}
    gate_up, d_inner = drawn(MANY_ROWS, 32, **given), drawn(MANY_ROWS, 16, seed=2, **given)
    assert off(gate_back(gate_up, d_inner), gate_exact(gate_up, d_inner)) <= 1e-5
    angles = drawn(MANY_ROWS, 1, 4, **given)
    cosine, sine = (torch.cat((x, x), dim=-1) for x in (angles.cos(), angles.sin()))
    gradients = tuple(drawn(1, MANY_ROWS, 1, 8, seed=seed, **given) for seed in range(3))
    wanted = heads_exact(drawn(1, MANY_ROWS, 3, 8, **given), 1, cosine, sine, gradients)
    assert off(heads_back(*gradients, cosine, sine), wanted) <= 1e-5
    x, d_normed, d_past = (drawn(MANY_ROWS, 16, seed=seed, **given) for seed in range(3))
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)
    d_x, _ = norm_back(d_normed, d_past, x, torch.ones(16, device=device), scale)
    assert off(d_x, norm_exact(d_normed, d_past, x, torch.ones(16, device=device))[0]) <= 1e-5
