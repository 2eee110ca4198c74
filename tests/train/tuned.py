"""A small model folder with a tokenizer and a chat template, and instruction data for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from chats import STYLES, write_tokenizer
from llamas import MODEL, weights_of

from meshwright.train.interop.huggingface_save import save_huggingface

TUNED = replace(MODEL, vocab_size=640)


def write_model(folder: Path, style: str = "chatml") -> Path:
    """A Hugging Face folder of a small random model."""
    save_huggingface(folder, TUNED, weights_of(TUNED), context=256, dtype=torch.float32)
    template, bos, eos = STYLES[style]
    write_tokenizer(folder, template, bos, eos)
    return folder


def write_data(folder: Path, count: int = 24) -> Path:
    """Questions and answers of different lengths."""
    rows = [{"instruction": f"Say {'one ' * (1 + number % 5)}.", "output": "one " * (1 + number % 3)} for number in range(count)]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
