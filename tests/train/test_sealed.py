"""Control values that only the ranks of a job can write and read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.sealed import Forged, SealedStore, is_proven, proof, read_secret

SECRET = b"0123456789abcdef"


@given(st.text(), st.binary())
def test_what_is_written_is_read(key: str, value: bytes) -> None:
    store = SealedStore(dist.HashStore(), SECRET, "start")
    store.set(key, value)
    assert store.get(key) == value and store.multi_get([key]) == [value] and store.check([key])


def test_a_value_is_hidden_and_changes_with_its_key() -> None:
    raw = dist.HashStore()
    store = SealedStore(raw, SECRET, "start")
    store.set("a", "go on from here")
    store.set("b", "go on from here")
    assert b"here" not in raw.get("a") and raw.get("a") != raw.get("b")


@pytest.mark.parametrize(
    "forger",
    [
        lambda raw: raw.set("key", "load /home/eve/weights"),
        lambda raw: raw.set("key", ""),
        lambda raw: SealedStore(raw, b"another secret 16", "start").set("key", "x"),
        lambda raw: SealedStore(raw, SECRET, "an earlier start").set("key", "x"),
        lambda raw: (SealedStore(raw, SECRET, "start").set("other", "x"), raw.set("key", raw.get("other"))),
    ],
    ids=["plain", "empty", "another secret", "another start", "another key"],
)
def test_a_value_of_somebody_else_is_refused(forger) -> None:  # type: ignore[no-untyped-def]
    raw = dist.HashStore()
    store = SealedStore(raw, SECRET, "start")
    store.set("key", "right")
    forger(raw)
    with pytest.raises(Forged, match="does not have the secret of the job"):
        store.get("key")
    assert store.multi_get(["key"]) == [None]


def test_any_flipped_bit_is_noticed() -> None:
    raw = dist.HashStore()
    store = SealedStore(raw, SECRET)
    store.set("key", "right")
    sealed = raw.get("key")
    for position in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[position // 8] ^= 1 << position % 8
        raw.set("key", bytes(flipped))  # type: ignore[arg-type]
        assert store.multi_get(["key"]) == [None]


def test_a_value_is_replaced_only_where_it_is_as_expected() -> None:
    store = SealedStore(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), SECRET)
    assert store.compare_set("reader", "", "3 1") == b"3 1"  # it was not there
    assert store.compare_set("reader", "2 1", "4 1") == b"3 1"
    assert store.compare_set("reader", "3 1", "4 1") == b"4 1" and store.get("reader") == b"4 1"
    store.set("reader", "")
    assert store.compare_set("reader", "", "5 1") == b"5 1"


def test_a_store_apart_has_its_own_prefix() -> None:
    raw = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = SealedStore(raw, SECRET)
    apart = store.apart("watch", 5.0)
    apart.set("a", "b")
    assert apart.get("a") == b"b" and raw.check(["watch/a"]) and not store.check(["a"])
    with pytest.raises(Forged):
        store.get("watch/a")  # it is bound to its prefix


def test_waiting_ends_after_its_time() -> None:
    with pytest.raises(RuntimeError):
        SealedStore(dist.HashStore()).wait(["a"], timedelta(seconds=0.05))


def test_a_proof_is_for_its_parts_only() -> None:
    given_ = proof(SECRET, "greeting", 3, 8, "word")
    assert is_proven(given_, SECRET, "greeting", 3, 8, "word")
    for parts in (("greeting", 3, 8, "other"), ("greeting", 38, "", "word"), ("welcome", 3, 8, "word"), ("greeting", 3, 8)):
        assert not is_proven(given_, SECRET, *parts)
    assert not is_proven(given_, b"", "greeting", 3, 8, "word") and not is_proven("\u00e9", SECRET, "a")


def test_a_secret_is_read_from_a_file_of_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    assert read_secret(path) == SECRET


@pytest.mark.parametrize(
    "content, mode, what",
    [
        (SECRET, 0o640, r"others may read or change the secret \(mode 640\)"),
        (SECRET, 0o602, "others may read or change"),
        (b"short", 0o600, "the secret has 5 bytes"),
        (b"a" * 5000, 0o600, "the secret has 4097 bytes"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes, mode: int, what: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(InputError, match=what):
        read_secret(path)


def test_a_secret_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the secret of the job"):
        read_secret(tmp_path / "none")
    with pytest.raises(InputError, match="the secret is not in a plain file"):
        read_secret(tmp_path)
