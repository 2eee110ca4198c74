"""A corpus on disk: memory-mapped tokens, the start of each document, and a manifest with the hashes of all files.

docs/data.md describes the files. `corpus_build` writes a corpus; `samples` cuts samples from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.train.data.sources import SourceRecord
from meshwright.train.data.tokenizer import FILE_NAME as TOKENIZER
from meshwright.train.data.tokenizer import Tokenizer, tokenizer_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MANIFEST = "manifest.json"
FORMAT = "meshwright corpus"
VERSION = 1
INDEX_DTYPE = np.dtype("<i8")
REBUILD = "build the corpus again with `meshwright corpus build`"
NUM_SPOT_CHECKS = 64  # documents whose end is looked up when a corpus is opened
HASH_BYTES = 1 << 20

SplitName = Literal["train", "valid"]
SPLITS: tuple[SplitName, ...] = ("train", "valid")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file of the corpus as it was written."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """How much a split holds."""

    num_tokens: int
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build is made from: equal plans give equal bytes."""

    tokenizer: str  # `train:N`, or the SHA-256 of the tokenizer.json that was given
    end_of_document: str
    seed: int
    num_valid_documents: int
    text_key: str
    sources: tuple[SourceRecord, ...]

    @property
    def num_documents(self) -> int:
        return sum(source.num_documents for source in self.sources)

    @property
    def num_source_bytes(self) -> int:
        return sum(source.num_bytes for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a corpus. It contains no dates and no machine, so that equal inputs give equal manifests."""

    format: str = FORMAT
    version: int = VERSION
    vocab_size: int
    token_dtype: Literal["<u2", "<u4"]
    end_of_document: int
    max_token: int
    tokenizer_sha256: str
    num_tokens: int
    num_documents: int
    splits: Mapping[SplitName, SplitRecord]
    files: Mapping[str, FileRecord]
    build: BuildPlan


def token_dtype(vocab_size: int) -> Literal["<u2", "<u4"]:
    """The smallest unsigned type of the format for such a vocabulary."""
    return "<u2" if vocab_size < 65_536 else "<u4"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a finished corpus, and the SHA-256 of its file."""
    from pydantic import ValidationError

    path = folder / MANIFEST
    try:
        content = read_bytes(path)
    except OSError as error:
        fix = "build a corpus with `meshwright corpus build`; the same command continues an interrupted build"
        raise InputError(f"no finished corpus: cannot read its manifest: {error.strerror}", where=str(path), fix=fix) from None
    try:
        raw = json.loads(content)
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise InputError("this is not the manifest of a corpus", where=str(path), fix=REBUILD)
        if raw.get("version") != VERSION:
            what = f"corpus version {raw.get('version')!r}, but this is written for version {VERSION}"
            raise InputError(what, where=str(path), fix=REBUILD)
        return _adapter().validate_json(content), hashlib.sha256(content).hexdigest()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"the manifest is damaged: {key}: {first['msg']}", where=str(path), fix=REBUILD) from None
    except ValueError as error:
        raise InputError(f"the manifest is damaged: {error}", where=str(path), fix=REBUILD) from None


