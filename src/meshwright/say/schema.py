"""The JSON Schema of every `--json` output as text: `python -m meshwright.say.schema > docs/output.schema.json` publishes it."""

from __future__ import annotations

import json
from typing import Any

from meshwright.say.document import VERSION
from meshwright.say.vocabulary import ANY, Shape, vocabulary

DRAFT = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES = {"number": "number", "integer": "integer", "text": "string", "flag": "boolean"}


def output_schema() -> dict[str, Any]:
    """A schema for all kinds of documents; `$defs` has one for each kind and each object inside them."""
    known = vocabulary()
    objects = {name: _object(shape) for name, shape in known.shapes.items()}
    kinds = {f"{kind}-document": _kind(kind, shape) for kind, shape in known.kinds.items()}
    return {
        "$schema": DRAFT,
        "title": "meshwright --json",
        "description": "What the commands of meshwright print with --json; `unit` names the unit of a number.",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds],
        "$defs": {**kinds, **objects},
    }


def schema_text() -> str:
    """The schema as the text of docs/output.schema.json."""
    return json.dumps(output_schema(), indent=1, ensure_ascii=False) + "\n"


def _kind(kind: str, shape: Shape) -> dict[str, Any]:
    found = _object(shape)
    found["properties"]["schema"] = {**found["properties"]["schema"], "const": f"meshwright/{kind}/{VERSION}"}
    return found


def _object(shape: Shape) -> dict[str, Any]:
    """Keys that are not named are allowed: a new key does not raise the version."""
    return {"type": "object", "properties": {key: _property(key) for key in shape.keys}, "required": list(shape.required)}


def _property(key: str) -> dict[str, Any]:
    word = vocabulary().words[key]
    unit = {"unit": word.unit} if word.unit else {}
    return {"description": word.meaning, **unit, **_type(word.type)}


def _type(text: str) -> dict[str, Any]:
    """The schema of a type as `vocabulary.toml` writes it."""
    if text == ANY:
        return {}
    if text.endswith("?"):
        inner = _type(text[:-1])
        if set(inner) == {"type"}:
            return {"type": [inner["type"], "null"]}
        return {"anyOf": [inner, {"type": "null"}]}
    if text[0] == "[":
        return {"type": "array", "items": _type(text[1:-1])}
    if text[0] == "{":
        return {"type": "object", "additionalProperties": _type(text[1:-1])}
    return {"type": JSON_TYPES[text]} if text in JSON_TYPES else {"$ref": f"#/$defs/{text}"}


if __name__ == "__main__":
    print(schema_text(), end="")
