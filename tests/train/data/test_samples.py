"""Samples: windows over documents, in an order that only seed and number decide; and a thread that reads ahead."""

from __future__ import annotations

import threading
import time
from itertools import count, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.data.corpus import Corpus, CorpusFile, FileRecord, Split
from meshwright.train.data.corpus_build import BuildOptions, build_corpus
from meshwright.train.data.samples import IGNORED_LABEL, Prefetcher, Samples, validation_samples
from meshwright.train.data.sources import find_sources


def split_of(documents: list[list[int]], folder: Path, name: str = "train") -> Split:
    """A split in memory; its files are only there to be found unchanged."""
    files = []
    for kind in ("tokens", "index"):
        path = folder / f"{name}.{kind}"
        path.write_bytes(b"")
        files.append(CorpusFile(path, FileRecord(num_bytes=0, sha256="")))
    offsets = np.cumsum([0, *map(len, documents)])
    return Split(
        name=name,
        vocab_size=1000,
        num_tokens=int(offsets[-1]),
        num_documents=len(documents),
        token_file=files[0],
        index_file=files[1],
        tokens=np.array([token for document in documents for token in document], dtype="<u2"),
        offsets=offsets,
    )


@pytest.fixture
def numbered(tmp_path) -> Split:
    """One document of 101 tokens, 0 to 100."""
    return split_of([list(range(101))], tmp_path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(50):
        (folder / f"{number:02}.txt").write_text(f"The document {number} says {'so ' * number}.\n" * 5)
    options = BuildOptions(tokenizer="train:300", valid_fraction=0.2)
    return build_corpus(find_sources([folder]), tmp_path_factory.mktemp("corpora") / "one", options)


def test_a_hand_worked_case(tmp_path):
    # documents 1 2 0 | 3 0 | 4 5 6 0: windows of 4 + 1 tokens, 4 apart
    samples = Samples(split_of([[1, 2, 0], [3, 0], [4, 5, 6, 0]], tmp_path), 4, seed=None)
    assert len(samples) == 2
    first, second = samples.sample(0), samples.sample(1)
    assert first.tokens.tolist() == [1, 2, 0, 3]
    assert first.labels.tolist() == [2, 0, IGNORED_LABEL, 0]
    assert first.documents.tolist() == [0, 0, 0, 1]
    assert second.tokens.tolist() == [0, 4, 5, 6]
    assert second.labels.tolist() == [IGNORED_LABEL, 5, 6, 0]
    assert second.documents.tolist() == [0, 1, 1, 1]
    assert (first.tokens.dtype, first.labels.dtype, first.documents.dtype) == (np.int64, np.int64, np.int32)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 25))
def test_windows_against_the_plain_definition(tmp_path_factory, lengths, seq_len):
    documents = [[10 * number + place for place in range(length)] for number, length in enumerate(lengths)]
    stream = [(token, number) for number, document in enumerate(documents) for token in document]
    if len(stream) <= seq_len:
        return
    samples = Samples(split_of(documents, tmp_path_factory.mktemp("split")), seq_len, seed=None)
    batch = samples.batch(range(len(samples)))
    for row in range(len(samples)):
        window = stream[row * seq_len : (row + 1) * seq_len + 1]
        assert batch.tokens[row].tolist() == [token for token, _ in window[:-1]]
        assert batch.documents[row].tolist() == [number - window[0][1] for _, number in window[:-1]]
        assert batch.labels[row].tolist() == [after[0] if after[1] == now[1] else IGNORED_LABEL for now, after in pairwise(window)]


@pytest.mark.parametrize("seq_len", [1, 5, 7, 50, 100])
def test_every_token_but_the_first_is_a_label_once_an_epoch(numbered, seq_len):
    samples = Samples(numbered, seq_len, seed=4)
    labels = samples.batch(range(len(samples))).labels.ravel()
    assert sorted(labels) == list(range(1, len(samples) * seq_len + 1))


