"""Text to tokens and back: a `tokenizer.json` of Hugging Face `tokenizers`, or a new byte-level BPE.

Text never gives a special token: `<|endoftext|>` inside a document is encoded as ordinary text, so that the token that ends a document
occurs nowhere else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, nearest
from meshwright.files import read_bytes

if TYPE_CHECKING:
    import tokenizers

END_OF_DOCUMENT = "<|endoftext|>"  # in tokenizers trained here
FILE_NAME = "tokenizer.json"
NUM_BYTES = 256  # entries of a byte-level vocabulary before the first merge
TRAIN_PREFIX = "train:"

# Other names of the token that ends a document: OpenAI, Meta, SentencePiece, Google.
KNOWN_ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")
# Documents are cut before white space after a letter or digit: these texts show whether a tokenizer then gives the same tokens.
CUTS = (("def f", "\n    x = 1\n"), ("Word 12", " next"), ("end", "\n\n\n\tnext"), ("a b", "  c"), ("über", " straße"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """A vocabulary with the token that ends a document."""

    inner: tokenizers.Tokenizer
    content: bytes  # of its tokenizer.json
    vocab_size: int  # one past the largest token
    end_of_document: int
    end_of_document_token: str

    @property
    def digest(self) -> str:
        """The SHA-256 of its tokenizer.json."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of its special tokens."""
        return tuple(token.content for token in self.inner.get_added_tokens_decoder().values() if token.special)

    @cached_property
    def cuts_cleanly(self) -> bool:
        """Whether a text that is cut before white space after a letter or digit gives the tokens of the whole text."""
        return all(self.encode(left + right) == self.encode(left) + self.encode(right) for left, right in CUTS)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without an end token."""
        return self.inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The tokens of every text, without ends; on all threads of the tokenizers library."""
        encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens; ends of documents are left out."""
        return self.inner.decode([int(token) for token in tokens], skip_special_tokens=True)


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, object]:
    """The settings that make transformers use tokenizer.json as it is, and name the token that ends a document."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.end_of_document_token,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }


def trained_size(spec: str) -> int | None:
    """N of `train:N`, the size of the vocabulary to train; None if the text is a path."""
    if not spec.startswith(TRAIN_PREFIX):
        return None
    digits = spec.removeprefix(TRAIN_PREFIX)
    if not (digits.isascii() and digits.isdigit() and NUM_BYTES < int(digits) <= 1_000_000):
        raise InputError(
            f"cannot train a vocabulary of {digits!r} entries",
            where=f"tokenizer {spec!r}",
            fix=f"choose a whole number from {NUM_BYTES + 1} (every byte, and the end of a document) to 1000000",
        )
    return int(digits)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of `vocab_size` entries; the same texts give the same bytes of tokenizer.json."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    inner.train_from_iterator(texts, trainer)
    if inner.get_vocab_size() < vocab_size:
        raise InputError(
            f"the text yields a vocabulary of {inner.get_vocab_size()} entries, not {vocab_size}",
            where=f"tokenizer '{TRAIN_PREFIX}{vocab_size}'",
            fix=f"give more text, or choose {TRAIN_PREFIX}{inner.get_vocab_size()}",
        )
    content = inner.to_str(pretty=True).encode()
    return tokenizer_of(content, where="the tokenizer just trained", end_of_document=END_OF_DOCUMENT)


def read_tokenizer(path: Path, end_of_document: str | None = None) -> Tokenizer:
    """The tokenizer in a tokenizer.json, or in a folder with one.

    The token that ends a document is the named one; otherwise the `eos_token` of a tokenizer_config.json in the same folder; otherwise the
    only token of the vocabulary with a known name for this purpose.
    """
    file = path / FILE_NAME if path.is_dir() else path
    try:
        content = read_bytes(file)
    except OSError as error:
        fix = f"give a {FILE_NAME}, a folder that holds one, or {TRAIN_PREFIX}N to train one"
        raise InputError(f"cannot read the tokenizer: {error.strerror}", where=str(file), fix=fix) from None
    return tokenizer_of(content, where=str(file), end_of_document=end_of_document or _configured_end(file))


def _configured_end(file: Path) -> str | None:
    """The `eos_token` of a tokenizer_config.json in the same folder."""
    config = file.with_name("tokenizer_config.json")
    try:
        token: Any = json.loads(read_bytes(config)).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    content = token.get("content") if isinstance(token, dict) else token
    if content is not None and not isinstance(content, str):
        raise InputError(
            f"eos_token is {content!r:.40}, not a text", where=str(config), fix="give the token that ends a document, in quotes"
        )
    return content


def tokenizer_of(content: bytes, *, where: str, end_of_document: str | None = None) -> Tokenizer:
    """The tokenizer that a tokenizer.json describes, checked."""
    from tokenizers import Tokenizer as Inner

    try:
        inner = Inner.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"this is not a {FILE_NAME}: {error}", where=where, fix="give one that `tokenizers` can load") from None
    inner.no_truncation()  # a file may carry both, from the training it was made for
    inner.no_padding()
    inner.encode_special_tokens = True
    vocabulary = inner.get_vocab(with_added_tokens=True)
    token = end_of_document or _only_known_end(vocabulary, where)
    if token not in vocabulary:
        raise InputError(f"the vocabulary has no token {token!r} to end documents", where=where, fix=nearest(token, vocabulary))
    found = Tokenizer(
        inner=inner,
        content=content,
        vocab_size=max(vocabulary.values()) + 1,
        end_of_document=vocabulary[token],
        end_of_document_token=token,
    )
    if found.end_of_document in found.encode(token):
        what = f"{token!r} ends documents, but text that holds it gives the same token"
        raise InputError(what, where=where, fix="mark it as special in tokenizer.json, or name another with --end-of-document")
    return found


def _only_known_end(vocabulary: dict[str, int], where: str) -> str:
    known = [name for name in KNOWN_ENDS if name in vocabulary]
    if len(known) != 1:
        held = "none" if not known else "several: " + ", ".join(known)
        what = f"which token ends a document? Of the names known for it the vocabulary has {held}"
        raise InputError(what, where=where, fix="name it with --end-of-document")
    return known[0]
