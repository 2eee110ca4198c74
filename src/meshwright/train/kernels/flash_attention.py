"""Causal attention by FlashAttention 4, if it is installed and gives correct results on this GPU.

On an H200 it takes 13 to 15 % less time than cuDNN's kernel (benchmarks/h200.md), and less energy. torch supports only an older interface
of its functions, with fewer results, so our own operators call it; compiled layers can contain them. If a release has changed in another
way, or has no kernel for a head, a trial before the first step shows it. Then torch's attention is used, and a warning says why.
"""

from __future__ import annotations

import importlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock, Timeout
from torch import Tensor

PACKAGE = "flash-attn-4"
MODULE = "flash_attn.cute.interface"
NOISY = "cutlass|flash_attn|quack"  # its modules, and those of its dependencies
CAPABILITIES = (9, 10)  # Hopper and data-center Blackwell, for which it has special kernels
DTYPE = torch.bfloat16
TRIAL_TOKENS = 320  # more than one block of a kernel, the last not full; longer sequences use the same kernels, shorter ones may use others
BOUND = 2e-2  # largest relative error of the trial: bf16 rounds scores, weights and outputs
LOCK_S = 120.0  # to wait for another process that compiles the same kernel; after that it is compiled here too
Heads = tuple[str, int, int, int]  # device type, queries that share a key, dimensions of a head, tokens (at most those of a trial)

_able: dict[Heads, str] = {}  # what was wrong with heads that were tried; empty if they were right


class UnusedKernel(UserWarning):
    """A faster kernel is installed and cannot be used."""


def installed() -> str:
    """The package and its version; empty if it is not installed. It is not imported, because this takes seconds."""
    try:
        return f"{PACKAGE} {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return ""


def supports(query: Tensor, key: Tensor) -> bool:
    """Whether this kernel computes causal attention of these heads: a trial with the same shapes gave the right result."""
    heads = (query.device.type, query.shape[2] // key.shape[2], query.shape[3], min(query.shape[1], TRIAL_TOKENS))
    return query.dtype == DTYPE and query.shape[1] == key.shape[1] and _able.get(heads) == ""


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention; [B, T, N, D], keys and values with as many heads or a divisor of them."""
    out: Tensor = _forward(query, key, value)[0]
    return out


def prepare(num_queries: int, num_keys: int, head_dim: int, num_tokens: int, device: torch.device) -> str:
    """Try such heads once, if the package and the GPU are there; return the package and its version if it is used from now on."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in CAPABILITIES or not installed():
        return ""
    heads = (device.type, num_queries // num_keys, head_dim, min(num_tokens, TRIAL_TOKENS))
    if heads not in _able:
        with suppress(Exception):  # if it is broken, its trial shows this
            load()  # takes seconds, so it is loaded before the trial takes the lock
        with one_at_a_time():
            _able[heads] = trial(*heads[1:], device)
        warnings.filterwarnings("ignore", module=NOISY)  # warnings of its compiler, in case it compiles again: a user could not fix them
        if _able[heads]:
            warnings.warn(f"{installed()} is installed and is not used: {_able[heads]}", UnusedKernel, stacklevel=2)
    return "" if _able[heads] else installed()


def trial(queries_per_key: int, head_dim: int, num_tokens: int, device: torch.device) -> str:
    """What is wrong with attention here, compared with torch's in fp32 on random heads; empty if it is right."""
    shapes = [(2, num_tokens, count, head_dim) for count in (2 * queries_per_key, 2, 2, 2 * queries_per_key)]
    generator = torch.Generator(device).manual_seed(1)  # its own, so that a run draws the same numbers with any kernels
    *inputs, gradient = (torch.randn(shape, generator=generator, device=device).to(DTYPE) for shape in shapes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _with_gradients(attended, [x.requires_grad_() for x in inputs], gradient)
    except Exception as error:  # of a compiler, a driver or a changed interface: in any case, another kernel can be used
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    wanted = _with_gradients(_plain, [x.detach().float().requires_grad_() for x in inputs], gradient.float())
    least = float(wanted[0].norm()) / 10  # gradients of attention over few tokens may be mostly rounding
    off = [float((ours.float() - theirs).norm()) / max(float(theirs.norm()), least) for ours, theirs in zip(found, wanted, strict=True)]
    wrong = [each for each in off if not each < BOUND]  # NaN is not below the bound
    return f"on random heads it is off by {wrong[0]:.1e} of the result, where {BOUND:.0e} would be rounding" if wrong else ""


def _with_gradients(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    out = function(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs, gradient))


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with plain operations of torch."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


@cache
def load() -> Any:
    """The functions of the package. Compiled kernels are kept on the disk of this machine, so that not every run compiles them."""
    folder = _kept()
    if folder is not None:
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the package's own dependencies
        return importlib.import_module(MODULE)


def _kept() -> Path | None:
    """A folder on this machine's disk for its kind of GPU, of this user alone, because its files are executed; None if impossible."""
    folder = Path(tempfile.gettempdir()) / f"meshwright-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    kind = "".join(map(str, torch.cuda.get_device_capability())) if torch.cuda.is_available() else "none"
    return folder / f"flash-attention-{kind}" if is_ours else None


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile at a time, so that the others find its result."""
    folder = _kept()
    lock = FileLock(folder.parent / f"{folder.name}.lock", timeout=LOCK_S) if folder else None
    is_held = False
    try:
        with suppress(OSError, Timeout):
            if lock:
                lock.acquire()
                is_held = True
        yield
    finally:
        if lock and is_held:
            lock.release()


@torch.library.custom_op("meshwright::flash_attention", mutates_args=())
def _forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The output of attention, [B, T, N, D], and the log-sum-exp of its scores, [B, N, T]."""
    out, log_sums = load()._flash_attn_fwd(query, key, value, causal=True, return_lse=True)[:2]
    return out, log_sums


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty((batch, heads, tokens), dtype=torch.float32)


@torch.library.custom_op("meshwright::flash_attention_back", mutates_args=())
def _backward(query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    d_query, d_key, d_value = alike(query, key, value)
    load()._flash_attn_bwd(
        query, key, value, out, d_out, log_sums, causal=True, dq=d_query, dk=d_key, dv=d_value,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return d_query, d_key, d_value


@_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return alike(query, key, value)


def alike(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Contiguous tensors of the same shapes, whatever the strides of the three are."""
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor, d_log_sums: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _backward(*ctx.saved_tensors, d_out)
    return found


_forward.register_autograd(_gradients, setup_context=_keep)
