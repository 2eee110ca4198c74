"""The operations of a layer's backward between its products, as one-pass kernels on a GPU.

A compiler writes such kernels as well as a person does, with three exceptions: gradients of the parts of one tensor, which it joins by
reading the whole tensor for each part; the gradient of a norm plus that of the residual path around it, which it adds up in two passes;
and the sums over tokens that the weight of a norm needs. The kernels are torch operators, so that compiled layers can contain them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

GATE_BLOCK = 2048
NUM_PROCESSORS = 132  # of a Hopper GPU
ROW_ELEMENTS = 16384  # of a norm that each processor works on at a time
HEAD_ELEMENTS = 8192  # of heads that one program rotates back


@triton.jit
def _gate_back(
    gate_up: tl.tensor, d_inner: tl.tensor, d_gate_up: tl.tensor, width: tl.tensor, num_blocks: tl.tensor, BLOCK: tl.constexpr
) -> None:
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    column = program % num_blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside).to(tl.float32)
    gradient = tl.load(d_inner + row * width + column, mask=inside).to(tl.float32)
    share = tl.sigmoid(gate)
    d_up = gradient * gate * share
    d_gate = gradient * up * share * (1.0 + gate * (1.0 - share))
    tl.store(d_gate_up + row * 2 * width + column, d_gate.to(d_gate_up.dtype.element_ty), mask=inside)
    tl.store(d_gate_up + row * 2 * width + width + column, d_up.to(d_gate_up.dtype.element_ty), mask=inside)


@triton_op("meshwright::gate_back", mutates_args=())
def gate_back(gate_up: Tensor, d_inner: Tensor) -> Tensor:
    """The gradient of gate and up, side by side, from the gradient of silu(gate) * up."""
    width = d_inner.shape[-1]
    made = torch.empty_like(gate_up)
    blocks = triton.cdiv(width, GATE_BLOCK)
    grid = (blocks * (d_inner.numel() // width),)  # one dimension: the others are limited to 65,535, and a micro-batch may have more tokens
    wrap_triton(_gate_back)[grid](gate_up, d_inner, made, width, blocks, BLOCK=GATE_BLOCK, num_warps=8)
    return made


@triton.jit
def _heads_back(
    d_query: tl.tensor,
    d_key: tl.tensor,
    d_value: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    d_heads: tl.tensor,
    num_tokens: tl.tensor,
    num_queries: tl.tensor,
    num_keys: tl.tensor,
    num_blocks: tl.tensor,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    head = program % num_blocks * HEADS + tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF_BLOCK)[None, :]
    narrow = at < HALF
    of_query = head < num_queries
    of_key = (head >= num_queries) & (head < num_queries + num_keys)
    of_value = (head >= num_queries + num_keys) & (head < num_queries + 2 * num_keys)
    width: tl.constexpr = 2 * HALF
    query = d_query + (row * num_queries + head) * width + at
    key = d_key + (row * num_keys + head - num_queries) * width + at
    value = d_value + (row * num_keys + head - num_queries - num_keys) * width + at
    first = tl.load(query, mask=of_query & narrow, other=0.0).to(tl.float32)
    first += tl.load(key, mask=of_key & narrow, other=0.0).to(tl.float32)
    first += tl.load(value, mask=of_value & narrow, other=0.0).to(tl.float32)
    second = tl.load(query + HALF, mask=of_query & narrow, other=0.0).to(tl.float32)
    second += tl.load(key + HALF, mask=of_key & narrow, other=0.0).to(tl.float32)
    second += tl.load(value + HALF, mask=of_value & narrow, other=0.0).to(tl.float32)
    angle = (row % num_tokens) * width + at
    turns = of_query | of_key
    cos1 = tl.where(turns, tl.load(cosine + angle, mask=narrow).to(tl.float32), 1.0)
    cos2 = tl.where(turns, tl.load(cosine + angle + HALF, mask=narrow).to(tl.float32), 1.0)
    sin1 = tl.where(turns, tl.load(sine + angle, mask=narrow).to(tl.float32), 0.0)
    sin2 = tl.where(turns, tl.load(sine + angle + HALF, mask=narrow).to(tl.float32), 0.0)
    out = d_heads + (row * (num_queries + 2 * num_keys) + head) * width + at
    there = (of_query | of_key | of_value) & narrow
    tl.store(out, (first * cos1 + second * sin2).to(d_heads.dtype.element_ty), mask=there)
    tl.store(out + HALF, (second * cos2 - first * sin1).to(d_heads.dtype.element_ty), mask=there)


@triton_op("meshwright::heads_back", mutates_args=())
def heads_back(d_query: Tensor, d_key: Tensor, d_value: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The gradient of all heads of one projection, [B, T, heads, D], from those of rotated queries, rotated keys and values."""
    batch, tokens, num_queries, width = d_query.shape
    num_keys = d_key.shape[2]
    num_heads = num_queries + 2 * num_keys
    made = torch.empty(batch, tokens, num_heads, width, dtype=d_query.dtype, device=d_query.device)
    heads = min(triton.next_power_of_2(num_heads), max(HEAD_ELEMENTS // triton.next_power_of_2(width), 1))
    blocks = triton.cdiv(num_heads, heads)
    wrap_triton(_heads_back)[(blocks * batch * tokens,)](
        d_query, d_key, d_value, cosine, sine, made, tokens, num_queries, num_keys, blocks,
        HALF=width // 2, HALF_BLOCK=triton.next_power_of_2(width // 2), HEADS=heads, num_warps=4,
    )  # fmt: skip
    return made


@triton.jit
def _norm_back(
    d_normed: tl.tensor,
    d_past: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    d_x: tl.tensor,
    d_weight: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program, num_rows, tl.num_programs(0)):
        here = tl.cast(row, tl.int64) * width + column
        gradient = tl.load(d_normed + here, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
        past = tl.load(d_past + here, mask=inside, other=0.0).to(tl.float32)
        rate = tl.load(scale + row)
        normed = value * rate
        summed += gradient * normed
        gradient = gradient * factor
        mean = tl.sum(gradient * normed, axis=0) / width
        found = past + rate * (gradient - normed * mean)
        tl.store(d_x + here, found.to(d_x.dtype.element_ty), mask=inside)
    tl.store(d_weight + program.to(tl.int64) * width + column, summed, mask=inside)


@triton_op("meshwright::norm_back", mutates_args=())
def norm_back(d_normed: Tensor, d_past: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the tensor that enters a norm and its residual path, and of the norm's weight (partial sums, [programs, H])."""
    width = x.shape[-1]
    rows = x.numel() // width
    block = triton.next_power_of_2(width)
    programs = min(NUM_PROCESSORS * min(max(ROW_ELEMENTS // block, 2), 8), rows)
    d_x = torch.empty_like(x)
    d_weight = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    wrap_triton(_norm_back)[(programs,)](
        d_normed, d_past, x, weight, scale, d_x, d_weight, rows, width,
        BLOCK=block, num_warps=min(max(block // 512, 4), 16),
    )  # fmt: skip
    return d_x, d_weight
