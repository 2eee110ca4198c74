"""Memory to serve a model: how many accelerators hold its weights and KV cache, and how many sequences fit on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson, ModelName

if TYPE_CHECKING:
    from meshwright.describe.hardware import Accelerator
    from meshwright.predict.serving import Request, Serving

MOST = 10**9  # tokens or sequences: more is a slip of the finger


def memory(
    model: ModelName,
    serve: Annotated[
        bool, typer.Option("--serve", help="Required: memory to serve the model. For training, use `meshwright predict`.")
    ] = False,
    context: Annotated[
        int, typer.Option(metavar="N", help="Required: length of a sequence in tokens, prompt and answer.", max=MOST, show_default=False)
    ] = 0,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Number of sequences served at once.", max=MOST)] = 1,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="Precision of the weights: bf16, fp8, mxfp8, nvfp4, mxfp4, int8 or int4.")
    ] = "bf16",
    kv_precision: Annotated[str, typer.Option(metavar="NAME", help="Precision of the KV cache: bf16 or fp8.")] = "bf16",
    on: Annotated[str, typer.Option(metavar="NAME", help="Required: an accelerator of the catalogue.", show_default=False)] = "",
    tp: Annotated[
        int, typer.Option(metavar="N", help="Number of accelerators; default: the fewest that hold the model.", min=0, show_default=False)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how many accelerators can hold a model for serving, and how many sequences fit.

    Examples:

      meshwright memory llama-3.1-70b --serve --on h200 --context 8192 --concurrency 64

      meshwright memory llama-3.1-405b --serve --on h200 --context 32768 --precision fp8 --tp 8 --json
    """
    from meshwright.describe.load import accelerator, load_model
    from meshwright.predict.serving import Request, check_fits, fewest, serve_on

    _check_asked(serve, context, on)
    request = Request(model=load_model(model), context=context, concurrency=concurrency, precision=precision, kv_precision=kv_precision)
    chip = accelerator(on)
    held = serve_on(request, chip, tp) if tp else fewest(request, chip)
    check_fits(held, request, chip)
    if as_json:
        _show_as_json(request, chip, held)
    else:
        _show_tables(request, chip, held)


def _check_asked(serve: bool, context: int, on: str) -> None:
    from meshwright.errors import InputError

    if not serve:
        raise InputError(
            "training memory belongs to a layout on a machine, not to a model alone",
            where="memory",
            fix="add --serve for serving, or use meshwright predict MODEL CLUSTER WORKLOAD --layout ...",
        )
    if not on:
        raise InputError("no accelerator named to serve on", where="--on", fix="add --on h200, for example")
    if not context:
        raise InputError("no length of context given", where="--context", fix="add --context 8192, for example")


def _notes(request: Request, chip: Accelerator) -> list[str]:
    """What the numbers stand on."""
    from meshwright.predict.serving import PREFILL_TOKENS

    notes = [
        "layers' matrices in the precision asked for; embedding, output projection, norms and router in bf16",
        f"prompts are read in pieces of {PREFILL_TOKENS} tokens; the reserve is for CUDA, NCCL, graphs and fragments (assumed)",
    ]
    if request.model.latent:
        notes.append("the latent cache stands whole on every accelerator; sharing sequences out (data-parallel attention) would hold more")
    if request.model.num_windowed_layers:
        notes.append(f"{request.model.num_windowed_layers} windowed layers keep {request.model.window} tokens each")
    if request.model.num_prediction_layers:
        notes.append("without the multi-token-prediction layers")
    if request.precision in ("fp8", "mxfp8") and "fp8" not in chip.dense_flops_per_s:
        notes.append(f"{chip.name} has no fp8 tensor cores: weights are widened as they are read, which saves memory and not time")
    if request.precision in ("nvfp4", "mxfp4") and "fp4" not in chip.dense_flops_per_s:
        notes.append(f"{chip.name} has no fp4 tensor cores: weights are widened as they are read, which saves memory and not time")
    return notes


def _show_as_json(request: Request, chip: Accelerator, held: Serving) -> None:
    from dataclasses import asdict

    from meshwright.cli.show import show_json

    asked = {
        "model": request.model.name,
        "accelerator": chip.name,
        "precision": request.precision,
        "kv_precision": request.kv_precision,
        "context": request.context,
        "concurrency": request.concurrency,
    }
    counted = {"num_accelerators": held.tp, **asdict(held), "used_bytes": held.used_bytes, "spare_bytes": held.spare_bytes}
    show_json({**asked, **counted, "notes": _notes(request, chip)})


def _show_tables(request: Request, chip: Accelerator, held: Serving) -> None:
    from meshwright.cli.show import show_pairs, show_table, show_text
    from meshwright.units import gib

    show_pairs(
        f"{request.model.name} in {request.precision} on {chip.name}",
        [
            ("accelerators", held.tp),
            ("sequences asked for", f"{request.concurrency} of {request.context:,} tokens"),
            ("sequences that fit", f"{held.max_concurrency:,}"),
            ("weights in all", gib(held.total_weight_bytes)),
            ("KV cache in all", f"{gib(held.total_kv_bytes)} in {request.kv_precision}, {held.kv_bytes_per_token:,.0f} bytes a token"),
        ],
    )
    parts = (
        ("weights", held.weight_bytes),
        ("KV cache", held.kv_bytes),
        ("activations", held.activation_bytes),
        ("reserve", held.reserve_bytes),
        ("free", held.spare_bytes),
        ("all", held.memory_bytes),
    )
    show_table("On each accelerator", ["part", "bytes>", "GiB>"], [(name, f"{size:,.0f}", gib(size)) for name, size in parts])
    for note in _notes(request, chip):
        show_text(f"note: {note}")
