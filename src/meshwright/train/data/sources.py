"""Documents from text files, JSON lines and Parquet, piece by piece, so that files may be larger than memory.

A text file is one document. A long document comes in pieces, cut before white space that follows a letter or digit: every byte-level BPE
ends a token there. Each piece says where to continue, so that an interrupted build can be continued.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from meshwright.errors import InputError

Format = Literal["text", "jsonl", "parquet"]
Report = Callable[[int], None]  # bytes read since the last call

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 256 << 20  # a line is parsed at once
MAX_RUN_BYTES = 16 << 20  # text without a place to cut is not text
ROWS_AT_ONCE = 256
CUT = re.compile(r"(?s:.*)[^\W_](?=[ \t\r\n])")  # up to the last letter or digit before white space
JSONL_ENDINGS = (".jsonl", ".ndjson")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file with documents in it."""

    name: str  # its name in the manifest
    path: Path
    format: Format
    compression: str = ""
    stamp: tuple[int, int]  # size and modification time when it was found

    def check_unchanged(self) -> None:
        """Raise an error if the file has changed since it was found."""
        if _stamp(self.path) != self.stamp:
            raise InputError("the file was changed while it was read", where=self.name, fix="build again once nothing writes to it")


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """What a source contains, as written in the manifest."""

    name: str
    format: Format
    num_bytes: int
    num_documents: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has been read: bytes after decompression, or rows of Parquet; lines; whole documents."""

    offset: int = 0
    line: int = 0
    num_documents: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of one. `position` is where to continue; None if one cannot start there."""

    text: str
    num_bytes: int
    ends_document: bool
    position: Position | None


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """The named files, and all files below the named folders in the order of their names, without hidden ones."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _files_below(path)
            if not inside:
                raise InputError("the folder holds no files", where=str(path), fix="name a folder with text, JSONL or Parquet files")
            found += inside
        else:
            found.append(path)
    if not found:
        raise InputError("no files to build from", fix="name text, JSONL or Parquet files, or folders of them")
    for one, other in pairwise(sorted(path.resolve() for path in found)):
        if one == other:
            raise InputError("the same file is named twice", where=str(one), fix="name it once")
    return [source_of(path) for path in found]


def _files_below(folder: Path) -> list[Path]:
    below = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = (path for path in below if not any(part.startswith(".") for part in path.parts))
    return [folder / path for path in sorted(visible, key=lambda path: path.as_posix())]


def source_of(path: Path, name: str = "") -> Source:
    """The file as a source; its format follows from the ending of its name."""
    if not path.is_file():
        what = "not a regular file" if path.exists() else "no such file"
        raise InputError(f"{what}: {path.name}", where=str(path), fix="name text, JSONL or Parquet files, or folders of them")
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    ending = (path.with_suffix("") if compression else path).suffix.lower()
    if compression and ending not in JSONL_ENDINGS:
        raise InputError(f"a compressed file must hold JSON lines: {path.name}", where=str(path), fix="unpack it, or name it .jsonl.gz")
    form: Format = "jsonl" if ending in JSONL_ENDINGS else "parquet" if ending == ".parquet" else "text"
    return Source(name=name or path.as_posix(), path=path, format=form, compression=compression, stamp=_stamp(path))


def scan(source: Source, text_key: str, report: Report = lambda num_bytes: None) -> SourceRecord:
    """Size, SHA-256 and number of documents of a source; it is read once, or twice if it is compressed."""
    digest, num_bytes, lines, characters = hashlib.sha256(), 0, _LineCount(), _Utf8(source)
    with open(source.path, "rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            num_bytes += len(block)
            if source.format == "jsonl" and not source.compression:
                lines.add(block)
            if source.format == "text":
                characters.check(block)
            report(len(block))
    characters.check(b"", last=True)
    record = SourceRecord(
        name=source.name,
        format=source.format,
        num_bytes=num_bytes,
        num_documents=_num_documents(source, text_key, lines),
        sha256=digest.hexdigest(),
    )
    if record.num_documents == 0:
        raise InputError("the file holds no document", where=source.name, fix="leave it out, or check how it was made")
    return record


class _Utf8:
    """Raises an error at bytes that are not UTF-8, so that a file of another kind is refused before hours of work."""

    def __init__(self, source: Source) -> None:
        self.source, self.offset, self.tail = source, 0, b""

    def check(self, block: bytes, last: bool = False) -> None:
        block = self.tail + block
        used = len(_decoded(self.source, block, self.offset, last).encode())
        self.offset, self.tail = self.offset + used, block[used:]


class _LineCount:
    """Counts lines that are not blank, block by block."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.tail_has_text = False

    def add(self, block: bytes) -> None:
        first, *others = block.split(b"\n")
        texts = [self.tail_has_text or bool(first.strip()), *(bool(line.strip()) for line in others)]
        self.num_lines += sum(texts[:-1])
        self.tail_has_text = texts[-1]

    def total(self) -> int:
        return self.num_lines + self.tail_has_text


