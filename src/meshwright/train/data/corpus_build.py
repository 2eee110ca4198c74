"""Makes a corpus from text: scans the sources, gets a vocabulary, tokenises, and writes a manifest.

A build may be killed at any moment. Token and index files only grow. Every few megabytes they are synced, and a line of the journal says
how long they are and where to continue reading. The next build with the same arguments cuts the files back to that line and continues; the
result is identical, byte for byte, to that of an uninterrupted build. The manifest is written last, by a rename: a folder with a manifest
is finished.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.files import read_bytes, replace_file
from meshwright.train.data.corpus import (
    INDEX_DTYPE,
    MANIFEST,
    SPLITS,
    BuildPlan,
    Corpus,
    FileRecord,
    Manifest,
    SplitName,
    SplitRecord,
    read_manifest,
    sha256_of,
    token_dtype,
)
from meshwright.train.data.permutation import key_of, mixed
from meshwright.train.data.sources import MAX_RUN_BYTES, Piece, Position, Source, SourceRecord, pieces, scan
from meshwright.train.data.tokenizer import END_OF_DOCUMENT, Tokenizer, read_tokenizer, tokenizer_of, train_tokenizer, trained_size
from meshwright.train.data.tokenizer import FILE_NAME as TOKENIZER

PLAN = "build.json"  # what an unfinished build is made from
JOURNAL = "journal.jsonl"
LOCK = ".lock"
VALID_FRACTION = 0.01

PIECE_BYTES = 256 << 10  # the unit of work of one thread
BATCH_BYTES = 2 << 20  # tokenised at once; an encoded token needs about 100 bytes until it is written
BATCH_PIECES = 16 << 10  # limits the number of documents without text
COMMIT_BYTES = 16 << 20  # text between two lines of the journal
SAMPLE_BYTES = 16 << 20  # limit on the memory for the text with which a vocabulary is trained
NUMBERS_AT_ONCE = 1 << 20  # documents whose hash is taken at once

Report = Callable[[str, int, int], None]  # what is done, how many bytes, and of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What determines a corpus besides its sources."""

    tokenizer: str  # a path, or `train:N`
    seed: int = 0
    valid_fraction: float = VALID_FRACTION  # of the documents; above 0 at least one document is used
    valid_documents: int | None = None  # in place of a fraction
    text_key: str = "text"
    end_of_document: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.valid_fraction < 1:
            raise InputError(
                f"{self.valid_fraction} is not a share of the documents", where="--valid-fraction", fix="choose from 0 up to 1"
            )
        if self.valid_documents is not None and self.valid_documents < 0:
            raise InputError(
                f"{self.valid_documents} documents cannot be kept for validation", where="--valid-documents", fix="choose 0 or more"
            )

    def num_valid_documents(self, num_documents: int) -> int:
        """How many of so many documents to use for validation."""
        wanted = self.valid_documents
        if wanted is None:
            wanted = max(1, round(self.valid_fraction * num_documents)) if self.valid_fraction else 0
        if wanted >= num_documents:
            what = f"holding {wanted} of {num_documents} documents for validation leaves none to train on"
            fix = "give more documents (a text file is one; so is a line of JSONL), or --valid-fraction 0 for no validation"
            raise InputError(what, where="the sources", fix=fix)
        return wanted


def build_corpus(
    sources: Sequence[Source],
    out: Path,
    options: BuildOptions,
    report: Report = lambda what, done, total: None,
    *,
    commit_bytes: int = COMMIT_BYTES,
    lock_timeout_s: float = 0.0,
) -> Corpus:
    """The corpus of these sources in the folder `out`: built, continued after an interrupted build, or found finished."""
    given = None if trained_size(options.tokenizer) else read_tokenizer(Path(options.tokenizer), options.end_of_document)
    plan = _plan(_scanned(sources, options.text_key, report), options, given)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out, lock_timeout_s):
        _check_folder(out, plan)
        if not (out / MANIFEST).exists():
            _write_whole(out / PLAN, _json(asdict(plan)))
            tokenizer = _tokenizer(out, plan, sources, given, report)
            state = _tokenise(out, plan, sources, tokenizer, report, commit_bytes)
            _finish(out, plan, tokenizer, state)
        for name in (PLAN, JOURNAL):  # also those that a kill after the last rename left
            (out / name).unlink(missing_ok=True)
        return Corpus.open(out)


