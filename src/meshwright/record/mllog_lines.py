"""The `:::MLLOG {json}` lines of a file, among everything else that the processes of a run print to it.

A line may have text before it (a rank, a time), colour codes of a terminal around it, and another line directly after it. Several
processes may write the same line, and a script may print earlier lines again: each counts once.
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
COUNTERS = ("samples_count", "step", "step_num", "epoch_num")  # in the metadata of a line; the first that is there counts
EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")
MARKS = ("run_start", "block_start", "block_stop", *EVALUATION, "run_stop")  # each occurs once in a run, or once for every count
OF_THE_LINE = ("file", "lineno", "rank")  # metadata that says which process wrote a line, and where in the program
SAME_MS = 1000.0  # the clocks of processes differ by less than this
CHUNK_BYTES = 1 << 16  # read of a compressed file at a time
WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # by the first bytes; PowerShell writes such files

_DECODE = json.JSONDecoder().raw_decode
_KEY = re.compile(r'"key"\s*:\s*"(\w+)"')
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# Which decompressor a file needs, by its first bytes.
UNPACK: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lzma.LZMADecompressor,
}


class UnreadableLog(InputError):
    """A file that cannot be opened or read."""


class DamagedLog(InputError):
    """A line of the log that cannot be read, and is not the last one."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"a damaged {MARKER} line: {why}", where=f"{path}: line {line}", fix="use the log as the run wrote it")
        self.line = line


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A `:::MLLOG` line that cannot be read."""

    line: int  # in its file, from 1
    why: str
    key: str  # if it can be read; "" otherwise: the line may have had any key


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
        """The name of the counter in the line, which says how far the run had come; "" if there is none."""
        return next((name for name in COUNTERS if name in self.metadata), "")

    @property
    def count(self) -> float | None:
        """How far the run had come, in a unit that only the whole log shows (samples, tokens, steps); None if the line does not say."""
        return number(self.metadata.get(self.counter))


@dataclass(frozen=True, slots=True)
class Lines:
    """The log lines in a text."""

    events: tuple[LogEvent, ...]
    damaged: tuple[DamagedLine, ...]
    is_last_damaged: bool
    empty_line: int  # the first line with zero bytes, which a broken disk leaves, from 1; 0: none
    again: tuple[int, ...]  # lines that were printed again, long after the first time
    unordered_line: int  # the first mark that comes after a later one, if the events were sorted by their clock; 0: none


def read_log_text(path: str | Path) -> str:
    """The text of a log, decompressed if it is gzip, bzip2 or xz, with every line end as one newline."""
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
    """The content of a compressed file; if the file was cut or damaged, its beginning."""
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
            left = one.unused_data if one.eof else b""  # a file may consist of several compressed parts
            one = unpack() if one.eof else one
    return b"".join(parts)


def lines_of(text: str) -> Lines:
    """The log lines in `text`."""
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
    """The events without repetitions: equal lines, or the same mark written by another process a moment later."""
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
            if is_near and (said or last == event.key):  # two marks without values are the same only if no other mark is between them
                continue
            marks[name], last = event.time_ms, event.key
        yield event


def _printed_again(events: Sequence[LogEvent], once: Sequence[LogEvent]) -> tuple[int, ...]:
    """Lines that were left out, and whose clock is far behind that of the lines around them."""
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
    """The events, sorted by their clock if marks are out of order and sorting gives a valid run; and the first mark out of order.

    With a clock that was set back, sorting gives no valid run: counts of evaluations would fall, or the run would end before them.
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
    """Whether `value` is a finite number (Python's JSON reader allows NaN, and integers too large for a float)."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def number(value: object) -> float | None:
    """A value as a number, also if it is in quotation marks; None if it is not a number."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None
