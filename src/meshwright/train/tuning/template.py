"""A model's chat template: Jinja in a sandbox, as Hugging Face renders it, and which characters of its text the assistant wrote.

A template may mark the assistant's words itself (`{% generation %}`). For one that does not, they are found by rendering: what follows the
text up to the assistant's turn, with the prompt for an answer, is what the model must write. White space after the token that ends a turn
is not part of it, because the model stops at that token.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.files import read_text
from meshwright.train.tuning.formats import ASSISTANT, Message

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
MOST_DEPTH = 40  # of nested values that a template is given

# For models without a template: only ordinary text, and the token that ends a document.
PLAIN = (
    "{% for message in messages %}"
    "{{ '### ' + message['role'] | capitalize + ':\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + eos_token }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message['content'] | trim + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Marked:
    """A rendered conversation, and the spans of characters that the assistant wrote, in order."""

    text: str
    spans: tuple[Span, ...]


class TemplateFailure(Exception):
    """A template that refuses a conversation, or is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """The template of a model."""

    source: str
    where: str
    tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, ... as text
    ends: tuple[str, ...] = ()  # texts of special tokens: one of them ends a turn

    @property
    def is_plain(self) -> bool:
        """Whether the model has no template of its own."""
        return self.source == PLAIN

    @property
    def has_marks(self) -> bool:
        """Whether the template marks the assistant's words itself."""
        return MARKS.search(self.source) is not None

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, asks: bool = False, where: str = "") -> str:
        """The text of a conversation; `asks`: with the prompt for the assistant's answer at the end."""
        try:
            return self._marked(messages, tools, asks).text
        except TemplateFailure as error:
            raise self._refusal(error, where) from None

    def marked(self, messages: Sequence[Message], tools: Sequence[Any] = (), where: str = "") -> Marked:
        """The text of a conversation with the spans of all of the assistant's turns."""
        try:
            whole = self._marked(messages, tools, False)
            if self.has_marks:
                return whole
            turns = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
            return Marked(whole.text, tuple(self._turn(whole.text, messages, tools, number) for number in turns))
        except TemplateFailure as error:
            raise self._refusal(error, where) from None

    def _turn(self, text: str, messages: Sequence[Message], tools: Sequence[Any], number: int) -> Span:
        """The span of one turn of the assistant."""
        found = self._by_prefix(text, messages, tools, number) or self._by_stand_in(text, messages, tools, number)
        if found is None:
            raise TemplateFailure(f"which words of message {number + 1} are the assistant's cannot be told from its text")
        return found

    def _by_prefix(self, text: str, messages: Sequence[Message], tools: Sequence[Any], number: int) -> Span | None:
        """The span from the end of the prompt for this turn to the end of the turn, if both are beginnings of the whole text."""
        try:
            before = self._marked(messages[:number], tools, True).text
            after = self._marked(messages[: number + 1], tools, False).text if number + 1 < len(messages) else text
        except TemplateFailure:  # some templates refuse a part of a conversation
            return None
        if not (after.startswith(before) and text.startswith(after)):
            return None
        return len(before), max(len(before), self._without_space(after))

    def _by_stand_in(self, text: str, messages: Sequence[Message], tools: Sequence[Any], number: int) -> Span | None:
        """The span where a stand-in for the turn's words appears, with the special token after it."""
        stand_in = f"w{secrets.token_hex(12)}w"
        replaced = [*messages[:number], {**messages[number], "content": stand_in}, *messages[number + 1 :]]
        before, _, after = self._marked(replaced, tools, False).text.partition(stand_in)
        if stand_in in after or not (text.startswith(before) and text.endswith(after)) or len(before) + len(after) > len(text):
            return None
        end = len(text) - len(after)
        closing = next((token for token in self.ends if after.startswith(token)), "")
        return len(before), end + len(closing)

    def _without_space(self, text: str) -> int:
        """The length of a text without white space after a special token at its end."""
        bare = text.rstrip()
        return len(bare) if bare != text and bare.endswith(self.ends or ("\0",)) else len(text)

    def _marked(self, messages: Sequence[Message], tools: Sequence[Any], asks: bool) -> Marked:
        mark = f"\0{secrets.token_hex(8)}\0"  # no text of a data set can contain it
        values = {
            **self.tokens,
            "messages": _bare(messages),
            "tools": _bare(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": asks,
        }
        try:
            rendered = compiled(self.source)(mark, values)
        except Exception as error:  # a template is a program: anything may go wrong in it
            raise TemplateFailure(str(error) or type(error).__name__) from None
        return _without_marks(rendered, mark)

    def _refusal(self, error: TemplateFailure, where: str) -> InputError:
        place = f"{where}, with {self.where}" if where else self.where
        return InputError(
            f"the chat template fails: {error}", where=place, fix="correct the conversation or the template, or leave the row out"
        )


def _without_marks(rendered: str, mark: str) -> Marked:
    """The text without its marks, and the spans between every two of them."""
    parts = rendered.split(mark)
    spans, length = [], 0
    for number, part in enumerate(parts):
        if number % 2:
            spans.append((length, length + len(part)))
        length += len(part)
    return Marked("".join(parts), tuple(spans))


def _bare(value: Any, depth: int = 0) -> Any:
    """A copy that holds only plain values: a template must not reach objects of this program."""
    if depth > MOST_DEPTH:
        raise TemplateFailure(f"the conversation is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {str(key): _bare(held, depth + 1) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_bare(held, depth + 1) for held in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


@cache
def compiled(source: str) -> Callable[[str, Mapping[str, Any]], str]:
    """A function of a mark and of values that renders a template; the mark stands on both sides of what `{% generation %}` encloses."""
    import jinja2
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `{% generation %}`."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            mark = jinja2.nodes.Name("meshwright_mark", "load")
            return jinja2.nodes.CallBlock(self.call_method("enclosed", [mark]), [], [], body).set_lineno(line)

        def enclosed(self, mark: str, caller: Callable[[], str]) -> str:
            return f"{mark}{caller()}{mark}"

    def refuse(message: str) -> str:
        raise TemplateFailure(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    template = environment.from_string(source)
    return lambda mark, values: template.render(meshwright_mark=mark, **values)


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Jinja's own filter would escape characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def read_template(folder: Path, ends: Sequence[str], end_of_document: str) -> ChatTemplate:
    """The template of a model's folder, or the plain one where it has none. `ends`: the texts of the tokenizer's special tokens."""
    config = _read_json(folder / CONFIG)
    tokens = {**{"bos_token": "", "eos_token": end_of_document}, **_tokens(_read_json(folder / SPECIAL)), **_tokens(config)}
    source, where = _source(folder, config)
    ordered = tuple(sorted({*ends, tokens["eos_token"]} - {""}, key=len, reverse=True))  # the longest first: one may begin another
    template = ChatTemplate(source=source, where=where, tokens=tokens, ends=ordered)
    _check_compiles(template)
    return template


def _source(folder: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    if (folder / FILE).is_file():
        return read_text(folder / FILE), str(folder / FILE)
    held = config.get("chat_template")
    if isinstance(held, list):
        named = {each.get("name"): each.get("template") for each in held if isinstance(each, dict)}
        held = named.get("default")
    if held is None:
        return PLAIN, "meshwright's plain template"
    if not isinstance(held, str):
        raise InputError(f"chat_template is {held!r:.40}, not a text", where=str(folder / CONFIG), fix="give the template as a text")
    return held, str(folder / CONFIG)


def _check_compiles(template: ChatTemplate) -> None:
    import jinja2

    try:
        compiled(template.source)
    except jinja2.TemplateSyntaxError as error:
        fix = "restore the model's own template"
        raise InputError(f"the chat template is no Jinja: line {error.lineno}: {error.message}", where=template.where, fix=fix) from None


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        held = json.loads(read_text(path))
    except OSError:
        return {}
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", where=str(path), fix="fetch the file again") from None
    return held if isinstance(held, dict) else {}


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens in a configuration."""
    found = {}
    for key in TOKEN_KEYS:
        token = config.get(key)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[key] = content
    return found
