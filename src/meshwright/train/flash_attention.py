"""Causal attention by FlashAttention 4, where that is installed and does what it should on this GPU.

On an H200 it takes 13 to 15 % less time than cuDNN's (benchmarks/h200.md), and less energy. torch knows an older form of its functions,
which gave fewer results, so operators of our own call it: compiled layers may hold them. A release that has changed in some other way, or a
head that it has no kernel for, shows in a trial before the first step; attention is then torch's, and a warning says why.
"""

from __future__ import annotations

import importlib
import os
import stat
import tempfile
import warnings
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PACKAGE = "flash-attn-4"
MODULE = "flash_attn.cute.interface"
CAPABILITIES = (9, 10)  # Hopper and data-center Blackwell, for which it has kernels of their own
DTYPES = (torch.bfloat16, torch.float16)
TRIAL_SHAPE = (2, 320)  # sequences and tokens: more than one block, and the last not full
BOUND = 2e-2  # of what the trial may be off: bf16 rounds scores, weights and outputs
Heads = tuple[str, int, int]  # device type, queries that share a key, and dimensions of a head

_able: dict[Heads, str] = {}  # of heads that were tried: what was wrong, nothing where all was right


class UnusedKernel(UserWarning):
    """A faster kernel is installed and cannot be used."""


def is_installed() -> bool:
    """Whether the package is there; it is not imported, which takes seconds."""
    try:
        return find_spec(MODULE.rpartition(".")[0]) is not None
    except (ImportError, ValueError):  # an older flash_attn, without this part of it
        return False


def installed_version() -> str:
    """Of the package; nothing where it is not there."""
    try:
        return metadata.version(PACKAGE) if is_installed() else ""
    except metadata.PackageNotFoundError:  # a copy of its files
        return "of no known version"


def takes(query: Tensor, key: Tensor) -> bool:
    """Whether causal attention of these heads is done here: such ones were tried, and all was right."""
    heads = (query.device.type, query.shape[2] // key.shape[2], query.shape[3])
    return query.dtype in DTYPES and query.shape[1] == key.shape[1] and _able.get(heads) == ""


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention; [B, T, N, D], keys and values with as many heads or a divisor of them."""
    return _forward(query, key, value)[0]


def prepare(num_queries: int, num_keys: int, head_dim: int, device: torch.device) -> bool:
    """Try such heads once, where the package and the GPU are there; whether they are done here from now on."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in CAPABILITIES or not is_installed():
        return False
    heads = (device.type, num_queries // num_keys, head_dim)
    if heads not in _able:
        _able[heads] = trial(num_queries // num_keys, head_dim, device)
        warnings.filterwarnings("ignore", message="Argument aux_data")  # its compiler's, of an argument that is known when it compiles
        if _able[heads]:
            warnings.warn(f"{PACKAGE} is installed and is not used: {_able[heads]}", UnusedKernel, stacklevel=2)
    return not _able[heads]


def trial(queries_per_key: int, head_dim: int, device: torch.device) -> str:
    """What is wrong with attention here, against torch's in fp32 on random heads; nothing: it is right."""
    shapes = [(*TRIAL_SHAPE, count, head_dim) for count in (2 * queries_per_key, 2, 2, 2 * queries_per_key)]
    generator = torch.Generator(device).manual_seed(1)  # of its own: what a run draws is not to depend on which kernels there are
    *inputs, gradient = (torch.randn(shape, generator=generator, device=device).bfloat16() for shape in shapes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _with_gradients(attended, [x.requires_grad_() for x in inputs], gradient)
    except Exception as error:  # of a compiler, a driver or an interface that has changed: whatever it is, there is another kernel
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    wanted = _with_gradients(_plain, [x.detach().float().requires_grad_() for x in inputs], gradient.float())
    off = max(float((ours.float() - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, wanted, strict=True))
    return "" if off < BOUND else f"on random heads it is off by {off:.1e} of the result, where {BOUND:.0e} would be rounding"


def _with_gradients(function: Any, inputs: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    out = function(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs, gradient))


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same by torch's plain arithmetic."""
    heads = (x.transpose(1, 2) for x in (query, key, value))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)


# -- operators ------------------------------------------------------------------------------------------


@cache
def load() -> Any:
    """The package's functions. What it compiles is kept on this machine's disk: a kernel is compiled once, and not by every run."""
    folder = _kept()
    if folder is not None:
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own dependencies
        return importlib.import_module(MODULE)


def _kept() -> Path | None:
    """A folder of this user alone, on a disk of this machine; None where there is none to be had: what lies there is run."""
    folder = Path(tempfile.gettempdir()) / f"meshwright-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder / "flash-attention" if is_ours else None


@torch.library.custom_op("meshwright::flash_attention", mutates_args=())
def _forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """What attention gives, [B, T, N, D], and the logarithms of its sums, [B, N, T]."""
    out, log_sums = load()._flash_attn_fwd(query, key, value, causal=True, return_lse=True)[:2]
    return out, log_sums


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty((batch, heads, tokens), dtype=torch.float32)


@torch.library.custom_op("meshwright::flash_attention_back", mutates_args=())
def _backward(query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    d_query, d_key, d_value = _alike(query, key, value)
    load()._flash_attn_bwd(
        query, key, value, out, d_out, log_sums, causal=True, dq=d_query, dk=d_key, dv=d_value,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return d_query, d_key, d_value


@_backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _alike(query, key, value)


def _alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of the same shapes, each of whose numbers lie one after another, however those of `tensors` lie."""
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor, d_log_sums: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _backward(*ctx.saved_tensors, d_out)
    return found


_forward.register_autograd(_gradients, setup_context=_keep)
