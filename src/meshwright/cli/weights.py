"""Write a run's weights as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson, BaseModel

if TYPE_CHECKING:
    from meshwright.describe.model import Model
    from meshwright.say.document import Document

PRECISIONS = ("bf16", "fp32")


def weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder (runs/NAME) of a Llama model, or an adapter's folder.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for config.json, model.safetensors and tokenizer.json.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Add adapters to the weights of their base; without it a run's adapters are written as PEFT's.")
    ] = False,
    base_model: BaseModel = None,
    precision: Annotated[str, typer.Option(metavar="NAME", help="Number format of the weights: bf16 or fp32.")] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Write the weights of the newest checkpoint as a Hugging Face folder.

    Examples:

      meshwright weights runs/first --out first-hf

      meshwright weights runs/tuned --merge --out tuned-hf --precision fp32 --json
    """
    from meshwright.cli.show import show
    from meshwright.cli.train_run import torch_or_error
    from meshwright.errors import InputError
    from meshwright.train.folders import ADAPTER, check_new_folder, check_trained

    if precision not in PRECISIONS:
        raise InputError(f"weights are not written in {precision!r}", where="--precision", fix=f"choose from {', '.join(PRECISIONS)}")
    check_trained(run)
    if (run / ADAPTER).is_file() and not merge:
        raise InputError("this is an adapter already", where=str(run), fix="add --merge for the weights of the whole model")
    check_new_folder(out)
    torch_or_error()
    import torch  # takes seconds, so mistakes are reported first

    from meshwright.train.interop.tuned import adapted_model, save_adapter, save_model

    model = adapted_model(run)
    if model is not None and not merge:
        save_adapter(run, out, base_model)
        show(_document(out, str(run), model, "fp32"), as_json=as_json)
        return
    whole = save_model(run, out, torch.bfloat16 if precision == "bf16" else torch.float32, base_model)
    show(_document(out, whole.source, whole.model, precision), as_json=as_json)


def _document(out: Path, source: str, model: Model, precision: str) -> Document:
    from meshwright.say.document import Document, Text

    is_adapter = (out / "adapter_config.json").is_file()
    what = f"the adapters of {source}, for PEFT" if is_adapter else f"{model.num_parameters:,} parameters of {source} in {precision}"
    text = f"wrote {what}: {out}"
    files = [{"what": "weights folder", "path": str(path), "size_bytes": path.stat().st_size} for path in sorted(out.iterdir())]
    values = {"weights_from": source, "model": model.name, "num_parameters": model.num_parameters, "precision": precision, "files": files}
    return Document(kind="weights", title=f"weights of {source}", blocks=(Text(text),), values=values)
