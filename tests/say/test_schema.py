"""The published JSON Schema: it is up to date, resolves, and accepts and refuses what it should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from meshwright.say.document import VERSION
from meshwright.say.schema import DRAFT, _type, output_schema, schema_text
from meshwright.say.vocabulary import ANY, vocabulary

PUBLISHED = Path(__file__).parents[2] / "docs" / "output.schema.json"
KNOWN = vocabulary()


def test_the_published_schema_is_up_to_date():
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), "python -m meshwright.say.schema > docs/output.schema.json"


def test_the_schema_names_every_kind_and_resolves_every_reference():
    schema = output_schema()
    assert schema["$schema"] == DRAFT
    assert len(schema["oneOf"]) == len(KNOWN.kinds)
    references = set(re.findall(r'"#/\$defs/([\w-]+)"', json.dumps(schema)))
    assert references == set(schema["$defs"])
    forecast = schema["$defs"]["forecast-document"]
    assert forecast["properties"]["schema"]["const"] == "meshwright/forecast/1"
    assert forecast["properties"]["step_s"] == {"description": "Predicted time of one step.", "unit": "s", "type": "number"}
    assert forecast["properties"]["cost_usd"]["type"] == ["number", "null"]
    assert "step_s" in forecast["required"]


def test_what_is_published_is_what_the_command_prints():
    command = [sys.executable, "-m", "meshwright.say.schema"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == schema_text()


@pytest.mark.parametrize(
    "text, schema",
    [
        (ANY, {}),
        ("number", {"type": "number"}),
        ("flag?", {"type": ["boolean", "null"]}),
        ("[text]", {"type": "array", "items": {"type": "string"}}),
        ("{[integer]}", {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}),
        ("layout", {"$ref": "#/$defs/layout"}),
        ("layout?", {"anyOf": [{"$ref": "#/$defs/layout"}, {"type": "null"}]}),
        ("[number?]", {"type": "array", "items": {"type": ["number", "null"]}}),
        ("{text}?", {"anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"type": "null"}]}),
    ],
)
def test_types_as_the_vocabulary_writes_them(text, schema):
    assert _type(text) == schema


def test_the_schema_is_one_and_tells_documents_apart():
    schema = output_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    accuracy = {"schema": f"meshwright/accuracy/{VERSION}", "figures": [], "files": []}
    assert check.is_valid(accuracy)
    assert check.is_valid(accuracy | {"a_new_key": 1})  # which does not raise the version
    assert not check.is_valid(accuracy | {"schema": "meshwright/accuracy/999"})
    assert not check.is_valid(accuracy | {"files": [{"what": 1, "path": "a"}]})
    assert not check.is_valid({name: value for name, value in accuracy.items() if name != "figures"})


@pytest.mark.parametrize("kind", KNOWN.kinds)
def test_every_kind_requires_what_it_always_has(kind):
    found = output_schema()["$defs"][f"{kind}-document"]
    assert found["required"] == list(KNOWN.kinds[kind].required) and set(found["properties"]) == set(KNOWN.kinds[kind].keys)
    assert all(found["properties"][key]["description"] == KNOWN.words[key].meaning for key in found["properties"])
