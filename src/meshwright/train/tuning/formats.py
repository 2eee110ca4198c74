"""The formats of instruction data that people have, and what their rows say: conversations, prompts with completions, and plain texts.

The format is detected from the first row, and every other row must have its keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.errors import InputError
from meshwright.train.tuning.rows import Row

Message = dict[str, Any]  # role, content, and what a template may also read: tool_calls, name, ...
USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"

# Names that ShareGPT's files give the speakers.
SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), USER),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call"), ASSISTANT),
    "system": SYSTEM,
    **dict.fromkeys(("tool", "function", "observation", "function_response"), TOOL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages that the model's chat template puts into one text."""

    messages: Sequence[Message]
    where: str
    tools: Sequence[Any] = ()
    num_given: int = 0  # messages at the beginning that are never trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A text without a template: a prompt, which may be empty, and what follows it."""

    prompt: str
    completion: str
    where: str


Example = Conversation | Plain


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the keys that a row must have, and how a row is read."""

    name: str
    keys: tuple[str, ...]
    read: Callable[[Row], Example]

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether a row has the keys of this format."""
        return all(key in values for key in self.keys)


def _openai(row: Row) -> Example:
    messages = [_message(each, row, "messages", number) for number, each in enumerate(_listed(row, "messages"), start=1)]
    return Conversation(messages=messages, where=row.where, tools=_tools(row))


def _sharegpt(row: Row) -> Example:
    messages: list[Message] = []
    system = row.values.get("system")
    if isinstance(system, str) and system:
        messages.append({"role": SYSTEM, "content": system})
    for number, turn in enumerate(_listed(row, "conversations"), start=1):
        if isinstance(turn, dict) and "role" in turn and "from" not in turn:
            messages.append(_message(turn, row, "conversations", number))
            continue
        speaker, text = _held(turn, "from", row, "conversations", number), _held(turn, "value", row, "conversations", number)
        if speaker not in SPEAKERS:
            what = f"turn {number} of 'conversations' is from {speaker!r}, who is none of {', '.join(sorted(SPEAKERS))}"
            raise InputError(what, where=row.where, fix="name the speaker human, gpt, system or tool")
        messages.append({"role": SPEAKERS[speaker], "content": text})
    return Conversation(messages=messages, where=row.where, tools=_tools(row))


def _alpaca(row: Row) -> Example:
    instruction, more, answer = _text(row, "instruction"), row.values.get("input") or "", _text(row, "output")
    if not isinstance(more, str):
        raise _not_text(row, "input", more)
    asked = f"{instruction}\n\n{more}" if more.strip() else instruction
    system = row.values.get("system")
    first = [{"role": SYSTEM, "content": system}] if isinstance(system, str) and system else []
    return Conversation(messages=[*first, {"role": USER, "content": asked}, {"role": ASSISTANT, "content": answer}], where=row.where)


def _completion(row: Row) -> Example:
    if not isinstance(row.values["prompt"], list):
        return Plain(prompt=_text(row, "prompt"), completion=_text(row, "completion"), where=row.where)
    given, answers = (
        [_message(each, row, key, number) for number, each in enumerate(_listed(row, key), start=1)] for key in ("prompt", "completion")
    )
    return Conversation(messages=[*given, *answers], where=row.where, tools=_tools(row), num_given=len(given))


def _plain(row: Row) -> Example:
    return Plain(prompt="", completion=_text(row, "text"), where=row.where)


FORMATS = (
    Format("OpenAI messages", ("messages",), _openai),
    Format("ShareGPT", ("conversations",), _sharegpt),
    Format("Alpaca", ("instruction", "output"), _alpaca),
    Format("prompt and completion", ("prompt", "completion"), _completion),
    Format("plain text", ("text",), _plain),
)


def detected(row: Row) -> Format:
    """The format of a data set, by its first row."""
    for each in FORMATS:
        if each.fits(row.values):
            return each
    known = "; ".join(f"{each.name}: {', '.join(each.keys)}" for each in FORMATS)
    raise InputError(
        f"the row's keys ({', '.join(map(str, row.values)) or 'none'}) are those of no known format",
        where=row.where,
        fix=f"use one of {known}",
    )


def read_examples(rows: Iterable[Row]) -> tuple[str, list[Example]]:
    """The name of the format, and every row as an example."""
    found: Format | None = None
    examples: list[Example] = []
    for row in rows:
        found = found or detected(row)
        for key in found.keys:
            if key not in row.values:
                what = f"the row has no key {key!r}, which a row of the format {found.name} needs; it has {', '.join(map(str, row.values))}"
                raise InputError(what, where=row.where, fix="add the key, or leave the row out; all rows of a data set have one format")
        examples.append(found.read(row))
    if found is None:
        raise InputError("the data set has no rows", where="DATA", fix="give a file or a folder with at least one row")
    return found.name, examples


def _message(given: Any, row: Row, key: str, number: int) -> Message:
    role = _held(given, "role", row, key, number)
    message = {**given, "role": role}
    content = given.get("content")
    if content is None and not given.get("tool_calls"):
        raise InputError(f"turn {number} of {key!r} has no key 'content'", where=row.where, fix="give its text")
    message["content"] = _joined(content, row, key, number) if content is not None else ""
    if given.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in given["tool_calls"]]
    return message


def _joined(content: Any, row: Row, key: str, number: int) -> str:
    """The text of a message; parts of text are joined."""
    if isinstance(content, str):
        return content
    parts = list(_parts(content))
    if not isinstance(content, list) or len(parts) != len(content):
        what = f"the content of turn {number} of {key!r} is {content!r:.60}: only text is trained on"
        raise InputError(what, where=row.where, fix="give a text, or a list of parts of the type text")
    return "".join(parts)


def _parts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"]


def _call(call: Any) -> Any:
    """A call of a tool with its arguments as an object: OpenAI's files have them as JSON in a text, and templates expect the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(row: Row) -> Sequence[Any]:
    tools = row.values.get("tools") or ()
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise InputError(f"the key 'tools' holds no JSON: {error}", where=row.where, fix="give a list of tools") from None
    if not isinstance(tools, list | tuple):
        raise InputError(f"the key 'tools' holds a {type(tools).__name__}", where=row.where, fix="give a list of tools")
    return tools


def _listed(row: Row, key: str) -> list[Any]:
    held = row.values[key]
    if not isinstance(held, list):
        raise InputError(f"the key {key!r} holds {held!r:.60}, not a list of turns", where=row.where, fix="give a list of turns")
    if not held:
        raise InputError(f"the key {key!r} holds no turns", where=row.where, fix="give at least one turn, or leave the row out")
    return held


def _held(turn: Any, name: str, row: Row, key: str, number: int) -> str:
    if not isinstance(turn, dict) or name not in turn:
        held = f"it has {', '.join(map(str, turn))}" if isinstance(turn, dict) else f"it is {turn!r:.40}"
        raise InputError(f"turn {number} of {key!r} has no key {name!r}: {held}", where=row.where, fix=f"give every turn a {name!r}")
    if not isinstance(turn[name], str):
        raise _not_text(row, f"{name} of turn {number} of {key}", turn[name])
    return str(turn[name])


def _text(row: Row, key: str) -> str:
    if not isinstance(row.values[key], str):
        raise _not_text(row, key, row.values[key])
    return str(row.values[key])


def _not_text(row: Row, key: str, held: Any) -> InputError:
    return InputError(f"the key {key!r} holds {held!r:.60}, not a text", where=row.where, fix="give a text, or leave the row out")
