"""A layout as scripts read it, the same in every command's JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.layout import Layout

SHORT = {"micro_batch": "mbs", "zero_stage": "zero"}


def layout_json(layout: Layout) -> dict[str, Any]:
    """A layout under the names that `--layout` takes, and the whole of it as `--layout` would be told."""
    values = {SHORT.get(key, key): value for key, value in asdict(layout).items()} | {"order": "-".join(layout.order)}
    return {**values, "text": str(layout)}
