"""Chrome traces, as torch.profiler exports them: read event by event, so that a large file takes little memory.

A trace is `{"traceEvents": [...], ...}` or the bare list, plain or compressed with gzip. Only complete events (`"ph": "X"`) that show
compute or communication are kept: kernels and copies of GPUs; if there are none, operators and collectives of the CPU.
"""

from __future__ import annotations

import codecs
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.files import READABLE
from meshwright.units import MICROSECOND

CHUNK = 1 << 20  # bytes read at a time
LONGEST_VALUE = 64 << 20  # characters: a single value longer than that is damage
LONGEST_LITERAL = 10  # characters: a word, number or escape that the end of a chunk may cut
GZIP_MAGIC, GZIP_BITS = b"\x1f\x8b", 31  # the first bytes of such files; the number of that format in zlib
BLANK = " \t\r\n"
GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_CATEGORIES = frozenset({"cpu_op", "user_annotation"})
GPU_COMMUNICATION = ("nccl", "rccl", "msccl", "nvshmem")  # the names of such kernels begin with these
CPU_COMMUNICATION = ("gloo:", "mpi:", "ucc:", "xccl:", "c10d::", "_c10d_functional::", "record_param_comms")
LARGEST_US = 2.0**52  # above this, a float has no half microseconds; since 1970 2**50.6 microseconds have passed
CPU_WRAPPERS = ("autograd::", "torch::autograd::")  # they last as long as the events inside them, including waits


class Kind(IntEnum):
    """What an event is."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2  # copies and fills of a GPU's copy engines
    OTHER = 3  # neither: synchronisation


class _End(Exception):
    """The file ends in the middle of a value."""


@dataclass(slots=True)
class _Rows:
    """Events of one stream or thread, collected while a file is read."""

    start_us: array[float] = field(default_factory=lambda: array("d"))
    end_us: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One stream of a GPU, or one thread: its events, in seconds since the trace's first."""

    process: str
    stream: str
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    kind: NDArray[np.int8]
    name: NDArray[np.int64]  # index into ChromeTrace.names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChromeTrace:
    """What a trace says about compute and communication."""

    path: Path
    rank: int | None  # in torch.distributed
    on_gpu: bool
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    num_steps: int  # annotated with ProfilerStep
    num_events: int  # of all kinds
    notes: tuple[str, ...]


def is_trace(path: Path) -> bool:
    """Whether a path may be a trace: a trace is a file, a run is a folder."""
    return path.is_file()


def read_trace(path: Path) -> ChromeTrace:
    """The trace in a file; an error if it is not a trace, or contains no timed event."""
    reader = _Reader(path)
    try:
        with open(path, "rb") as file:
            reader.read(JsonStream(_text(file)))
    except OSError as error:
        raise InputError(f"cannot read the trace: {error.strerror or error}", where=str(path), fix=READABLE) from None
    return reader.trace()


def _text(file: IO[bytes]) -> Iterator[str]:
    """The text of the file in chunks, decompressed if necessary. A compressed file that was cut gives its complete part."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    chunks = iter(lambda: file.read(CHUNK), b"")
    first = next(chunks, b"")
    raw = chain([first], chunks)
    yield from (decode(chunk) for chunk in (_unpacked(raw) if first.startswith(GZIP_MAGIC) else raw))


def _unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompressed bytes, in pieces of limited size, up to the place where the compressed bytes are damaged or end."""
    unpack = zlib.decompressobj(GZIP_BITS)
    with suppress(zlib.error):
        for chunk in chunks:
            data = chunk
            while data:
                yield unpack.decompress(data, CHUNK)
                data = unpack.unconsumed_tail
                if unpack.eof:  # a file may consist of several compressed parts
                    data, unpack = unpack.unused_data, zlib.decompressobj(GZIP_BITS)
        yield unpack.flush()  # the rest that did not fit into a piece


