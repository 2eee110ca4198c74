"""What is written as YAML is read as the same values."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.engines.yaml_text import yaml_text

LINES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="\x85\ufeff"), max_size=20)
TEXTS = (
    LINES
    | st.lists(LINES, max_size=4).map("\n".join)
    | st.sampled_from(["yes", "1e3", "0x1", "null", "- a", "a: b", "#", "~", "1:20", "="])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_value_is_read_again(value):
    if value:
        assert yaml.safe_load(yaml_text(value)) == value


def test_it_reads_as_a_person_would_write_it():
    value = {"kind": "Job", "list": [{"name": "a", "value": "1"}, "b"], "empty": {}, "script": "first\n  second\n"}
    assert yaml_text(value) == ('kind: Job\nlist:\n  - name: a\n    value: "1"\n  - b\nempty: {}\nscript: |\n  first\n    second\n')


def test_documents_are_apart():
    assert list(yaml.safe_load_all(yaml_text({"a": 1}, {"b": 2}))) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("text", ["a\n", "a\nb", "a\n\nb\n", " a\nb", "a\nb \nc", "a\nb\n\n"])
def test_texts_of_several_lines(text):
    assert yaml.safe_load(yaml_text({"a": [text], "b": text})) == {"a": [text], "b": text}
