"""Lists of hosts as Slurm writes them: `r[0-1]h[0-3],login`, opened and folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, product

from meshwright.errors import InputError

MOST_HOSTS = 100_000
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
FIX = "write names such as r0h0,r0h1 or r[0-1]h[0-3]"


def opened(text: str, where: str = "the list of hosts") -> list[str]:
    """Every host of a list, in its order; an error if a name is no host's, or is there twice."""
    hosts = [host for part in _parts(text, where) for host in _open(part, where)]
    for host in hosts:
        if not NAME.fullmatch(host):
            raise InputError(f"{host!r} is no name of a host", where=where, fix=FIX)
    if len(set(hosts)) < len(hosts):
        twice = next(host for number, host in enumerate(hosts) if host in hosts[:number])
        raise InputError(f"host {twice} is named twice", where=where, fix="name every host once")
    return hosts


def _parts(text: str, where: str) -> list[str]:
    """The parts between commas and white space that are in no brackets."""
    if re.sub(r"\[[^\[\]]*\]", "", text).count("[") or re.sub(r"\[[^\[\]]*\]", "", text).count("]"):
        raise InputError(f"a bracket of {text!r:.60} is not closed", where=where, fix=FIX)
    return [part for part in re.split(r"[,\s]+(?![^\[]*\])", text) if part]


def _open(part: str, where: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # plain text and the inside of brackets in turn
    choices = [[piece] if number % 2 == 0 else _numbers(piece, where) for number, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_HOSTS:
        raise InputError(f"{part!r:.60} names {count:,} hosts", where=where, fix=f"name at most {MOST_HOSTS:,}")
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(text: str, where: str) -> list[str]:
    found: list[str] = []
    for one in text.split(","):
        match = RANGE.fullmatch(one.strip())
        if not match or len(one) > 20:
            raise InputError(f"[{text:.40}] is no range of numbers", where=where, fix=FIX)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST_HOSTS:
            raise InputError(f"[{text:.40}] is no range of numbers", where=where, fix=FIX)
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found


def folded(hosts: Sequence[str]) -> str:
    """The hosts as a short list: neighbours that differ in their last number only are one range."""
    return ",".join(_ranges(hosts))


def _ranges(hosts: Iterable[str]) -> Iterable[str]:
    ends = [re.fullmatch(r"(.*?)(\d+)", host) for host in hosts]
    rows = [(end[1], end[2]) if end else (host, "") for host, end in zip(hosts, ends, strict=True)]
    for (prefix, width), group in groupby(rows, key=lambda row: (row[0], len(row[1]))):
        if not width:
            yield from (prefix for _ in group)
            continue
        spans = list(_spans([int(number) for _, number in group]))
        shown = ",".join(f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}" for first, last in spans)
        yield f"{prefix}{shown}" if len(spans) == 1 and spans[0][0] == spans[0][1] else f"{prefix}[{shown}]"


def _spans(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
