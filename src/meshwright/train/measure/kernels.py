"""Single kernels: products with a model's shapes, those of experts, attention, kernels that only move bytes, and an empty kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.describe.model import Experts, Model
from meshwright.describe.profile import WAYS, AttentionTime, GroupedTime, MadeTime, ProductTime
from meshwright.predict.layer_work import all_weights
from meshwright.train.kernels import attention_parts, few_bits, flash_attention
from meshwright.train.kernels.grouped import GroupedArithmetic, arithmetic_for, fitting
from meshwright.train.kernels.runs import runs_of
from meshwright.train.measure.clock import Work, interleaved_s, mean_s, release, seconds_of
from meshwright.train.model.attention import Context, attend, takes_narrow_values

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
NORMAL_SPREAD = 1.0
HEAD_ROWS = 8192  # rows in a block of logits, as in the loss
MOVED_BYTES = {"cuda": 2**30, "cpu": 2**22}  # size of one tensor of a kernel that only moves bytes
NO_WORK_CALLS = 1000


def layer_products(model: Model) -> dict[str, tuple[int, int]]:
    """(columns, inner) of the weights of all kinds of layers, fused as the trainer multiplies them; without routed experts."""
    return {weight.name: (weight.columns, weight.inner) for weight in all_weights(model)}


def products_s(model: Model, rows: int, number_format: str, device: torch.device, budget_s: float) -> list[ProductTime]:
    """Times of the products of all kinds of layers and of the head, with both gradients; they take turns. A router is never in fp8."""
    sides = [pair for name, pair in layer_products(model).items() if (name, number_format) != ("router", "fp8")]
    shapes = [(rows, *pair) for pair in dict.fromkeys(sides)]
    return _timed(shapes, number_format, device, budget_s) + head_products_s(model, rows, number_format, device, budget_s / 3)


def head_products_s(model: Model, rows: int, number_format: str, device: torch.device, budget_s: float) -> list[ProductTime]:
    """Times of the output projection's products, for one block of rows."""
    return _timed([(min(rows, HEAD_ROWS), model.vocab_size, model.hidden)], number_format, device, budget_s)


def _timed(shapes: Sequence[tuple[int, int, int]], number_format: str, device: torch.device, budget_s: float) -> list[ProductTime]:
    asked = [(way, shape) for shape in shapes for way in WAYS]
    works = [product(way, *shape, number_format, device) for way, shape in asked]
    seconds = interleaved_s(works, device, budget_s)
    del works
    release(device)
    return [
        ProductTime(number_format=number_format, way=way, rows=rows, columns=columns, inner=inner, seconds=each_s)
        for (way, (rows, columns, inner)), each_s in zip(asked, seconds, strict=True)
    ]


def product(way: str, rows: int, columns: int, inner: int, number_format: str, device: torch.device) -> Work:
    """One product of random normal numbers: forward `x w'`, gradient of the input `g w`, or gradient of the weight `g' x`."""
    if number_format == "fp8":
        sides = {"forward": (rows, columns, inner), "input": (rows, inner, columns), "weight": (columns, inner, rows)}[way]
        return _scaled_product(*sides, device)
    dtype = DTYPES[number_format]
    if way == "forward":
        x, w = _normal((rows, inner), device, dtype), _normal((columns, inner), device, dtype)
        return lambda: F.linear(x, w)
    if way == "input":
        g, w = _normal((rows, columns), device, dtype), _normal((columns, inner), device, dtype)
        return lambda: g @ w
    g, x = _normal((rows, columns), device, dtype), _normal((rows, inner), device, dtype)
    return lambda: g.T @ x


def grouped_products_s(model: Model, tokens: int, number_format: str, device: torch.device, budget_s: float) -> list[GroupedTime]:
    """Times of the products of a layer's experts for so many tokens, with both gradients; they take turns. Nothing without experts."""
    experts = model.experts
    if experts is None:
        return []
    counts = visit_counts(experts, tokens, device)
    sides = ((2 * experts.hidden, model.hidden), (model.hidden, experts.hidden))  # gate and up, then down
    asked = [(way, *pair) for pair in sides for way in WAYS]
    works = [grouped_product(way, counts, columns, inner, number_format, device) for way, columns, inner in asked]
    seconds = interleaved_s(works, device, budget_s)
    del works
    release(device)
    rows = tokens * experts.num_active
    return [
        GroupedTime(
            number_format=number_format, way=way, num_groups=experts.num_experts, rows=rows, columns=columns, inner=inner, seconds=each_s
        )
        for (way, columns, inner), each_s in zip(asked, seconds, strict=True)
    ]


