"""A child: what a step of a case cannot be faster than on this card, from what this card does now.

The sum of three things. Products at the model's shapes and row counts: forward, input gradient and weight gradient, with queries, keys and
values as one, and gate and up as one. Attention forward and backward, causal, by FlashAttention 4 where it is installed, and by cuDNN
elsewhere. Bytes that must move, over the bandwidth of a copy: the optimizer's states; norms, rotary, SwiGLU and residuals, each read and
written once where no product can take them in; logits read and their gradient written.

A layer's products and its attention are run in turn, as in a step, for seconds on end and on normal random numbers: heat and power decide
the clock, and neither a product alone nor one of zeros draws what a step does. In fp8 the head's products count as fp8 too, casts as free.

Experts' products are grouped ones with the sizes of groups that a step of our trainer had. Of the work around them, the sum of a token's
outputs and its gradient are counted as bytes; the sorting and the copies of tokens are counted as free.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from h200_parts.cases import Case, case_of, model_of, state_bytes_per_parameter
from h200_parts.child import hand_over, note
from meshwright.describe.model import Model
from meshwright.train.kernels import flash_attention
from meshwright.train.kernels.grouped import arithmetic_for

LAYER_S, HEAD_S, COPY_S = 4.0, 2.0, 0.5  # how long each is run, half of it before it is timed
COPY_BYTES = 2**31
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
FLASH_ATTENTION_4 = "FlashAttention 4"
PASSES = ("forward", "input gradient", "weight gradient")

Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--loads", type=json.loads, help="tokens of each expert; without it, even ones")
    given = parser.parse_args()
    hand_over(floor_of(given.case, torch.device(given.device), given.loads))


def floor_of(case: Case, device: torch.device, loads: list[int] | None = None) -> dict[str, Any]:
    """Seconds of a step by part, and their sum."""
    model = model_of(case)
    copy_bytes_per_s = copy_rate(device)
    note(f"copy {copy_bytes_per_s / 1e12:.2f} TB/s")
    shapes = shapes_of(model)
    head = {"head": shapes.pop("head")}
    forward, backward, kernel = flash_attention_4(case, model, device) or attention(case, model, device)
    works = {**products(shapes, case, device), ("attention", "forward"): forward, ("attention", "backward"): backward}
    grouped = expert_products(model, loads or even_loads(case, model), device)
    works |= grouped
    layer_s = in_turn_s(works, device, LAYER_S)
    num_expert_layers = model.num_expert_layers
    grouped_s = {f"{name} {way}": num_expert_layers * layer_s[name, way] for name, way in grouped}
    for name, took_s in grouped_s.items():
        note(f"{name} of all layers: {1e3 * took_s:.2f} ms")
    del works, forward, backward, grouped
    head_s = in_turn_s(products(head, case, device), device, HEAD_S)
    timed = _rows({**shapes, **head}, {**layer_s, **head_s}, case)
    attention_s = {way: layer_s["attention", way] for way in ("forward", "backward")}
    note(f"attention of a layer by {kernel}: " + ", ".join(f"{way} {1e3 * s:.3f} ms" for way, s in attention_s.items()))
    moved = bytes_moved(case, model)
    parts_s = {
        "GEMM": sum(row["count"] * row["took_s"] for row in timed) + sum(grouped_s.values()),
        "attention": model.num_layers * sum(attention_s.values()),
        "optimizer": moved["optimizer"] / copy_bytes_per_s,
        "elementwise": (moved["elementwise"] + moved["loss"]) / copy_bytes_per_s,
    }
    total_s = sum(parts_s.values())
    note(f"floor {total_s * 1e3:.1f} ms a step, {case.num_tokens / total_s:,.0f} tokens/s")
    return {
        "parts_s": parts_s,
        "floor_s": total_s,
        "tokens_per_s": case.num_tokens / total_s,
        "us_per_token": 1e6 * total_s / case.num_tokens,
        "copy_bytes_per_s": copy_bytes_per_s,
        "bytes": moved,
        "products": timed,
        "grouped_s": grouped_s,
        "loads": loads,
        "attention_s": {**attention_s, "kernel": kernel},
    }


def in_turn_s(works: dict[tuple[str, str], Work], device: torch.device, budget_s: float) -> dict[tuple[str, str], float]:
    """Mean seconds of each work, all of them taken in turn for `budget_s`, of which the first half is not counted."""
    finish = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for work in works.values():  # first calls choose algorithms
        work()
    finish()
    started_s = time.perf_counter()
    for work in works.values():
        work()
    finish()
    once_s = max(time.perf_counter() - started_s, 1e-6)
    half = max(int(budget_s / 2 / once_s), 2) if device.type == "cuda" else 2
    timed = _by_events if device.type == "cuda" else _by_clock
    timed(list(works.values()), half)
    return dict(zip(works, timed(list(works.values()), half), strict=True))


def _by_events(works: list[Work], num_rounds: int) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)] for _ in range(num_rounds)]
    for row in marks:
        row[0].record()
        for work, mark in zip(works, row[1:], strict=True):
            work()
            mark.record()
    torch.cuda.synchronize()
    return [sum(row[i].elapsed_time(row[i + 1]) for row in marks) / num_rounds / 1e3 for i in range(len(works))]


def _by_clock(works: list[Work], num_rounds: int) -> list[float]:
    took_s = [0.0] * len(works)
    for _ in range(num_rounds):
        for i, work in enumerate(works):
            started_s = time.perf_counter()
            work()
            took_s[i] += time.perf_counter() - started_s
    return [total / num_rounds for total in took_s]


def copy_rate(device: torch.device) -> float:
    """Bytes a second of a copy, read and written both counted."""
    num_bytes = COPY_BYTES if device.type == "cuda" else 2**24
    source = torch.randint(0, 256, (num_bytes,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * num_bytes / in_turn_s({("copy", ""): lambda: target.copy_(source)}, device, COPY_S)["copy", ""]


def shapes_of(model: Model) -> dict[str, tuple[int, int, int]]:
    """Width in, width out and count of the model's products; those that read the same are one. Routed experts are left out."""
    layers, experts = model.num_layers, model.experts
    num_dense = layers - model.num_expert_layers
    shapes = _attention_shapes(model)
    if num_dense:
        shapes |= _mlp_shapes("", model, model.ffn_hidden, num_dense)
    if experts and experts.num_shared:
        shapes |= _mlp_shapes("shared ", model, experts.num_shared * experts.hidden, model.num_expert_layers)
    if experts:
        shapes["router"] = (model.hidden, experts.num_experts, model.num_expert_layers)
    return {**shapes, "head": (model.hidden, model.vocab_size, 1)}


