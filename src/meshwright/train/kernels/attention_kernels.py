"""Kernels that attend to a part of the keys: they also give the log-sum-exp of their scores, and take that of all keys for gradients.

FlashAttention 4, cuDNN's and torch's flash attention on a GPU, torch's flash attention on a processor, and written-out arithmetic in fp32.
Queries are [B, T, N, D], keys and values [B, S, N, D] with as many heads or a divisor of them, log-sum-exps [B, N, T] in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from meshwright.train.kernels import flash_attention
from meshwright.train.kernels.runs import Runs

Part = tuple[Tensor, Tensor]  # output and log-sum-exp
Gradients = tuple[Tensor, Tensor, Tensor]  # of queries, keys and values
LARGEST_HEAD = 256


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One way to compute attention over some keys. `forward(query, key, value, causal)` gives output and log-sum-exp, and
    `backward(d_out, query, key, value, out, log_sums, causal)` gradients.

    The packed ones take tokens of all sequences in one row, [T, N, D], with log-sum-exps [N, T], and runs as a further argument. Without
    them runs are attended to one by one.
    """

    name: str
    forward: Callable[[Tensor, Tensor, Tensor, bool], Part]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], Gradients]
    packed_forward: Callable[[Tensor, Tensor, Tensor, bool, Runs], Part] | None = None
    packed_backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, Runs], Gradients] | None = None


def _written_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    return written_forward(query, key, value, _later(query, key) if causal else None)


def _written_backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
    return written_backward(d_out, query, key, value, out, log_sums, _later(query, key) if causal else None)


def written_forward(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Part:
    """Attention written out in fp32, without the keys that are `hidden` from a query: [T, S], or with [B, 1, 1] before."""
    groups = query.shape[2] // key.shape[2]
    scores = _scores(query, key, groups, hidden)
    log_sums = scores.logsumexp(dim=-1)
    out = _weights(scores, log_sums) @ _heads_first(value)
    return _ungrouped(out, query.dtype), log_sums.flatten(1, 2)


def written_backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, hidden: Tensor | None
) -> Gradients:
    """Gradients in fp32; `out` and `log_sums` are those of attention to all keys."""
    groups = query.shape[2] // key.shape[2]
    d_grouped, k, v = _grouped(d_out, groups), _heads_first(key), _heads_first(value)
    weighted = (d_grouped * _grouped(out, groups)).sum(dim=-1, keepdim=True)
    weights = _weights(_scores(query, key, groups, hidden), log_sums.unflatten(1, (-1, groups)))
    d_scores = weights * (d_grouped @ v.transpose(-1, -2) - weighted) * query.shape[-1] ** -0.5
    d_key, d_value = d_scores.transpose(-1, -2) @ _grouped(query, groups), weights.transpose(-1, -2) @ d_grouped
    return _ungrouped(d_scores @ k, torch.float32), _tokens_first(d_key), _tokens_first(d_value)


def _weights(scores: Tensor, log_sums: Tensor) -> Tensor:
    """Softmax from log-sum-exps; rows without any key have no weights."""
    return (scores - log_sums.clamp(min=torch.finfo(torch.float32).min)[..., None]).exp()


def _scores(query: Tensor, key: Tensor, groups: int, hidden: Tensor | None) -> Tensor:
    """Scaled scores in fp32 with minus infinity where a key is hidden; heads before tokens."""
    scores: Tensor = _grouped(query, groups) @ _heads_first(key).transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores if hidden is None else scores.masked_fill(hidden, float("-inf"))


def _later(query: Tensor, key: Tensor) -> Tensor:
    """Keys that are later than a query, [T, S]."""
    return torch.ones((query.shape[1], key.shape[1]), dtype=torch.bool, device=query.device).triu(1)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """[B, T, N, D] -> [B, N / groups, groups, T, D] in fp32: queries next to the key-value head that they share."""
    return torch.unflatten(x, 2, (-1, groups)).permute(0, 2, 3, 1, 4).float()


def _ungrouped(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.permute(0, 3, 1, 2, 4).flatten(2, 3).to(dtype)


def _heads_first(x: Tensor) -> Tensor:
    """[B, T, N, D] -> [B, N, 1, T, D] in fp32."""
    return x.transpose(1, 2)[:, :, None].float()


def _tokens_first(x: Tensor) -> Tensor:
    """Gradients of keys or values summed over the queries that share a head: [B, N, groups, T, D] -> [B, T, N, D]."""
    return x.sum(dim=2).transpose(1, 2)


def _turned(*tensors: Tensor) -> list[Tensor]:
    """Tokens and heads change places: torch's kernels have heads first."""
    return [x.transpose(1, 2) for x in tensors]


def _gradients(found: tuple[Tensor, ...]) -> Gradients:
    d_query, d_key, d_value = _turned(*found[:3])
    return d_query, d_key, d_value


def _processor_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*_turned(query, key, value), 0.0, causal)
    return out.transpose(1, 2), log_sums


def _processor_backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
    inputs = _turned(d_out, query, key, value, out)
    return _gradients(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, log_sums, 0.0, causal))


def _cudnn_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    heads = _turned(query, key, value)
    out, log_sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*heads, None, True, 0.0, causal, False)
    return out.transpose(1, 2), log_sums.view(heads[0].shape[:3])  # one release of torch has a fourth dimension of one


def _cudnn_backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
    seed = torch.empty((), dtype=torch.int64, device=query.device)  # of dropout, which there is none of
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *_turned(d_out, query, key, value, out), log_sums[..., None], seed, seed, None, None, None,
        query.shape[1], key.shape[1], 0.0, causal,
    )  # fmt: skip
    return _gradients(found)


