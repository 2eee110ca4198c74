"""A child: what a step of a case cannot be faster than on this card, from what this card does now.

The sum of four things. Products of the frozen matrices at their shapes, forward and input gradient, in bf16: a frozen weight has no
gradient. Attention, forward and backward. The products of adapters: `x A^T` and, added to the frozen product's output, `low B^T`; backward
the gradients of `low`, A and B, and the input gradient, added to the frozen product's. Bytes that must move, over the bandwidth of a copy:
norms, rotary, SwiGLU and residuals; logits and their gradient; the optimizer's states of the adapters; and for a base in few bits its codes
read and its weights written, once forward and once backward. Nothing is computed again: a step that recomputes has this floor, too.

A layer's products and its attention are run in turn, as in a step, for seconds on end (see `h200_parts.floor`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from h200_parts import floor as whole
from h200_parts.cases import Case as WholeCase
from h200_parts.child import hand_over, note

from meshwright.describe.model import Model
from meshwright.describe.workload import FEW_BITS
from tune_parts.cases import RANK, Case, case_of, model_of

STATE_BYTES = 2 * (4 + 4 + 4) + 4 + 2  # of a trained number: weight and moments read and written, gradient read, copy written
PAIRS = {"qkv": 3, "o": 1, "gate and up": 2, "down": 1}
Shapes = Mapping[str, tuple[int, int, int]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    hand_over(floor_of(given.case, torch.device(given.device)))


def floor_of(case: Case, device: torch.device) -> dict[str, Any]:
    """Seconds of a step by part, and their sum."""
    model = model_of(case)
    same = WholeCase(name=case.name, model=case.model, batch=case.batch, seq_len=case.seq_len, precision="bf16", states="fp32")
    copy_bytes_per_s = whole.copy_rate(device)
    shapes = whole.shapes_of(model)
    head = {"head": shapes.pop("head")}
    forward, backward, kernel = whole.flash_attention_4(same, model, device) or whole.attention(same, model, device)
    attention = {("attention", "forward"): forward, ("attention", "backward"): backward}
    layer_s = whole.in_turn_s({**frozen(shapes, case, device), **attention, **adapters(shapes, case, device)}, device, whole.LAYER_S)
    del forward, backward, attention
    head_s = whole.in_turn_s(frozen(head, case, device), device, whole.HEAD_S)
    layers, moved = model.num_layers, bytes_moved(case, model)
    parts_s = {
        "GEMM": layers * sum(s for (name, _), s in layer_s.items() if name in shapes) + sum(head_s.values()),
        "attention": layers * sum(s for (name, _), s in layer_s.items() if name == "attention"),
        "adapters": layers * sum(s for (name, _), s in layer_s.items() if name.startswith("pairs")),
        "bytes": sum(moved.values()) / copy_bytes_per_s,
    }
    floor_s = sum(parts_s.values())
    note(", ".join(f"{part} {1e3 * s:.1f} ms" for part, s in parts_s.items()) + f"; attention by {kernel}")
    note(f"floor {1e3 * floor_s:.1f} ms a step, {case.num_tokens / floor_s:,.0f} tokens/s")
    return {
        "parts_s": parts_s,
        "floor_s": floor_s,
        "tokens_per_s": case.num_tokens / floor_s,
        "copy_bytes_per_s": copy_bytes_per_s,
        "bytes": moved,
        "layer_s": {f"{name} {way}": s for (name, way), s in {**layer_s, **head_s}.items()},
        "kernel": kernel,
    }


def frozen(shapes: Shapes, case: Case, device: torch.device) -> dict[tuple[str, str], whole.Work]:
    """The products of frozen matrices: forward and input gradient."""
    return {
        (name, way): whole._bf16_product(*whole.sides(way, num_in, num_out, case.num_tokens), way, device)
        for way in ("forward", "input gradient")
        for name, (num_in, num_out, _) in shapes.items()
    }


def adapters(shapes: Shapes, case: Case, device: torch.device) -> dict[tuple[str, str], whole.Work]:
    """The products of the pairs beside each frozen product, forward and backward."""
    works: dict[tuple[str, str], whole.Work] = {}
    for name, (num_in, num_out, _) in shapes.items():
        forward, backward = _pairs(case.num_tokens, num_in, num_out, RANK * PAIRS[name], device)
        works |= {(f"pairs of {name}", "forward"): forward, (f"pairs of {name}", "backward"): backward}
    return works


def _pairs(rows: int, num_in: int, num_out: int, ranks: int, device: torch.device) -> tuple[whole.Work, whole.Work]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) / 64

    x, a, b, low, out, d_x = (
        random(rows, num_in),
        random(ranks, num_in),
        random(num_out, ranks),
        *map(lambda width: random(rows, width), (ranks, num_out, num_in)),
    )

    def forward() -> None:
        out.addmm_(x @ a.T, b.T)

    def backward() -> None:
        d_low = out @ b
        d_x.addmm_(d_low, a)
        _ = (out.T @ low, d_low.T @ x)

    return forward, backward


def bytes_moved(case: Case, model: Model) -> dict[str, float]:
    """Bytes of a step that no product takes in."""
    rows, layers = case.num_tokens, model.num_layers
    norms, rotary, swiglu = 2 * (4 + 4) * model.hidden, 4 * (model.query_dim + model.kv_dim), (3 + 5) * model.ffn_hidden
    shapes = whole.shapes_of(model)
    shapes.pop("head")
    elements = sum(num_in * num_out * count for num_in, num_out, count in shapes.values())
    pairs = RANK * sum((PAIRS[name] * num_in + num_out) * count for name, (num_in, num_out, count) in shapes.items())
    code_bytes = FEW_BITS[case.base] / 8 + 2.0 if case.base in FEW_BITS else 0.0
    return {
        "elementwise": 2.0 * rows * layers * (norms + rotary + swiglu),
        "loss": 2.0 * 2 * rows * model.vocab_size,
        "optimizer": float(STATE_BYTES * pairs),
        "base in few bits": 2.0 * elements * code_bytes,
    }


if __name__ == "__main__":
    main()
