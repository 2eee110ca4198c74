"""The document of a request for another number of replicas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.say.document import Document, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run was asked for."""

    folder: Path
    dp: int  # replicas from now on
    dp_before: int
    global_batch: int
    num_micro_batches: int  # of a replica in one step
    file: Path  # that asks


def scale_document(asked: Asked) -> Document:
    """What was asked, and how the batch will be dealt."""
    title = f"{asked.folder.name} is asked for {asked.dp} replica{'s' if asked.dp > 1 else ''}; it has {asked.dp_before}"
    text = (
        f"{title}. The change is made at a step boundary, and recorded as an event `membership`. "
        f"The batch stays {asked.global_batch} sequences: {asked.num_micro_batches} micro-batches for each replica."
    )
    values = {
        "folder": str(asked.folder),
        "dp": asked.dp,
        "dp_before": asked.dp_before,
        "global_batch": asked.global_batch,
        "num_micro_batches": asked.num_micro_batches,
        "files": [{"what": "request", "path": str(asked.file)}],
    }
    return Document(kind="scale", title=title, blocks=(Text(text),), values=values)
