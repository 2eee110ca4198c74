"""Our own grouped products against a loop of plain ones."""

from __future__ import annotations

import os

import pytest
import torch

COUNTS = {
    "empty groups": (0, 24, 0, 40, 1, 7, 0),
    "one row": (0, 1, 0),
    "one group has all": (0, 0, 130),
    "more than a tile": (65, 64, 3),
    "no row": (0, 0),
}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 128), (40, 72)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)], ids=str)
def test_products_and_gradients(
    counts: tuple[int, ...], num_in: int, num_out: int, dtype: torch.dtype, bound: float, kernel_device: torch.device, is_interpreted: bool
) -> None:
    from meshwright.train.kernels.grouped import LOOP
    from meshwright.train.kernels.grouped_kernels import grouped_product, grouped_weight_gradient

    if is_interpreted and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies the bits of bf16 as if they were whole numbers")

    def drawn(*shape: int, seed: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(kernel_device, dtype)

    rows, gradient, sizes = (
        drawn(sum(counts), num_in, seed=1),
        drawn(sum(counts), num_out, seed=2),
        torch.tensor(counts, device=kernel_device),
    )
    weight = drawn(len(counts), num_out, num_in, seed=3)
    found = [grouped_product(rows, weight, sizes), grouped_product(gradient, weight.transpose(1, 2), sizes)]
    found.append(grouped_weight_gradient(gradient, rows, sizes))
    r, g, w = rows.double(), gradient.double(), weight.double()
    wanted = [LOOP.forward(r, w, sizes), LOOP.to_input(g, w, sizes), LOOP.to_weight(g, r, sizes)]
    for one, other in zip(found, wanted, strict=True):
        assert bool(torch.isfinite(one).all()) and one.shape == other.shape
        assert (one.double() - other).norm() <= bound * other.norm()


def test_a_strided_gradient_is_read_where_it_lies(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.grouped_kernels import grouped_weight_gradient

    gradient, rows = torch.ones(2, 3, device=kernel_device).T, torch.ones(3, 4, device=kernel_device)
    found = grouped_weight_gradient(gradient, rows, torch.tensor([1, 2], device=kernel_device))
    assert found.tolist() == [[[1.0] * 4] * 2, [[2.0] * 4] * 2]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels are not compiled")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", ["product", "weight_gradient"])
def test_a_kernel_compiles_for_hopper_and_uses_its_tensor_cores(name: str, number: int) -> None:
    """Triton compiles for a GPU that is not there. Strides and pointers are multiples of 16, as those of the trainer are."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from meshwright.train.kernels import grouped_kernels

    kernel, tiles = getattr(grouped_kernels, f"_{name}"), grouped_kernels.TILES[number]
    sizes = {"NUM_OUT": 1536, "NUM_IN": 2048, "GROUPS": 128, "DEEP": 64, "PRECISION": "tf32", **tiles.kwargs}
    constants = {**sizes, **({"in_stride": 1} if name == "product" else {})}
    types = {"counts": "*i64", "num_groups": "i32", "group_stride": "i32", "out_stride": "i32", **dict.fromkeys(constants, "constexpr")}
    signature = {argument: types.get(argument, "*bf16") for argument in kernel.arg_names}
    even = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind != "constexpr"}
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    made = triton.compile(ASTSource(kernel, signature, constants, even), target=GPUTarget("cuda", 90, 32), options=options)
    assert "wgmma.mma_async" in made.asm["ptx"] and "cp.async" in made.asm["ptx"]
    assert made.metadata.shared <= 227 * 1024 and ".local" not in made.asm["ptx"]  # nothing is spilt
