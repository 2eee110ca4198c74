"""What stands between a layer's products, forward and backward, against float64 on fresh random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.layer_functions import gated, past_and_normed, rotate, turned_heads

NUMBERS = [
    pytest.param("cpu", torch.float32, 1e-5, id="processor"),
    *(
        pytest.param("cuda", dtype, bound, id=f"GPU {dtype}", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 8e-3))
    ),
]


def worst(ours: Callable[..., Sequence[Tensor]], exact: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> float:
    """How far outputs and gradients are from the same function of float64, as a share of their norm; the worst of them."""
    mine = [x.clone().requires_grad_() for x in inputs]
    theirs = [x.double().requires_grad_() for x in inputs]
    found, wanted = ours(*mine), exact(*theirs)
    weights = [torch.randn_like(out) for out in found]
    torch.autograd.backward(found, weights)
    torch.autograd.backward(wanted, [weight.double() for weight in weights])
    pairs = [*zip(found, wanted, strict=True), *((a.grad, b.grad) for a, b in zip(mine, theirs, strict=True))]
    assert all(bool(torch.isfinite(one).all()) for one, _ in pairs)
    return max(((one.double() - other).norm() / other.norm()).item() for one, other in pairs)


@pytest.mark.parametrize(("device", "dtype", "bound"), NUMBERS)
@pytest.mark.parametrize("shape", [(2, 33, 96), (1, 7, 2 * 2500), (5, 2)], ids=str)
def test_gated(device: str, dtype: torch.dtype, bound: float, shape: tuple[int, ...]) -> None:
    def exact(gate_up: Tensor) -> list[Tensor]:
        gate, up = gate_up.chunk(2, dim=-1)
        return [F.silu(gate) * up]

    assert worst(lambda x: [gated(x)], exact, [torch.randn(*shape, device=device).to(dtype)]) <= bound


@pytest.mark.parametrize(("device", "dtype", "bound"), NUMBERS)
@pytest.mark.parametrize(("num_queries", "num_keys", "width"), [(8, 2, 64), (3, 3, 16), (32, 8, 128), (5, 1, 48)])
def test_turned_heads(device: str, dtype: torch.dtype, bound: float, num_queries: int, num_keys: int, width: int) -> None:
    heads = torch.randn(2, 9, num_queries + 2 * num_keys, width, device=device).to(dtype)
    angles = torch.randn(9, 1, width // 2, device=device)
    cosine, sine = (torch.cat((x, x), dim=-1).to(dtype) for x in (angles.cos(), angles.sin()))

    def exact(x: Tensor) -> list[Tensor]:
        query, key, value = x.split([num_queries, num_keys, num_keys], dim=-2)
        return [rotate(query, cosine.double(), sine.double()), rotate(key, cosine.double(), sine.double()), value]

    assert worst(lambda x: turned_heads(x, num_keys, cosine, sine), exact, [heads]) <= bound


@pytest.mark.parametrize(("device", "dtype", "bound"), NUMBERS)
@pytest.mark.parametrize("shape", [(2, 33, 96), (1, 700, 4096), (3, 5)], ids=str)
def test_past_and_normed(device: str, dtype: torch.dtype, bound: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, device=device).to(dtype)
    weight = (1 + 0.1 * torch.randn(shape[-1], device=device)).to(dtype)

    def exact(x: Tensor, weight: Tensor) -> list[Tensor]:
        return [x * 1, x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * weight]

    assert worst(lambda x, weight: past_and_normed(x, weight, 1e-5), exact, [x, weight]) <= bound
