"""Adapters in the format of Hugging Face's package PEFT: adapter_config.json and adapter_model.safetensors.

Only names differ: PEFT stores A as [rank, in] and B as [out, rank] too, and scales by alpha / rank, or by alpha / sqrt(rank).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from meshwright.describe.model import Model
from meshwright.describe.products import adaptable, adapted_matrices, layer_products
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError
from meshwright.files import read_text
from meshwright.train.checkpoint import Piece
from meshwright.train.interop.families import family_of
from meshwright.train.interop.huggingface_save import appearing, in_json, write_file, write_tensors
from meshwright.train.tuning.targets import MODULES, matrix_named

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model"
HALVES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}
# Settings of PEFT that change what an adapter computes, with the values that mean nothing of the kind.
FOREIGN: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",), "use_dora": (False,), "modules_to_save": (None, []), "layers_to_transform": (None, []), "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}), "fan_in_fan_out": (False,), "target_parameters": (None, []), "trainable_token_indices": (None, [], {}),
    "exclude_modules": (None, []), "layer_replication": (None, []), "lora_bias": (False,),
}  # fmt: skip


def their_module(part: str) -> str:
    """PEFT's name of a matrix: `q_proj` for `q`."""
    return next(theirs for theirs, ours in MODULES.items() if ours == part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One matrix of a pair: its name in PEFT, and its shape."""

    theirs: str
    shape: tuple[int, ...]


def named_pairs(model: Model, adapters: Adapters) -> dict[str, Half]:
    """Every half of every pair by our name, with PEFT's name and its shape."""
    family, adapted, found = family_of(model), adapted_matrices(model, adapters), {}
    for number in range(model.num_layers):
        for place, one in layer_products(model, number).items():
            if one.name not in adapted:
                continue
            ours = f"layers.{number}.{place}"
            module = family.named(f"{ours}.weight", (one.columns, one.inner)).theirs.removesuffix(".weight")
            shapes = {"lora_a": (adapters.rank, one.inner), "lora_b": (one.columns, adapters.rank)}
            for half, shape in shapes.items():
                found[f"{ours}.{half}"] = Half(theirs=f"{PREFIX}.{module}.{HALVES[half]}", shape=shape)
    return found


def config_of(model: Model, adapters: Adapters, base: str) -> dict[str, Any]:
    """The adapter_config.json of adapters beside the model `model`, which is in the folder `base`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": adapters.scale * adapters.rank if not adapters.rank_stabilised else adapters.alpha or 2 * adapters.rank,
        "lora_dropout": adapters.dropout,
        "use_rslora": adapters.rank_stabilised,
        "target_modules": [their_module(part) for part in adapted_matrices(model, adapters)],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
    }


def save_peft(folder: Path, model: Model, adapters: Adapters, tensors: Mapping[str, Tensor], base: str, more: Mapping[str, bytes]) -> None:
    """Write adapters as a folder that PEFT loads; `more` are further files: the tokenizer and its template."""
    named = named_pairs(model, adapters)
    assert set(tensors) == set(named), "an adapter has all its pairs"
    with appearing(folder) as draft:
        write_tensors(draft / WEIGHTS, {named[name].theirs: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        for name, content in more.items():
            write_file(draft / name, content)
        write_file(draft / CONFIG, in_json(config_of(model, adapters, base)))


@dataclass(frozen=True, eq=False)
class PeftAdapter:
    """An adapter in a folder, checked against a model, and not read yet."""

    folder: Path
    adapters: Adapters
    named: Mapping[str, Half]
    file: Any  # safetensors

    def tensor(self, name: str) -> Tensor:
        """One whole half of a pair, by our name."""
        try:
            held: Tensor = self.file.get_tensor(self.named[name].theirs)
            return held
        except (SafetensorError, OSError) as error:
            raise InputError(f"cannot read {name}: {error}", where=str(self.folder / WEIGHTS), fix="fetch the file again") from None

    def fill(self, piece: Piece) -> None:
        """Fill a piece of a half."""
        whole = self.tensor(piece.name.partition("/")[2])
        piece.tensor.copy_(whole[tuple(slice(first, first + size) for first, size in zip(piece.start, piece.tensor.shape, strict=True))])


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of an adapter."""
    path = folder / CONFIG
    try:
        config = json.loads(read_text(path))
    except OSError as error:
        raise InputError(
            f"cannot read the adapter: {error.strerror}", where=str(path), fix="give a folder that PEFT or tune wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=str(path), fix="fetch the file again") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise InputError(f"the adapter is of the kind {kind!r}", where=str(path), fix="only LoRA adapters are loaded")
    for key, harmless in FOREIGN.items():
        if key in config and config[key] not in harmless:
            raise InputError(f"{key} is {config[key]!r:.60}, which is not loaded", where=str(path), fix=f"use an adapter without {key}")
    return config


def load_peft(folder: Path, model: Model) -> PeftAdapter:
    """The adapter in a folder, for this model."""
    config = read_config(folder)
    path = folder / WEIGHTS
    try:
        file = safe_open(path, framework="pt", device="cpu")
    except (FileNotFoundError, SafetensorError, OSError) as error:
        raise InputError(
            f"cannot read the adapter's weights: {error}", where=str(path), fix="save the adapter again as safetensors"
        ) from None
    adapters = adapters_of(config, model, folder / CONFIG)
    named = named_pairs(model, adapters)
    _check_tensors(file, named, model, path)
    return PeftAdapter(folder, adapters, named, file)


def adapters_of(config: Mapping[str, Any], model: Model, path: Path) -> Adapters:
    """The description of adapters that a configuration has."""
    targets = config.get("target_modules")
    names = [targets] if isinstance(targets, str) else targets if isinstance(targets, list) else []
    try:
        matrices = {part for name in names for part in matrix_named(str(name), model)}
        return Adapters(
            rank=int(config["r"]),
            targets=tuple(part for part in adaptable(model) if part in matrices),
            alpha=float(config["lora_alpha"]),
            dropout=float(config.get("lora_dropout") or 0.0),
            rank_stabilised=bool(config.get("use_rslora", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the configuration lacks or misstates {error}", where=str(path), fix="save the adapter again") from None


def _check_tensors(file: Any, named: Mapping[str, Half], model: Model, path: Path) -> None:
    held = set(file.keys())
    wanted = {tensor.theirs: tensor.shape for tensor in named.values()}
    fix = f"use the adapter's own base; this one is {model.name} with {model.num_layers} layers of width {model.hidden}"
    for theirs, shape in wanted.items():
        if theirs not in held:
            raise InputError(f"the adapter has no {theirs}: it is for another base", where=str(path), fix=fix)
        found = tuple(file.get_slice(theirs).get_shape())
        if found != shape:
            what = f"{theirs} has shape {list(found)} and this base needs {list(shape)}: the adapter is for another base"
            raise InputError(what, where=str(path), fix=fix)
    if more := sorted(held - set(wanted)):
        raise InputError(f"the adapter holds {more[0]}, which has no place in this base", where=str(path), fix=fix)


def merged(weight: Callable[[str], Tensor], pair: Callable[[str], Tensor], name: str, adapters: Adapters, adapted: Sequence[str]) -> Tensor:
    """The tensor `name` of the base with the product of its pair added, in fp32; the tensor itself where it has no pair.

    `adapted`: names of the matrices that have pairs.
    """
    base = weight(name)
    matrix, _, kind = name.rpartition(".")
    if kind != "weight" or matrix.rpartition(".")[2] not in adapted:
        return base
    low, high = pair(f"{matrix}.lora_a").float(), pair(f"{matrix}.lora_b").float()
    return torch.addmm(base.float(), high.to(base.device), low.to(base.device), alpha=adapters.scale)
