"""The `:::MLLOG {json}` lines of a file, among whatever else the processes of a run print to it.

A line may have text before it (a rank, a time), colours of a terminal around it, and another line right behind it. Several processes may
write the same line, and a script may print lines again that stand further up: each is read once.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from meshwright.errors import InputError
from meshwright.files import MOST_BYTES, READABLE, read_bytes

MARKER = ":::MLLOG"
COUNTERS = ("samples_count", "step", "step_num", "epoch_num")  # of a line's metadata, the first that is there
EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")
MARKS = ("run_start", "block_start", "block_stop", *EVALUATION, "run_stop")  # a run has each once, or once for every count
OF_THE_LINE = ("file", "lineno", "rank")  # metadata that says who wrote a line, and where in the program
SAME_MS = 1000.0  # clocks of processes differ by less
CHUNK_BYTES = 1 << 16  # of a packed file at a time
WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # by the first bytes, as PowerShell writes them

_DECODE = json.JSONDecoder().raw_decode
_KEY = re.compile(r'"key"\s*:\s*"(\w+)"')
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# What unpacks a file, by the file's first bytes.
UNPACK: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lzma.LZMADecompressor,
}


class UnreadableLog(InputError):
    """A file that cannot be opened or read."""


class DamagedLog(InputError):
    """A line of the log cannot be read, though others follow it."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"a damaged {MARKER} line: {why}", where=f"{path}: line {line}", fix="use the log as the run wrote it")
        self.line = line


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A `:::MLLOG` line that cannot be read."""

    line: int  # in its file, from 1
    why: str
    key: str  # as far as it is legible; "" where it is not: the line may have been any


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One `:::MLLOG` line."""

    time_ms: float
    key: str
    value: Any
    metadata: Mapping[str, Any]
    line: int  # in its file, from 1

    @property
    def counter(self) -> str:
        """Under which name the line says how far the run had come; "" where it does not."""
        return next((name for name in COUNTERS if name in self.metadata), "")

    @property
    def count(self) -> float | None:
        """How far the run had come, in a unit that the log as a whole shows (samples, tokens, steps); None where the line does not say."""
        return number(self.metadata.get(self.counter))


@dataclass(frozen=True, slots=True)
class Lines:
    """What a text holds of a log."""

    events: tuple[LogEvent, ...]
    damaged: tuple[DamagedLine, ...]
    is_last_damaged: bool
    empty_line: int  # the first line that holds zero bytes, as a broken disk leaves them, from 1; 0: none
    again: tuple[int, ...]  # lines that were printed a second time, long after the first
    unordered_line: int  # the first mark that stands behind a later one, where the events were put in the order of their clock; 0: none


