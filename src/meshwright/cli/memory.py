"""Memory to serve a model: how many accelerators its weights and KV cache need, and how many sequences fit on them."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.options import AsJson, ModelName

MOST = 10**9  # tokens or sequences: a larger number is a typing error


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
    from meshwright.cli.show import show
    from meshwright.describe.load import accelerator, load_model
    from meshwright.predict.serving import Request, check_fits, fewest, serve_on
    from meshwright.say.serving import serving_document

    _check_asked(serve, context, on)
    request = Request(model=load_model(model), context=context, concurrency=concurrency, precision=precision, kv_precision=kv_precision)
    found = accelerator(on)
    held = serve_on(request, found, tp) if tp else fewest(request, found)
    check_fits(held, request, found)
    show(serving_document(request, found, held), as_json=as_json)


def _check_asked(serve: bool, context: int, on: str) -> None:
    from meshwright.errors import InputError

    if not serve:
        raise InputError(
            "memory for training depends on a layout and a cluster, not on the model alone",
            where="memory",
            fix="add --serve for serving, or use meshwright predict MODEL CLUSTER WORKLOAD --layout ...",
        )
    if not on:
        raise InputError("no accelerator is named", where="--on", fix="add --on h200, for example")
    if not context:
        raise InputError("no context length is given", where="--context", fix="add --context 8192, for example")
