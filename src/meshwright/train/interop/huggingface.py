"""Hugging Face checkpoints: any piece of any tensor is read from safetensors, and nothing is unpickled.

The values are used unchanged: transformers also stores matrices as [out, in] and rotates the same pairs of dimensions. Only the names
differ (`families`). `huggingface_save` writes such folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from meshwright.describe.config_json import CONFIG, load_config
from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.files import read_text
from meshwright.train.interop.families import ENDS, family_of
from meshwright.train.interop.places import Named, Place, check_experts, stored_shapes
from meshwright.train.model.transformer import Transformer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")
ROWS_AT_ONCE = 4096  # rows that are compared at a time, for two embeddings that must be equal
ROTARY_BUFFER = ".self_attn.rotary_emb.inv_freq"  # in old files; it follows from config.json, and transformers ignores it too


def named_tensors(model: Model) -> dict[str, Named]:
    """Every tensor of the model by our name, a tied head once; an error for a model that no family's files can contain."""
    family = family_of(model)
    with torch.device("meta"):
        tensors = dict(Transformer(model).named_tensors())
    return {name: family.named(name, tuple(tensor.shape)) for name, tensor in tensors.items()}


def load_huggingface(folder: str | Path) -> tuple[Model, HuggingFaceWeights]:
    """The model in a Hugging Face folder, and its weights: checked by name, shape and type, but not read yet."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), fix=f"give the folder that holds {CONFIG} and {WEIGHTS}")
    model = replace(load_config(folder), num_prediction_layers=0)  # multi-token prediction is not read
    return model, HuggingFaceWeights(folder, model)


def longest_context(folder: Path) -> int | None:
    """Positions the model was made for, as config.json states them."""
    stated = json.loads(read_text(folder / CONFIG)).get("max_position_embeddings")
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None


class HuggingFaceWeights:
    """The tensors in a Hugging Face folder, under our names."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder = folder
        self.named = named_tensors(model)
        self._files = {path: _opened(path) for path in _weight_files(folder)}
        self._holder = _holders(self._files)
        self._check_index()
        if model.tied_embeddings:
            self.named["head.weight"] = self.named["embed.weight"]
            self._check_tied()
        check_experts(self.named, self._holder, str(folder))
        for tensor in self.named.values():
            self._check(tensor)
        self._check_nothing_more(model)

    def fill(self, name: str, shape: Sequence[int], start: Sequence[int], tensor: Tensor) -> None:
        """Fill `tensor` with the piece of our tensor `name` that begins at `start`, in the tensor's own type and on its device.

        `shape` is that of the whole tensor, as the caller knows it.
        """
        known = self.named.get(name)
        if known is None:
            raise InputError(f"the model has no tensor {name!r}", where=str(self.folder), fix="name a tensor as the transformer does")
        if tuple(shape) != known.shape:
            raise self._bad(name, f"is wanted with shape {list(shape)} and has {list(known.shape)}", fix="use the model of this folder")
        box = tuple(slice(first, first + length) for first, length in zip(start, tensor.shape, strict=True))
        if any(part.start < 0 or part.stop > length for part, length in zip(box, known.shape, strict=True)):
            raise self._bad(name, f"has shape {list(shape)}: a piece of {list(tensor.shape)} from {list(start)} on is not inside it")
        if tensor.numel():
            with torch.no_grad():
                tensor.copy_(known.read(box, self._read))

    def _read(self, theirs: str, box: tuple[slice, ...]) -> Tensor:
        path = self._holder[theirs]
        try:
            held: Tensor = self._files[path].get_slice(theirs)[box]
            return held
        except (SafetensorError, OSError) as error:
            raise InputError(f"cannot read {theirs}: {error}", where=str(path), fix="fetch the file again") from None

    def _check(self, tensor: Named) -> None:
        for place in tensor.places:
            path = self._holder.get(place.theirs)
            if path is None:
                fix = f"download all files again, or check that {CONFIG} belongs to them"
                raise InputError(f"{place.theirs} is missing", where=str(self.folder), fix=fix)
            entry = self._files[path].get_slice(place.theirs)
            if tuple(entry.get_shape()) != place.shape:
                what = f"{place.theirs} has shape {entry.get_shape()}; according to {CONFIG} it is {list(place.shape)}"
                raise InputError(what, where=str(path), fix=f"check that {CONFIG} belongs to the weights")
            if entry.get_dtype() not in FLOATS:
                what = f"{place.theirs} holds {entry.get_dtype()}, which is none of {', '.join(FLOATS)}"
                raise InputError(what, where=str(path), fix="use the checkpoint before it was quantised")

    def _check_index(self) -> None:
        """Raise an error if index and shards do not agree."""
        if (self.folder / WEIGHTS).is_file():
            return
        stated = _weight_map(self.folder / INDEX)
        for theirs in sorted(stated.keys() | self._holder.keys()):
            held = self._holder.get(theirs)
            if stated.get(theirs) != (held.name if held else None):
                place = held.name if held else "no shard that the index names"
                what = f"{theirs} is in {place}; according to the index, in {stated.get(theirs, 'none')}"
                raise InputError(what, where=str(self.folder / INDEX), fix="fetch the files again")

    def _check_tied(self) -> None:
        """Raise an error if a tied head that was saved separately is not equal to the embedding."""
        head = ENDS["head.weight"]
        if head not in self._holder:
            return
        shape = self.named["head.weight"].shape
        self._check(Named(shape=shape, places=(Place(theirs=head, shape=shape),)))
        num_rows, width = self.named["embed.weight"].shape
        for first in range(0, num_rows, ROWS_AT_ONCE):
            box = (slice(first, min(first + ROWS_AT_ONCE, num_rows)), slice(0, width))
            if not torch.equal(self._read(head, box), self._read(ENDS["embed.weight"], box)):
                what = f"{head} differs from {ENDS['embed.weight']}, though {CONFIG} says that they are tied"
                raise InputError(what, where=str(self._holder[head]), fix="set tie_word_embeddings to false")

    def _check_nothing_more(self, model: Model) -> None:
        known = set(stored_shapes(self.named))
        if model.tied_embeddings:
            known.add(ENDS["head.weight"])
        for theirs, path in self._holder.items():
            if theirs not in known and not theirs.endswith(ROTARY_BUFFER) and not self._is_of_prediction(theirs, model):
                raise InputError(f"{theirs} has no place in this model", where=str(path), fix=f"check that {CONFIG} belongs to the weights")

    @staticmethod
    def _is_of_prediction(theirs: str, model: Model) -> bool:
        """Whether a tensor is of a multi-token-prediction layer, which is stored after the others; transformers leaves it out too."""
        start, _, rest = theirs.partition("model.layers.")
        number = rest.partition(".")[0]
        return not start and model.latent is not None and number.isdecimal() and int(number) >= model.num_layers

    def _bad(self, name: str, what: str, fix: str = "") -> InputError:
        theirs = self.named[name].theirs
        return InputError(f"{theirs} {what}", where=str(self._holder.get(theirs, self.folder)), fix=fix)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; if there are none, an error that says why the content cannot be used."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_weight_map(folder / INDEX).values()))]
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise InputError(
            f"{pickled[0]} holds pickled weights, and opening one can run any code",
            where=str(folder),
            fix="save the model again as safetensors: transformers' save_pretrained does",
        )
    raise InputError(f"the folder has neither {WEIGHTS} nor {INDEX}", where=str(folder), fix="fetch the weights too")


