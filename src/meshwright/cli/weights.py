"""Write a run's weights as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PRECISIONS = ("bf16", "fp32")


def weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder (runs/NAME) of a Llama model.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new folder: config.json, model.safetensors, tokenizer.json.")],
    precision: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
) -> None:
    """Write the newest checkpoint's weights for Hugging Face's transformers, and whoever reads its form."""
    from meshwright.cli.train_run import torch_or_error
    from meshwright.errors import InputError

    if precision not in PRECISIONS:
        raise InputError(f"weights are not written in {precision!r}", where="--precision", fix=f"choose from {', '.join(PRECISIONS)}")
    torch_or_error()
    import torch

    from meshwright.train.huggingface_save import save_huggingface
    from meshwright.train.trained import load_trained

    trained = load_trained(run, torch.device("cpu"))
    model = trained.transformer.model
    tensors = dict(trained.transformer.named_tensors())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    save_huggingface(out, model, tensors, context=trained.context or 2048, tokenizer=trained.tokenizer, dtype=dtype)
    print(f"wrote {model.num_parameters:,} parameters of {trained.source} in {precision}: {out}")