def visit_counts(experts: Experts, tokens: int, device: torch.device) -> Tensor:
    """How many tokens visit each expert, if every token chooses its experts at random: as a router does before it is trained."""
    generator = torch.Generator(device).manual_seed(1)
    scores = torch.rand((tokens, experts.num_experts), device=device, generator=generator)
    return torch.bincount(scores.topk(experts.num_active, dim=1).indices.flatten(), minlength=experts.num_experts)


def grouped_product(way: str, counts: Tensor, columns: int, inner: int, number_format: str, device: torch.device) -> Work:
    """One grouped product of random normal numbers, as the trainer computes it on this device; ways as in `product`."""
    dtype, rows, groups = DTYPES["bf16" if number_format == "fp8" else number_format], int(counts.sum()), len(counts)
    if way == "forward":
        x, w = _normal((rows, inner), device, dtype), _normal((groups, columns, inner), device, dtype)
        forward = _grouped_arithmetic(number_format, x, w).forward
        return lambda: forward(x, w, counts)
    if way == "input":
        g, w = _normal((rows, columns), device, dtype), _normal((groups, columns, inner), device, dtype)
        to_input = _grouped_arithmetic(number_format, g, w).to_input
        return lambda: to_input(g, w, counts)
    g, x = _normal((rows, columns), device, dtype), _normal((rows, inner), device, dtype)
    to_weight = _grouped_arithmetic(number_format, g, x).to_weight
    return lambda: to_weight(g, x, counts)


def _grouped_arithmetic(number_format: str, *factors: Tensor) -> GroupedArithmetic:
    device, dtype = factors[0].device, factors[0].dtype
    if number_format == "fp8":
        from meshwright.train.kernels.grouped_fp8 import fp8_arithmetic_for

        return fitting(fp8_arithmetic_for(device, dtype), *factors)
    return fitting(arithmetic_for(device, dtype), *factors)


def made_s(model: Model, base: str, number_format: str, device: torch.device, budget_s: float) -> list[MadeTime]:
    """Times in which the frozen weights of a layer in few bits are made for a product; nothing for a base that is kept as it is."""
    if base not in few_bits.KINDS:
        return []
    shapes = list(dict.fromkeys((weight.columns, weight.inner) for weight in all_weights(model) if weight.holds))
    held = [few_bits.KINDS[base](rows, slice(0, columns), DTYPES[number_format], device) for rows, columns in shapes]
    seconds = interleaved_s([one.weight for one in held], device, budget_s)
    del held
    release(device)
    return [
        MadeTime(base=base, number_format=number_format, rows=rows, columns=columns, seconds=each_s)
        for (rows, columns), each_s in zip(shapes, seconds, strict=True)
    ]


def _scaled_product(m: int, n: int, k: int, device: torch.device) -> Work:
    a = _normal((m, k), device, torch.bfloat16).to(torch.float8_e4m3fn)
    b = _normal((n, k), device, torch.bfloat16).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _normal(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, NORMAL_SPREAD)


def has_fp8(device: torch.device) -> bool:
    """Whether the device can multiply fp8."""
    if device.type != "cuda":
        return False
    try:
        _scaled_product(64, 64, 64, device)()
        torch.cuda.synchronize(device)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def prepare_attention(model: Model, seq_len: int, dtype: torch.dtype, device: torch.device, *, packed: bool) -> str:
    """Choose the kernel of attention, as the trainer does before its first step; return package and version if it is not torch's own."""
    if dtype != flash_attention.DTYPE:
        return ""
    heads = (model.num_heads, _num_keys(model), model.attended_dim)
    if not packed:
        return flash_attention.prepare(*heads, seq_len, device)
    name = attention_parts.prepare(*heads, device, packed=True, cut=False)
    return flash_attention.installed() if name == flash_attention.PACKAGE else ""


def _num_keys(model: Model) -> int:
    """Key-value heads in attention itself."""
    return model.num_heads if model.latent else model.num_kv_heads