def _attention_shapes(model: Model) -> dict[str, tuple[int, int, int]]:
    layers, latent = model.num_layers, model.latent
    out = {"o": (model.value_dim, model.hidden, layers)}
    if latent is None:
        return {"qkv": (model.hidden, model.query_dim + 2 * model.kv_dim, layers), **out}
    narrow = latent.key_value_rank + latent.rope_dim
    up = {"kv up": (latent.key_value_rank, model.num_heads * (latent.nope_dim + latent.value_dim), layers)}
    if latent.query_rank:
        return {
            "down": (model.hidden, latent.query_rank + narrow, layers),
            "q up": (latent.query_rank, model.query_dim, layers),
            **up,
            **out,
        }
    return {"q and kv down": (model.hidden, model.query_dim + narrow, layers), **up, **out}


def _mlp_shapes(kind: str, model: Model, width: int, count: int) -> dict[str, tuple[int, int, int]]:
    return {
        f"{kind}gate and up": (model.hidden, (model.mlp_matrices - 1) * width, count),
        f"{kind}down": (width, model.hidden, count),
    }


def even_loads(case: Case, model: Model) -> list[int]:
    """Tokens of each expert if all have the same number, nearly; empty without experts."""
    if model.experts is None:
        return []
    whole, rest = divmod(case.num_tokens * model.experts.num_active, model.experts.num_experts)
    return [whole + (number < rest) for number in range(model.experts.num_experts)]


def expert_products(model: Model, loads: list[int], device: torch.device) -> dict[tuple[str, str], Work]:
    """Every pass of the routed experts' products of one layer; none without experts."""
    if model.experts is None:
        return {}
    counts, width = torch.tensor(loads, device=device), model.experts.hidden
    arithmetic = arithmetic_for(device, torch.bfloat16)
    found: dict[tuple[str, str], Work] = {}
    for name, num_in, num_out in (("experts gate and up", model.hidden, 2 * width), ("experts down", width, model.hidden)):
        rows, gradient = (torch.randn(sum(loads), side, device=device, dtype=torch.bfloat16) for side in (num_in, num_out))
        weight = torch.randn(len(loads), num_out, num_in, device=device, dtype=torch.bfloat16)
        found[name, "forward"] = partial(arithmetic.forward, rows, weight, counts)
        found[name, "input gradient"] = partial(arithmetic.to_input, gradient, weight, counts)
        found[name, "weight gradient"] = partial(arithmetic.to_weight, gradient, rows, counts)
    return found


def sides(direction: str, num_in: int, num_out: int, rows: int) -> tuple[int, int, int]:
    """Rows, what is summed over, and columns of a pass of one product."""
    return {
        "forward": (rows, num_in, num_out),
        "input gradient": (rows, num_out, num_in),
        "weight gradient": (num_out, rows, num_in),
    }[direction]


def products(shapes: dict[str, tuple[int, int, int]], case: Case, device: torch.device) -> dict[tuple[str, str], Work]:
    """Every pass of every product, by name and pass."""
    make = _fp8_product if case.is_fp8 else _bf16_product
    return {
        (name, direction): make(*sides(direction, num_in, num_out, case.num_tokens), direction, device)
        for direction in PASSES
        for name, (num_in, num_out, _) in shapes.items()
    }


