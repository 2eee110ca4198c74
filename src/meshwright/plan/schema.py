"""The JSON Schema of plan files as text: `python -m meshwright.plan.schema > docs/plan.schema.json` publishes it."""

from __future__ import annotations

import json

from meshwright.plan.plan import plan_schema


def schema_text() -> str:
    """The published file, whole."""
    return json.dumps(plan_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
