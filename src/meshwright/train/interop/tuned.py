"""What a fine-tuning run leaves for others: its adapter in PEFT's format, or its whole model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from meshwright.describe.model import Model
from meshwright.ledger import checked_plan
from meshwright.train.checkpoint.durable import remove_folder
from meshwright.train.data.tokenizer import FILE_NAME, read_tokenizer
from meshwright.train.folders import PLAN
from meshwright.train.interop.huggingface_save import save_huggingface
from meshwright.train.interop.peft import save_peft
from meshwright.train.interop.trained import Whole, base_of, read_whole, run_pairs
from meshwright.train.tuning.template import CONFIG, FILE

ADAPTER_FOLDER, MODEL_FOLDER = "adapter", "model"


def write_tuned(run: Path) -> Path:
    """Write the newest checkpoint of a run into a folder inside the run, and return it. An earlier one is replaced."""
    adapters = checked_plan(run, "put the run's own plan back").workload.adapters
    path = run / (ADAPTER_FOLDER if adapters else MODEL_FOLDER)
    remove_folder(path)
    if adapters:
        save_adapter(run, path)
    else:
        save_model(run, path)
    return path


def adapted_model(folder: Path) -> Model | None:
    """The model beside which a run trained adapters; None where a folder is no such run."""
    if not (folder / PLAN).is_file():
        return None
    plan = checked_plan(folder, "put the run's own plan back")
    return plan.model if plan.workload.adapters else None


def save_adapter(run: Path, folder: Path, base: Path | None = None) -> None:
    """Write the adapters of a run in PEFT's format."""
    plan = checked_plan(run, "put the run's own plan back")
    assert plan.workload.adapters is not None, "the run trains adapters"
    pairs = run_pairs(run, plan.model, plan.workload.adapters)
    save_peft(folder, plan.model, plan.workload.adapters, pairs, str(base or base_of(run)), tokenizer_files(run))


def save_model(run: Path, folder: Path, dtype: torch.dtype = torch.bfloat16, base: Path | None = None) -> Whole:
    """Write the whole model of a run, with its adapters merged if it has them, as a Hugging Face folder."""
    whole, files = read_whole(run, base), tokenizer_files(run)
    tokenizer = read_tokenizer(run) if (run / FILE_NAME).is_file() else None
    save_huggingface(folder, whole.model, whole.weights, context=whole.context or 2048, tokenizer=tokenizer, dtype=dtype, more=files)
    return whole


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder's tokenizer and template."""
    return {name: (folder / name).read_bytes() for name in (FILE_NAME, CONFIG, FILE) if (folder / name).is_file()}
