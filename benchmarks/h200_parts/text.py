"""Real text for runs on one GPU: the sources of Python's standard library, as the trainer's own default has them, or torch's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from meshwright.train.data.corpus_build import BuildOptions, build_corpus
from meshwright.train.data.standard_library import BUILD_TIMEOUT_S, MAX_BYTES, VALID_FRACTION, default_corpus, standard_library_files

LONG_BYTES = 14_000_000  # some three million tokens, so that a run sees none twice
SMALL_VOCAB, SMALL_BYTES = 1024, 600_000  # where only the code is tried


def text_corpus(folder: Path, most_tokens: int) -> Path:
    """A corpus below `folder` with a vocabulary of at most `most_tokens`, built where it is not there yet."""
    vocab_size = min(most_tokens, 16384)
    max_bytes = SMALL_BYTES if vocab_size <= SMALL_VOCAB else MAX_BYTES
    return default_corpus(folder, vocab_size, max_bytes=max_bytes).folder


def long_corpus(folder: Path, vocab_size: int) -> Path:
    """A corpus below `folder` of torch's own sources: an order of magnitude more than the standard library's."""
    sources = standard_library_files(Path(torch.__file__).parent, LONG_BYTES if vocab_size > SMALL_VOCAB else SMALL_BYTES)
    options = BuildOptions(tokenizer=f"train:{vocab_size}", seed=0, valid_fraction=VALID_FRACTION)
    made = build_corpus(sources, folder / f"torch-{torch.__version__}-{vocab_size}", options, lock_timeout_s=BUILD_TIMEOUT_S)
    return made.folder


def shared_folder() -> Path:
    """Where children of several calls find the same corpus."""
    folder = Path(tempfile.gettempdir()) / "meshwright-h200"
    folder.mkdir(exist_ok=True)
    return folder
