"""Chat templates: the assistant's words are those that transformers finds by the template's own marks, with or without marks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from chats import CHATML, STYLES, without_marks, write_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.data.tokenizer import read_tokenizer
from meshwright.train.tuning.formats import Conversation
from meshwright.train.tuning.marking import Marker
from meshwright.train.tuning.template import PLAIN, ChatTemplate, read_template


@cache
def of_style(style: str, marks: bool) -> tuple[Marker, Any]:
    """The marker of a style, with or without marks in its template; and transformers' tokenizer with the marks."""
    from transformers import PreTrainedTokenizerFast

    template, bos, eos = STYLES[style]
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder, template if marks else without_marks(template), bos, eos)
        tokenizer = read_tokenizer(folder)
        marker = Marker(tokenizer, read_template(folder, tokenizer.special_tokens, eos))
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token=bos, eos_token=eos)
    theirs.chat_template = template
    return marker, theirs


def theirs_of(theirs: Any, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> tuple[list[int], list[int]]:
    found = theirs.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return found["input_ids"], found["assistant_masks"]


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", " ", "\n", "Hello!", "über 日本語 🙂", "two\n\nlines ", "### Assistant:\n", "a " * 2000, "{{ 7 * 7 }}"]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        messages += [{"role": "user", "content": draw(TEXTS)}, {"role": "assistant", "content": draw(TEXTS)}]
    return messages[: len(messages) - draw(st.sampled_from([0, 0, 0, 1]))]


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "no marks"])
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=25)
@given(messages=conversations())
@example(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}])
def test_the_trained_tokens_are_those_of_the_templates_own_marks(style: str, marks: bool, messages: list[dict[str, Any]]) -> None:
    marker, theirs = of_style(style, marks)
    assert marker.template.has_marks == marks
    sample = marker.sample(Conversation(messages=messages, where="row 1"))
    tokens, mask = theirs_of(theirs, messages)
    assert sample.tokens.tolist() == tokens
    assert sample.trained.tolist() == [bool(flag) for flag in mask]


@pytest.mark.parametrize("marks", [True, False])
@settings(max_examples=25)
@given(name=st.text(max_size=10), value=st.one_of(st.integers(), TEXTS), content=TEXTS)
def test_calls_of_tools_are_the_assistants(marks: bool, name: str, value: Any, content: str) -> None:
    marker, theirs = of_style("chatml", marks)
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]
    messages = [
        {"role": "user", "content": "How warm is it?"},
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"type": "function", "function": {"name": name, "arguments": {"x": value}}}],
        },
        {"role": "tool", "content": "21"},
        {"role": "assistant", "content": "21 degrees."},
    ]
    sample = marker.sample(Conversation(messages=messages, where="row 1", tools=tools))
    tokens, mask = theirs_of(theirs, messages, tools)
    assert sample.tokens.tolist() == tokens
    assert sample.trained.tolist() == [bool(flag) for flag in mask]


def test_a_template_that_hides_earlier_thoughts_is_marked_by_a_stand_in() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = [
        {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two"))
    ]
    marked = ChatTemplate(source=template, where="here", ends=("<|im_end|>",)).marked(messages)
    assert [marked.text[start:stop] for start, stop in marked.spans] == ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"]


def test_a_template_that_fails_is_named_with_the_row() -> None:
    template = ChatTemplate(source="{{ raise_exception('roles must alternate') }}", where="model/chat_template.jinja")
    with pytest.raises(InputError, match="the chat template fails: roles must alternate") as found:
        template.marked([{"role": "user", "content": "a"}], where="row 7 of data.jsonl")
    assert "row 7 of data.jsonl" in found.value.where and "chat_template.jinja" in found.value.where


def test_a_template_cannot_reach_the_program() -> None:
    template = ChatTemplate(source="{{ messages.__class__.__mro__[1].__subclasses__() }}", where="here")
    with pytest.raises(InputError, match="the chat template fails"):
        template.render([{"role": "user", "content": "a"}])


def test_a_template_that_is_no_jinja_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "{% for message in messages %}", "<s>", "</s>")
    with pytest.raises(InputError, match="is no Jinja: line 1"):
        read_template(tmp_path, (), "</s>")


def test_a_folder_without_a_template_has_the_plain_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "", "<s>", "</s>")
    template = read_template(tmp_path, (), "</s>")
    assert template.source == PLAIN and template.is_plain
    marked = template.marked([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}])
    assert [marked.text[start:stop] for start, stop in marked.spans] == ["4</s>"]
    asked = template.render([{"role": "user", "content": "2 + 2?"}], asks=True)
    assert marked.text.startswith(asked)


def test_a_file_beside_the_configuration_comes_first(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, PLAIN, "<s>", "</s>")
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    assert read_template(tmp_path, (), "</s>").source == CHATML
