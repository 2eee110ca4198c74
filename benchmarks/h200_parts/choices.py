"""A child: a layer's products by every algorithm that cuBLASLt names for them, and its attention by every kernel there is, each in company.

A card at its power cap has one clock for all that runs within some tenths of a second: a kernel that is run alone is timed at a clock that
no step has. So a layer is run on end, its products, its attention and the bytes it moves between them, with one of them done another way,
between two stretches of the layer as torch runs it. At last the best way of each is taken, all together, in turns with torch's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from h200_parts import cublaslt
from h200_parts.cases import Case, case_of, model_of
from h200_parts.child import hand_over, note
from h200_parts.floor import FLASH_ATTENTION_4, PASSES, Work, attention, bytes_moved, factors, flash_attention_4, shapes_of, sides
from meshwright.describe.model import Model

WARMUP_S, TRY_S, TURN_S, NUM_TURNS = 8.0, 0.3, 1.5, 4
TORCH = "torch"
ATTENTION = "attention"
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION}
Ways = dict[str, dict[str, list[Work]]]  # of each part of a layer, by the name of a way, what it runs; the first is torch's


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = torch.device(given.device)
    hand_over({"rows": rows_of(given.case, device)})


def rows_of(case: Case, device: torch.device) -> list[dict[str, Any]]:
    """Of the layer and of the head: what each way of each part changes, and all the best together."""
    model = model_of(case)
    shapes = shapes_of(model)
    head = {"head": shapes.pop("head")}
    layer = {**product_ways(shapes, case.num_tokens, device), ATTENTION: attention_ways(case, model, device)}
    moved = _copy(int(bytes_moved(case, model)["elementwise"] / model.num_layers), device)
    rows = compared("layer", model.num_layers, layer, [moved], device)
    del layer, moved
    return rows + compared("head", 1, product_ways(head, case.num_tokens, device), [], device)


def compared(unit: str, count: int, ways: Ways, beside: Sequence[Work], device: torch.device) -> list[dict[str, Any]]:
    """Each way of each part of one unit against torch's, in its company."""
    usual = {part: TORCH for part in ways}
    took_s(ways, usual, beside, WARMUP_S, device)
    best, rows = dict(usual), []
    for part, some in ways.items():
        before_s = took_s(ways, usual, beside, TRY_S, device)
        tried_s = {way: took_s(ways, {**usual, part: way}, beside, TRY_S, device) for way in some if way != TORCH}
        torch_s = (before_s + took_s(ways, usual, beside, TRY_S, device)) / 2
        best[part] = min({TORCH: torch_s, **tried_s}.items(), key=lambda item: item[1])[0]
        changes_s = {way: seconds - torch_s for way, seconds in tried_s.items()}
        rows.append({"unit": unit, "count": count, "part": part, "unit_s": torch_s, "best": best[part], "changes_s": changes_s})
        note(f"{unit}, {part}: " + ", ".join(f"{way} {1e6 * change:+.0f} us" for way, change in changes_s.items()))
    turns = [(took_s(ways, usual, beside, TURN_S, device), took_s(ways, best, beside, TURN_S, device)) for _ in range(NUM_TURNS)]
    changes = [after / before - 1 for before, after in turns]
    row = {"unit": unit, "count": count, "part": "all at their best", "unit_s": statistics.mean(before for before, _ in turns)}
    rows.append({**row, "best": "", "change": statistics.mean(changes), "spread": statistics.stdev(changes)})
    note(f"{unit}, all at their best: {100 * rows[-1]['change']:+.2f} ± {100 * rows[-1]['spread']:.2f} %")
    return rows


def took_s(ways: Ways, chosen: dict[str, str], beside: Sequence[Work], for_s: float, device: torch.device) -> float:
    """Mean seconds of a unit, its parts in turn and each in its chosen way, on end for about `for_s`; the first fifth is not counted."""
    works = [work for part, some in ways.items() for work in some[chosen[part]]]
    works += beside

    def unit() -> None:
        for work in works:
            work()

    finish = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    unit()
    finish()
    started_s = time.perf_counter()
    unit()
    finish()
    num_rounds = max(int(for_s / (time.perf_counter() - started_s)), 2) if device.type == "cuda" else 2
    for _ in range(num_rounds // 5):
        unit()
    finish()
    started_s = time.perf_counter()
    for _ in range(num_rounds):
        unit()
    finish()
    return (time.perf_counter() - started_s) / num_rounds


def product_ways(shapes: dict[str, tuple[int, int, int]], num_rows: int, device: torch.device) -> Ways:
    """Every pass of every product by torch, and by each algorithm that gives the same bits."""
    found: Ways = {}
    for name, (num_in, num_out, _) in shapes.items():
        for direction in PASSES:
            left, right = factors(*sides(direction, num_in, num_out, num_rows), direction, device)
            out = torch.empty(left.shape[0], right.shape[1], device=device, dtype=left.dtype)
            ways = {TORCH: [_by_torch(left, right, out)]}
            if device.type == "cuda":
                ways |= _by_algorithms(left, right, out)
            found[f"{name} {direction}"] = ways
    return found


def _by_torch(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Work:
    return lambda: torch.mm(left, right, out=out)


def _by_algorithms(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> dict[str, list[Work]]:
    form = cublaslt.Form.of(left, right, out)
    if form is None or not cublaslt.is_there():
        return {}
    product, expected, ways = cublaslt.Product(form), left @ right, {}
    try:
        algorithms = product.algorithms()
    except cublaslt.CublasLtError as error:
        note(f"{left.shape[0]} x {left.shape[1]} x {right.shape[1]}: {error}")
        return {}
    for number, algorithm in enumerate(algorithms):
        product.run(algorithm, left, right, out)
        if torch.equal(out.view(torch.int16), expected.view(torch.int16)):
            ways[str(number)] = [_by_algorithm(product, algorithm, left, right, out)]
    return ways


def _by_algorithm(product: cublaslt.Product, algorithm: cublaslt.Algorithm, *matrices: torch.Tensor) -> Work:
    return lambda: product.run(algorithm, *matrices)


def attention_ways(case: Case, model: Model, device: torch.device) -> dict[str, list[Work]]:
    """Causal attention forward and backward by torch's first choice, and by what else is there."""
    first = attention(case, model, device)
    ways: dict[str, list[Work]] = {TORCH: list(first[:2])}
    for name, backend in KERNELS.items():
        try:
            ways[name] = list(attention(case, model, device, (backend,))[:2])
        except SystemExit as error:
            note(f"{name}: {error}")
    faster = flash_attention_4(case, model, device)
    if faster is not None:
        ways[FLASH_ATTENTION_4] = list(faster[:2])
    return ways


def _copy(num_bytes: int, device: torch.device) -> Work:
    """Bytes moved, half of them read and half written."""
    source = torch.randint(0, 256, (max(num_bytes // 2, 1),), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


if __name__ == "__main__":
    main()
