"""Opening a corpus: what it says of itself, and every way in which its files can be wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.train.data.corpus import Corpus, token_dtype
from meshwright.train.data.corpus_build import BuildOptions, build_corpus
from meshwright.train.data.samples import Samples
from meshwright.train.data.sources import find_sources


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    sources = tmp_path_factory.mktemp("sources")
    for number in range(40):
        (sources / f"{number:02}.txt").write_text(f"Document number {number}. " * (number + 1))
    out = tmp_path_factory.mktemp("corpora") / "original"
    return build_corpus(find_sources([sources]), out, BuildOptions(tokenizer="train:300", valid_fraction=0.2)).folder


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "corpus"))


def refusal(folder: Path, verify: str = "sizes") -> InputError:
    with pytest.raises(InputError) as caught:
        Corpus.open(folder, verify=verify)
    assert caught.value.fix
    return caught.value


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def vouch_for(folder: Path, name: str) -> None:
    """Make the manifest agree with a file, as if it had been built so."""
    data = (folder / name).read_bytes()
    edit_manifest(folder, lambda one: one["files"][name].update(num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))


def test_what_a_corpus_says_of_itself(folder):
    corpus = Corpus.open(folder, verify="hashes")
    assert corpus.vocab_size == 300 == corpus.tokenizer.vocab_size
    assert corpus.num_tokens == corpus.train.num_tokens + corpus.valid.num_tokens
    assert (corpus.train.num_documents, corpus.valid.num_documents) == (32, 8)
    assert corpus.digest == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert {source.format for source in corpus.manifest.build.sources} == {"text"}
    assert corpus.manifest.max_token == max(corpus.train.tokens.max(), corpus.valid.tokens.max())
    assert corpus.train.tokens.dtype == np.dtype("<u2")


def test_a_moved_corpus_is_the_same(folder, original):
    assert Corpus.open(folder).digest == Corpus.open(original).digest


def test_the_arrays_cannot_be_written(folder):
    with pytest.raises(ValueError, match="read-only"):
        Corpus.open(folder).train.tokens[0] = 1


@pytest.mark.parametrize("vocab_size, dtype", [(257, "<u2"), (65_535, "<u2"), (65_536, "<u4"), (200_000, "<u4")])
def test_the_width_of_tokens(vocab_size, dtype):
    assert token_dtype(vocab_size) == dtype


def test_documents_are_numbered_within_what_is_read(folder):
    split = Corpus.open(folder).train
    ends = split.offsets[1:4].tolist()
    tokens, documents = split.read(ends[0] - 2, ends[2] + 1)
    assert tokens.tolist() == split.tokens[ends[0] - 2 : ends[2] + 1].tolist()
    assert documents.tolist() == [0] * 2 + [1] * (ends[1] - ends[0]) + [2] * (ends[2] - ends[1]) + [3]


FILES = ("train.tokens", "train.index", "valid.tokens", "valid.index", "tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_or_empty_or_gone_or_grown(folder, name):
    path = folder / name
    data = path.read_bytes()
    for content, how in (
        (data[:-1], "is cut short"),
        (data[: len(data) // 2], "is cut short"),
        (b"", "is empty"),
        (data + b"x", "has grown"),
    ):
        path.write_bytes(content)
        error = refusal(folder)
        assert error.what == f"{name} {how}: {len(content)} bytes, not {len(data)}"
        assert error.where == str(path)
    path.unlink()
    assert refusal(folder).what == f"cannot read {name}: No such file or directory"


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_by_its_hash(folder, name):
    flip(folder / name, (folder / name).stat().st_size // 2)
    error = refusal(folder, verify="hashes")
    assert error.what.startswith(f"{name} was changed after the corpus was built: SHA-256 ")
    assert error.where == str(folder / name)


def test_a_changed_vocabulary_is_always_found(folder):
    flip(folder / "tokenizer.json", -10)
    assert "was changed" in refusal(folder).what


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "the manifest is damaged"),
        (b'{"format": "meshwright corpus", "ver', "the manifest is damaged"),
        (b"\xff\xfe\x00", "the manifest is damaged"),
        (b"[]", "this is not the manifest of a corpus"),
        (b'{"format": "something else"}', "this is not the manifest of a corpus"),
        (b'{"format": "meshwright corpus", "version": 2}', "corpus version 2, but this is written for version 1"),
        (b'{"format": "meshwright corpus", "version": 1}', "the manifest is damaged: vocab_size"),
    ],
)
def test_a_manifest_that_is_none(folder, content, what):
    (folder / "manifest.json").write_bytes(content)
    error = refusal(folder)
    assert what in error.what
    assert error.where == str(folder / "manifest.json")


def test_no_corpus_at_all(tmp_path):
    assert "no finished corpus" in refusal(tmp_path / "nowhere").what


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda one: one.update(vocab_size=100), "is beyond the vocabulary of 100"),
        (lambda one: one.update(end_of_document=300), "token 300 is beyond the vocabulary of 300"),
        (lambda one: one["files"].pop("valid.index"), "does not list the files"),
        (lambda one: one["splits"].pop("valid"), "does not list the files"),
        (lambda one: one["files"].update({"../../x": one["files"]["train.index"]}), "does not list the files"),
        (lambda one: one["splits"]["train"].update(num_documents=5), "train.index has"),
        (lambda one: one.update(token_dtype="<u4"), "train.tokens has"),
        (lambda one: one.update(token_dtype="object"), "manifest is damaged: token_dtype"),
    ],
)
def test_a_manifest_that_does_not_agree_with_itself(folder, change, what):
    edit_manifest(folder, change)
    assert what in refusal(folder).what


def test_an_index_that_does_not_belong_to_the_tokens(folder):
    offsets = np.fromfile(folder / "train.index", "<i8")
    path = folder / "train.index"
    for wrong, what in (
        (offsets + 1, f"the index runs from 1 to {offsets[-1] + 1}, but there are {offsets[-1]} tokens"),
        (np.r_[0, offsets[1:-1] - 1, offsets[-1]], "where no document ends"),
        (np.r_[0, offsets[-2:0:-1], offsets[-1]], "where no document ends"),
        (np.r_[0, offsets[1:-1] + 10**12, offsets[-1]], "where no document ends"),
    ):
        wrong.astype("<i8").tofile(path)
        vouch_for(folder, "train.index")  # even where the hashes agree
        error = refusal(folder, verify="hashes")
        assert what in error.what
        assert error.where == str(path)


def test_a_token_beyond_the_vocabulary_is_found_when_it_is_read(folder):
    tokens = np.fromfile(folder / "train.tokens", "<u2")
    tokens[3] = 300
    tokens.tofile(folder / "train.tokens")
    samples = Samples(Corpus.open(folder).train, 8, seed=None)
    with pytest.raises(InputError, match="token 300 at position 3, but the vocabulary has 300") as caught:
        samples.batch([0])
    assert caught.value.where == str(folder / "train.tokens")


def test_an_index_out_of_order_is_found_when_it_is_read(folder):
    corpus = Corpus.open(folder)
    offsets = np.array(corpus.train.offsets)
    offsets[5:8] = offsets[5:8][::-1]
    offsets.tofile(folder / "train.index")
    with pytest.raises(InputError, match="index is out of order"):
        corpus.train.read(int(offsets[4]), int(offsets[9]))


@pytest.mark.parametrize("name", ["train.tokens", "train.index"])
def test_a_file_that_changes_after_the_corpus_was_opened(folder, name):
    samples = Samples(Corpus.open(folder).train, 8, seed=1)
    samples.batch([0])
    path = folder / name
    os.utime(path, ns=(5, 5))
    samples.batch([0])  # only touched: its hash is still right
    data = path.read_bytes()
    flip(path, 20)
    with pytest.raises(InputError, match="was changed after the corpus was built"):
        samples.batch([0])
    path.write_bytes(data[:-8])
    with pytest.raises(InputError, match="is cut short"):
        samples.batch([0])
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        samples.batch([0])
