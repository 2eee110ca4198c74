"""Data sets in tokens: what is cut is told, packing keeps every token once, and held-out samples are not trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chats import STYLES, write_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.data.tokenizer import read_tokenizer
from meshwright.train.tuning.dataset import Choices, DataSet, packed, prepare
from meshwright.train.tuning.marking import Marker
from meshwright.train.tuning.template import read_template


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Marker:
    folder = tmp_path_factory.mktemp("model")
    template, bos, eos = STYLES["chatml"]
    write_tokenizer(folder, template, bos, eos)
    tokenizer = read_tokenizer(folder)
    return Marker(tokenizer, read_template(folder, tokenizer.special_tokens, eos))


def written(folder: Path, count: int = 40, name: str = "data.jsonl") -> Path:
    rng = np.random.default_rng(3)
    rows = [
        {"instruction": f"Add {a} and {b}." + " please" * int(rng.integers(20)), "output": str(a + b)}
        for a, b in rng.integers(0, 99, (count, 2))
    ]
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained_tokens(data: DataSet) -> list[int]:
    """All labels of one epoch, sorted."""
    labels = data.train.batch(range(len(data.train))).labels
    return sorted(labels[labels != IGNORED_LABEL].tolist())


def test_packing_trains_on_the_same_tokens(tmp_path: Path, marker: Marker) -> None:
    path = written(tmp_path)
    choices = Choices(seq_len=160, seed=1)
    plain, together = prepare(path, marker, choices), prepare(path, marker, replace(choices, pack=True))
    assert len(together.train) < len(plain.train) == 38
    assert trained_tokens(plain) == trained_tokens(together)
    assert plain.train.num_trained == len(trained_tokens(plain))
    assert plain.digest != together.digest


def test_a_sample_is_a_document_of_its_own(tmp_path: Path, marker: Marker) -> None:
    data = prepare(written(tmp_path), marker, Choices(seq_len=128, pack=True))
    row = data.train.rows[0]
    batch = replace(data.train, seed=None).batch([0])
    lengths = [len(data.train.samples[i]) - 1 for i in row]
    assert np.bincount(batch.documents[0])[: len(row)].tolist() == lengths
    for number, start in enumerate(np.cumsum([0, *lengths[:-1]])):
        sample = data.train.samples[row[number]]
        assert batch.tokens[0, start : start + lengths[number]].tolist() == sample.tokens[:-1].tolist()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_every_sample_is_packed_once_and_fits(lengths: list[int]) -> None:
    rows = packed(lengths, 50)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 50 for row in rows)


def test_what_is_held_out_is_not_trained_on(tmp_path: Path, marker: Marker) -> None:
    data = prepare(written(tmp_path), marker, Choices(seed=5, valid_share=0.25))
    assert data.valid is not None
    places = [{sample.where for sample in part.samples} for part in (data.train, data.valid)]
    assert len(places[0]) == 30 and len(places[1]) == 10 and not places[0] & places[1]
    other = prepare(written(tmp_path), marker, Choices(seed=6, valid_share=0.25))
    assert other.valid is not None and {s.where for s in other.valid.samples} != places[1]
    own = prepare(written(tmp_path), marker, Choices(valid=written(tmp_path, 3, "held.jsonl")))
    assert own.valid is not None and len(own.train) == 40 and len(own.valid) == 3


def test_what_is_cut_is_told(tmp_path: Path, marker: Marker) -> None:
    path = written(tmp_path)
    whole = prepare(path, marker, Choices())
    assert not whole.losses.words(whole.train.seq_len)
    limit = 30
    cut = prepare(path, marker, Choices(seq_len=limit))
    assert cut.losses.num_silent > 0
    assert f"{cut.losses.num_silent} samples are left out because nothing in them is trained on" in cut.losses.words(limit)[-1]
    assert "beyond the limit of 30" in cut.losses.silent
    dropped = prepare(path, marker, Choices(seq_len=limit, too_long="drop"))
    assert dropped.losses.num_dropped > 0 and "are left out" in dropped.losses.words(limit)[0]
    with pytest.raises(InputError, match="tokens and the limit is 30") as found:
        prepare(path, marker, Choices(seq_len=limit, too_long="refuse"))
    assert "line " in found.value.where


def test_a_long_answer_loses_its_end(tmp_path: Path, marker: Marker) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completion": "word " * 200}), encoding="utf-8")
    data = prepare(path, marker, Choices(seq_len=50))
    assert data.losses.num_cut == 1 and len(data.train.samples[0]) == 50
    assert "1 samples are longer than 50 tokens and lose their end" in data.losses.words(50)[0]


def test_data_in_which_nothing_is_trained_on_is_refused(tmp_path: Path, marker: Marker) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}), encoding="utf-8")
    with pytest.raises(InputError, match=r"nothing in the data set is trained on; line 1 of .*: none of its \d+ tokens is the assistant's"):
        prepare(path, marker, Choices())


def test_losses_on_all_and_on_the_last_turn(tmp_path: Path, marker: Marker) -> None:
    turns = [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "one")]
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}), encoding="utf-8")
    counts = {loss: prepare(path, replace(marker, loss=loss), Choices()).train.num_trained for loss in ("assistant", "last", "all")}
    tokens = len(prepare(path, marker, Choices()).train.samples[0])
    assert counts["last"] * 2 == counts["assistant"] < counts["all"] == tokens - 1


def test_sequences_longer_than_the_model_reads_are_refused(marker: Marker) -> None:
    with pytest.raises(InputError, match="longer than the 64 that the model can read"):
        Choices(seq_len=65, most_tokens=64)
    for wrong in ({"too_long": "no"}, {"valid_share": 1.0}):
        with pytest.raises(InputError):
            Choices(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="loss cannot be on 'user'"):
        replace(marker, loss="user")
