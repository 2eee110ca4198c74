"""Sources: every format gives the same documents, in pieces that add up, from any place where one can start."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.data import sources
from meshwright.train.data.sources import Piece, Position, find_sources, pieces, scan, source_of

DOCUMENTS = ["One document.", "", "Zwei Zeilen,\nüber 漢字 🤖\n", "three " * 500, "\n \t", "last"]


def write_jsonl(path: Path, documents: list[str]) -> Path:
    content = b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in documents)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zst":
        content = pa.Codec("zstd").compress(content, asbytes=True)
    path.write_bytes(content)
    return path


def write_parquet(path: Path, documents: list[str], kind: pa.DataType | None = None) -> Path:
    table = pa.table({"id": range(len(documents)), "text": pa.array(documents, kind or pa.string())})
    pq.write_table(table, path, row_group_size=2)
    return path


def read(path: Path, start: Position = Position(), piece_bytes: int = 100) -> list[Piece]:  # noqa: B008
    return list(pieces(source_of(path), "text", start, piece_bytes))


def joined(found: list[Piece]) -> list[str]:
    """Whole documents from their pieces."""
    documents, text = [], ""
    for piece in found:
        text += piece.text
        if piece.ends_document:
            documents.append(text)
            text = ""
    assert text == ""
    return documents


@pytest.fixture(params=["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def file(request, tmp_path) -> Path:
    path = tmp_path / request.param
    return write_parquet(path, DOCUMENTS) if path.suffix == ".parquet" else write_jsonl(path, DOCUMENTS)


def test_every_format_gives_the_documents(file):
    assert joined(read(file)) == DOCUMENTS
    record = scan(source_of(file), "text")
    assert (record.num_documents, record.num_bytes) == (len(DOCUMENTS), file.stat().st_size)
    assert record.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_reading_on_from_any_place_gives_the_rest(file):
    found = read(file)
    for number, piece in enumerate(found):
        if piece.position is not None:
            assert read(file, piece.position) == found[number + 1 :]
    assert any(piece.position is None for piece in found)  # inside a long document one cannot start


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_other_columns_of_text(tmp_path, kind):
    assert joined(read(write_parquet(tmp_path / "a.parquet", DOCUMENTS, kind))) == DOCUMENTS


@settings(max_examples=200)
@given(st.text(alphabet=st.sampled_from("ab ß漢🤖\n.\r"), max_size=300), st.integers(8, 64))
def test_a_text_file_is_one_document_however_it_is_cut(tmp_path_factory, text, piece_bytes):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    found = read(path, piece_bytes=piece_bytes)
    assert joined(found) == [text]
    assert sum(piece.num_bytes for piece in found) == len(text.encode())
    for number, piece in enumerate(found[:-1]):
        assert piece.text[-1].isalnum() and found[number + 1].text[0] in " \t\r\n"
        assert read(path, piece.position, piece_bytes) == found[number + 1 :]


@given(st.text(alphabet=st.sampled_from("ab ß漢🤖\n."), max_size=300), st.integers(4, 64))
def test_a_long_document_of_jsonl_is_cut_and_whole(tmp_path_factory, text, piece_bytes):
    path = write_jsonl(tmp_path_factory.mktemp("lines") / "a.jsonl", [text, "x"])
    assert joined(read(path, piece_bytes=piece_bytes)) == [text, "x"]


def test_blank_lines_are_no_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"text": "a"}\n  \n{"text": "b"}\r\n\n{"text": "c"}')
    assert joined(read(path)) == ["a", "b", "c"]
    assert scan(source_of(path), "text").num_documents == 3
    assert [piece.position.line for piece in read(path)] == [2, 4, 6]


@given(st.lists(st.sampled_from([b"{}", b"", b" ", b"x" * 7, b"\r"]), max_size=20), st.integers(1, 9))
def test_lines_are_counted_across_blocks(lines, size):
    content = b"\n".join(lines)
    count = sources._LineCount()
    for start in range(0, len(content), size):
        count.add(content[start : start + size])
    assert count.total() == sum(bool(line.strip()) for line in lines)


def test_folders_are_read_in_the_order_of_names_without_hidden_files(tmp_path):
    for name in ["b/z.txt", "b/a.jsonl", "a.txt", ".hidden", ".git/x.txt", "b.txt"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    found = find_sources([tmp_path])
    assert [source.path.relative_to(tmp_path).as_posix() for source in found] == ["a.txt", "b.txt", "b/a.jsonl", "b/z.txt"]
    assert [source.format for source in found] == ["text", "text", "jsonl", "text"]


def refusal(path: Path, key: str = "text") -> InputError:
    with pytest.raises(InputError) as caught:
        source = source_of(path)
        scan(source, key)
        list(pieces(source, key, Position(), 100))
    return caught.value


@pytest.mark.parametrize(
    "line, what",
    [
        (b'{"text": "cut', "not a line of JSON"),
        (b'{"txt": "a"}', "no key 'text': its keys are 'txt'"),
        (b'["text"]', "no key 'text': it is a list"),
        (b'{"text": 5}', "the text is 5, of type int"),
        (b'{"text": null}', "the text is None"),
        (b'{"text": "\\ud800"}', "half a surrogate pair"),
        (b'{"text": "\xff"}', "not a line of JSON: 'utf-8'"),
        (b"[" * 100_000, "not a line of JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, what):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    error = refusal(path)
    assert what in error.what
    assert error.where == f"line 2 of {path}"
    assert error.fix


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("words über ".encode() * 50 + b"\xe9t\xe9")
    assert refusal(path).what.startswith("byte 600 is not UTF-8")
    path.write_bytes("cut in the middle of 漢".encode()[:-1])
    assert "byte 21 is not UTF-8 (unexpected end of data)" in refusal(path).what


@given(st.text(alphabet=st.sampled_from("aß漢🤖"), max_size=50), st.integers(1, 9))
def test_a_scan_reads_characters_across_blocks(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "READ_BYTES", size)
        assert scan(source_of(path), "text").num_bytes == len(text.encode())
        path.write_bytes(text.encode() + b"\xff")
        with pytest.raises(InputError, match=f"byte {len(text.encode())} is not UTF-8"):
            scan(source_of(path), "text")


def test_a_file_without_words_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_RUN_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_bytes(b"." * 5000)
    assert "hardly text" in refusal(path).what
    assert "hardly text" in refusal(write_jsonl(tmp_path / "a.jsonl", ["." * 5000])).what


def test_a_line_too_long_to_parse(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 1 << 20)
    assert refusal(write_jsonl(tmp_path / "a.jsonl", ["word " * 300_000])).what == "a line of more than 1 MiB"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_damaged_files_are_named(tmp_path, name):
    path = tmp_path / name
    whole = (write_parquet if path.suffix == ".parquet" else write_jsonl)(path, DOCUMENTS * 50).read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-3], b"no such magic" * 20):
        path.write_bytes(content)
        error = refusal(path)
        assert "damaged" in error.what or "cannot read" in error.what
        assert str(path) in error.where and error.fix


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_file_without_documents(tmp_path, name):
    assert refusal(write_jsonl(tmp_path / name, [])).what == "the file holds no document"


def test_columns_that_are_not_there_or_hold_no_text(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    assert refusal(path, "body").fix == "name the column with --text-key: id, text"
    assert refusal(path, "id").what == "column 'id' holds int64, not text"
    with_null = tmp_path / "null.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", None])}), with_null)
    assert refusal(with_null).where == f"row 2 of {with_null}"


def test_what_cannot_be_a_source(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    for paths, what in [
        ([tmp_path / "a.txt.gz"], "must hold JSON lines"),
        ([tmp_path / "missing.txt"], "no such file"),
        ([tmp_path / "empty"], "holds no files"),
        ([Path("/dev/null")], "not a regular file"),
        ([tmp_path / "a.txt", tmp_path / "empty" / ".." / "a.txt"], "named twice"),
        ([], "no files"),
    ]:
        with pytest.raises(InputError, match=what):
            find_sources(paths)