def _weight_map(path: Path) -> Mapping[str, str]:
    """The shard of each tensor, by the index."""
    try:
        index: Any = json.loads(read_text(path))
    except OSError as error:
        raise InputError(f"cannot read the index: {error.strerror}", where=str(path), fix="fetch the file again") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=str(path), fix="fetch the file again") from None
    stated = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(stated, dict) or not stated:
        raise InputError("the index has no weight_map", where=str(path), fix="fetch the file again")
    for theirs, name in stated.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            what = f"{theirs} should be in {name!r}, which is not a safetensors file of this folder"
            raise InputError(what, where=str(path), fix="fetch the file again")
    return stated


def _opened(path: Path) -> safe_open:
    """A safetensors file whose header fits its size."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise InputError("the shard is missing", where=str(path), fix="fetch the file again") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"the file is damaged: {error}", where=str(path), fix="fetch the file again") from None


def _holders(files: Mapping[Path, safe_open]) -> dict[str, Path]:
    """The file each tensor stands in."""
    holder: dict[str, Path] = {}
    for path, file in files.items():
        for theirs in file.keys():  # noqa: SIM118  (not a mapping)
            if theirs in holder:
                raise InputError(f"{theirs} is also in {holder[theirs].name}", where=str(path), fix="fetch the files again")
            holder[theirs] = path
    return holder