def factors(m: int, k: int, n: int, direction: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random factors of a product that lie as a forward or backward finds them."""
    left = torch.randn((k, m) if direction == "weight gradient" else (m, k), device=device, dtype=torch.bfloat16)
    right = torch.randn((n, k) if direction == "forward" else (k, n), device=device, dtype=torch.bfloat16)
    return left.t() if direction == "weight gradient" else left, right.t() if direction == "forward" else right


def _bf16_product(m: int, k: int, n: int, direction: str, device: torch.device) -> Work:
    left, right = factors(m, k, n, direction, device)
    return lambda: left @ right


def _fp8_product(m: int, k: int, n: int, direction: str, device: torch.device) -> Work:
    """A product whose factors lie in the one way that fp8 takes, with one scale a tensor and fast sums."""
    one = torch.ones((), device=device)
    first = torch.randn(m, k, device=device, dtype=torch.bfloat16).to(E4M3 if direction == "forward" else E5M2)
    second = torch.randn(n, k, device=device, dtype=torch.bfloat16).to(E4M3).t()
    return lambda: torch._scaled_mm(first, second, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def attention(case: Case, model: Model, device: torch.device, backends: tuple[SDPBackend, ...] = BACKENDS) -> tuple[Work, Work, str]:
    """One layer's causal attention forward and backward, and the kernel's name: the first of `backends` that runs."""
    query, key, value, gradient = random_heads(case, model, device)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    errors = []
    for backend in backends:

        def forward(backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=model.num_heads != num_key_heads(model))

        try:
            out = forward()
        except RuntimeError as error:
            errors.append(f"{backend.name}: {error}")
            continue
        return forward, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True), backend.name  # noqa: B023
    raise SystemExit("no attention kernel runs: " + "; ".join(errors))


def flash_attention_4(case: Case, model: Model, device: torch.device) -> tuple[Work, Work, str] | None:
    """The same by FlashAttention 4; None where that is not to be had, and for heads whose values are narrower than their keys."""
    if model.latent or not flash_attention.prepare(model.num_heads, num_key_heads(model), model.attended_dim, case.seq_len, device):
        return None
    query, key, value, gradient = (x.transpose(1, 2) for x in random_heads(case, model, device))
    inputs = [x.requires_grad_() for x in (query, key, value)]
    out = flash_attention.attended(query, key, value)
    return (
        lambda: flash_attention.attended(query, key, value),
        lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True),
        FLASH_ATTENTION_4,
    )


def num_key_heads(model: Model) -> int:
    """Heads of keys and values; latent vectors are made into as many as there are queries."""
    return model.num_heads if model.latent else model.num_kv_heads


def random_heads(case: Case, model: Model, device: torch.device) -> list[torch.Tensor]:
    """Random queries, keys, values and gradient of what attention gives, [B, N, T, D]; tokens lie before heads."""
    key_dim, value_dim = model.query_dim // model.num_heads, model.value_dim // model.num_heads
    heads = ((model.num_heads, key_dim), (num_key_heads(model), key_dim), (num_key_heads(model), value_dim), (model.num_heads, value_dim))
    shapes = [(case.batch, case.seq_len, *each) for each in heads]
    return [torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2) for shape in shapes]


def bytes_moved(case: Case, model: Model) -> dict[str, float]:
    """Bytes of a step that no product takes in, each number read or written as seldom as can be; activations in bf16.

    A residual add and the norm after it: two read, two written; its backward reads three and writes one. Rotary reads and writes queries
    and keys, forward and backward. SwiGLU reads two and writes one; its backward reads three and writes two. The loss reads logits and
    writes their gradient.
    """
    rows, layers, experts = case.num_tokens, model.num_layers, model.experts
    norms = 2 * (4 + 4) * model.hidden
    rotary = 4 * (model.query_dim + model.kv_dim)
    widths = (layers - model.num_expert_layers) * model.ffn_hidden
    summed = 0  # a token's outputs and their sum, and the gradients of both
    if experts:
        widths += model.num_expert_layers * (experts.num_active + experts.num_shared) * experts.hidden
        summed = model.num_expert_layers * 2 * (experts.num_active + 1) * model.hidden
    swiglu = (3 + 5) * widths
    return {
        "optimizer": float(model.num_parameters * sum(state_bytes_per_parameter(case).values())),
        "elementwise": 2.0 * rows * (layers * (norms + rotary) + swiglu + summed),
        "loss": 2.0 * 2 * rows * model.vocab_size,
    }


def _rows(shapes: dict[str, tuple[int, int, int]], took_s: dict[tuple[str, str], float], case: Case) -> list[dict[str, Any]]:
    """Each product with its time and rate."""
    found = []
    for name, (num_in, num_out, count) in shapes.items():
        for direction in PASSES:
            m, k, n = sides(direction, num_in, num_out, case.num_tokens)
            each_s = took_s[name, direction]
            rate = 2.0 * m * k * n / each_s
            note(f"{name} {direction} [{m} x {k}] [{k} x {n}]: {each_s * 1e3:.3f} ms, {rate / 1e12:.0f} TFLOP/s")
            found.append({"name": name, "pass": direction, "m": m, "k": k, "n": n, "count": count, "took_s": each_s, "flops_per_s": rate})
    return found


if __name__ == "__main__":
    main()
