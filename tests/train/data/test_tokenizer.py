"""Tokenizers: trained or read, they give text back as it was, and refuse what they cannot use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.train.data.tokenizer import END_OF_DOCUMENT, Tokenizer, read_tokenizer, tokenizer_of, train_tokenizer, trained_size

TEXTS = [f"def function_{number}(argument: int) -> int:\n    return argument + {number}\n" for number in range(200)]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(TEXTS, 320)


def saved(tokenizer: Tokenizer, folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_bytes(tokenizer.content)
    return path


def edited(tokenizer: Tokenizer, **changes: object) -> bytes:
    return json.dumps(json.loads(tokenizer.content) | changes).encode()


@given(st.text())
def test_any_text_comes_back(trained, text):
    tokens = trained.encode(text)
    assert trained.decode(tokens) == text
    assert all(0 <= token < trained.vocab_size for token in tokens)


@given(st.text(), st.text())
def test_the_end_of_a_document_is_never_in_its_text(trained, before, after):
    text = before + END_OF_DOCUMENT + after
    assert trained.end_of_document not in trained.encode(text)
    assert trained.decode([*trained.encode(text), trained.end_of_document]) == text


def test_a_batch_is_its_texts_one_by_one(trained):
    assert [tokens.tolist() for tokens in trained.encode_batch(TEXTS[:20])] == [trained.encode(text) for text in TEXTS[:20]]
    assert trained.encode_batch([""])[0].shape == (0,)


@given(st.text(), st.sampled_from("aZ9ß漢"), st.sampled_from(" \n\t\r"), st.text())
def test_a_byte_level_tokenizer_does_not_mind_cuts_before_white_space(trained, before, letter, space, after):
    left, right = before + letter, space + after
    assert trained.cuts_cleanly
    assert trained.encode(left + right) == trained.encode(left) + trained.encode(right)


def test_a_tokenizer_that_marks_the_start_of_a_text_minds_cuts(trained):
    prefixed = edited(trained, normalizer={"type": "Prepend", "prepend": "_"})
    assert not tokenizer_of(prefixed, where="x", end_of_document=END_OF_DOCUMENT).cuts_cleanly


def test_the_vocabulary_has_the_size_asked_for(trained):
    assert trained.vocab_size == 320
    assert trained.end_of_document_token == END_OF_DOCUMENT


def test_equal_texts_give_equal_bytes_in_another_process_with_other_threads(trained):
    code = (
        "from meshwright.train.data.tokenizer import train_tokenizer\n"
        "texts = [f'def function_{n}(argument: int) -> int:\\n    return argument + {n}\\n' for n in range(200)]\n"
        "print(train_tokenizer(texts, 320).digest)"
    )
    env = {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "3", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == trained.digest


def test_too_little_text_for_a_vocabulary():
    with pytest.raises(InputError, match=r"yields a vocabulary of \d+ entries, not 5000") as caught:
        train_tokenizer(["abc"], 5000)
    assert "train:25" in caught.value.fix


@pytest.mark.parametrize("spec", ["train:", "train:256", "train:-5", "train:1e4", "train:99999999", "train:\u0664\u0660\u0660"])
def test_sizes_that_cannot_be_trained(spec):
    with pytest.raises(InputError, match="cannot train a vocabulary"):
        trained_size(spec)


def test_specs():
    assert trained_size("train:257") == 257
    assert trained_size("some/tokenizer.json") is None


def test_read_from_a_file_or_its_folder(trained, tmp_path):
    path = saved(trained, tmp_path)
    assert read_tokenizer(path).digest == read_tokenizer(tmp_path).digest == trained.digest
    assert read_tokenizer(path).encode("def f") == trained.encode("def f")


def test_truncation_and_padding_of_the_file_are_not_applied(trained):
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    other = tokenizer_of(edited(trained, truncation=truncation, padding=padding), where="x")
    assert other.encode("some text that is long") == trained.encode("some text that is long")


def test_the_configured_end_of_documents_is_used(trained, tmp_path):
    added = json.loads(trained.content)["added_tokens"]
    both = [*added, {**added[0], "id": 320, "content": "</s>"}]
    (tmp_path / "tokenizer.json").write_bytes(edited(trained, added_tokens=both))
    with pytest.raises(InputError, match=r"several: <\|endoftext\|>, </s>") as caught:
        read_tokenizer(tmp_path)
    assert "--end-of-document" in caught.value.fix
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert read_tokenizer(tmp_path).end_of_document == 320
    assert read_tokenizer(tmp_path).vocab_size == 321
    assert read_tokenizer(tmp_path, END_OF_DOCUMENT).end_of_document == trained.end_of_document


def test_an_end_that_is_not_special(trained):
    added = [{**token, "special": False} for token in json.loads(trained.content)["added_tokens"]]
    with pytest.raises(InputError, match="text that holds it gives the same token"):
        tokenizer_of(edited(trained, added_tokens=added), where="x")


def test_an_end_that_is_not_there(trained, tmp_path):
    with pytest.raises(InputError, match="no token '<eot>'"):
        read_tokenizer(saved(trained, tmp_path), "<eot>")


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"version": "1.0"}', b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"this is not a tokenizer\.json") as caught:
        read_tokenizer(path)
    assert caught.value.where == str(path)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="cannot read the tokenizer: No such file"):
        read_tokenizer(tmp_path / "missing.json")


@pytest.mark.parametrize("token", [7, True, ["<|endoftext|>"], {"content": 3}])
def test_an_end_of_document_that_is_no_text(token: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer(["some text"] * 3, 260).content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    with pytest.raises(InputError, match=r"eos_token is .*, not a text"):
        read_tokenizer(tmp_path)