def test_each_epoch_holds_every_window_in_an_order_of_its_own(numbered):
    samples = Samples(numbered, 2, seed=1)
    epochs = [samples.windows(range(50 * epoch, 50 * (epoch + 1))).tolist() for epoch in range(5)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert epochs[0] != Samples(numbered, 2, seed=2).windows(range(50)).tolist()


def test_the_order_never_changes(numbered):
    # Checkpoints hold a sample counter; these numbers are what it means.
    samples = Samples(numbered, 2, seed=1234)
    assert samples.windows([0, 1, 2, 3, 49, 50, 51, 10**12]).tolist() == [11, 14, 36, 35, 5, 23, 47, 21]


@given(st.lists(st.integers(0, 500), max_size=12))
def test_a_sample_does_not_depend_on_its_batch(corpus, numbers):
    samples = Samples(corpus.train, 16, seed=5)
    batch = samples.batch(numbers)
    assert batch.numbers.tolist() == numbers
    for row, number in enumerate(numbers):
        sample = samples.sample(number)
        assert sample.tokens.tolist() == batch.tokens[row].tolist()
        assert sample.labels.tolist() == batch.labels[row].tolist()
        assert sample.documents.tolist() == batch.documents[row].tolist()


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_ranks_together_read_what_one_reads_alone(corpus, num_ranks):
    samples = Samples(corpus.train, 16, seed=5)
    batches = [samples.batch(range(rank, 64, num_ranks)) for rank in range(num_ranks)]
    together = np.empty((64, 16), dtype=np.int64)
    for batch in batches:
        together[batch.numbers] = batch.tokens
    assert np.array_equal(together, samples.batch(range(64)).tokens)


def test_no_text_of_validation_is_trained_on(corpus):
    held = {corpus.tokenizer.decode(corpus.valid.document(number)) for number in range(corpus.valid.num_documents)}
    trained = corpus.tokenizer.inner.decode(corpus.train.tokens.tolist(), skip_special_tokens=False)
    assert len(held) == 10
    assert not any(text in trained for text in held)


def test_labels_never_cross_documents(corpus):
    batch = Samples(corpus.train, 32, seed=5).batch(range(100))
    ends = batch.tokens == corpus.tokenizer.end_of_document
    assert ends.any()
    assert np.array_equal(ends, batch.labels == IGNORED_LABEL)


def test_validation_is_in_order_and_the_same_each_time(corpus):
    samples = validation_samples(corpus.valid, 16, 10)
    assert samples.batch(range(10)).tokens.ravel().tolist() == corpus.valid.tokens[:160].tolist()
    with pytest.raises(InputError, match="samples -1 to 0"):
        samples.batch([0, -1])
    with pytest.raises(InputError, match="of 0 to"):
        samples.batch([len(samples)])


def test_a_split_shorter_than_a_window(numbered, corpus):
    with pytest.raises(InputError, match="the train split has 101 tokens; one sample needs 102") as caught:
        Samples(numbered, 101, seed=1)
    assert caught.value.where.endswith("train.tokens") and caught.value.fix
    with pytest.raises(InputError, match="a sample of 0 tokens"):
        Samples(numbered, 0, seed=1)


def test_a_split_shorter_than_a_batch(numbered, corpus):
    with pytest.raises(InputError, match="the train split has 10 samples of 10 tokens; one batch needs 11"):
        Samples(numbered, 10, seed=1).check_holds(11)
    Samples(numbered, 10, seed=1).check_holds(10)
    num_samples = (corpus.valid.num_tokens - 1) // 16
    with pytest.raises(InputError, match=f"the valid split has {num_samples} samples of 16 tokens; an evaluation needs 9999") as caught:
        validation_samples(corpus.valid, 16, 9999)
    assert "--valid-fraction" in caught.value.fix


def test_an_empty_validation_split(tmp_path):
    (tmp_path / "a.txt").write_text("some words " * 500)
    corpus = build_corpus(find_sources([tmp_path / "a.txt"]), tmp_path / "out", BuildOptions(tokenizer="train:257", valid_fraction=0))
    assert (corpus.valid.num_tokens, corpus.valid.num_documents) == (0, 0)
    with pytest.raises(InputError, match="the valid split has 0 tokens; one sample needs 9"):
        validation_samples(corpus.valid, 8, 1)


def num_reading() -> int:
    return sum(thread.name == "batches" for thread in threading.enumerate())


def test_the_prefetcher_gives_the_batches_in_their_order(corpus):
    samples = Samples(corpus.train, 16, seed=5)
    wanted = [range(start, start + 4) for start in range(0, 40, 4)]
    with Prefetcher(samples, wanted) as batches:
        found = list(batches)
        assert list(batches) == []
    assert [batch.numbers.tolist() for batch in found] == [list(numbers) for numbers in wanted]
    assert all(np.array_equal(batch.tokens, samples.batch(batch.numbers).tokens) for batch in found)
    assert num_reading() == 0


def test_the_prefetcher_can_be_left_in_the_middle_of_endless_numbers(corpus):
    with Prefetcher(Samples(corpus.train, 16, seed=5), ([number] for number in count())) as batches:
        assert [batch.numbers.tolist() for batch in islice(batches, 3)] == [[0], [1], [2]]
        assert num_reading() == 1
    assert num_reading() == 0
    batches.close()
    assert list(batches) == []


def test_the_prefetcher_does_not_run_far_ahead(corpus):
    taken = []
    numbers = (taken.append(number) or [number] for number in count())
    with Prefetcher(Samples(corpus.train, 16, seed=5), numbers, num_ahead=2) as batches:
        next(batches)
        time.sleep(0.2)
        assert len(taken) <= 4  # one given, two waiting, one in hand


def test_the_prefetcher_says_how_long_it_was_waited_for(corpus):
    asked = threading.Event()

    def slow_numbers():
        for number in range(2):
            asked.wait()
            asked.clear()
            time.sleep(0.2)
            yield [number]

    with Prefetcher(Samples(corpus.train, 16, seed=5), slow_numbers()) as batches:
        asked.set()
        next(batches)
        assert batches.last_wait_s == batches.waited_s > 0.1
        asked.set()
        next(batches)
        assert batches.waited_s > batches.last_wait_s > 0.1


def test_an_error_while_reading_ahead_reaches_who_asks(corpus):
    samples = validation_samples(corpus.valid, 16, 1)
    with Prefetcher(samples, [[0], [10**9]]) as batches:
        next(batches)
        with pytest.raises(InputError, match="samples 1000000000"):
            next(batches)
        assert list(batches) == []
    assert num_reading() == 0
