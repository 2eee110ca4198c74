"""Short texts between ranks, over the job's store: what one leaves all read, and a store that has gone away raises nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from meshwright.train.checkpoint.notices import NoNotices, StoreNotices
from meshwright.train.sealed import SealedStore


@pytest.fixture
def store() -> Iterator[dist.TCPStore]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_what_one_rank_leaves_the_others_read(store: dist.TCPStore) -> None:
    writer, reader = StoreNotices(SealedStore(store)), StoreNotices(SealedStore(store))
    assert reader.read("step-3/failed") is None
    writer.post("step-3/failed", "rank 1: the disk is full: naïve")
    assert writer.read("step-3/failed") == "rank 1: the disk is full: naïve"  # answered after what it sent before
    assert reader.read("step-3/failed") == "rank 1: the disk is full: naïve"
    writer.post("step-3/failed", "later")  # the last word counts
    assert writer.read("step-3/failed") == reader.read("step-3/failed") == "later" and reader.read("step-4/failed") is None


def test_notices_are_apart_from_what_else_is_in_the_store(store: dist.TCPStore) -> None:
    store.set("name", "of another part")
    notices = StoreNotices(SealedStore(store))
    assert notices.read("name") is None
    notices.post("name", "ours")
    assert store.get("name") == b"of another part"


def test_what_a_stranger_writes_is_no_notice(store: dist.TCPStore) -> None:
    store.set("saves/step-3/failed", "the disk of rank 1 is full")
    assert StoreNotices(SealedStore(store, b"the secret of this job")).read("step-3/failed") is None


def test_bytes_that_are_no_text_are_read_all_the_same(store: dist.TCPStore) -> None:
    SealedStore(store).apart("saves", 5.0).set("name", b"\xff!")
    assert StoreNotices(SealedStore(store)).read("name") == "\ufffd!"


def test_a_store_that_has_gone_away_says_nothing_and_raises_nothing() -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("Connection reset by peer")

    class Gone(StoreNotices):
        def __init__(self) -> None:
            self._store = SimpleNamespace(set=gone, check=gone, get=gone)  # type: ignore[assignment]

    Gone().post("name", "text")
    assert Gone().read("name") is None


def test_without_a_store_nothing_is_heard() -> None:
    notices = NoNotices()
    notices.post("name", "text")
    assert notices.read("name") is None
