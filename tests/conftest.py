"""What all tests share: no law is judged by the clock, which on a busy machine says nothing of the code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from meshwright.say.document import Document, Lines, Note, Pairs, Picture, Table, Text

sys.path.insert(0, str(Path(__file__).parent))  # tests in several folders use object_servers

from object_servers import azure, azurite_server, moto_server, proxy, s3  # noqa: F401 - fixtures

settings.register_profile("house", deadline=None)
settings.load_profile("house")

RACKS = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "--gpus", "256", "--set", "workload.global_batch=32")
RACKS_LAYOUT = "tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1,order=tp-cp-pp-dp"


@pytest.fixture(scope="session")
def racks_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a plan for 256 accelerators in racks."""
    from meshwright.cli.main import main

    path = tmp_path_factory.mktemp("plans") / "racks.json"
    assert main(["plan", *RACKS, "--layout", RACKS_LAYOUT, "--no-explain", "--keep", "1", "--out", str(path)]) == 0
    return path


def _example(word: str = "word") -> Document:
    """A document with every kind of block, and a word in each place where a name may stand."""
    return Document(
        kind="example",
        title=f"title {word}",
        blocks=(
            Table(f"table {word}", ("name", f"size {word}>"), (("one", f"1 {word}"), (f"two {word}", "2"))),
            Pairs(f"pairs {word}", (("key", f"value {word}", f"remark {word}"), ("other", "value", ""))),
            Text(f"a sentence, {word}."),
            Lines(f"lines {word}", ("tp=4,pp=8,vp=2,dp=16,mbs=1,zero=1,recompute=none", "  indented")),
            Note(f"a note, {word}."),
            Picture("<svg><title>a drawing</title></svg>"),
        ),
        values={"word": word, "count": 2, "unknown": float("nan")},
    )


def _texts(document: Document) -> Iterator[str]:
    """Everything that a document says, apart from its drawings."""
    for block in document.blocks:
        if isinstance(block, Text | Note):
            yield block.text
        elif isinstance(block, Lines):
            yield from (block.title, *block.lines)
        elif isinstance(block, Table | Pairs):
            columns = [column.removesuffix(">") for column in block.columns] if isinstance(block, Table) else []
            yield from (block.title, *columns, *(cell for row in block.rows for cell in row))


@pytest.fixture(scope="session")
def example() -> Callable[..., Document]:
    """Makes a document with every kind of block, and a word in each place where a name may stand."""
    return _example


@pytest.fixture(scope="session")
def texts() -> Callable[[Document], Iterator[str]]:
    """Finds everything that a document says, apart from its drawings."""
    return _texts