class JsonStream:
    """JSON text that is decoded value by value, a chunk at a time."""

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks = iter(chunks)
        self._text, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, character: str) -> bool:
        """Whether the next character is this one; if it is, it is skipped."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def value(self) -> Any:
        """The next value. `_End` if the file ends within it, ValueError if it is not JSON."""
        if not self.peek():
            raise _End
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number may continue in the next chunk
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated string") and error.pos < len(self._text) - LONGEST_LITERAL:
                    raise  # the text is damaged, not just incomplete
                if self._ended:
                    raise _End from None
            if len(self._text) - self._at > LONGEST_VALUE:
                raise ValueError("a value that does not end")
            self._more()

    def _more(self) -> bool:
        """Read the next chunk; return whether there was one."""
        chunk = next((chunk for chunk in self._chunks if chunk), "")
        self._ended = not chunk
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


class _Reader:
    """Collects the contents of a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[bool, str, str], _Rows] = {}  # on a GPU, process, stream
        self.names: dict[str, int] = {}
        self.rank: int | None = None
        self.base_us: float | None = None  # the zero of all times
        self.num_events = self.num_damaged = 0
        self.steps: set[str] = set()
        self.notes: list[str] = []

    def read(self, stream: JsonStream) -> None:
        """Read the whole file."""
        opening = stream.peek()
        try:
            if opening == "[":
                self._events(stream)
            elif opening == "{":
                self._object(stream)
            else:
                raise self._no_trace("it holds no JSON" if opening else "it is empty")
        except _End:
            if not self.num_events:
                raise self._no_trace("it ends before the first event") from None
            self.notes.append(
                f"The file ends in the middle of an event: it was cut, and is shown up to there ({self.num_events:,} events)."
            )
        except json.JSONDecodeError as error:
            raise self._no_trace(f"damaged after {self.num_events:,} events: {error.msg[:1].lower()}{error.msg[1:]}") from None
        except (ValueError, RecursionError) as error:
            raise self._no_trace(f"damaged after {self.num_events:,} events: {error}") from None

    def _object(self, stream: JsonStream) -> None:
        stream.skip("{")
        found = stream.peek() == "}"
        has_events = False
        while not found:
            key = stream.value()
            if not isinstance(key, str) or not stream.skip(":"):
                raise ValueError("a key is missing")
            if key == "traceEvents" and stream.peek() == "[":
                has_events = True
                self._events(stream)
            else:
                self._header(key, stream.value())
            if not stream.skip(","):
                if not stream.peek():
                    raise _End
                found = True
        if not has_events:
            raise self._no_trace("it has no traceEvents")

    def _header(self, key: str, value: Any) -> None:
        if key == "distributedInfo" and isinstance(value, dict) and isinstance(value.get("rank"), int):
            self.rank = value["rank"]

    def _events(self, stream: JsonStream) -> None:
        for event in _items(stream):
            self.num_events += 1
            if isinstance(event, dict) and event.get("ph") == "X":
                self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        if name.startswith("ProfilerStep"):
            self.steps.add(name)
        on_gpu = category in GPU_CATEGORIES
        if not on_gpu and not (category in CPU_CATEGORIES and _is_timed_on_cpu(category, name)):
            return
        start, length = event.get("ts"), event.get("dur")
        if not _is_time(start) or not _is_time(length) or length < 0:
            self.num_damaged += 1
            return
        if self.base_us is None:
            self.base_us = start
        since_us = start - self.base_us  # before the length is added, which would lose its fractions next to the microseconds since 1970
        rows = self.rows.setdefault((on_gpu, str(event.get("pid")), str(event.get("tid"))), _Rows())
        rows.start_us.append(since_us)
        rows.end_us.append(since_us + length)
        rows.name.append(self.names.setdefault(name, len(self.names)))

    def trace(self) -> ChromeTrace:
        """What was read, in seconds since the first event."""
        on_gpu = any(key[0] for key in self.rows)
        rows = {(process, stream): rows for (gpu, process, stream), rows in self.rows.items() if gpu == on_gpu}
        if not rows and self.num_damaged:
            what = f"none of the trace's {self.num_damaged:,} kernels and operators has a start and a length in microseconds"
            raise InputError(what, where=str(self.path), fix="export the profile again with export_chrome_trace")
        if not rows:
            fix = "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and export_chrome_trace"
            raise InputError(f"no kernel and no operator among the trace's {self.num_events:,} events", where=str(self.path), fix=fix)
        if self.num_damaged:
            self.notes.append(f"{self.num_damaged:,} events have no start or no length, and are left out.")
        names = tuple(self.names)
        kinds = np.array([kind_of(name, on_gpu) for name in names], dtype=np.int8)
        first_us = min(min(one.start_us) for one in rows.values())
        lanes = (_lane(process, stream, one, first_us, kinds) for (process, stream), one in sorted(rows.items()))
        return ChromeTrace(
            path=self.path,
            rank=self.rank,
            on_gpu=on_gpu,
            names=names,
            lanes=tuple(lanes),
            num_steps=len(self.steps),
            num_events=self.num_events,
            notes=tuple(self.notes),
        )

    def _no_trace(self, why: str) -> InputError:
        return InputError(
            f"this is not a Chrome trace: {why}",
            where=str(self.path),
            fix="give a run's folder, or a file that torch.profiler's export_chrome_trace wrote",
        )


def _items(stream: JsonStream) -> Iterator[Any]:
    """The items of a list. A list may end with the file: writers of bare lists may leave the bracket out."""
    stream.skip("[")
    while not stream.skip("]"):
        yield stream.value()
        if not stream.skip(",") and stream.peek() != "]":
            if not stream.peek():
                raise _End
            raise ValueError("a comma is missing between two events")


def _lane(process: str, stream: str, rows: _Rows, first_us: float, kinds: NDArray[np.int8]) -> Lane:
    start_us, end_us = np.frombuffer(rows.start_us), np.frombuffer(rows.end_us)
    name = np.frombuffer(rows.name, dtype=np.int64)
    return Lane(process, stream, (start_us - first_us) * MICROSECOND, (end_us - first_us) * MICROSECOND, kinds[name], name)


def _is_time(value: Any) -> TypeGuard[float]:
    """Whether a value can be microseconds: a number must be small enough to distinguish one microsecond from the next."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST_US < value < LARGEST_US


def _is_timed_on_cpu(category: str, name: str) -> bool:
    """Whether a CPU event is work of its own: a collective, or an operator that contains no wait."""
    if name.startswith(CPU_COMMUNICATION):
        return True
    return category == "cpu_op" and "::" in name and not name.startswith(CPU_WRAPPERS)


def kind_of(name: str, on_gpu: bool) -> Kind:
    """The kind of an event of that name; for GPUs as HolisticTraceAnalysis classifies them (its `get_kernel_type`)."""
    if not on_gpu:
        return Kind.COMMUNICATION if name.startswith(CPU_COMMUNICATION) else Kind.COMPUTE
    if name.startswith(GPU_COMMUNICATION):
        return Kind.COMMUNICATION
    if name.startswith(("Memcpy", "Memset", "dma")):
        return Kind.MEMORY
    return Kind.OTHER if "Memcpy" in name or "Sync" in name else Kind.COMPUTE
