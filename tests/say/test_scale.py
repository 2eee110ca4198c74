"""What `meshwright scale` prints."""

from __future__ import annotations

from pathlib import Path

from meshwright.say.scale import Asked, scale_document
from meshwright.say.vocabulary import problems


def test_the_document_says_how_the_batch_is_dealt() -> None:
    asked = Asked(folder=Path("runs/a"), dp=3, dp_before=2, global_batch=8, num_micro_batches=2, file=Path("runs/a/scale.json"))
    document = scale_document(asked)
    assert problems(document.to_json()) == []
    assert document.title == "a is asked for 3 replicas; it has 2"