def _num_documents(source: Source, text_key: str, lines: _LineCount) -> int:
    if source.format == "text":
        return 1
    if source.format == "parquet":
        return int(_parquet(source, text_key).metadata.num_rows)
    if source.compression:
        with _unpacked(source) as file:
            while block := _read(source, file.read, READ_BYTES):
                lines.add(block)
    return lines.total()


def pieces(source: Source, text_key: str, start: Position, piece_bytes: int) -> Iterator[Piece]:
    """The documents from `start` on; those longer than `piece_bytes` in pieces of about this size."""
    if source.format == "text":
        return _text_pieces(source, start, piece_bytes)
    if source.format == "jsonl":
        return _jsonl_pieces(source, text_key, start, piece_bytes)
    return _parquet_pieces(source, text_key, start, piece_bytes)


def _text_pieces(source: Source, start: Position, piece_bytes: int) -> Iterator[Piece]:
    with open(source.path, "rb") as file:
        file.seek(start.offset)
        offset, block, wanted = start.offset, b"", piece_bytes
        while True:
            block += file.read(wanted - len(block))  # so that pieces are the same for any starting point
            last = len(block) < wanted
            text = _decoded(source, block, offset, last)
            if not last:
                found = CUT.match(text)
                if found is None:
                    _check_run(source.name, len(block))
                    wanted += piece_bytes
                    continue
                text = found.group()
            used = len(text.encode())
            offset, block, wanted = offset + used, block[used:], piece_bytes
            yield Piece(text, used, last, Position(offset, 0, int(last)))
            if last:
                return


def _decoded(source: Source, block: bytes, offset: int, last: bool) -> str:
    """The block as text, without up to three bytes of a character that continues in the next block."""
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        if not last and error.reason == "unexpected end of data":
            return block[: error.start].decode()
        raise InputError(
            f"byte {offset + error.start} is not UTF-8 ({error.reason})",
            where=source.name,
            fix="convert the file, for example with iconv -f LATIN1 -t UTF-8",
        ) from None


def _check_run(where: str, num_bytes: int) -> None:
    if num_bytes >= MAX_RUN_BYTES:
        what = f"no white space behind a letter or digit in {num_bytes >> 20} MiB: this is hardly text"
        raise InputError(what, where=where, fix="leave it out, or break it into documents")


def _cut(text: str, where: str, piece_bytes: int, after: Position) -> Iterator[Piece]:
    """A document in memory, in pieces; one can continue only at its end."""
    start, size = 0, piece_bytes
    while len(text) - start > size:
        found = CUT.match(text, start, start + size)
        if found is None:
            _check_run(where, size)
            size *= 2
            continue
        yield Piece(found.group(), len(found.group().encode()), False, None)
        start, size = found.end(), piece_bytes
    yield Piece(text[start:], len(text[start:].encode()), True, after)


def _jsonl_pieces(source: Source, text_key: str, start: Position, piece_bytes: int) -> Iterator[Piece]:
    with _unpacked(source) as file:
        _skip(source, file, start.offset)
        offset, line_number, num_documents = start.offset, start.line, start.num_documents
        while line := _read(source, file.readline, MAX_LINE_BYTES + 1):
            offset, line_number = offset + len(line), line_number + 1
            where = f"line {line_number} of {source.name}"
            if len(line) > MAX_LINE_BYTES:
                raise InputError(f"a line of more than {MAX_LINE_BYTES >> 20} MiB", where=where, fix="cut the document into several")
            if not line.strip():
                continue
            num_documents += 1
            yield from _cut(_text_of_line(line, text_key, where), where, piece_bytes, Position(offset, line_number, num_documents))