def attention_s(
    model: Model, batch: int, seq_len: int, number_format: str, device: torch.device, budget_s: float, *, packed: bool = False
) -> AttentionTime:
    """Times of causal attention as the trainer calls it, forward and backward; `packed`: within documents."""
    dtype = DTYPES["bf16" if number_format == "fp8" else number_format]
    num_keys, width = _num_keys(model), model.attended_dim
    q, k, v = (_normal((batch, seq_len, count, width), device, dtype).requires_grad_() for count in (model.num_heads, num_keys, num_keys))
    context = Context(positions=torch.arange(seq_len, device=device))
    if packed:
        runs = runs_of(np.zeros((batch, seq_len), dtype=np.int64)).moved(lambda starts: starts.to(device))
        documents = torch.zeros((batch, seq_len), dtype=torch.long, device=device)
        context = replace(context, documents=documents, runs=(runs,))
    kernel = prepare_attention(model, seq_len, dtype, device, packed=packed)
    if takes_narrow_values(q, k, context):
        v = v[..., : model.value_dim // model.num_heads].detach().contiguous().requires_grad_()
    out = attend(q, k, v, context)
    gradient = _normal(tuple(out.shape), device, dtype)
    works: list[Work] = [
        lambda: attend(q, k, v, context),
        lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
    ]
    forward_s, backward_s = interleaved_s(works, device, budget_s)
    return AttentionTime(
        number_format=number_format,
        batch=batch,
        num_heads=model.num_heads,
        num_kv_heads=num_keys,
        head_dim=width,
        seq_len=seq_len,
        forward_s=forward_s,
        backward_s=backward_s,
        kernel=kernel,
    )


def bytes_per_s(device: torch.device, number_format: str, width: int, budget_s: float) -> dict[str, float]:
    """Bytes per second of kernels that only move bytes, by kind; bytes that must be read or written count once."""
    found = {}
    for name, (work, moved_bytes) in _movers(device, DTYPES[number_format], width):
        found[name] = moved_bytes / seconds_of(work, device, budget_s)
        del work
        release(device)
    return found


def copy_bytes_per_s(device: torch.device, budget_s: float) -> float:
    """Bytes per second of a copy on the device, turns of other processes included; bytes read and bytes written both count."""
    work, moved_bytes = _copy(MOVED_BYTES[device.type], device)
    rate = moved_bytes / mean_s(work, device, budget_s)
    del work
    release(device)
    return rate


def _movers(device: torch.device, dtype: torch.dtype, width: int) -> Iterator[tuple[str, tuple[Work, float]]]:
    size = MOVED_BYTES[device.type]
    count = size // dtype.itemsize // width * width
    yield "copy", _copy(size, device)
    yield "norm", _norm(count, width, device, dtype)
    yield "activation", _activation(count, device, dtype)
    yield "loss", _scores(count // 4, width, device, dtype)
    yield "optimizer", _update(count // 4, device, dtype)


def _copy(size: int, device: torch.device) -> tuple[Work, float]:
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    source.random_(0, 256)
    return lambda: target.copy_(source), 2.0 * size


def _norm(count: int, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Work, float]:
    x, weight = _normal((count // width, width), device, dtype), torch.ones(width, device=device, dtype=dtype)
    return lambda: F.rms_norm(x, (width,), weight, 1e-5), 2.0 * count * dtype.itemsize


def _activation(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Work, float]:
    """SwiGLU as two kernels: one reads and writes, the other reads twice and writes."""
    gate, up = (_normal((count,), device, dtype) for _ in range(2))
    return lambda: F.silu(gate) * up, 5.0 * count * dtype.itemsize


def _scores(count: int, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Work, float]:
    """Cross-entropy over classes, counted as three passes over the scores."""
    scores = _normal((count // width, width), device, dtype)
    labels = torch.zeros(count // width, dtype=torch.long, device=device)
    return lambda: F.cross_entropy(scores, labels), 3.0 * count * dtype.itemsize


def _update(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Work, float]:
    """The traffic of Adam: gradient, value and two moments are read, the last three are written."""
    from torch.optim.adamw import adamw

    value, mean, square = (torch.zeros(count, device=device, dtype=torch.float32) for _ in range(3))
    gradient = _normal((count,), device, torch.float32)
    step = torch.tensor(1.0, device=device)

    def update() -> None:
        with torch.no_grad():
            adamw(
                [value], [gradient], [mean], [square], [], [step], fused=True, amsgrad=False,
                beta1=0.9, beta2=0.95, lr=1e-4, weight_decay=0.1, eps=1e-8, maximize=False,
            )  # fmt: skip

    return update, 7.0 * 4 * count


def launch_s(device: torch.device) -> float:
    """Seconds of an empty kernel, when many run one after another."""
    tiny = torch.zeros(1, device=device)

    def calls() -> None:
        for _ in range(NO_WORK_CALLS):
            tiny.add_(1.0)

    return seconds_of(calls, device, 0.05) / NO_WORK_CALLS
