"""Attention to parts of the keys, run by run, and the choice of a kernel by a trial."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwright.train.kernels import attention_parts, flash_attention
from meshwright.train.kernels.attention_kernels import FLASH, FLASH_4, PROCESSOR, WRITTEN, Kernel, Part
from meshwright.train.kernels.attention_parts import (
    attended_in_runs,
    kernel_for,
    part,
    part_back,
    prepare,
    refusals,
    trial,
    trial_documents,
    trial_error,
)
from meshwright.train.kernels.runs import Runs, runs_between, runs_of
from meshwright.train.model.attention import Context, attend

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DOCUMENTS = np.array([[0] * 1 + [1] * 9 + [2] * 14, [0] * 20 + [1] * 3 + [5] * 1])
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def heads(tokens: int, *, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, tokens, count, 8, generator=generator).to(dtype).requires_grad_() for count in (4, 2, 2)]


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_documents_run_by_run_are_documents_under_a_mask(dtype: torch.dtype, bound: float) -> None:
    inputs = heads(24, dtype=dtype)
    d_out = torch.randn(2, 24, 4, 8).to(dtype)
    masked = Context(positions=torch.arange(24), documents=torch.from_numpy(DOCUMENTS))
    found = []
    for out in (attend(*inputs, masked), attended_in_runs(*inputs, runs_of(DOCUMENTS))):
        found.append((out.detach(), *torch.autograd.grad(out, inputs, d_out)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype == dtype
        assert float((ours - theirs).norm() / theirs.norm()) < bound


def test_queries_without_keys_get_nothing_and_add_nothing() -> None:
    query, key, value = (x.detach() for x in heads(24))
    runs = runs_between(DOCUMENTS[:, 12:], DOCUMENTS[:, :10])  # the second document of the first sequence has ended
    out, log_sums = part(PROCESSOR, query[:, 12:], key[:, :10], value[:, :10], causal=False, runs=runs)
    assert not out[0].any() and (log_sums[0] == float("-inf")).all()
    assert out[1, :8].all() and log_sums[1, :, :8].isfinite().all() and (log_sums[1, :, 8:] == float("-inf")).all()
    whole = torch.logaddexp(log_sums, torch.zeros_like(log_sums))
    d_query, d_key, d_value = part_back(
        PROCESSOR, torch.ones_like(out), query[:, 12:], key[:, :10], value[:, :10], out, whole, causal=False, runs=runs
    )
    assert not d_query[0].any() and not d_key[0].any() and not d_value[0].any() and d_value[1].all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_trial_accepts_a_kernel_that_is_right(packed: bool, causal: bool) -> None:
    few = trial_documents()[0] if packed else None
    assert 0 < trial_error(PROCESSOR, 3, 16, CPU, causal=causal, documents=few) < flash_attention.BOUND


def test_the_trial_has_many_documents_too() -> None:
    assert trial(PROCESSOR, 1, 8, CPU, packed=True, cut=False) == ""
    assert [len(runs_of(documents).query_lengths) for documents in trial_documents()] == [7, 480]


def wrong_sums(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    out, log_sums = PROCESSOR.forward(query, key, value, causal)
    return out, log_sums * 1.1


def raises(*_: object) -> Part:
    raise RuntimeError("no kernel image\n is available")


def not_cut(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
    assert causal, "only causal"
    return PROCESSOR.forward(query, key, value, causal)


@pytest.mark.parametrize(
    "kernel, cut, why",
    [
        (replace(PROCESSOR, forward=wrong_sums), False, "on random heads it is off by"),
        (replace(PROCESSOR, backward=lambda d, q, k, v, *_: (q, k, v)), False, "on random heads it is off by"),
        (replace(PROCESSOR, forward=raises), False, "RuntimeError: no kernel image is available"),
        (replace(PROCESSOR, forward=not_cut), False, ""),
        (replace(PROCESSOR, forward=not_cut), True, "AssertionError: only causal"),
    ],
)
def test_the_trial_says_what_is_wrong(kernel: Kernel, cut: bool, why: str) -> None:
    found = trial(kernel, 2, 16, CPU, packed=False, cut=cut)
    assert found.startswith(why) and bool(found) == bool(why)


def test_the_first_kernel_that_is_right_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def tries(kernel: Kernel, *_: object, **__: object) -> str:
        tried.append(kernel.name)
        return "" if kernel is FLASH else "broken"

    monkeypatch.setattr(attention_parts, "_chosen", {})
    monkeypatch.setattr(attention_parts, "_refused", {})
    monkeypatch.setattr(attention_parts, "candidates", lambda device, *, packed, windowed: [FLASH_4, FLASH, WRITTEN])
    monkeypatch.setattr(attention_parts, "trial", tries)
    monkeypatch.setattr(flash_attention, "load", lambda: None)
    with pytest.warns(flash_attention.UnusedKernel, match="is installed and is not used: flash-attn-4: broken"):
        assert prepare(4, 2, 64, GPU, packed=True, cut=False) == FLASH.name
    assert prepare(8, 4, 64, GPU, packed=True, cut=False) == FLASH.name  # as many queries share a key
    assert tried == [FLASH_4.name, FLASH.name]
    assert refusals() == {("cuda", 2, 64, True, False, False): ["flash-attn-4: broken"]}


def test_a_processor_needs_no_trial() -> None:
    assert prepare(4, 2, 64, CPU, packed=True, cut=True) == PROCESSOR.name
    assert kernel_for(*heads(4)[:2], packed=False, cut=True) is PROCESSOR


def test_a_layer_attends_by_runs_where_a_kernel_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, runs = heads(24), runs_of(DOCUMENTS)
    context = Context(positions=torch.arange(24), documents=torch.from_numpy(DOCUMENTS), runs=(runs,))
    assert not attention_parts.attends_in_runs(*inputs[:2])
    wanted = attend(*inputs, context)
    taken: list[Runs] = []

    def takes(query: Tensor, key: Tensor, value: Tensor, causal: bool, runs: Runs) -> Part:
        taken.append(runs)
        return attention_parts._one_by_one(PROCESSOR)(query, key, value, causal, runs)

    able = replace(PROCESSOR, packed_forward=takes, packed_backward=attention_parts._one_by_one_back(PROCESSOR))
    monkeypatch.setattr(attention_parts, "PROCESSOR", able)
    torch.testing.assert_close(attend(*inputs, context), wanted)
    assert taken == [runs]


@on_gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("packed", [False, True])
def test_kernels_of_a_gpu_are_right(head_dim: int, packed: bool) -> None:
    wrong = {
        kernel.name: trial(kernel, 4, head_dim, GPU, packed=packed, cut=True) for kernel in attention_parts.candidates(GPU, packed=packed)
    }
    assert not any(wrong.values()), wrong


@on_gpu
def test_documents_on_a_gpu_are_attended_to_by_runs_without_waiting() -> None:
    prepare(4, 2, 64, GPU, packed=True, cut=False)
    inputs = [torch.randn(2, 24, count, 64, device=GPU, dtype=torch.bfloat16, requires_grad=True) for count in (4, 2, 2)]
    runs = runs_of(DOCUMENTS).moved(lambda starts: starts.to(GPU))
    attended_in_runs(*inputs, runs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        attended_in_runs(*inputs, runs).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)