def read_log_text(path: str | Path) -> str:
    """The text of a log, unpacked where gzip, bzip2 or xz packed it, every end of a line as one newline."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise UnreadableLog(f"cannot read the log: {error.strerror or error}", where=str(path), fix=READABLE) from None
    for start, unpack in UNPACK.items():
        if data.startswith(start):
            data = _unpacked(data, unpack, path)
    encoding = next((name for start, name in WIDE.items() if data.startswith(start)), "utf-8")
    return data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _unpacked(data: bytes, unpack: Callable[[], Any], path: str | Path) -> bytes:
    """What a packed file holds, as far as it goes: of one that was cut or damaged, the beginning."""
    parts: list[bytes] = []
    size, one = 0, unpack()
    for start in range(0, len(data), CHUNK_BYTES):
        left = data[start : start + CHUNK_BYTES]
        while left:
            try:
                parts.append(one.decompress(left))
            except (zlib.error, lzma.LZMAError, OSError, EOFError):
                return b"".join(parts)
            size += len(parts[-1])
            if size > MOST_BYTES:
                raise UnreadableLog(
                    f"unpacked it has more than {MOST_BYTES:,} bytes", where=str(path), fix="unpack it, and give the log of one run"
                )
            left = one.unused_data if one.eof else b""  # packed files may be put one after another
            one = unpack() if one.eof else one
    return b"".join(parts)


def lines_of(text: str) -> Lines:
    """The lines of a log that `text` holds."""
    events: list[LogEvent] = []
    damaged: list[DamagedLine] = []
    empty_line = 0
    is_last_damaged = False
    text = _COLOURS.sub("", text) if "\x1b" in text else text
    for number_, line in enumerate(text.split("\n"), start=1):
        if not empty_line and "\x00" in line:
            empty_line = number_
        for fragment in line.split(MARKER)[1:]:
            try:
                events.append(_event(fragment, number_))
                is_last_damaged = False
            except (ValueError, RecursionError) as error:
                key = _KEY.search(fragment)
                damaged.append(DamagedLine(number_, str(error), key[1] if key else ""))
                is_last_damaged = True
    once = list(_once(events))
    again = _printed_again(events, once)
    ordered, unordered_line = _in_order(once)
    return Lines(tuple(ordered), tuple(damaged), is_last_damaged, empty_line, again, unordered_line)


def _event(fragment: str, line: int) -> LogEvent:
    entry, _ = _DECODE(fragment.lstrip())
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    time_ms, key, metadata = entry.get("time_ms"), entry.get("key"), entry.get("metadata") or {}
    if not is_number(time_ms):
        raise ValueError(f"time_ms is {'missing' if time_ms is None else repr(time_ms)}")
    if not isinstance(key, str):
        raise ValueError(f"key is {'missing' if key is None else repr(key)}")
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a JSON object")
    return LogEvent(float(time_ms), key, entry.get("value"), metadata, line)


def _once(events: Sequence[LogEvent]) -> Iterator[LogEvent]:
    """The events without those that are there again: word by word, or as another process writes the same mark a moment later."""
    seen: set[tuple[float, str, str]] = set()
    marks: dict[tuple[str, str], float] = {}
    last, latest_ms = "", -math.inf
    for event in events:
        words = event.time_ms, event.key, f"{event.value!r}{event.metadata!r}"
        if words in seen and (event.key in MARKS or event.time_ms < latest_ms - SAME_MS):
            continue
        seen.add(words)
        latest_ms = max(latest_ms, event.time_ms)
        if event.key in MARKS:
            said = {name: value for name, value in event.metadata.items() if name not in OF_THE_LINE}
            name = event.key, repr(said)
            is_near = abs(event.time_ms - marks.get(name, -math.inf)) <= SAME_MS
            if is_near and (said or last == event.key):  # two that say nothing are the same only where no other mark lies between
                continue
            marks[name], last = event.time_ms, event.key
        yield event


def _printed_again(events: Sequence[LogEvent], once: Sequence[LogEvent]) -> tuple[int, ...]:
    """Lines that are left out and lie far back, by their clock, from where they stand."""
    kept = {id(event) for event in once}
    latest_ms = -math.inf
    found = []
    for event in events:
        if id(event) in kept:
            latest_ms = max(latest_ms, event.time_ms)
        elif event.time_ms < latest_ms - SAME_MS:
            found.append(event.line)
    return tuple(found)


def _in_order(events: Sequence[LogEvent]) -> tuple[Sequence[LogEvent], int]:
    """The events, by their clock where marks stand in another order and the clock makes a run of them; and the first mark out of order.

    A clock that was set back makes no run: evaluations would count down, or the run would end before they do.
    """
    marks = [event for event in events if event.key in MARKS]
    late = next((after for before, after in pairwise(marks) if after.time_ms < before.time_ms - SAME_MS), None)
    if late is None:
        return events, 0
    ordered = sorted(events, key=lambda event: event.time_ms)
    return (ordered, late.line) if _is_run(ordered) else (events, 0)


def _is_run(events: Sequence[LogEvent]) -> bool:
    keys = [event.key for event in events if event.key in MARKS]
    if keys.count("run_start") != 1 or keys[0] != "run_start" or "run_stop" in keys[:-1]:
        return False
    counts: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.key in EVALUATION and event.count is not None:
            counts.setdefault((event.key, event.counter), []).append(event.count)
    ascending = all(a <= b for found in counts.values() for a, b in pairwise(found))
    begun = [key for key in keys if key in ("eval_start", "eval_stop")]
    return ascending and all(a != b for a, b in pairwise(begun))


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number (JSON as Python reads it allows NaN, and integers no float can hold)."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def number(value: object) -> float | None:
    """The number that a value is, also in quotation marks; None where it is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None
