"""Builds: what goes in comes out, broken-off builds are taken up byte for byte, and folders are never mixed up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from meshwright.errors import InputError
from meshwright.train.data import corpus_build
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.corpus_build import BuildOptions, build_corpus, document_hashes, valid_threshold
from meshwright.train.data.sources import find_sources
from meshwright.train.data.tokenizer import train_tokenizer

OPTIONS = BuildOptions(tokenizer="train:300", valid_fraction=0.1, seed=3)


def text_of(number: int) -> str:
    return f"document {number}: " + " ".join(f"word{(number * 7 + place) % 50}" for place in range(number % 40)) + "\n"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    long = "".join(f"line {number} of a long text\n" for number in range(2000))
    return [long, *(text_of(number) for number in range(300))]


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory) -> Path:
    """A folder of sources: a text longer than a piece in these tests, then JSON lines in two files."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "a.txt").write_text(texts[0])
    for name, part in (("b.jsonl", texts[1:151]), ("c.jsonl", texts[151:])):
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(corpus_build, "PIECE_BYTES", 4000)
    monkeypatch.setattr(corpus_build, "BATCH_BYTES", 8000)


def built(folder: Path, out: Path, options: BuildOptions = OPTIONS, **keywords: object) -> Corpus:
    return build_corpus(find_sources([folder]), out, options, commit_bytes=10_000, **keywords)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a corpus; the lock is not one."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != corpus_build.LOCK}


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory) -> Path:
    """The corpus of an unbroken build, in the batches of a real one: how the text is grouped must not show."""
    return built(folder, tmp_path_factory.mktemp("whole")).folder


def test_every_document_comes_back_in_one_of_the_splits(whole, texts):
    corpus = Corpus.open(whole, verify="hashes")
    splits = {
        split.name: [corpus.tokenizer.decode(split.document(n)) for n in range(split.num_documents)]
        for split in (corpus.train, corpus.valid)
    }
    apart = document_hashes(3, np.arange(len(texts))) < valid_threshold(3, len(texts), 30)
    assert splits["valid"] == [text for text, held in zip(texts, apart, strict=True) if held]
    assert splits["train"] == [text for text, held in zip(texts, apart, strict=True) if not held]
    assert corpus.manifest.num_documents == len(texts) == 301
    assert corpus.valid.num_documents == 30


def test_pieces_give_the_tokens_of_the_whole_document(whole, texts):
    corpus = Corpus.open(whole)
    tokens = np.concatenate([corpus.train.document(0), corpus.valid.document(0)]).tolist()
    expected = [*corpus.tokenizer.encode(texts[0]), corpus.tokenizer.end_of_document]
    assert tokens[: len(expected)] == expected or tokens[-len(expected) :] == expected


def test_each_document_ends_once(whole):
    corpus = Corpus.open(whole)
    for split in (corpus.train, corpus.valid):
        assert np.flatnonzero(split.tokens == corpus.tokenizer.end_of_document).tolist() == (split.offsets[1:] - 1).tolist()


def test_a_second_build_gives_the_same_bytes(folder, whole, tmp_path):
    assert content(built(folder, tmp_path / "again").folder) == content(whole)


def test_a_finished_build_is_found_and_not_written_again(folder, whole):
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    reported = []
    corpus = built(folder, whole, report=lambda what, done, total: reported.append(what))
    assert set(reported) == {"hashing sources"}
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir() if path.name in corpus.manifest.files} == {
        name: before[name] for name in corpus.manifest.files
    }


def test_the_seed_chooses_other_validation_documents(folder, whole, tmp_path):
    other = built(folder, tmp_path, BuildOptions(tokenizer="train:300", valid_fraction=0.1, seed=4))
    assert other.valid.num_documents == 30
    assert not np.array_equal(other.valid.tokens, Corpus.open(whole).valid.tokens)


def test_progress_runs_to_the_end(folder, tmp_path):
    reports = []
    built(folder, tmp_path, report=lambda *report: reports.append(report))
    total = sum(path.stat().st_size for path in folder.iterdir())
    for part in ("hashing sources", "choosing text for the vocabulary", "tokenising"):
        steps = [(done, of) for what, done, of in reports if what == part]
        assert steps == sorted(steps) and steps[-1] == (total, total)


# The child runs a build and kills itself at the n-th of the calls by which data reach the disk.
CHILD = """
import os, signal, sys
from pathlib import Path
from meshwright.train.data import corpus_build
from meshwright.train.data.corpus_build import BuildOptions, build_corpus
from meshwright.train.data.sources import find_sources

corpus_build.PIECE_BYTES, corpus_build.BATCH_BYTES = 4000, 8000
calls_left = int(sys.argv[3])

def counted(call):
    def counting(*arguments, **keywords):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **keywords)
    return counting

os.fsync, os.replace, Path.unlink = counted(os.fsync), counted(os.replace), counted(Path.unlink)
corpus_build._Writer.write = counted(corpus_build._Writer.write)
options = BuildOptions(tokenizer="train:300", valid_fraction=0.1, seed=3)
build_corpus(find_sources([Path(sys.argv[1])]), Path(sys.argv[2]), options, commit_bytes=10_000)
"""