@contextmanager
def _locked(out: Path, timeout_s: float) -> Iterator[None]:
    from filelock import FileLock, Timeout  # comes with torch

    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout:
        raise InputError("another build is running in this folder", where=str(out), fix="wait for it, or choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def _scanned(sources: Sequence[Source], text_key: str, report: Report) -> list[SourceRecord]:
    total = sum(source.stamp[0] for source in sources)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report("hashing sources", done, total)

    return [scan(source, text_key, advance) for source in sources]


def _plan(records: Sequence[SourceRecord], options: BuildOptions, given: Tokenizer | None) -> BuildPlan:
    return BuildPlan(
        tokenizer=options.tokenizer if given is None else given.digest,
        end_of_document=END_OF_DOCUMENT if given is None else given.end_of_document_token,
        seed=options.seed,
        num_valid_documents=options.num_valid_documents(sum(record.num_documents for record in records)),
        text_key=options.text_key,
        sources=tuple(records),
    )


def _check_folder(out: Path, plan: BuildPlan) -> None:
    """Raise an error if the folder holds another corpus, an unfinished build of another, or something else."""
    if (out / MANIFEST).exists():
        _check_same(out / MANIFEST, asdict(read_manifest(out)[0].build), plan)
    elif (out / PLAN).exists():
        if (out / JOURNAL).exists() and (out / JOURNAL).stat().st_size:
            _check_same(out / PLAN, _read_plan(out / PLAN), plan)
        else:  # nothing was tokenised yet, so nothing can be mixed up; but a vocabulary may come from other sources
            (out / TOKENIZER).unlink(missing_ok=True)
    else:
        others = sorted(path.name for path in out.iterdir() if path.name != LOCK and not path.name.endswith(".new"))
        if others:
            what = f"the folder is not empty and holds no corpus: {', '.join(others[:3])}"
            raise InputError(what, where=str(out), fix="choose another --out")


def _read_plan(path: Path) -> dict[str, Any]:
    from pydantic import TypeAdapter, ValidationError

    try:
        return asdict(TypeAdapter(BuildPlan).validate_json(read_bytes(path)))
    except ValidationError:
        raise InputError("the plan of the unfinished build is damaged", where=str(path), fix="delete the folder and build again") from None


def _check_same(path: Path, before: dict[str, Any], plan: BuildPlan) -> None:
    there, here = (json.loads(json.dumps(value)) for value in (before, asdict(plan)))
    differences = [
        f"{key} {there.get(key)!r} there, {here[key]!r} here" for key in here if key != "sources" and there.get(key) != here[key]
    ]
    by_name = {source["name"]: source for source in there.get("sources", [])}
    names = [source["name"] for source in here["sources"]]
    differences += [f"source {name} is new" for name in names if name not in by_name]
    differences += [f"source {name} is missing" for name in by_name if name not in names]
    differences += [f"source {one['name']} has changed" for one in here["sources"] if by_name.get(one["name"], one) != one]
    if not differences and there != here:
        differences = ["the order of the sources"]
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        what = f"the folder holds the build of another corpus: {'; '.join(differences[:3])}{more}"
        raise InputError(what, where=str(path), fix="give the same arguments again, choose another --out, or delete the folder")


def _tokenizer(out: Path, plan: BuildPlan, sources: Sequence[Source], given: Tokenizer | None, report: Report) -> Tokenizer:
    """The vocabulary, which is also written to the folder. One that an earlier build trained is read, not trained again."""
    path = out / TOKENIZER
    if given is None and path.exists():
        return tokenizer_of(read_bytes(path), where=str(path), end_of_document=plan.end_of_document)
    if given is None:
        vocab_size = trained_size(plan.tokenizer)
        assert vocab_size is not None
        sample = _sample(sources, plan, report)
        report("training the vocabulary", 0, sum(map(len, sample)))  # one call of the library, without progress
        given = train_tokenizer(sample, vocab_size)
    _write_whole(path, given.content)
    return given


def _sample(sources: Sequence[Source], plan: BuildPlan, report: Report) -> list[str]:
    """Pieces of the text to train a vocabulary on: those with the smallest hashes, as many as fit into SAMPLE_BYTES, in their order."""
    key = key_of("vocabulary sample", plan.seed)
    heap: list[tuple[int, int, str]] = []  # minus the hash, number, text
    held_bytes = 0
    for number, read in enumerate(_reads(sources, plan, _Place(), PIECE_BYTES)):
        heapq.heappush(heap, (-int(mixed(number, key)[0]), number, read.piece.text))
        held_bytes += _held_bytes(read.piece.text)
        while held_bytes > SAMPLE_BYTES and len(heap) > 1:
            held_bytes -= _held_bytes(heapq.heappop(heap)[2])
        report("choosing text for the vocabulary", read.done_bytes, plan.num_source_bytes)
    return [text for *_, text in sorted(heap, key=lambda one: one[1])]


def _held_bytes(text: str) -> int:
    """Approximate memory of a text of the sample, so that very many short texts do not fill it either."""
    return len(text) + 256


START = Position()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to continue: a source, and a position in it."""

    source: int = 0
    position: Position = START


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A piece, the bytes of sources read so far, and where to continue; None if one cannot continue there."""

    piece: Piece
    done_bytes: int
    next: _Place | None


def _reads(sources: Sequence[Source], plan: BuildPlan, start: _Place, piece_bytes: int) -> Iterator[_Read]:
    """Every piece of all sources from a place on. A source that changes while it is read is an error."""
    before_bytes = _bytes_before(plan, _Place(start.source))
    for number in range(start.source, len(sources)):
        source, record = sources[number], plan.sources[number]
        position = start.position if number == start.source else START
        for piece in pieces(source, plan.text_key, position, piece_bytes):
            position = piece.position or position
            at_end = position.num_documents == record.num_documents
            after = _Place(number + 1) if at_end else _Place(number, position)
            done_bytes = before_bytes + _done_bytes(record, position)
            yield _Read(piece=piece, done_bytes=done_bytes, next=after if piece.position else None)
        source.check_unchanged()
        before_bytes += record.num_bytes


def _bytes_before(plan: BuildPlan, place: _Place) -> int:
    """Bytes of sources before a place."""
    inside = _done_bytes(plan.sources[place.source], place.position) if place.source < len(plan.sources) else 0
    return sum(record.num_bytes for record in plan.sources[: place.source]) + inside


def _done_bytes(record: SourceRecord, position: Position) -> int:
    if record.format == "text":
        return position.offset
    return record.num_bytes * position.num_documents // record.num_documents  # the offset counts rows, or bytes after decompression


def valid_threshold(seed: int, num_documents: int, num_valid: int) -> int:
    """The hash below which a document is used for validation: that many documents have a smaller one."""
    if num_valid == 0:
        return 0
    smallest = np.empty(0, dtype=np.uint64)
    for start in range(0, num_documents, NUMBERS_AT_ONCE):
        fresh = document_hashes(seed, np.arange(start, min(start + NUMBERS_AT_ONCE, num_documents)))
        smallest = np.concatenate([smallest, fresh])
        if smallest.size > num_valid:
            smallest = np.partition(smallest, num_valid - 1)[:num_valid]
    return int(smallest.max()) + 1


def document_hashes(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hash of each document, which decides whether it is used for validation: a function of the seed and its number."""
    return mixed(numbers, key_of("validation documents", seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A line of the journal: where to continue, and how long the files are."""

    place: _Place
    splits: dict[SplitName, SplitRecord]
    max_token: int
    tokenizer_sha256: str


def _read_journal(path: Path, tokenizer: Tokenizer) -> _State:
    """The last complete line of the journal, or the state of a build that has not begun."""
    from pydantic import TypeAdapter, ValidationError

    nothing = {name: SplitRecord(num_tokens=0, num_documents=0) for name in SPLITS}
    begin = _State(place=_Place(), splits=nothing, max_token=0, tokenizer_sha256=tokenizer.digest)
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # text after the last newline was left incomplete by a kill
    try:
        state: _State = TypeAdapter(_State).validate_json(lines[-1]) if lines else begin
    except ValidationError:
        raise InputError("the journal is damaged", where=str(path), fix="delete the folder and build again") from None
    if state.tokenizer_sha256 != tokenizer.digest:
        where = str(path.with_name(TOKENIZER))
        raise InputError("the vocabulary was changed during the build", where=where, fix="delete the folder and build again")
    return state


class _SplitFiles:
    """The token and index file of a split while they grow."""

    def __init__(self, out: Path, name: SplitName, record: SplitRecord, dtype: np.dtype[Any]) -> None:
        self.num_tokens, self.num_documents = record.num_tokens, record.num_documents
        self.dtype = dtype
        self.tokens = _cut_back(out / f"{name}.tokens", record.num_tokens * dtype.itemsize)
        self.index = _cut_back(out / f"{name}.index", (record.num_documents + 1) * INDEX_DTYPE.itemsize if record.num_documents else 0)
        if not record.num_documents:
            self.index.write(np.zeros(1, dtype=INDEX_DTYPE).tobytes())

    def append(self, tokens: NDArray[np.int64], end: int | None) -> None:
        """Write tokens, and the end token at the end of a document."""
        self.tokens.write(tokens.astype(self.dtype).tobytes())
        self.num_tokens += tokens.size
        if end is not None:
            self.tokens.write(np.array(end, dtype=self.dtype).tobytes())
            self.num_tokens += 1
            self.num_documents += 1
            self.index.write(np.array(self.num_tokens, dtype=INDEX_DTYPE).tobytes())

    def record(self) -> SplitRecord:
        return SplitRecord(num_tokens=self.num_tokens, num_documents=self.num_documents)

    def sync(self) -> None:
        for file in (self.tokens, self.index):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self.tokens.close()
        self.index.close()


def _cut_back(path: Path, num_bytes: int) -> BinaryIO:
    """The file open at its end, cut back to the length in the journal."""
    file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 - the build closes it
    if file.seek(0, os.SEEK_END) < num_bytes:
        file.close()
        what = f"{path.name} is shorter than the {num_bytes} bytes that {JOURNAL} records"
        raise InputError(what, where=str(path), fix="delete the folder and build again")
    file.truncate(num_bytes)
    file.seek(num_bytes)
    return file


class _Writer:
    """Tokenises pieces in order and puts each document into its split."""

    def __init__(self, out: Path, plan: BuildPlan, tokenizer: Tokenizer, state: _State) -> None:
        dtype = np.dtype(token_dtype(tokenizer.vocab_size))
        self.files = {name: _SplitFiles(out, name, state.splits[name], dtype) for name in SPLITS}
        self.tokenizer = tokenizer
        self.max_token = state.max_token
        self.seed = plan.seed
        self.threshold = valid_threshold(plan.seed, plan.num_documents, plan.num_valid_documents)

    def write(self, batch: Sequence[Piece]) -> None:
        """Append the pieces; the first may continue a document from an earlier batch."""
        encoded = self.tokenizer.encode_batch([piece.text for piece in batch])
        numbers = sum(files.num_documents for files in self.files.values()) + np.cumsum([0, *(piece.ends_document for piece in batch[:-1])])
        held_apart = document_hashes(self.seed, numbers) < self.threshold
        for piece, tokens, apart in zip(batch, encoded, held_apart, strict=True):
            end = self.tokenizer.end_of_document if piece.ends_document else None
            self.files["valid" if apart else "train"].append(tokens, end)
            self.max_token = max(self.max_token, int(tokens.max(initial=0)), end or 0)

    def commit(self, journal: BinaryIO, place: _Place) -> None:
        """Sync the files, then write their lengths to the journal."""
        for files in self.files.values():
            files.sync()
        journal.write(_json(asdict(self.state(place)), indent=None))
        journal.flush()
        os.fsync(journal.fileno())

    def state(self, place: _Place) -> _State:
        splits = {name: files.record() for name, files in self.files.items()}
        return _State(place=place, splits=splits, max_token=self.max_token, tokenizer_sha256=self.tokenizer.digest)

    def close(self) -> None:
        for files in self.files.values():
            files.close()


def _tokenise(out: Path, plan: BuildPlan, sources: Sequence[Source], tokenizer: Tokenizer, report: Report, commit_bytes: int) -> _State:
    """Write tokens and indices from the end of the journal on; return the last state."""
    state = _read_journal(out / JOURNAL, tokenizer)
    writer = _Writer(out, plan, tokenizer, state)
    try:
        with open(out / JOURNAL, "r+b" if (out / JOURNAL).exists() else "w+b") as journal:
            _drop_torn_line(journal)
            _sync_folder(out)
            since_commit = 0
            report("tokenising", _bytes_before(plan, state.place), plan.num_source_bytes)
            for batch in _batches(_whole_or_clean(_reads(sources, plan, state.place, _piece_bytes(tokenizer)), tokenizer)):
                writer.write([read.piece for read in batch])
                since_commit += sum(read.piece.num_bytes for read in batch)
                place = batch[-1].next
                report("tokenising", batch[-1].done_bytes, plan.num_source_bytes)
                if place is not None and (since_commit >= commit_bytes or place.source == len(sources)):
                    writer.commit(journal, place)
                    since_commit = 0
        return writer.state(_Place(len(sources)))
    finally:
        writer.close()


def _drop_torn_line(journal: BinaryIO) -> None:
    """Cut the file at the end of its last complete line."""
    journal.truncate(journal.read().rfind(b"\n") + 1)
    journal.seek(0, os.SEEK_END)


def _batches(reads: Iterator[_Read]) -> Iterator[list[_Read]]:
    """The pieces in groups of about BATCH_BYTES."""
    batch: list[_Read] = []
    num_bytes = 0
    for read in reads:
        batch.append(read)
        num_bytes += read.piece.num_bytes
        if num_bytes >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _piece_bytes(tokenizer: Tokenizer) -> int:
    return PIECE_BYTES if tokenizer.cuts_cleanly else MAX_RUN_BYTES


def _whole_or_clean(reads: Iterator[_Read], tokenizer: Tokenizer) -> Iterator[_Read]:
    """The pieces in order; an error if a document is cut and the tokenizer would give other tokens for it."""
    for read in reads:
        if not read.piece.ends_document and not tokenizer.cuts_cleanly:
            what = f"a document of more than {MAX_RUN_BYTES >> 20} MiB, which this tokenizer must see whole"
            raise InputError(what, where="the sources", fix="break it into documents, or use a byte-level tokenizer")
        yield read


def _finish(out: Path, plan: BuildPlan, tokenizer: Tokenizer, state: _State) -> None:
    """Hash every file and write the manifest: after this the corpus is finished."""
    names = [TOKENIZER, *(f"{name}.{kind}" for name in SPLITS for kind in ("tokens", "index"))]
    files = {name: FileRecord(num_bytes=(out / name).stat().st_size, sha256=sha256_of(out / name)) for name in names}
    manifest = Manifest(
        vocab_size=tokenizer.vocab_size,
        token_dtype=token_dtype(tokenizer.vocab_size),
        end_of_document=tokenizer.end_of_document,
        max_token=state.max_token,
        tokenizer_sha256=tokenizer.digest,
        num_tokens=sum(split.num_tokens for split in state.splits.values()),
        num_documents=sum(split.num_documents for split in state.splits.values()),
        splits=state.splits,
        files=files,
        build=plan,
    )
    _write_whole(out / MANIFEST, _json(asdict(manifest)))


def _json(value: object, indent: int | None = 1) -> bytes:
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a kill or a power cut leaves either the old or the complete new one."""
    replace_file(path, content, f"{path.name}.new")
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
