"""Real text for runs on one GPU: the sources of Python's standard library, as the trainer's own default has them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from meshwright.train.standard_library import MAX_BYTES, default_corpus

SMALL_VOCAB, SMALL_BYTES = 1024, 600_000  # where only the code is tried


def text_corpus(folder: Path, most_tokens: int) -> Path:
    """A corpus below `folder` with a vocabulary of at most `most_tokens`, built where it is not there yet."""
    vocab_size = min(most_tokens, 16384)
    max_bytes = SMALL_BYTES if vocab_size <= SMALL_VOCAB else MAX_BYTES
    return default_corpus(folder, vocab_size, max_bytes=max_bytes).folder


def shared_folder() -> Path:
    """Where children of several calls find the same corpus."""
    folder = Path(tempfile.gettempdir()) / "meshwright-h200"
    folder.mkdir(exist_ok=True)
    return folder
