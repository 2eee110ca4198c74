"""The words of all `--json` outputs: one type, unit and meaning for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.say.vocabulary import ANY, TYPES, problems, vocabulary

PUBLISHED = Path(__file__).parents[2] / "docs" / "output.schema.json"
UNITS = {"_s": "s", "_usd": "USD", "_bytes": "bytes", "_kwh": "kWh", "_kg": "kg CO2e", "_l": "l", "_w": "W", "_pct": "%", "_hours": "h"}
KNOWN = vocabulary()
FORECAST_WITHOUT_VALUES = {"schema": "meshwright/forecast/1"}


def leaves(kind: str) -> str:
    """The name inside a type: `text` of `{[text]}?`."""
    return re.sub(r"[\[\]{}?]", "", kind)


@pytest.mark.parametrize("key", KNOWN.words)
def test_every_word_has_a_type_that_is_known_and_a_meaning(key):
    word = KNOWN.words[key]
    assert leaves(word.type) in {*TYPES, ANY, *KNOWN.shapes}
    assert word.meaning[0].isupper() or word.meaning.split()[0].rstrip(":").islower()


@pytest.mark.parametrize("key", KNOWN.words)
def test_the_unit_in_a_name_is_the_unit_of_the_word(key):
    named = [unit for suffix, unit in UNITS.items() if key.endswith(suffix)]
    if named and not re.search(r"_per_\w+$", key):
        assert KNOWN.words[key].unit == named[0]


def test_every_word_is_used_and_every_key_of_a_shape_is_a_word():
    shapes = [*KNOWN.shapes.values(), *KNOWN.kinds.values()]
    used = {key for shape in shapes for key in shape.keys}
    assert used - set(KNOWN.words) == set()
    assert set(KNOWN.words) - used == set()
    named = {leaves(word.type) for word in KNOWN.words.values()}
    assert set(KNOWN.shapes) <= named | {"forecast", "simulated"}


def test_a_key_that_nobody_knows_is_a_problem():
    assert "forecast.stp is not in the vocabulary of forecast" in problems(FORECAST_WITHOUT_VALUES | {"stp": 1})


def test_a_missing_key_is_a_problem():
    assert "forecast lacks step_s" in problems(FORECAST_WITHOUT_VALUES)


@pytest.mark.parametrize(
    "key, value",
    [("step_s", "1 s"), ("step_s", True), ("notes", [1]), ("parts_s", {"compute": "x"}), ("layout", "tp=4"), ("model", 7)],
)
def test_a_wrong_type_is_a_problem(key, value):
    found = [one for one in problems(FORECAST_WITHOUT_VALUES | {key: value}) if one.startswith(f"forecast.{key}")]
    assert found and " is " in found[0]


@pytest.mark.parametrize("schema", [None, "forecast", "meshwright/nothing/1"])
def test_a_document_without_a_known_schema_is_a_problem(schema):
    assert problems({"schema": schema}) == [f"schema is {schema!r}"]


def test_another_version_is_a_problem():
    assert "version 2, not 1" in problems({"schema": "meshwright/forecast/2"})


@pytest.mark.parametrize("kind", KNOWN.kinds)
def test_the_page_names_every_kind(kind):
    assert f"`{kind}`" in (PUBLISHED.parent / "json.md").read_text(encoding="utf-8")
