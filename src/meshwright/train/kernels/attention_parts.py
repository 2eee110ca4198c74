"""Attention over a part of the keys: its output and the log-sum-exp of its scores, with which parts are joined; and its gradients.

A rank of context parallelism attends to the keys of one rank after another, and packed documents are attended to run by run. Both use the
same kernels: FlashAttention 4, cuDNN's or torch's flash attention on a GPU, torch's flash attention on a processor. Gradients of a part
need the output and the log-sum-exp over all keys. On a GPU a kernel is used only for heads on which a trial gave the right result
(`prepare`); otherwise the arithmetic is written out in fp32.

Shapes are those of `attention_kernels`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.train.kernels import flash_attention
from meshwright.train.kernels.attention_kernels import (
    CUDNN,
    FLASH,
    FLASH_4,
    PROCESSOR,
    WRITTEN,
    Gradients,
    Kernel,
    Part,
    flash_4_of,
    flash_of,
)
from meshwright.train.kernels.banded import banded_of
from meshwright.train.kernels.runs import Runs, runs_between, runs_of
from meshwright.train.kernels.sinks import sink_gradients, with_sinks

# Device type, queries that share a key, dimensions of a head; packed; cut over ranks; with a window.
Heads = tuple[str, int, int, bool, bool, bool]
TRIAL_TOKENS = flash_attention.TRIAL_TOKENS
TRIAL_WINDOW = 100
OF_WINDOW: Mapping[str, Callable[[int], Kernel]] = {FLASH.name: flash_of, FLASH_4.name: flash_4_of}  # kernels that can have a window

_chosen: dict[Heads, Kernel] = {}  # for bf16 on a GPU
_refused: dict[Heads, list[str]] = {}  # why the kernels before the chosen one are not used


def part(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, runs: Runs | None = None) -> Part:
    """Attention to these keys alone. Rows without any key are zero, and their log-sum-exp is minus infinity."""
    if runs is None:
        return kernel.forward(query, key, value, causal)
    rows = (query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1))
    out, log_sums = (kernel.packed_forward or _one_by_one(kernel))(*rows, causal, runs)
    return out.view(query.shape), log_sums.unflatten(1, query.shape[:2]).transpose(0, 1)


def part_back(
    kernel: Kernel, d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, *,
    causal: bool, runs: Runs | None = None,
) -> Gradients:  # fmt: skip
    """What these keys add to the gradients. `out` and `log_sums` are those of attention to all keys."""
    log_sums = log_sums.contiguous()
    if runs is None:
        return kernel.backward(d_out, query, key, value, out, log_sums, causal)
    d_out, query_row, key_row, value_row, out = (x.flatten(0, 1) for x in (d_out, query, key, value, out))
    log_sums = log_sums.transpose(0, 1).flatten(1).contiguous()
    backward = kernel.packed_backward or _one_by_one_back(kernel)
    d_query, d_key, d_value = backward(d_out, query_row, key_row, value_row, out, log_sums, causal, runs)
    return d_query.view(query.shape), d_key.view(key.shape), d_value.view(value.shape)


def kernel_for(query: Tensor, key: Tensor, *, packed: bool, cut: bool, window: int = 0) -> Kernel:
    """The kernel of such heads: the one that `prepare` chose, on a processor torch's, otherwise written-out arithmetic."""
    heads = (query.device.type, query.shape[2] // key.shape[2], query.shape[3], packed, cut, window > 0)
    chosen = _chosen.get(heads) if query.dtype == flash_attention.DTYPE else None
    if window:
        return OF_WINDOW[chosen.name](window) if chosen is not None and chosen.name in OF_WINDOW else banded_of(window)
    if query.device.type != "cuda":
        return PROCESSOR
    return chosen or WRITTEN


def attends_in_runs(query: Tensor, key: Tensor) -> bool:
    """Whether documents are attended to by runs instead of with a mask: where a kernel takes all runs at once.

    On a processor a mask is faster than many short documents one by one.
    """
    return kernel_for(query, key, packed=True, cut=False).packed_forward is not None


def attended_in_runs(query: Tensor, key: Tensor, value: Tensor, runs: Runs) -> Tensor:
    """Causal attention of each document of packed sequences to itself."""
    return attended_as(query, key, value, runs=runs)


def attended_as(
    query: Tensor, key: Tensor, value: Tensor, *, sinks: Tensor | None = None, window: int = 0, runs: Runs | None = None
) -> Tensor:
    """Causal attention of whole sequences, or of each of their documents, with a window and with sinks [N] if there are any."""
    out: Tensor = _Attended.apply(query, key, value, sinks, window, runs)
    return out


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, window: int, runs: Runs | None) -> Tensor:
        ctx.kernel, ctx.runs = kernel_for(query, key, packed=runs is not None, cut=False, window=window), runs
        out, log_sums = part(ctx.kernel, query, key, value, causal=True, runs=runs)
        if sinks is not None:
            out, log_sums = with_sinks(out, log_sums, sinks)
        ctx.save_for_backward(query, key, value, sinks, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        query, key, value, sinks, out, log_sums = ctx.saved_tensors
        gradients = part_back(ctx.kernel, d_out.contiguous(), query, key, value, out, log_sums, causal=True, runs=ctx.runs)
        d_query, d_key, d_value = (x.to(query.dtype) for x in gradients)
        return d_query, d_key, d_value, None if sinks is None else sink_gradients(d_out, out, log_sums, sinks), None, None


def prepare(
    num_queries: int, num_keys: int, head_dim: int, device: torch.device, *, packed: bool, cut: bool, windowed: bool = False
) -> str:
    """Choose the kernel of such heads in bf16 on a GPU, once; return its name. `cut`: a rank holds only a part of each sequence.

    The first kernel that gives the right result is chosen, and the fastest comes first.
    """
    if device.type != "cuda":
        return PROCESSOR.name
    heads = (device.type, num_queries // num_keys, head_dim, packed, cut, windowed)
    if heads not in _chosen:
        _refused[heads] = []
        found = candidates(device, packed=packed, windowed=windowed)
        if FLASH_4 in found:
            with suppress(Exception):  # if it is broken, its trial shows this
                flash_attention.load()  # takes seconds, so it is loaded before the trial takes the lock
        for kernel in found:
            with flash_attention.one_at_a_time():
                wrong = trial(kernel, *heads[1:3], device, packed=packed, cut=cut, window=TRIAL_WINDOW if windowed else 0)
            if not wrong:
                _chosen[heads] = kernel
                break
            _refused[heads].append(f"{kernel.name}: {wrong}")
        if _chosen[heads] is not FLASH_4 and FLASH_4 in found:
            warnings.warn(
                f"{flash_attention.installed()} is installed and is not used: {_refused[heads][0]}",
                flash_attention.UnusedKernel,
                stacklevel=2,
            )
    return _chosen[heads].name


def refusals() -> dict[Heads, list[str]]:
    """Why kernels were not chosen, for a benchmark."""
    return {heads: list(reasons) for heads, reasons in _refused.items()}


def candidates(device: torch.device, *, packed: bool, windowed: bool = False) -> list[Kernel]:
    """Kernels for bf16 on a GPU, the fastest first; the last is always right: with a window, the arithmetic in tiles stands for it."""
    major = torch.cuda.get_device_capability(device)[0]
    found = [FLASH_4] if flash_attention.installed() and major in flash_attention.CAPABILITIES else []
    # cuDNN makes a plan for each length of a run, which takes longer than a step; and its gradients are not repeatable.
    if not packed and not windowed and not torch.are_deterministic_algorithms_enabled():
        found.append(CUDNN)
    return [*found, FLASH, WRITTEN]


def trial(kernel: Kernel, queries_per_key: int, head_dim: int, device: torch.device, *, packed: bool, cut: bool, window: int = 0) -> str:
    """What is wrong with a kernel, compared with written-out arithmetic in fp32 on random heads; empty if it is right."""
    if kernel is WRITTEN:
        return ""
    for causal, documents in product((True, False) if cut else (True,), trial_documents() if packed else (None,)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                error = trial_error(kernel, queries_per_key, head_dim, device, causal=causal, documents=documents, window=window)
        except Exception as fault:  # of a compiler, a driver or a changed interface: in any case, another kernel can be used
            return f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
        if not error < flash_attention.BOUND:  # NaN is not below the bound
            return f"on random heads it is off by {error:.1e} of the result, where {flash_attention.BOUND:.0e} would be rounding"
    return ""


def trial_error(
    kernel: Kernel, queries_per_key: int, head_dim: int, device: torch.device, *,
    causal: bool, documents: NDArray[np.integer] | None, window: int = 0,
) -> float:  # fmt: skip
    """The largest relative error of output, log-sum-exp and gradients of random heads, two sequences with two key-value heads."""
    kernel, right = (OF_WINDOW[kernel.name](window), banded_of(window)) if window else (kernel, WRITTEN)
    num_queries, num_keys = TRIAL_TOKENS, TRIAL_TOKENS if causal else TRIAL_TOKENS // 2
    runs = None
    if documents is not None:
        found_runs = runs_of(documents) if causal else runs_between(documents, documents[:, num_queries - num_keys :])
        runs = found_runs.moved(lambda starts: starts.to(device))
    generator = torch.Generator(device).manual_seed(1)  # its own, so that a run draws the same numbers with any kernels
    shapes = [(2, tokens, heads, head_dim) for tokens, heads in ((num_queries, 2 * queries_per_key), (num_keys, 2), (num_keys, 2))]
    query, key, value, d_out = (
        torch.randn(shape, generator=generator, device=device).to(flash_attention.DTYPE) for shape in (*shapes, shapes[0])
    )
    wide = (query.float(), key.float(), value.float())
    wanted_out, wanted_sums = part(right, *wide, causal=causal, runs=runs)
    out, log_sums = part(kernel, query, key, value, causal=causal, runs=runs)
    # As if there were other keys too: every row has some, and weights do not add up to one.
    whole = torch.logaddexp(wanted_sums, torch.zeros_like(wanted_sums))
    wanted = part_back(right, d_out.float(), *wide, wanted_out, whole, causal=causal, runs=runs)
    found = part_back(kernel, d_out, query, key, value, wanted_out.to(query.dtype), whole, causal=causal, runs=runs)
    if not torch.equal(log_sums == float("-inf"), wanted_sums == float("-inf")):
        return float("nan")
    seen = wanted_sums.exp(), log_sums.exp()
    pairs = [(wanted_out, out), seen, *zip(wanted, found, strict=True)]
    least = float(wanted_out.norm()) / 10  # gradients of attention over few tokens may be mostly rounding
    off = [float((theirs.float() - ours).norm()) / max(float(ours.norm()), least) for ours, theirs in pairs]
    return float(np.max(off))  # which keeps what is no number


def trial_documents() -> tuple[NDArray[np.integer], ...]:
    """Documents of two sequences: few, short and long, one of a single token; and very many, for which FlashAttention 4 has other code."""
    few = [np.searchsorted(ends, np.arange(TRIAL_TOKENS), side="right") for ends in ((1, 7, TRIAL_TOKENS // 2), (129, 140))]
    many = [np.arange(TRIAL_TOKENS) // 2, np.arange(TRIAL_TOKENS)]
    return np.stack(few), np.stack(many)


def _one_by_one(kernel: Kernel) -> Callable[[Tensor, Tensor, Tensor, bool, Runs], Part]:
    def forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, runs: Runs) -> Part:
        out = torch.zeros_like(query)
        log_sums = query.new_full(query.shape[1::-1], float("-inf"), dtype=torch.float32)
        for queries, keys in _slices(runs):
            of_run, sums = kernel.forward(query[None, queries], key[None, keys], value[None, keys], causal)
            out[queries], log_sums[:, queries] = of_run[0], sums[0]
        return out, log_sums

    return forward


def _one_by_one_back(kernel: Kernel) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, Runs], Gradients]:
    def backward(
        d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool, runs: Runs
    ) -> Gradients:
        d_query, d_key, d_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for queries, keys in _slices(runs):
            found = kernel.backward(
                d_out[None, queries], query[None, queries], key[None, keys], value[None, keys],
                out[None, queries], log_sums[None, :, queries].contiguous(), causal,
            )  # fmt: skip
            d_query[queries], d_key[keys], d_value[keys] = (x[0] for x in found)
        return d_query, d_key, d_value

    return backward


def _slices(runs: Runs) -> list[tuple[slice, slice]]:
    """The tokens of each run that has both queries and keys."""
    found, query, key = [], 0, 0
    for queries, keys in zip(runs.query_lengths, runs.key_lengths, strict=True):
        if queries and keys:
            found.append((slice(query, query + queries), slice(key, key + keys)))
        query, key = query + queries, key + keys
    return found
