"""The embedded default: the standard library's sources as a corpus that any machine can make."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.train.data.standard_library import LEFT_OUT, MAX_BYTES, default_corpus, standard_library_files


def test_the_files_are_sources_of_the_library_and_bounded():
    found = standard_library_files()
    assert [source.name for source in found] == sorted(source.name for source in found)
    assert MAX_BYTES * 0.9 < sum(source.path.stat().st_size for source in found) <= MAX_BYTES
    root = Path(sysconfig.get_paths()["stdlib"])
    for source in found:
        assert source.path == root / source.name and source.format == "text"
        assert not LEFT_OUT & set(Path(source.name).parts)


def test_the_choice_is_the_same_each_time():
    assert standard_library_files() == standard_library_files()
    assert {one.name for one in standard_library_files(max_bytes=100_000)} != {one.name for one in standard_library_files()[:10]}


def test_a_stripped_library(tmp_path):
    (tmp_path / "only.py").write_text("x = 1\n")
    with pytest.raises(InputError, match="only 6 bytes of Python sources"):
        standard_library_files(tmp_path)


def test_files_that_are_empty_or_not_utf8_are_left_out(tmp_path):
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin1"))
    (tmp_path / "good.py").write_bytes(b"pass\n" * 20)
    assert [source.name for source in standard_library_files(tmp_path, max_bytes=150)] == ["good.py"]


def test_the_default_corpus_is_built_once_for_its_sources(tmp_path):
    corpus = default_corpus(tmp_path, 300, seed=1, max_bytes=200_000)
    assert corpus.vocab_size == 300
    assert corpus.train.num_documents > corpus.valid.num_documents >= 1
    assert all(not Path(source.name).is_absolute() for source in corpus.manifest.build.sources)  # equal on every machine
    reports = []
    again = default_corpus(tmp_path, 300, seed=1, report=lambda what, done, total: reports.append(what), max_bytes=200_000)
    assert (again.folder, again.digest) == (corpus.folder, corpus.digest)
    assert set(reports) == {"hashing sources"}
    assert default_corpus(tmp_path, 310, seed=1, max_bytes=200_000).folder != corpus.folder
    assert corpus.tokenizer.decode(corpus.train.document(0)) in {
        source.path.read_bytes().decode() for source in standard_library_files(max_bytes=200_000)
    }
