"""What serving a model needs, in words: memory by part, and what the numbers assume."""

from __future__ import annotations

import pytest

from meshwright.describe.load import accelerator, load_model
from meshwright.predict.serving import Request, Serving
from meshwright.say.document import Document
from meshwright.say.serving import serving_document
from meshwright.say.vocabulary import problems

from .conftest import notes, pairs, table

GIB = 2**30
HELD = Serving(
    tp=4,
    total_weight_bytes=40.0 * GIB,
    kv_bytes_per_token=1234.0,
    total_kv_bytes=8.0 * GIB,
    weight_bytes=10.0 * GIB,
    kv_bytes=2.0 * GIB,
    activation_bytes=1.0 * GIB,
    reserve_bytes=3.0 * GIB,
    memory_bytes=80.0 * GIB,
    max_concurrency=12345,
)


def document(model: str = "llama-3.1-8b", chip: str = "h100", **asked: object) -> Document:
    request = Request(model=load_model(model), **({"context": 8192, "concurrency": 3} | asked))  # type: ignore[arg-type]
    return serving_document(request, accelerator(chip), HELD)


def test_the_parts_add_up_to_the_memory() -> None:
    rows = {row[0]: row[1:] for row in table(document(), "on each accelerator").rows}
    assert rows["free"] == (f"{64 * GIB:,}", "64.0 GiB") and rows["all"] == (f"{80 * GIB:,}", "80.0 GiB")
    parts = [int(size.replace(",", "")) for name, (size, _) in rows.items() if name != "all"]
    assert sum(parts) == 80 * GIB


def test_what_was_asked_and_what_fits() -> None:
    shown = document()
    assert shown.title == "llama-3.1-8b in bf16 on h100"
    assert pairs(shown) == {
        "accelerators": "4",
        "sequences asked for": "3 of 8,192 tokens",
        "sequences that fit": "12,345",
        "weights in total": "40.0 GiB",
        "KV cache in total": "8.0 GiB in bf16, 1,234 bytes per token",
    }
    values = shown.to_json()
    assert problems(values) == [] and values["used_bytes"] + values["spare_bytes"] == values["memory_bytes"]


@pytest.mark.parametrize(
    "model, word",
    [
        ("deepseek-v3", "holds the whole latent cache"),
        ("deepseek-v3", "without the multi-token-prediction layers"),
        ("gpt-oss-20b", "12 windowed layers keep 128 tokens each"),
    ],
)
def test_a_model_with_something_unusual_says_so(model: str, word: str) -> None:
    assert any(word in note for note in notes(document(model)))
    assert not any(word in note for note in notes(document("llama-3.1-8b")))


@pytest.mark.parametrize(
    "chip, precision, lacks",
    [
        ("a100", "fp8", "fp8"),
        ("a100", "mxfp8", "fp8"),
        ("h100", "nvfp4", "fp4"),
        ("h100", "fp8", ""),
        ("gb200", "nvfp4", ""),
        ("a100", "int8", ""),
    ],
)
def test_weights_that_no_core_multiplies_save_memory_alone(chip: str, precision: str, lacks: str) -> None:
    found = [note for note in notes(document(chip=chip, precision=precision)) if "tensor cores" in note]
    assert bool(found) == bool(lacks)
    assert all(note.startswith(f"{chip}") and f"has no {lacks} tensor cores" in note for note in found)
