"""Every kernel gives the output, the log-sum-exp and the gradients of the plain definition, on the device that it is for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.attention_kernels import CUDNN, FLASH, FLASH_4, PROCESSOR, WRITTEN, Kernel

CASES = [((4, 4), 24, 24, True), ((6, 2), 24, 24, True), ((6, 2), 24, 10, False), ((2, 1), 5, 40, False)]


def heads(counts: tuple[int, int], num_queries: int, num_keys: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [
        (2, num_queries, counts[0], dim),
        (2, num_keys, counts[1], dim),
        (2, num_keys, counts[1], dim),
        (2, num_queries, counts[0], dim),
    ]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def plain(query: Tensor, key: Tensor, value: Tensor, d_out: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """Output, log-sum-exp and gradients in float64."""
    wide = [x.double().requires_grad_() for x in (query, key, value)]
    q, k, v = (x.transpose(1, 2) for x in wide)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, wide, d_out.double())


@pytest.mark.parametrize("kernel", [WRITTEN, PROCESSOR], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("counts, num_queries, num_keys, causal", CASES)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
def test_kernels_on_a_processor_are_the_plain_definition(
    kernel: Kernel, counts: tuple[int, int], num_queries: int, num_keys: int, causal: bool, dtype: torch.dtype, bound: float
) -> None:
    query, key, value, d_out = heads(counts, num_queries, num_keys, 6, dtype)
    wanted = plain(query, key, value, d_out, causal)
    out, log_sums = kernel.forward(query, key, value, causal)
    found = (out, log_sums, *kernel.backward(d_out, query, key, value, out, log_sums, causal))
    assert out.dtype == dtype and log_sums.dtype == torch.float32
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours.double() - theirs).norm() / theirs.norm()) < bound


@pytest.mark.parametrize("dim", [12, 264])
def test_torchs_flash_attention_is_not_asked_for_heads_that_it_would_misread(dim: int) -> None:
    query, key, value, _ = heads((2, 2), 4, 4, dim, torch.bfloat16)
    with pytest.raises(ValueError, match=f"heads of {dim} dimensions"):
        FLASH.forward(query, key, value, True)


def test_only_kernels_that_take_runs_say_so() -> None:
    have = {kernel.name for kernel in (WRITTEN, PROCESSOR, CUDNN, FLASH, FLASH_4) if kernel.packed_forward is not None}
    assert have == {FLASH.name, FLASH_4.name}
    assert all(
        (kernel.packed_forward is None) == (kernel.packed_backward is None) for kernel in (WRITTEN, PROCESSOR, CUDNN, FLASH, FLASH_4)
    )


FLASH_INPUTS = "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("_scaled_dot_product_flash_attention", "query key value dropout_p is_causal return_debug_mask"),
        ("_scaled_dot_product_flash_attention_backward", FLASH_INPUTS),
        ("_scaled_dot_product_cudnn_attention", "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask"),
        ("_scaled_dot_product_cudnn_attention_backward", "grad_out query key value out logsumexp philox_seed philox_offset attn_bias"),
        ("_flash_attention_forward", "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"),
        ("_flash_attention_backward", FLASH_INPUTS),
    ],
)
def test_operators_for_a_gpu_take_what_is_given_to_them(name: str, arguments: str) -> None:
    """They cannot run without a GPU; that this torch has them, with these arguments in this order, can be seen everywhere."""
    found = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    assert " ".join(found).startswith(arguments)