def json_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """Every line of a JSONL file that is not blank, with its number."""
    with _unpacked(source) as file:
        number = 0
        while line := _read(source, file.readline, MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                where = f"line {number} of {source.name}"
                raise InputError(f"a line of more than {MAX_LINE_BYTES >> 20} MiB", where=where, fix="cut the document into several")
            if line.strip():
                yield number, line


def parquet_rows(source: Source) -> Iterator[dict[str, Any]]:
    """Every row of a Parquet file, with all its columns."""
    import pyarrow as pa

    with _opened_parquet(source) as file:
        try:
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"cannot read the rows: {error}", where=source.name, fix="fetch or write the file again") from None


def _text_of_line(line: bytes, text_key: str, where: str) -> str:
    fix = f'write each line as {{"{text_key}": "..."}} in UTF-8, or name the key with --text-key'
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a line of JSON: {error}", where=where, fix=fix) from None
    if not isinstance(value, dict) or text_key not in value:
        held = f"its keys are {', '.join(map(repr, value))}" if isinstance(value, dict) else f"it is a {type(value).__name__}"
        raise InputError(f"the line has no key {text_key!r}: {held}", where=where, fix=fix)
    return _checked_text(value[text_key], where)


def _checked_text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InputError(
            f"the text is {text!r:.60}, of type {type(text).__name__}", where=where, fix="give text, or leave the document out"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"character {error.start} of the text is half a surrogate pair"
            raise InputError(what, where=where, fix="write whole characters; U+FFFD stands for what is lost") from None
    return text


def _unpacked(source: Source) -> BinaryIO:
    if source.compression == "gzip":
        return cast(BinaryIO, gzip.open(source.path, "rb"))
    if source.compression == "zstd":
        import pyarrow as pa

        return cast(BinaryIO, io.BufferedReader(pa.input_stream(os.fspath(source.path), compression="zstd"), READ_BYTES))
    return open(source.path, "rb", buffering=READ_BYTES)


def _read(source: Source, read: Callable[[int], bytes], num_bytes: int) -> bytes:
    try:
        return read(num_bytes)
    except (EOFError, zlib.error, OSError) as error:
        if not source.compression:
            raise
        raise InputError(f"the file is damaged: {error}", where=source.name, fix="fetch or compress it again") from None


def _skip(source: Source, file: BinaryIO, num_bytes: int) -> None:
    if not source.compression:
        file.seek(num_bytes)
        return
    while num_bytes > 0:
        num_bytes -= len(_read(source, file.read, min(num_bytes, READ_BYTES)))


def _opened_parquet(source: Source) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source.path, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot read the Parquet file: {error}", where=source.name, fix="fetch or write it again") from None


def _parquet(source: Source, text_key: str) -> Any:
    """The open Parquet file, with a column that contains text."""
    import pyarrow as pa

    file = _opened_parquet(source)
    names = file.schema_arrow.names
    if text_key not in names:
        fix = f"name the column with --text-key: {', '.join(names)}"
        raise InputError(f"no column {text_key!r}", where=source.name, fix=fix)
    kind = file.schema_arrow.field(text_key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"column {text_key!r} holds {kind}, not text", where=source.name, fix="choose another with --text-key")
    return file


def _parquet_pieces(source: Source, text_key: str, start: Position, piece_bytes: int) -> Iterator[Piece]:
    import pyarrow as pa

    with _parquet(source, text_key) as file:
        row = 0
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            if row + num_rows <= start.offset:
                row += num_rows
                continue
            try:
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[text_key], use_threads=False):
                    for text in batch.column(0).to_pylist():
                        row += 1
                        if row > start.offset:
                            where = f"row {row} of {source.name}"
                            yield from _cut(_checked_text(text, where), where, piece_bytes, Position(row, 0, row))
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"cannot read row group {group}: {error}", where=source.name, fix="fetch or write it again") from None
