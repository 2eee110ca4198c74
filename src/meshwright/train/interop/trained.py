"""A trained model, whole and on one device: from a run's newest checkpoint, or from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.ledger import checked_plan
from meshwright.storage import Location
from meshwright.train.checkpoint import Piece, load, newest_loadable, read_manifest
from meshwright.train.checkpoint.shard import DTYPES
from meshwright.train.data.tokenizer import Tokenizer, read_tokenizer
from meshwright.train.folders import CHECKPOINTS, PLAN, check_trained
from meshwright.train.interop.huggingface import load_huggingface, longest_context
from meshwright.train.model.transformer import Transformer, tensors_in

WEIGHTS = "weights/"  # what names of weights begin with in a checkpoint


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A model ready to generate, with the tokenizer it was trained with."""

    transformer: Transformer
    tokenizer: Tokenizer
    context: int | None  # tokens of the longest sequence it was made for; None where it is not known
    source: str  # which weights these are
    notes: tuple[str, ...] = ()
    template: bool = False  # whether the tokenizer puts its own tokens around a text, as Hugging Face's do

    def tokens_of(self, prompt: str) -> list[int]:
        """The prompt in tokens, as the model saw texts begin; nothing at all is the end of the document before."""
        tokens = self.tokenizer.inner.encode(prompt, add_special_tokens=self.template).ids
        return tokens or [self.tokenizer.end_of_document]

    def check_fits(self, num_tokens: int, num_new: int) -> None:
        """Pass where prompt and answer are no longer than what the model was trained for."""
        if self.context is not None and num_tokens + num_new > self.context:
            raise InputError(
                f"{num_tokens} tokens of prompt and {num_new} new ones are more than the {self.context} of the model's sequences",
                where="--tokens",
                fix=f"ask for at most {max(self.context - num_tokens, 0)}, or shorten the prompt",
            )


def load_trained(folder: Path, device: torch.device, checkpoints: Location | None = None) -> Trained:
    """The model in a run folder or in a Hugging Face folder: in fp32 on a CPU, else in bf16.

    `checkpoints` is where those of the run are; None: in its folder.
    """
    check_trained(folder)
    return (
        _from_run(folder, device, checkpoints or folder / CHECKPOINTS) if (folder / PLAN).is_file() else _from_huggingface(folder, device)
    )


def _from_run(folder: Path, device: torch.device, checkpoints: Location) -> Trained:
    plan = checked_plan(folder, "put the run's own plan back: with another plan these weights may be another model")
    weights: dict[str, Tensor] = {}

    def read(path: Location) -> None:
        weights.update(_checkpoint_weights(path, plan.model))

    found = newest_loadable(checkpoints, check=read)
    skipped = tuple(f"skipped {path.name}: {why}" for path, why in found.skipped)
    if found.path is None:
        what = "; ".join(skipped) or "there is none yet"
        raise InputError(f"the run has no checkpoint to use: {what}", where=str(checkpoints), fix="train until one is saved")
    return Trained(
        transformer=_assembled(plan.model, weights, device),
        tokenizer=read_tokenizer(folder),
        context=plan.workload.seq_len,
        source=f"{folder}, step {found.step}",
        notes=skipped,
    )


def _checkpoint_weights(path: Location, model: Model) -> Mapping[str, Tensor]:
    """Every weight by its name, in the type it was saved in."""
    saved = read_manifest(path).tensors
    pieces = []
    for name, bare in _bare(model).named_tensors():
        known = saved.get(WEIGHTS + name)
        tensor = torch.empty(bare.shape, dtype=DTYPES[known.dtype] if known else torch.float32)
        pieces.append(Piece(name=WEIGHTS + name, shape=tuple(bare.shape), start=(0,) * bare.dim(), tensor=tensor))
    load(path, pieces, names=None)
    return {piece.name.removeprefix(WEIGHTS): piece.tensor for piece in pieces}


def _from_huggingface(folder: Path, device: torch.device) -> Trained:
    model, source = load_huggingface(folder)
    weights = {}
    for name, bare in _bare(model).named_tensors():
        weights[name] = torch.empty(bare.shape, dtype=_dtype(device))
        source.fill(name, bare.shape, (0,) * bare.dim(), weights[name])
    return Trained(
        transformer=_assembled(model, weights, device),
        tokenizer=read_tokenizer(folder),
        context=longest_context(folder),
        source=str(folder),
        template=True,
    )


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _bare(model: Model) -> Transformer:
    """The transformer's parameters as names and shapes, without memory for them."""
    with torch.device("meta"):
        return Transformer(model)


def _assembled(model: Model, weights: Mapping[str, Tensor], device: torch.device) -> Transformer:
    """The transformer over these weights."""
    transformer = _bare(model)
    for name, _ in list(transformer.named_parameters()):
        module, _, kind = name.rpartition(".")
        held = [weights[tensor].to(device, _dtype(device)) for tensor, _ in tensors_in(name, model)]
        value = nn.Parameter(torch.cat(held) if len(held) > 1 else held[0], requires_grad=False)
        setattr(transformer.get_submodule(module), kind, value)
    if model.tied_embeddings:
        assert transformer.head is not None and transformer.embed is not None, "a model without stages has both ends"
        transformer.head.weight = transformer.embed.weight
    return transformer