def killed_build(folder: Path, out: Path, at_call: int) -> bool:
    """Whether the build was killed at that call; False where it was done before."""
    env = os.environ | {"RAYON_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder), str(out), str(at_call)], env=env, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_build_killed_again_and_again_gives_the_bytes_of_an_unbroken_one(folder, whole, tmp_path):
    # Each try dies five calls later than the last: before anything is written, while the files grow, at a commit, behind it.
    num_kills = 0
    while killed_build(folder, tmp_path / "out", 1 + 5 * num_kills):
        num_kills += 1
        assert not (tmp_path / "out" / "manifest.json").exists() or Corpus.open(tmp_path / "out", verify="hashes")
    assert num_kills >= 4
    assert content(tmp_path / "out") == content(whole)


@pytest.mark.long
def test_a_build_killed_at_any_call_is_taken_up(folder, whole, tmp_path):
    at_call = 1
    while killed_build(folder, tmp_path / f"{at_call}", at_call):
        assert content(built(folder, tmp_path / f"{at_call}").folder) == content(whole)
        at_call += 1
    assert at_call > 30


def interrupted(folder: Path, out: Path, after: int = 6) -> None:
    """Break a build off after some batches."""
    calls = 0

    def report(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += what == "tokenising"
        if calls == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(folder, out, report=report)


def test_a_build_taken_up_does_not_begin_anew(folder, whole, tmp_path):
    interrupted(folder, tmp_path, after=8)
    first_bytes = []
    built(folder, tmp_path, report=lambda what, done, total: first_bytes.append(done) if what == "tokenising" else None)
    assert first_bytes[0] > 30_000
    assert content(tmp_path) == content(whole)


def test_a_torn_line_of_the_journal_is_not_read(folder, whole, tmp_path):
    interrupted(folder, tmp_path)
    with open(tmp_path / "journal.jsonl", "ab") as journal:
        journal.write(b'{"place": {"source": 1, "po')
    assert content(built(folder, tmp_path).folder) == content(whole)


def test_an_unfinished_build_is_no_corpus(folder, tmp_path):
    interrupted(folder, tmp_path)
    with pytest.raises(InputError, match="no finished corpus") as caught:
        Corpus.open(tmp_path)
    assert "continues" in caught.value.fix


def test_an_unfinished_build_is_not_gone_on_with_from_another_text(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    interrupted(copy, tmp_path / "out")
    (copy / "a.txt").write_text("other text")
    with pytest.raises(InputError, match=r"source .*a\.txt has changed"):
        built(copy, tmp_path / "out")
    (copy / "a.txt").unlink()
    with pytest.raises(InputError, match=r"source .*a\.txt is missing"):
        built(copy, tmp_path / "out")


@pytest.mark.parametrize("finished", [False, True])
def test_other_arguments_say_what_differs(folder, tmp_path, finished):
    if finished:
        built(folder, tmp_path)
    else:
        interrupted(folder, tmp_path)
    with pytest.raises(InputError, match="tokenizer 'train:300' there, 'train:301' here; seed 3 there, 5 here") as caught:
        built(folder, tmp_path, BuildOptions(tokenizer="train:301", valid_fraction=0.1, seed=5))
    assert caught.value.where == str(tmp_path / ("manifest.json" if finished else "build.json"))
    assert "another --out" in caught.value.fix


@pytest.mark.parametrize(
    "name, change, what",
    [
        ("train.tokens", lambda data: data[:10], "shorter than"),
        ("journal.jsonl", lambda data: data[:-20] + b"\n", "the journal is damaged"),
        ("build.json", lambda data: data[:-20], "plan of the unfinished build is damaged"),
        ("tokenizer.json", lambda data: data + b"\n", "vocabulary was changed"),
    ],
)
def test_an_unfinished_build_that_was_tampered_with(folder, tmp_path, name, change, what):
    interrupted(folder, tmp_path, after=8)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=what) as caught:
        built(folder, tmp_path)
    assert "delete the folder" in caught.value.fix


def test_a_build_that_failed_before_the_first_token_leaves_the_folder_free(folder, whole, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"wrong": "b"}\n')
    with pytest.raises(InputError, match="no key 'text'"):
        built(tmp_path / "bad.jsonl", tmp_path / "out")
    assert content(built(folder, tmp_path / "out").folder) == content(whole)


def test_a_folder_with_something_else_in_it(folder, tmp_path):
    (tmp_path / "thesis.doc").write_text("x")
    with pytest.raises(InputError, match=r"not empty and holds no corpus: thesis\.doc"):
        built(folder, tmp_path)
    assert (tmp_path / "thesis.doc").read_text() == "x"


def test_two_builds_do_not_share_a_folder(folder, tmp_path):
    with FileLock(tmp_path / corpus_build.LOCK), pytest.raises(InputError, match="another build is running"):
        built(folder, tmp_path)


def test_a_source_that_changes_while_it_is_read(folder, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_bytes((folder / "b.jsonl").read_bytes())

    def report(what: str, done: int, total: int) -> None:
        if what == "tokenising" and done < total:
            os.utime(source, ns=(1, 1))

    with pytest.raises(InputError, match="changed while it was read"):
        build_corpus(find_sources([source]), tmp_path / "out", OPTIONS, report)


def test_a_full_disk_leaves_a_build_that_can_be_taken_up(folder, whole, tmp_path, monkeypatch):
    written = corpus_build._SplitFiles.sync

    def full(self):
        if self.num_tokens > 5000:
            raise OSError(28, "No space left on device")
        written(self)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(corpus_build._SplitFiles, "sync", full)
        built(folder, tmp_path)
    assert content(built(folder, tmp_path).folder) == content(whole)


def test_a_given_tokenizer_is_kept_as_it_is(folder, tmp_path):
    given = train_tokenizer([text_of(number) for number in range(100)], 280)
    (tmp_path / "tokenizer.json").write_bytes(given.content)
    corpus = built(folder, tmp_path / "out", BuildOptions(tokenizer=str(tmp_path)))
    assert (corpus.folder / "tokenizer.json").read_bytes() == given.content
    assert corpus.manifest.build.tokenizer == corpus.manifest.tokenizer_sha256 == given.digest


def test_a_large_vocabulary_takes_four_bytes(folder, tmp_path):
    given = train_tokenizer([text_of(number) for number in range(100)], 280)
    table = json.loads(given.content)
    table["added_tokens"].append({**table["added_tokens"][0], "id": 70_000, "content": "<far>"})
    table["model"]["vocab"]["<far>"] = 70_000
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table))
    corpus = built(folder, tmp_path / "out", BuildOptions(tokenizer=str(path), end_of_document="<far>"))
    assert (corpus.vocab_size, corpus.manifest.token_dtype, corpus.manifest.max_token) == (70_001, "<u4", 70_000)
    assert corpus.train.document(0)[-1] == 70_000


def test_a_tokenizer_that_minds_cuts_gets_whole_documents(folder, whole, texts, tmp_path, monkeypatch):
    table = json.loads((whole / "tokenizer.json").read_bytes())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table | {"normalizer": {"type": "Prepend", "prepend": "_"}}))
    options = BuildOptions(tokenizer=str(path), valid_fraction=0)
    corpus = built(folder, tmp_path / "out", options)
    assert corpus.train.document(0).tolist() == [*corpus.tokenizer.encode(texts[0]), corpus.tokenizer.end_of_document]
    monkeypatch.setattr(corpus_build, "MAX_RUN_BYTES", 1 << 10)
    with pytest.raises(InputError, match="must see whole"):
        built(folder, tmp_path / "other", options)


