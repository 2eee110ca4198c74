"""The document of `meshwright memory`: accelerators to serve a model, and their memory by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.describe.hardware import Accelerator
from meshwright.predict.serving import PREFILL_TOKENS, Request, Serving
from meshwright.say.document import Block, Document, Note, Pairs, Table
from meshwright.units import gib


def serving_document(request: Request, accelerator: Accelerator, held: Serving) -> Document:
    """The whole document."""
    title = f"{request.model.name} in {request.precision} on {accelerator.name}"
    notes = _notes(request, accelerator)
    return Document(
        kind="serving-memory",
        title=title,
        blocks=(*_blocks(title, request, held), *map(Note, notes)),
        values=_values(request, accelerator, held, notes),
    )


def _blocks(title: str, request: Request, held: Serving) -> Iterator[Block]:
    per_token = f"{held.kv_bytes_per_token:,.0f} bytes per token"
    pairs = (
        ("accelerators", str(held.tp), ""),
        ("sequences asked for", f"{request.concurrency} of {request.context:,} tokens", ""),
        ("sequences that fit", f"{held.max_concurrency:,}", ""),
        ("weights in total", gib(held.total_weight_bytes), ""),
        ("KV cache in total", f"{gib(held.total_kv_bytes)} in {request.kv_precision}, {per_token}", ""),
    )
    yield Pairs(title, pairs)
    parts = (
        ("weights", held.weight_bytes),
        ("KV cache", held.kv_bytes),
        ("activations", held.activation_bytes),
        ("reserve", held.reserve_bytes),
        ("free", held.spare_bytes),
        ("all", held.memory_bytes),
    )
    rows = tuple((name, f"{size:,.0f}", gib(size)) for name, size in parts)
    yield Table("on each accelerator", ("part", "bytes>", "GiB>"), rows)


def _notes(request: Request, accelerator: Accelerator) -> list[str]:
    """What the numbers assume."""
    model = request.model
    notes = [
        "the matrices of layers are in the precision asked for; embedding, output projection, norms and router are in bf16",
        f"prompts are read in pieces of {PREFILL_TOKENS} tokens; the reserve is for CUDA, NCCL, graphs and fragments (assumed)",
    ]
    if model.latent:
        notes.append("every accelerator holds the whole latent cache; sharing sequences out (data-parallel attention) would hold more")
    if model.num_windowed_layers:
        notes.append(f"{model.num_windowed_layers} windowed layers keep {model.window} tokens each")
    if model.num_prediction_layers:
        notes.append("without the multi-token-prediction layers")
    for precisions, number_format in ((("fp8", "mxfp8"), "fp8"), (("nvfp4", "mxfp4"), "fp4")):
        if request.precision in precisions and number_format not in accelerator.dense_flops_per_s:
            lacks = f"{accelerator.name} has no {number_format} tensor cores"
            notes.append(f"{lacks}: weights are widened when they are read, which saves memory but no time")
    return notes


def _values(request: Request, accelerator: Accelerator, held: Serving, notes: list[str]) -> dict[str, Any]:
    return {
        "model": request.model.name,
        "accelerator": accelerator.name,
        "num_accelerators": held.tp,
        "precision": request.precision,
        "kv_precision": request.kv_precision,
        "context": request.context,
        "concurrency": request.concurrency,
        "max_concurrency": held.max_concurrency,
        "weights_bytes": held.weight_bytes,
        "kv_bytes": held.kv_bytes,
        "activations_bytes": held.activation_bytes,
        "reserve_bytes": held.reserve_bytes,
        "used_bytes": held.used_bytes,
        "spare_bytes": held.spare_bytes,
        "memory_bytes": held.memory_bytes,
        "total_weights_bytes": held.total_weight_bytes,
        "total_kv_bytes": held.total_kv_bytes,
        "kv_bytes_per_token": held.kv_bytes_per_token,
        "notes": notes,
    }
