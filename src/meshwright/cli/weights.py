"""Write a run's weights as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.describe.model import Model
    from meshwright.say.document import Document

PRECISIONS = ("bf16", "fp32")


def weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder (runs/NAME) of a Llama model.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for config.json, model.safetensors and tokenizer.json.")],
    precision: Annotated[str, typer.Option(metavar="NAME", help="Number format of the weights: bf16 or fp32.")] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Write the weights of the newest checkpoint as a Hugging Face folder.

    Examples:

      meshwright weights runs/first --out first-hf

      meshwright weights runs/first --out first-fp32 --precision fp32 --json
    """
    from meshwright.cli.show import show
    from meshwright.cli.train_run import torch_or_error
    from meshwright.errors import InputError
    from meshwright.train.folders import check_new_folder, check_trained

    if precision not in PRECISIONS:
        raise InputError(f"weights are not written in {precision!r}", where="--precision", fix=f"choose from {', '.join(PRECISIONS)}")
    check_trained(run)
    check_new_folder(out)
    torch_or_error()
    import torch  # takes seconds, so mistakes are reported first

    from meshwright.train.interop.huggingface_save import save_huggingface
    from meshwright.train.interop.trained import load_trained

    trained = load_trained(run, torch.device("cpu"))
    model = trained.transformer.model
    tensors = dict(trained.transformer.named_tensors())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    save_huggingface(out, model, tensors, context=trained.context or 2048, tokenizer=trained.tokenizer, dtype=dtype)
    show(_document(out, trained.source, model, precision), as_json=as_json)


def _document(out: Path, source: str, model: Model, precision: str) -> Document:
    from meshwright.say.document import Document, Text

    text = f"wrote {model.num_parameters:,} parameters of {source} in {precision}: {out}"
    files = [{"what": "weights folder", "path": str(path), "size_bytes": path.stat().st_size} for path in sorted(out.iterdir())]
    values = {"weights_from": source, "model": model.name, "num_parameters": model.num_parameters, "precision": precision, "files": files}
    return Document(kind="weights", title=f"weights of {source}", blocks=(Text(text),), values=values)
