"""A corpus in object storage, through a copy on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_servers import ObjectServer
from small_run import Small

from meshwright.errors import InputError, MeshwrightError
from meshwright.storage import Remote
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.corpus_copy import local_corpus


@pytest.fixture
def place(s3: ObjectServer, small: Small) -> Remote:
    found = s3.place() / "corpus"
    for path in small.corpus.iterdir():
        if path.is_file():
            (found / path.name).write(path.read_bytes())
    return found


def test_a_copy_is_the_corpus_and_is_made_once(place: Remote, small: Small, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    folder = local_corpus(place, tmp_path, lambda done, total: heard.append((done, total)))
    assert Corpus.open(folder, verify="hashes").digest == Corpus.open(small.corpus).digest
    assert heard[-1][0] == heard[-1][1] > 0
    (place / "train.tokens").remove()
    assert local_corpus(place, tmp_path) == folder


def test_a_copy_that_was_cut_off_is_continued(place: Remote, small: Small, tmp_path: Path) -> None:
    tokens = (place / "train.tokens").read()
    (place / "train.tokens").remove()
    with pytest.raises(MeshwrightError, match=r"train\.tokens does not exist"):
        local_corpus(place, tmp_path)
    (folder,) = (tmp_path / "corpora").iterdir()
    assert not (folder / "manifest.json").exists(), "it comes last"
    (place / "train.tokens").write(tokens)
    assert local_corpus(place, tmp_path) == folder and (folder / "manifest.json").exists()


def test_damage_is_found(place: Remote, tmp_path: Path) -> None:
    content = bytearray((place / "valid.tokens").read())
    content[0] ^= 1
    (place / "valid.tokens").write(bytes(content))
    with pytest.raises(MeshwrightError, match=r"valid\.tokens is damaged"):
        local_corpus(place, tmp_path)


def test_another_corpus_at_the_same_url_is_another_folder(place: Remote, tmp_path: Path) -> None:
    folder = local_corpus(place, tmp_path)
    (place / "manifest.json").write((place / "manifest.json").read() + b"\n")
    assert local_corpus(place, tmp_path) != folder


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not JSON"])
def test_no_corpus_is_one_message(place: Remote, tmp_path: Path, content: bytes | None) -> None:
    (place / "manifest.json").remove() if content is None else (place / "manifest.json").write(content)
    with pytest.raises(InputError) as refused:
        local_corpus(place, tmp_path)
    assert str(place) in refused.value.where


def test_a_name_in_a_manifest_leads_nowhere_else(place: Remote, tmp_path: Path) -> None:
    text = (place / "manifest.json").read().replace(b'"train.tokens"', b'"../train.tokens"')
    (place / "manifest.json").write(text)
    with pytest.raises(InputError):
        local_corpus(place, tmp_path / "cache")
    assert not (tmp_path / "train.tokens").exists()