@pytest.mark.parametrize("num_documents, num_valid", [(10, 0), (10, 1), (10, 9), (5000, 77), (5000, 4999)])
def test_so_many_documents_are_held_apart_as_asked_for(monkeypatch, num_documents, num_valid):
    monkeypatch.setattr(corpus_build, "NUMBERS_AT_ONCE", 999)
    held = document_hashes(1, np.arange(num_documents)) < valid_threshold(1, num_documents, num_valid)
    assert held.sum() == num_valid


@pytest.mark.parametrize(
    "keywords, num_documents, expected",
    [({}, 1000, 10), ({}, 2, 1), ({"valid_fraction": 0}, 1, 0), ({"valid_documents": 7}, 8, 7), ({"valid_documents": 0}, 1, 0)],
)
def test_documents_to_hold_apart(keywords, num_documents, expected):
    assert BuildOptions(tokenizer="train:300", **keywords).num_valid_documents(num_documents) == expected


@pytest.mark.parametrize("keywords, num_documents", [({}, 1), ({"valid_documents": 5}, 5), ({"valid_fraction": 0.99}, 3)])
def test_nothing_left_to_train_on(keywords, num_documents):
    with pytest.raises(InputError, match="leaves none to train on"):
        BuildOptions(tokenizer="train:300", **keywords).num_valid_documents(num_documents)


@pytest.mark.parametrize(
    "keywords", [{"valid_fraction": 1.0}, {"valid_fraction": float("nan")}, {"valid_fraction": -0.1}, {"valid_documents": -1}]
)
def test_shares_that_are_none(keywords):
    with pytest.raises(InputError):
        BuildOptions(tokenizer="train:300", **keywords)


def test_the_vocabulary_is_trained_on_a_bounded_sample(folder, texts, monkeypatch, tmp_path):
    monkeypatch.setattr(corpus_build, "SAMPLE_BYTES", 20_000)
    seen = []

    def watched(sample, vocab_size):
        seen.append(sample)
        return train_tokenizer(sample, vocab_size)

    monkeypatch.setattr(corpus_build, "train_tokenizer", watched)
    for seed in (1, 2):
        built(folder, tmp_path / f"{seed}", BuildOptions(tokenizer="train:300", seed=seed))
    everything = "".join(texts)
    for sample in seen:
        assert 5000 < sum(map(len, sample)) <= 20_000
        assert all(text in everything for text in sample)
    assert seen[0] != seen[1]
