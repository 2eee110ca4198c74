"""A child: a case's products and attention by every library that torch can call for them, all in turn on the same warm card.

What it says decides which one the trainer asks for. Nothing is timed alone: a card at its power cap runs each kernel as fast as the mix
around it allows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from h200_parts.cases import Case, case_of, model_of
from h200_parts.child import hand_over, note
from h200_parts.floor import PASSES, Work, attention, in_turn_s, products, shapes_of

LAYER_S, HEAD_S = 12.0, 6.0
LIBRARIES = ("cublas", "cublaslt")
ATTENTION = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
Ways = dict[tuple[str, str], float]  # (product and pass, library) -> seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    hand_over({"rows": rows_of(given.case, torch.device(given.device))})


def rows_of(case: Case, device: torch.device) -> list[dict[str, Any]]:
    """Of each product and of attention: seconds by library, and how often a step has it."""
    model = model_of(case)
    shapes = shapes_of(model)
    head = {"head": shapes.pop("head")}
    layer = _by_library(products(shapes, case, device), device)
    for name, backend in ATTENTION.items():
        try:
            forward, backward, _ = attention(case, model, device, (backend,))
        except SystemExit as error:
            note(f"{name}: {error}")
            continue
        layer |= {("attention forward", name): forward, ("attention backward", name): backward}
    took_s = in_turn_s(layer, device, LAYER_S)
    del layer
    took_s |= in_turn_s(_by_library(products(head, case, device), device), device, HEAD_S)
    counts = {f"{name} {direction}": count for name, (_, _, count) in (shapes | head).items() for direction in PASSES}
    counts |= {f"attention {way}": model.num_layers for way in ("forward", "backward")}
    rows = [
        {"what": what, "count": count, "took_s": {way: seconds for (which, way), seconds in took_s.items() if which == what}}
        for what, count in counts.items()
    ]
    for row in rows:
        note(f"{row['what']}: " + ", ".join(f"{way} {1e3 * s:.3f} ms" for way, s in row["took_s"].items()))
    return rows


def _by_library(works: dict[tuple[str, str], Work], device: torch.device) -> dict[tuple[str, str], Work]:
    """Every product by every library; on a processor there is one."""
    libraries = LIBRARIES if device.type == "cuda" else LIBRARIES[:1]
    return {(" ".join(key), library): _by(library, work, device) for key, work in works.items() for library in libraries}


def _by(library: str, work: Work, device: torch.device) -> Callable[[], object]:
    if device.type != "cuda":
        return work

    def call() -> object:
        torch.backends.cuda.preferred_blas_library(library)
        return work()

    return call


if __name__ == "__main__":
    main()
