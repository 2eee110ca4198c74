"""A data set for fine-tuning, in tokens: what is trained on, what is held out, and what was cut or left out.

Samples that share a sequence (`--pack`) are chosen once: the longest first, each into the first one with room. Attention stays inside a
sample, because each is a document of its own. A rotary position counts only as a difference within a document, so that positions restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.train.data.permutation import Permutation
from meshwright.train.data.samples import IGNORED_LABEL, Batch, shuffled
from meshwright.train.tuning.formats import read_examples
from meshwright.train.tuning.marking import Marker, Sample
from meshwright.train.tuning.rows import read_rows

TOO_LONG = ("cut", "drop", "refuse")
OPEN_SEQUENCES = 1000  # that still take samples while sequences are filled
VALID_SHARE = 0.05
MOST_VALID = 256
PADDING = 0  # the token after the last sample of a sequence; it carries no loss, and nothing attends to it

Report = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What of the data is not trained on as it was given."""

    num_cut: int = 0  # samples that lost their end
    num_tokens_cut: int = 0
    num_dropped: int = 0  # samples that were too long, and left out
    num_silent: int = 0  # samples in which nothing carries loss, left out
    silent: str = ""  # the first of these, and why

    def words(self, limit: int) -> tuple[str, ...]:
        """What a user must be told."""
        found = []
        if self.num_cut:
            found.append(f"{self.num_cut:,} samples are longer than {limit:,} tokens and lose their end: {self.num_tokens_cut:,} tokens")
        if self.num_dropped:
            found.append(f"{self.num_dropped:,} samples are longer than {limit:,} tokens and are left out")
        if self.num_silent:
            found.append(f"{self.num_silent:,} samples are left out because nothing in them is trained on; the first: {self.silent}")
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Samples in sequences of `seq_len` tokens: shuffled again in every epoch by `seed`; without a seed in order, and once."""

    name: str
    samples: Sequence[Sample]
    rows: Sequence[tuple[int, ...]]  # the samples of each sequence
    seq_len: int
    seed: int | None

    def __len__(self) -> int:
        """Sequences of one epoch."""
        return len(self.rows)

    @property
    def num_trained(self) -> int:
        """Tokens of one epoch that carry loss."""
        return sum(sample.num_trained for sample in self.samples)

    def check_holds(self, num_samples: int, what: str = "one batch") -> None:
        """Raise an error if an epoch has fewer sequences than `what` needs."""
        if len(self) < num_samples:
            raise InputError(
                f"the data set has {len(self)} sequences in its {self.name} part; {what} needs {num_samples}",
                where="DATA",
                fix=f"give more data, or a smaller batch: --batch {max(len(self), 1)}",
            )

    def batch(self, numbers: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The sequences of these numbers, in this order."""
        wanted = np.asarray(numbers, dtype=np.int64)
        shape = (wanted.size, self.seq_len)
        tokens, labels = np.full(shape, PADDING, np.int64), np.full(shape, IGNORED_LABEL, np.int64)
        documents = np.zeros(shape, np.int32)
        for row, number in enumerate(shuffled(wanted, len(self), self.seed)):
            self._fill(self.rows[int(number)], tokens[row], labels[row], documents[row])
        return Batch(numbers=wanted, tokens=tokens, labels=labels, documents=documents)

    def _fill(self, chosen: Sequence[int], tokens: NDArray[np.int64], labels: NDArray[np.int64], documents: NDArray[np.int32]) -> None:
        """Put samples one after another. The last token of a sample is only predicted, so that it is no input."""
        start = 0
        for document, index in enumerate(chosen):
            sample = self.samples[index]
            stop = start + len(sample) - 1
            tokens[start:stop] = sample.tokens[:-1]
            labels[start:stop] = np.where(sample.trained[1:], sample.tokens[1:], IGNORED_LABEL)
            documents[start:stop] = document
            start = stop
        documents[start:] = len(chosen)

    @cached_property
    def digest(self) -> str:
        """A digest of all tokens, of what carries loss, and of the order."""
        found = hashlib.sha256(f"{self.name} {self.seq_len} {self.seed} {self.rows}".encode())
        for sample in self.samples:
            found.update(sample.tokens.tobytes() + sample.trained.tobytes())
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """What a run is tuned on."""

    format: str
    marker: Marker
    train: Sequences
    valid: Sequences | None  # None: nothing is held out
    losses: Losses
    path: str

    @property
    def digest(self) -> str:
        """A digest of everything that decides what is trained on."""
        parts = self.train.digest + (self.valid.digest if self.valid else "")
        return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How a data set is prepared."""

    seq_len: int | None = None  # None: the longest sample, up to `most_tokens`
    most_tokens: int = 2**20  # that the model can read
    pack: bool = False
    too_long: str = "cut"
    valid: Path | None = None  # a data set of its own to evaluate on
    valid_share: float = VALID_SHARE
    seed: int = 0
    multiple: int = 1  # the layout cuts a sequence into so many equal pieces

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            raise InputError(
                f"samples that are too long cannot be {self.too_long!r}", where="--too-long", fix=f"choose from {', '.join(TOO_LONG)}"
            )
        if not 0 <= self.valid_share < 1:
            raise InputError(f"a share of {self.valid_share:g} cannot be held out", where="--valid-share", fix="choose 0 to less than 1")
        if self.seq_len is not None and self.seq_len > self.most_tokens:
            raise InputError(
                f"sequences of {self.seq_len:,} tokens are longer than the {self.most_tokens:,} that the model can read",
                where="--seq-len",
                fix=f"choose at most {self.most_tokens}",
            )


def prepare(path: Path, marker: Marker, choices: Choices, report: Report = lambda count: None) -> DataSet:
    """The data set in a file or a folder, in tokens."""
    name, samples = read_samples(path, marker, report)
    held: list[Sample] = []
    if choices.valid is not None:
        _, held = read_samples(choices.valid, marker, report)
    seq_len = choices.seq_len or _usual_length([*samples, *held], choices)
    kept, losses = fitted(samples, seq_len, choices.too_long, str(path))
    if choices.valid is None:
        kept, held = _parted(kept, choices)
    else:
        held, _ = fitted(held, seq_len, choices.too_long, str(choices.valid))
    train = Sequences("training", kept, _rows(kept, seq_len, choices.pack), seq_len, choices.seed)
    valid = Sequences("held-out", held, _rows(held, seq_len, choices.pack), seq_len, None) if held else None
    return DataSet(format=name, marker=marker, train=train, valid=valid, losses=losses, path=str(path))


def read_samples(path: Path, marker: Marker, report: Report = lambda count: None) -> tuple[str, list[Sample]]:
    """The format of a data set and its samples, whole. Reading and rendering are checked row by row."""
    name, examples = read_examples(read_rows(path))
    samples = []
    for example in examples:
        samples.append(marker.sample(example))
        report(1)
    return name, samples


def fitted(samples: Sequence[Sample], seq_len: int, too_long: str, path: str) -> tuple[list[Sample], Losses]:
    """The samples that can be trained on, within the limit, and what was lost. An error if nothing is left."""
    kept, lost = [], Losses()
    for sample in samples:
        excess = len(sample) - seq_len
        if excess > 0 and too_long == "refuse":
            fix = f"choose --seq-len {len(sample)} or more, or --too-long cut or drop"
            raise InputError(f"the sample has {len(sample):,} tokens and the limit is {seq_len:,}", where=sample.where, fix=fix)
        if excess > 0 and too_long == "drop":
            lost = replace(lost, num_dropped=lost.num_dropped + 1)
            continue
        short = sample if excess <= 0 else _cut(sample, seq_len)
        if short.num_trained:
            kept.append(short)
            if short.num_cut:
                lost = replace(lost, num_cut=lost.num_cut + 1, num_tokens_cut=lost.num_tokens_cut + short.num_cut)
        else:
            lost = replace(lost, num_silent=lost.num_silent + 1, silent=lost.silent or f"{sample.where}: {_why_silent(sample, seq_len)}")
    if not kept:
        reason = lost.silent or f"all {lost.num_dropped} samples are longer than {seq_len} tokens"
        fix = "look at samples with --show 3; choose another --loss, a longer --seq-len, or a template that fits the data"
        raise InputError(f"nothing in the data set is trained on; {reason}", where=path, fix=fix)
    return kept, lost


def _cut(sample: Sample, seq_len: int) -> Sample:
    return replace(sample, tokens=sample.tokens[:seq_len], trained=sample.trained[:seq_len], num_cut=len(sample) - seq_len)


def _why_silent(sample: Sample, seq_len: int) -> str:
    """Why nothing of a sample carries loss."""
    if len(sample) < 2:
        return f"it has {len(sample)} tokens, and the first one is never predicted"
    if not sample.num_trained:
        return f"none of its {len(sample)} tokens is the assistant's"
    first = int(np.flatnonzero(sample.trained)[0])
    return f"its first token to train on is number {first + 1} of {len(sample)}, beyond the limit of {seq_len}"


def _usual_length(samples: Sequence[Sample], choices: Choices) -> int:
    """The length of sequences if none is asked for: that of the longest sample, up to what the model can read."""
    longest = max(len(sample) for sample in samples)
    whole = -(-longest // choices.multiple) * choices.multiple
    return max(min(whole, choices.most_tokens - choices.most_tokens % choices.multiple), choices.multiple)


def _parted(samples: Sequence[Sample], choices: Choices) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on, and samples that are held out, drawn by the seed; at least one is trained on."""
    count = min(int(np.ceil(len(samples) * choices.valid_share)), MOST_VALID, len(samples) - 1)
    drawn = set(Permutation.of(len(samples), "held out", choices.seed)(np.arange(count)).tolist())
    return [s for i, s in enumerate(samples) if i not in drawn], [s for i, s in enumerate(samples) if i in drawn]


def _rows(samples: Sequence[Sample], seq_len: int, pack: bool) -> list[tuple[int, ...]]:
    return packed([len(sample) - 1 for sample in samples], seq_len) if pack else [(number,) for number in range(len(samples))]


def packed(lengths: Sequence[int], seq_len: int) -> list[tuple[int, ...]]:
    """The samples of each sequence: the longest first, each into the first of the open sequences that has room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # of the open sequences: number, tokens left
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = lengths[index]
        place = next((i for i, (_, left) in enumerate(room) if left >= size), None)
        if place is None:
            room.append((len(rows), seq_len - size))
            rows.append([index])
        else:
            number, left = room[place]
            rows[number].append(index)
            room[place] = number, left - size
        room = [(number, left) for number, left in room if left > 0][-OPEN_SEQUENCES:]
    return [tuple(row) for row in rows]