@cache
def _adapter() -> TypeAdapter[Manifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read block by block."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()


@dataclass(slots=True, eq=False)
class CorpusFile:
    """A file that must not change while it is used."""

    path: Path
    record: FileRecord
    seen: tuple[int, int] = field(init=False)  # size and modification time when it was last checked

    def __post_init__(self) -> None:
        self.seen = self._check_size()

    def check_unchanged(self) -> None:
        """Raise an error if the file has changed since it was opened. If only its time changed, it is hashed again."""
        state = self._check_size()
        if state != self.seen:
            self.check_hash()
            self.seen = state

    def check_hash(self) -> None:
        """Raise an error if the content is not that of the manifest."""
        found = sha256_of(self.path)
        if found != self.record.sha256:
            what = f"{self.path.name} was changed after the corpus was built: SHA-256 {found[:12]}..., not {self.record.sha256[:12]}..."
            raise InputError(what, where=str(self.path), fix=f"bring back the file, or {REBUILD}")

    def _check_size(self) -> tuple[int, int]:
        try:
            state = os.stat(self.path)
        except OSError as error:
            raise InputError(f"cannot read {self.path.name}: {error.strerror}", where=str(self.path), fix=REBUILD) from None
        if state.st_size != self.record.num_bytes:
            how = "is empty" if state.st_size == 0 else "is cut short" if state.st_size < self.record.num_bytes else "has grown"
            what = f"{self.path.name} {how}: {state.st_size} bytes, not {self.record.num_bytes}"
            raise InputError(what, where=str(self.path), fix=f"bring back the file, or {REBUILD}")
        return state.st_size, state.st_mtime_ns

    def array(self, dtype: str | np.dtype[Any]) -> NDArray[Any]:
        """The file as a read-only array, mapped into memory."""
        if self.record.num_bytes == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype=dtype)
        return np.memmap(self.path, dtype=dtype, mode="r")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """The documents of one split, one after another."""

    name: SplitName
    vocab_size: int
    num_tokens: int
    num_documents: int
    token_file: CorpusFile
    index_file: CorpusFile
    tokens: NDArray[Any]  # mapped
    offsets: NDArray[np.int64]  # mapped: where each document begins, then where the last ends

    def check_unchanged(self) -> None:
        """Raise an error if a file of the split has changed since it was opened."""
        self.token_file.check_unchanged()
        self.index_file.check_unchanged()

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Tokens `start` to `stop`, and the number of the document of each, counted from the first of them."""
        tokens = self.tokens[start:stop].astype(np.int64)
        if tokens.size and int(tokens.max()) >= self.vocab_size:
            position = start + int(tokens.argmax())
            what = f"token {int(tokens.max())} at position {position}, but the vocabulary has {self.vocab_size}"
            raise InputError(what, where=str(self.token_file.path), fix=REBUILD)
        first, last = np.searchsorted(self.offsets, np.array([start, stop - 1]), side="right")
        inner = self.offsets[first:last]  # ends of documents inside
        if np.any(np.diff(inner) < 1) or (inner.size and (inner[0] <= start or inner[-1] >= stop)):
            raise InputError(f"the index is out of order near document {first}", where=str(self.index_file.path), fix=REBUILD)
        return tokens, np.searchsorted(inner, np.arange(start, stop), side="right").astype(np.int32)

    def document(self, number: int) -> NDArray[np.int64]:
        """The tokens of one document of the split, with its end token."""
        return self.tokens[int(self.offsets[number]) : int(self.offsets[number + 1])].astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A finished corpus, open for reading."""

    folder: Path
    manifest: Manifest
    digest: str  # SHA-256 of the manifest, which contains those of all files: it identifies the corpus
    train: Split
    valid: Split

    @classmethod
    def open_checked(cls, folder: Path, most_bytes: int = 2_000_000_000) -> Corpus:
        """The corpus with every hash compared, if that takes only seconds: up to `most_bytes`; for a larger one, only the sizes."""
        manifest, _ = read_manifest(folder)
        is_small = sum(record.num_bytes for record in manifest.files.values()) <= most_bytes
        return cls.open(folder, verify="hashes" if is_small else "sizes")

    @classmethod
    def open(cls, folder: Path, verify: Literal["sizes", "hashes"] = "sizes") -> Corpus:
        """The corpus in a folder. Sizes, ends and a sample of documents are always checked; `hashes` reads every byte as well."""
        manifest, digest = read_manifest(folder)
        _check_counts(folder, manifest)
        for name, record in manifest.files.items():
            file = CorpusFile(folder / name, record)
            if verify == "hashes" or name == TOKENIZER:
                file.check_hash()
        train, valid = (_open_split(folder, manifest, name) for name in SPLITS)
        return cls(folder=folder, manifest=manifest, digest=digest, train=train, valid=valid)

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    @property
    def num_tokens(self) -> int:
        return self.manifest.num_tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary with which the corpus was built."""
        path = self.folder / TOKENIZER
        return tokenizer_of(read_bytes(path), where=str(path), end_of_document=self.manifest.build.end_of_document)


def _check_counts(folder: Path, manifest: Manifest) -> None:
    """Raise an error if the numbers in the manifest are not consistent."""
    where = str(folder / MANIFEST)
    expected = {TOKENIZER, *(f"{name}.{kind}" for name in SPLITS for kind in ("tokens", "index"))}
    if set(manifest.files) != expected or set(manifest.splits) != set(SPLITS):
        raise InputError(f"the manifest does not list the files {', '.join(sorted(expected))}", where=where, fix=REBUILD)
    if not max(manifest.max_token, manifest.end_of_document) < manifest.vocab_size:
        what = f"token {max(manifest.max_token, manifest.end_of_document)} is beyond the vocabulary of {manifest.vocab_size}"
        raise InputError(what, where=where, fix=REBUILD)
    for name, split in manifest.splits.items():
        wanted = {
            f"{name}.tokens": split.num_tokens * np.dtype(manifest.token_dtype).itemsize,
            f"{name}.index": (split.num_documents + 1) * INDEX_DTYPE.itemsize,
        }
        for file, num_bytes in wanted.items():
            if manifest.files[file].num_bytes != num_bytes:
                what = f"{file} has {manifest.files[file].num_bytes} bytes, but its split needs {num_bytes}"
                raise InputError(what, where=where, fix=REBUILD)


def _open_split(folder: Path, manifest: Manifest, name: SplitName) -> Split:
    token_file, index_file = (CorpusFile(folder / file, manifest.files[file]) for file in (f"{name}.tokens", f"{name}.index"))
    record = manifest.splits[name]
    split = Split(
        name=name,
        vocab_size=manifest.vocab_size,
        num_tokens=record.num_tokens,
        num_documents=record.num_documents,
        token_file=token_file,
        index_file=index_file,
        tokens=token_file.array(manifest.token_dtype),
        offsets=index_file.array(INDEX_DTYPE),
    )
    _check_index(split, manifest.end_of_document)
    return split


def _check_index(split: Split, end_of_document: int) -> None:
    """Raise an error if the index does not cover the tokens, or if a document of a sample does not end with the end token."""
    where = str(split.index_file.path)
    if split.offsets[0] != 0 or split.offsets[-1] != split.num_tokens:
        what = f"the index runs from {split.offsets[0]} to {split.offsets[-1]}, but there are {split.num_tokens} tokens"
        raise InputError(what, where=where, fix=REBUILD)
    for number in np.unique(np.linspace(0, split.num_documents - 1, NUM_SPOT_CHECKS, dtype=np.int64) if split.num_documents else []):
        start, stop = int(split.offsets[int(number)]), int(split.offsets[int(number) + 1])
        if not 0 <= start < stop <= split.num_tokens or split.tokens[stop - 1] != end_of_document:
            what = f"document {int(number)} runs from {start} to {stop}, where no document ends: index and tokens do not belong together"
            raise InputError(what, where=where, fix=REBUILD)
