"""Samples from a split: the tokens of sample number n depend only on (seed, n).

A sample is a window of `seq_len` + 1 tokens over the documents of the split, one after another. Windows start `seq_len` tokens apart, so
that every token except the very first is a label once. One counter numbers the samples through all epochs: sample n is window P(n mod W) of
W windows, where P is the permutation of epoch n

W (see `permutation`). So the order is the same for any number of ranks, after a restart, and in another layout, and no list of it is kept.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.train.data.corpus import Split
from meshwright.train.data.permutation import Permutation

IGNORED_LABEL = -100  # positions without a loss: the next token belongs to another document


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One window: tokens, the token that follows each, and the document of each, counted from 0 in the window."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    documents: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Samples in a stack, one row each, with their numbers."""

    numbers: NDArray[np.int64]
    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    documents: NDArray[np.int32]


class SampleSource(Protocol):
    """What the training loop reads: samples by their numbers, the same for every layout."""

    def __len__(self) -> int:
        """Number of samples of one epoch."""

    def batch(self, numbers: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The samples of these numbers, in this order."""

    def check_holds(self, num_samples: int, what: str = "one batch") -> None:
        """Raise an error if an epoch has fewer samples than `what` needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples of a split: shuffled again in every epoch by `seed`; without a seed in order, and once."""

    split: Split
    seq_len: int
    seed: int | None

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise InputError(f"a sample of {self.seq_len} tokens", where="seq_len", fix="choose 1 or more")
        if len(self) < 1:
            raise InputError(
                f"the {self.split.name} split has {self.split.num_tokens} tokens; one sample needs {self.seq_len + 1}",
                where=str(self.split.token_file.path),
                fix=_more(self.split.name) + ", or choose shorter sequences",
            )

    def __len__(self) -> int:
        """Number of samples of one epoch."""
        return max(0, self.split.num_tokens - 1) // self.seq_len

    def check_holds(self, num_samples: int, what: str = "one batch") -> None:
        """Raise an error if an epoch has fewer samples than `what` needs."""
        if len(self) < num_samples:
            raise InputError(
                f"the {self.split.name} split has {len(self)} samples of {self.seq_len} tokens; {what} needs {num_samples}",
                where=str(self.split.token_file.path),
                fix=_more(self.split.name) + f", or ask for at most {len(self)} samples",
            )

    def windows(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The window of each sample number."""
        wanted = np.asarray(numbers, dtype=np.int64)
        limit = len(self) if self.seed is None else np.iinfo(np.int64).max
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < limit):
            raise InputError(f"samples {wanted.min()} to {wanted.max()} of 0 to {limit - 1}", where="sample numbers", fix="stay within")
        return shuffled(wanted, len(self), self.seed)

    def sample(self, number: int) -> Sample:
        """Sample `number`, counted through all epochs."""
        batch = self.batch([number])
        return Sample(tokens=batch.tokens[0], labels=batch.labels[0], documents=batch.documents[0])

    def batch(self, numbers: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The samples of these numbers, in this order."""
        self.split.check_unchanged()
        windows = self.windows(numbers)
        shape = (windows.size, self.seq_len)
        tokens, labels, documents = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32)
        for row, window in enumerate(windows):
            start = int(window) * self.seq_len
            read, owner = self.split.read(start, start + self.seq_len + 1)
            tokens[row], documents[row] = read[:-1], owner[:-1]
            labels[row] = np.where(owner[1:] == owner[:-1], read[1:], IGNORED_LABEL)
        return Batch(numbers=np.asarray(numbers, dtype=np.int64), tokens=tokens, labels=labels, documents=documents)


def shuffled(numbers: NDArray[np.int64], size: int, seed: int | None) -> NDArray[np.int64]:
    """Which of `size` entries each sample number is: shuffled again in every epoch by `seed`; without a seed, the number itself."""
    if seed is None:
        return numbers
    entries = np.empty_like(numbers)
    epochs = numbers // size
    for epoch in np.unique(epochs):
        here = epochs == epoch
        entries[here] = Permutation.of(size, "sample order", seed, int(epoch))(numbers[here] % size)
    return entries


def _more(split: str) -> str:
    return "build the corpus with more text" if split == "train" else "build the corpus with a larger --valid-fraction"


def validation_samples(split: Split, seq_len: int, num_samples: int) -> Samples:
    """The samples for evaluations, 0 .. `num_samples` - 1: the first of the split, in order, the same each time."""
    samples = Samples(split, seq_len, seed=None)
    samples.check_holds(num_samples, "an evaluation")
    return samples


class Prefetcher:
    """Batches for given sample numbers, read by a thread while the previous ones are trained on.

    `waited_s` is the time for which the training loop waited for batches; `last_wait_s` that for the last one. Use it in a `with` block,
    which ends the thread. An error while reading is raised when the batch is asked for.
    """

    def __init__(self, samples: SampleSource, numbers: Iterable[Sequence[int] | NDArray[np.int64]], num_ahead: int = 2) -> None:
        self.waited_s = 0.0
        self.last_wait_s = 0.0
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=num_ahead)
        self._closed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(samples, iter(numbers)), name="batches", daemon=True)
        self._thread.start()

    def _read(self, samples: SampleSource, numbers: Iterator[Sequence[int] | NDArray[np.int64]]) -> None:
        try:
            for wanted in numbers:
                self._put(samples.batch(wanted))
                if self._closed.is_set():
                    return
            self._put(None)
        except BaseException as error:  # an error of the data must always reach the training loop
            self._put(error)

    def _put(self, item: Batch | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Batch:
        if self._ended or self._closed.is_set():
            raise StopIteration
        started_s = time.monotonic()
        item = self._queue.get()
        self.last_wait_s = time.monotonic() - started_s
        self.waited_s += self.last_wait_s
        if isinstance(item, Batch):
            return item
        self._ended = True
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        with suppress(queue.Empty):  # a thread that waits for room goes on at once
            while True:
                self._queue.get_nowait()
        self._thread.join()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
