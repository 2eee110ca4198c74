"""Writes a folder that transformers can load: config.json, weights as safetensors, tokenizer.json. It appears completely or not at all."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from meshwright.describe.config_json import CONFIG
from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.train.checkpoint.durable import CheckpointError, explained, new_file, remove_folder, sync_folder, write_all
from meshwright.train.data.tokenizer import FILE_NAME, Tokenizer, tokenizer_config
from meshwright.train.folders import check_new_folder
from meshwright.train.interop.families import config_of_shapes
from meshwright.train.interop.huggingface import INDEX, WEIGHTS, named_tensors
from meshwright.train.interop.places import Assembly, Named

SHARD_BYTES = 5_000_000_000  # as in transformers


def save_huggingface(
    folder: str | Path,
    model: Model,
    tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    *,
    context: int,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write whole tensors, by our names and in any order, as a Hugging Face folder. `context`: the longest sequence in positions.

    Tensors are read one at a time and written to files of at most `shard_bytes`, which is also the memory that this needs. A tied head is
    the embedding, and is not written again. `more` are further files, which may replace the tokenizer's.
    """
    folder = Path(folder)
    named = named_tensors(model)
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    with appearing(folder) as draft:
        kept = ((name, tensor) for name, tensor in pairs if not (model.tied_embeddings and name == "head.weight"))
        _write_weights(draft, _checked(kept, named, dtype), shard_bytes)
        files = {**(_tokenizer_files(tokenizer, context) if tokenizer else {}), **(more or {})}
        for name, content in files.items():
            write_file(draft / name, content)
        write_file(draft / CONFIG, in_json(config_of(model, context=context, dtype=dtype, tokenizer=tokenizer)))


def _tokenizer_files(tokenizer: Tokenizer, context: int) -> dict[str, bytes]:
    return {FILE_NAME: tokenizer.content, "tokenizer_config.json": in_json(tokenizer_config(tokenizer, context))}


def config_of(model: Model, *, context: int, dtype: torch.dtype, tokenizer: Tokenizer | None) -> dict[str, object]:
    """The config.json of a model, in a form that transformers 4 and 5 both read."""
    return config_of_shapes(model, context=context) | {
        "bos_token_id": None,  # transformers would use 1 and 2, which have no meaning here
        "eos_token_id": None if tokenizer is None else tokenizer.end_of_document,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _checked(pairs: Iterable[tuple[str, Tensor]], named: Mapping[str, Named], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under its new name, in its new type; at the end, an error if one is missing."""
    missing, assembly = dict(named), Assembly()
    for name, tensor in pairs:
        if name not in missing:
            what = "was given twice" if name in named else "has no place in the model"
            raise InputError(f"{name} {what}", where="tensors to save", fix="give each tensor of the model once")
        known = missing.pop(name)
        if tuple(tensor.shape) != known.shape:
            what = f"{name} has shape {list(tensor.shape)}, not {list(known.shape)}"
            raise InputError(what, where="tensors to save", fix="give whole tensors, gathered from all ranks")
        yield from assembly.add(tensor.detach().to("cpu", torch.float32 if known.keeps_fp32 else dtype), known)
    if missing:
        raise InputError(
            f"{next(iter(missing))} was not given ({len(missing)} in all)", where="tensors to save", fix="give every tensor of the model"
        )


def _write_weights(draft: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> None:
    """Write tensors as they come: one file if they fit, otherwise shards and an index."""
    shards: list[list[str]] = []
    total_bytes = 0
    for number, part in enumerate(_parts(tensors, shard_bytes)):
        write_tensors(draft / _unnumbered(number), part)
        shards.append(list(part))
        total_bytes += sum(tensor.nbytes for tensor in part.values())
    if len(shards) == 1:
        os.rename(draft / _unnumbered(0), draft / WEIGHTS)
        return
    places: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        os.rename(draft / _unnumbered(number), draft / file)
        places |= dict.fromkeys(names, file)
    write_file(draft / INDEX, in_json({"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}))


def _unnumbered(number: int) -> str:
    """The name of a shard while the number of shards is not known."""
    return f"part-{number}.safetensors"


def _parts(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in groups of at most `shard_bytes`; a larger one is alone."""
    part: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        if part and num_bytes + tensor.nbytes > shard_bytes:
            yield part
            part, num_bytes = {}, 0
        part[name] = tensor
        num_bytes += tensor.nbytes
    yield part


def write_tensors(path: Path, part: dict[str, Tensor]) -> None:
    """Write one safetensors file, and wait until it is on the disk."""
    with new_file(path) as fd:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)  # as the umask allows; safetensors creates a file that only its owner can read
    try:
        save_file(part, path, metadata={"format": "pt"})
    except SafetensorError as error:  # holds the disk's refusal as text
        raise CheckpointError(f"cannot write the weights: {error}", where=str(path.parent), fix="check whether the disk is full") from None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to write into that becomes `folder` once everything is on the disk; nothing is left if it is interrupted."""
    check_new_folder(folder)
    draft = folder.with_name(f".{secrets.token_hex(8)}.new")
    with explained(f"cannot write {folder.name}", folder):
        draft.mkdir(parents=True)
        try:
            yield draft
            sync_folder(draft)
            os.rename(draft, folder)
            sync_folder(folder.parent)
        finally:
            remove_folder(draft)


def write_file(path: Path, content: bytes) -> None:
    """Write a new file, and wait until it is on the disk."""
    with new_file(path) as fd:
        write_all(fd, content)


def in_json(value: object) -> bytes:
    """A value as the content of a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()
