"""The form of the tables in a file: known keys and types of values; the error names the first bad key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.errors import InputError, nearest


class Checked(BaseModel):
    """A table of a file: known keys only, values of the stated type."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


EXAMPLES = {  # how to write a value, by how the kind of pydantic's finding begins
    "int_": "write a whole number: {key} = 8",
    "float_": "write a number: {key} = 1.5",
    "finite_number": "write a finite number: {key} = 1.5",
    "bool_": "write {key} = true or {key} = false",
    "string_type": 'write a text in quotes: {key} = "..."',
    "list_": "write a list: {key} = [...]",
    "tuple_": "write a list: {key} = [...]",
    "dict_": "write a table: [{key}], with its keys below",
    "model_": "write a table: [{key}], with its keys below",
}
Form = TypeVar("Form", bound=Checked)


def checked(form: type[Form], table: object, where: str) -> Form:
    """`table` in the stated form, or an error that names the first bad key."""
    try:
        return form.model_validate(table)
    except ValidationError as error:
        raise _complaint(form, error, where) from None


@contextmanager
def located(where: str) -> Iterator[None]:
    """Errors raised inside the block name their file."""
    try:
        yield
    except InputError as error:
        raise InputError(error.what, where=f"{error.where} in {where}" if error.where else where, fix=error.fix) from None


def _complaint(form: type[Checked], error: ValidationError, where: str) -> InputError:
    """The first of pydantic's findings, in our words."""
    findings = error.errors(include_url=False)
    # A union reports each of its members: the deepest finding is the one about the form the user chose.
    found = max(findings, key=lambda f: len(f["loc"])) if len({f["loc"][:1] for f in findings}) == 1 else findings[0]
    path, kind = _path(found["loc"], found["type"]), found["type"]
    key = ".".join(path) or "the whole table"
    others = {tuple(_path(f["loc"], f["type"])) for f in findings} - {tuple(path[:count]) for count in range(len(path) + 1)}
    more = f" (and {len(others)} more)" if others else ""
    place = f"{key} in {where}"
    if kind == "missing":
        return InputError(f"{key} is missing{more}", where=place, fix=f"add {path[-1]} = ...")
    if kind == "extra_forbidden":
        return InputError(f"unknown key {path[-1]!r}{more}", where=place, fix=nearest(path[-1], _keys_at(form, path[:-1])))
    value = repr(found["input"])
    shown = value if len(value) < 60 else f"{value[:57]}..."
    named = next((part for part in reversed(path) if not part.isdigit()), "key")  # not the number of a list's entry
    message = _lower_first(found["msg"]).replace("input ", "the value ", 1).replace("string ", "the text ", 1)
    return InputError(f"{key} is {shown}{more}", where=place, fix=_fix(kind, found.get("ctx", {}), named) or message)


def _fix(kind: str, limits: Mapping[str, Any], key: str) -> str:
    """How to write a value that pydantic refused for this kind of reason; "" where its own message says it best."""
    bounds = {"greater_than": ("above", "gt"), "greater_than_equal": ("of at least", "ge")}
    bounds |= {"less_than": ("below", "lt"), "less_than_equal": ("of at most", "le")}
    if kind in bounds:
        word, name = bounds[kind]
        return f"give a number {word} {limits[name]:g}"
    if kind == "literal_error":
        return f"use {limits['expected']}"
    return next((example.format(key=key) for start, example in EXAMPLES.items() if kind.startswith(start)), "")


def _path(location: tuple[int | str, ...], kind: str) -> list[str]:
    """Keys that lead to a finding, without what pydantic says of the members of a union."""
    has_key = kind in ("missing", "extra_forbidden")  # then the last part is a key, whatever it is called
    above = [str(part) for part in (location[:-1] if has_key else location)]
    keys = [part for part in above if not part.endswith("Table") and part not in ("str", "[key]")]
    return [*keys, str(location[-1])] if has_key else keys


def _keys_at(form: type[Checked], path: Iterable[str]) -> list[str]:
    """Keys that the table at `path` below `form` may have."""
    for part in path:
        if part.isdigit():
            continue
        field = form.model_fields.get(part)
        inner = _table_in(field.annotation) if field else None
        if inner is None:
            break
        form = inner
    return list(form.model_fields)


def _table_in(annotation: Any) -> type[Checked] | None:
    if isinstance(annotation, type) and issubclass(annotation, Checked):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _table_in(part))), None)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