def _flash_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    _check_head(query)
    out, log_sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*_turned(query, key, value), 0.0, causal, False)
    return out.transpose(1, 2), log_sums


def _flash_backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
    found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *_turned(d_out, query, key, value, out), log_sums, None, None, query.shape[1], key.shape[1], 0.0, causal, *_no_dropout(query)
    )
    return _gradients(found)


def _flash_packed_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, runs: Runs, window: int = 0) -> Part:
    _check_head(query)
    out, log_sums, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, runs.query_starts, runs.key_starts, runs.longest_query, runs.longest_key, 0.0, causal, False,
        **_flash_window(window),
    )  # fmt: skip
    return out, log_sums.masked_fill(log_sums == float("inf"), float("-inf"))  # so it marks rows without keys


def _flash_packed_backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool, runs: Runs, window: int = 0
) -> Gradients:
    d_query, d_key, d_value = torch.ops.aten._flash_attention_backward(
        d_out, query, key, value, out, log_sums, runs.query_starts, runs.key_starts, runs.longest_query, runs.longest_key,
        0.0, causal, *_no_dropout(query), **_flash_window(window),
    )  # fmt: skip
    return d_query, d_key, d_value


def _flash_window(window: int) -> dict[str, int]:
    """How far torch's and FlashAttention's kernels look back and ahead."""
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _in_one_row(query: Tensor, key: Tensor) -> Runs:
    """Whole sequences as runs."""
    starts = [torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * x.shape[1] for x in (query, key)]
    return Runs((query.shape[1],) * query.shape[0], (key.shape[1],) * key.shape[0], *starts)


@cache
def flash_of(window: int) -> Kernel:
    """torch's flash attention with a window. Its operator for whole sequences has none, so they are runs of one row."""

    def forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
        rows = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        out, log_sums = _flash_packed_forward(*rows, causal, _in_one_row(query, key), window)
        return out.view(query.shape), log_sums.unflatten(1, query.shape[:2]).transpose(0, 1)

    def backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
        rows = d_out.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), out.flatten(0, 1)
        sums = log_sums.transpose(0, 1).flatten(1).contiguous()
        found = _flash_packed_backward(*rows, sums, causal, _in_one_row(query, key), window)
        return found[0].view(query.shape), found[1].view(key.shape), found[2].view(value.shape)

    packed = partial(_flash_packed_forward, window=window), partial(_flash_packed_backward, window=window)
    return Kernel(FLASH.name, forward, backward, *packed)


@cache
def flash_4_of(window: int) -> Kernel:
    """FlashAttention 4 with a window."""
    whole = partial(_flash_4_forward, window=window), partial(_flash_4_backward, window=window)
    packed = partial(_flash_4_packed_forward, window=window), partial(_flash_4_packed_backward, window=window)
    return Kernel(FLASH_4.name, *whole, *packed)


def _no_dropout(query: Tensor) -> tuple[Tensor, Tensor]:
    """The state of random numbers that torch's flash attention asks for and, without dropout, does not read."""
    return torch.empty((2,), dtype=torch.uint64, device=query.device), torch.empty((0,), dtype=torch.uint64, device=query.device)


def _check_head(query: Tensor) -> None:
    """These kernels read a head in pieces of eight numbers, and the operators do not pad it."""
    if query.shape[-1] % 8 or query.shape[-1] > LARGEST_HEAD:
        raise ValueError(f"heads of {query.shape[-1]} dimensions: torch's flash attention has multiples of 8 up to {LARGEST_HEAD}")


def _flash_4_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, window: int = 0) -> Part:
    options = _flash_window(window)
    out, log_sums = flash_attention.load()._flash_attn_fwd(query, key, value, causal=causal, return_lse=True, **options)[:2]
    return out, log_sums


def _flash_4_packed_forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, runs: Runs, window: int = 0) -> Part:
    # Without the longest run, which it would make a kernel for: it then takes all tokens for a bound.
    options = {"cu_seqlens_q": runs.query_starts, "cu_seqlens_k": runs.key_starts, **_flash_window(window)}
    out, log_sums = flash_attention.load()._flash_attn_fwd(query, key, value, causal=causal, return_lse=True, **options)[:2]
    return out, log_sums


def _flash_4_backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool, window: int = 0
) -> Gradients:
    return _flash_4_gradients(d_out, query, key, value, out, log_sums, causal, _flash_window(window))


def _flash_4_packed_backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool, runs: Runs, window: int = 0
) -> Gradients:
    starts = {"cu_seqlens_q": runs.query_starts, "cu_seqlens_k": runs.key_starts}
    options: dict[str, Tensor | int] = {**starts, **_flash_window(window)}
    return _flash_4_gradients(d_out, query, key, value, out, log_sums, causal, options)


def _flash_4_gradients(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sums: Tensor,
    causal: bool,
    options: Mapping[str, Tensor | int],
) -> Gradients:
    found = flash_attention.alike(query, key, value)
    flash_attention.load()._flash_attn_bwd(
        query, key, value, out, d_out, log_sums, causal=causal, dq=found[0], dk=found[1], dv=found[2],
        deterministic=torch.are_deterministic_algorithms_enabled(), **options,
    )  # fmt: skip
    return found


WRITTEN = Kernel("written out", _written_forward, _written_backward)
PROCESSOR = Kernel("torch's flash attention for processors", _processor_forward, _processor_backward)
CUDNN = Kernel("cuDNN", _cudnn_forward, _cudnn_backward)
FLASH = Kernel("torch's flash attention", _flash_forward, _flash_backward, _flash_packed_forward, _flash_packed_backward)
FLASH_4 = Kernel(flash_attention.PACKAGE, _flash_4_forward, _flash_4_backward, _flash_4_packed_forward, _flash_4_packed_backward)
