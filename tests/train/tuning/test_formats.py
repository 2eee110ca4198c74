"""Formats of instruction data: detected by the first row, the same conversation from each, and errors that name row and key."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.train.tuning.formats import Conversation, Plain, detected, read_examples
from meshwright.train.tuning.rows import Row

TURNS = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"messages": TURNS}, "OpenAI messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}, TURNS[1]]}, "OpenAI messages"),
        ({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}, "ShareGPT"),
        ({"conversations": TURNS}, "ShareGPT"),
        ({"instruction": "2 + 2?", "input": "", "output": "4"}, "Alpaca"),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, "prompt and completion"),
    ],
)
def test_formats_give_the_same_conversation(values: dict[str, Any], name: str) -> None:
    found, (example,) = read_examples([Row(values, "row 1")])
    assert found == name
    assert isinstance(example, Conversation)
    assert [(m["role"], m["content"]) for m in example.messages] == [("user", "2 + 2?"), ("assistant", "4")]


def test_texts_have_no_template() -> None:
    assert read_examples([Row({"text": "a b"}, "row 1")])[1] == [Plain(prompt="", completion="a b", where="row 1")]
    assert read_examples([Row({"prompt": "a", "completion": " b"}, "row 1")])[1] == [Plain(prompt="a", completion=" b", where="row 1")]


def test_an_input_follows_its_instruction() -> None:
    _, (example,) = read_examples([Row({"instruction": "Add.", "input": "2 and 2", "output": "4", "system": "Be brief."}, "row 1")])
    assert isinstance(example, Conversation)
    assert [m["content"] for m in example.messages] == ["Be brief.", "Add.\n\n2 and 2", "4"]


def test_arguments_of_a_call_become_an_object() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    _, (example,) = read_examples([Row({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}, "row 1")])
    assert isinstance(example, Conversation)
    assert example.messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert example.messages[0]["content"] == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"question": "a"}, r"the row's keys \(question\) are those of no known format"),
        ({"messages": []}, "'messages' holds no turns"),
        ({"messages": "a"}, "not a list of turns"),
        ({"messages": [{"content": "a"}]}, "turn 1 of 'messages' has no key 'role'"),
        ({"messages": [{"role": "user"}]}, "turn 1 of 'messages' has no key 'content'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text is trained on"),
        ({"conversations": [{"from": "alien", "value": "a"}]}, "is from 'alien'"),
        ({"conversations": [{"from": "human"}]}, "turn 1 of 'conversations' has no key 'value'"),
        ({"instruction": "a", "output": 4}, "'output' holds 4, not a text"),
        ({"instruction": "a", "input": 4, "output": "b"}, "'input' holds 4, not a text"),
        ({"messages": TURNS, "tools": "{"}, "'tools' holds no JSON"),
    ],
)
def test_a_wrong_row_is_named_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        read_examples([Row(values, "row 9")])
    assert found.value.where == "row 9" and found.value.fix


def test_all_rows_have_the_format_of_the_first() -> None:
    rows = [Row({"instruction": "a", "output": "b"}, "row 1"), Row({"instruction": "a"}, "row 2")]
    with pytest.raises(InputError, match="no key 'output', which a row of the format Alpaca needs") as found:
        read_examples(rows)
    assert found.value.where == "row 2"
    assert detected(rows[0]).name == "Alpaca"
    with pytest.raises(InputError, match="no rows"):
        read_examples([])
