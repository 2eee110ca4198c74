"""Examples to tokens, each with whether it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.train.data.tokenizer import Tokenizer
from meshwright.train.tuning.formats import ASSISTANT, Conversation, Example, Plain
from meshwright.train.tuning.template import ChatTemplate, Span

if TYPE_CHECKING:
    import tokenizers

LOSSES = ("assistant", "last", "all")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One example in tokens."""

    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]  # whether the token carries loss; the first one never does, because nothing predicts it
    where: str
    num_cut: int = 0  # tokens that were cut off at the end

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_trained(self) -> int:
        """Tokens that carry loss."""
        return int(self.trained.sum())


@dataclass(frozen=True)
class Marker:
    """How examples become tokens: the model's tokenizer and template, and what carries loss."""

    tokenizer: Tokenizer
    template: ChatTemplate
    loss: str = "assistant"

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InputError(f"loss cannot be on {self.loss!r}", where="--loss", fix=f"choose from {', '.join(LOSSES)}")

    @cached_property
    def inner(self) -> tokenizers.Tokenizer:
        """The tokenizer for rendered templates, whose text contains special tokens."""
        from tokenizers import Tokenizer as Inner

        inner = Inner.from_buffer(self.tokenizer.content)
        inner.no_truncation()
        inner.no_padding()
        return inner

    def sample(self, example: Example) -> Sample:
        """An example in tokens."""
        tokens, trained = self._chat(example) if isinstance(example, Conversation) else self._text(example)
        if len(trained):
            trained[0] = False
        return Sample(tokens=np.array(tokens, dtype=np.int32), trained=trained, where=example.where)

    def _chat(self, example: Conversation) -> tuple[Sequence[int], NDArray[np.bool_]]:
        marked = self.template.marked(example.messages, example.tools, example.where)
        encoded = self.inner.encode(marked.text, add_special_tokens=False)
        offsets = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)
        if self.loss == "all":
            return encoded.ids, np.ones(len(offsets), dtype=bool)
        num_given = sum(message["role"] == ASSISTANT for message in example.messages[: example.num_given])
        spans = marked.spans[num_given:]
        return encoded.ids, covered(offsets, spans[-1:] if self.loss == "last" else spans)

    def _text(self, example: Plain) -> tuple[Sequence[int], NDArray[np.bool_]]:
        given = self.inner.encode(example.prompt, add_special_tokens=False).ids if example.prompt else []
        before = self._beginning()
        after = self.inner.encode(example.completion, add_special_tokens=False).ids
        tokens = [*before, *given, *after, self.tokenizer.end_of_document]
        trained = np.ones(len(tokens), dtype=bool)
        if self.loss != "all":
            trained[: len(before) + len(given)] = False
        return tokens, trained

    def _beginning(self) -> list[int]:
        """The tokens that the tokenizer puts before every text."""
        encoded = self.inner.encode("", add_special_tokens=True).ids
        return [token for token in encoded if token != self.tokenizer.end_of_document][:1]


def covered(offsets: NDArray[np.int64], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Which tokens, with these first and last characters, lie in any of the spans, even in part."""
    found = np.zeros(len(offsets), dtype=bool)
    for start, stop in spans:
        if start < stop:
            found |= (offsets[:, 0] < stop) & (offsets[:, 1] > start)
    return found


def decoded(marker: Marker) -> Callable[[int], str]:
    """A function that gives the text of one token, for people to read."""
    return lambda token: marker.inner.decode([token], skip_special_tokens=False)
