"""Arguments of public functions and fields of public values, checked against their annotations: a wrong type is an InputError."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from meshwright.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """The function with its arguments checked: an argument of another type than annotated is an InputError that names it."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _argument_hints(function)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:  # it does not say of which function
            raise TypeError(f"{function.__qualname__.removesuffix('.__init__')}(): {error}") from None
        for name, value in given.items():
            kind = signature.parameters[name].kind
            for one in value if kind is kind.VAR_POSITIONAL else value.values() if kind is kind.VAR_KEYWORD else (value,):
                check_type(name, one, hints.get(name, Any), function.__qualname__.removesuffix(".__init__"))
        return function(*args, **kwargs)

    return call


def check_types(value: Any) -> None:
    """Raise an InputError where a field of a dataclass is not of its annotated type."""
    kind: Any = type(value)
    for name, hint in _field_hints(kind).items():
        check_type(name, getattr(value, name), hint, kind.__name__)


def check_type(name: str, value: object, hint: Any, where: str) -> None:
    """Raise an InputError where a value is not of an annotated type."""
    if type(value) is hint:  # most are: no need to look at what the annotation is made of
        return
    if not matches(value, hint):
        shown = repr(value)
        raise InputError(
            f"{name} is {shown if len(shown) <= 60 else shown[:57] + '...'}, not {wording(hint)}",
            where=f"{where}: {name}",
            fix=f"give {wording(hint)}",
        )


def matches(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; parts that the annotation leaves open are not checked."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, one) for one in inner)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, tuple) and _all_match(value, inner)
    kind = origin or hint
    if hint is Any or not isinstance(kind, type):
        return True
    if not isinstance(value, kind):
        return False
    if issubclass(kind, Mapping) and isinstance(value, Mapping) and inner:
        return all(matches(key, inner[0]) and matches(one, inner[1]) for key, one in value.items())
    if kind in (Sequence, Collection, Iterable, list) and isinstance(value, str | bytes):
        return False
    if issubclass(kind, Sequence) and isinstance(value, Sequence) and inner:
        return all(matches(one, inner[0]) for one in value)
    return True


def _all_match(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if len(hints) == 2 and hints[1] is Ellipsis:
        return all(matches(value, hints[0]) for value in values)
    return len(values) == len(hints) and all(map(matches, values, hints))


def wording(hint: Any) -> str:
    """An annotated type in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        *first, last = dict.fromkeys(map(wording, inner))
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        return "a tuple"
    if origin and isinstance(origin, type):
        if issubclass(origin, Mapping):
            return "a mapping"
        return "a function" if origin.__name__ == "Callable" else f"a list of {PLURALS.get(inner[0], 'values') if inner else 'values'}"
    name = getattr(hint, "__name__", str(hint))
    return WORDS.get(hint, f"{'an' if name[0] in 'AEIO' else 'a'} {name}")


@cache
def _field_hints(kind: Any) -> Mapping[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in kind.__dataclass_fields__}


@cache
def _argument_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What the parameters are annotated with. Names that only a type checker imports are looked up among the public ones, or left open."""
    public = sys.modules["meshwright"]
    found: dict[str, Any] = {}
    for name, text in function.__annotations__.items():
        known = {word: getattr(public, word) for word in public.__all__ if isinstance(text, str) and word in text}
        try:
            found[name] = eval(text, function.__globals__, known) if isinstance(text, str) else text  # text of our own source
        except NameError:
            found[name] = Any
    return found
