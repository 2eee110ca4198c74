"""Folders that we write: transformers loads them, they appear whole or not at all, and a wrong tensor is named."""

import errno
import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from llamas import MODEL, TIED, VARIANTS, our_logits, weights_of
from safetensors.torch import load_file

from meshwright.describe.model import Experts
from meshwright.errors import InputError
from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.data.tokenizer import read_tokenizer, train_tokenizer
from meshwright.train.interop import huggingface_save
from meshwright.train.interop.huggingface import INDEX, WEIGHTS, load_huggingface
from meshwright.train.interop.huggingface_save import config_of, save_huggingface, tokenizer_config


@pytest.mark.parametrize("model", VARIANTS)
def test_transformers_loads_what_we_save_and_says_the_same(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    weights = weights_of(model)
    save_huggingface(tmp_path / "small", model, weights, context=512, dtype=torch.float32, shard_bytes=20_000)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small", output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.dtype == torch.float32
    tokens = torch.randint(model.vocab_size, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
    torch.testing.assert_close(our_logits(model, weights, tokens), expected, rtol=0, atol=1e-4)


def test_types_are_converted_both_ways(tmp_path):
    weights = weights_of(MODEL)
    save_huggingface(tmp_path / "small", MODEL, weights, context=512)
    held = load_file(tmp_path / "small" / WEIGHTS)
    assert {tensor.dtype for tensor in held.values()} == {torch.bfloat16}
    _, source = load_huggingface(tmp_path / "small")
    wanted = torch.nn.Parameter(torch.empty(300, 32, dtype=torch.float64))
    source.fill("embed.weight", (300, 32), (0, 0), wanted)
    assert torch.equal(wanted, weights["embed.weight"].bfloat16().double())


def test_shards_keep_to_their_size_and_the_index_names_every_tensor(sharded):
    index = json.loads((sharded / INDEX).read_text())
    held = {}
    for path in sharded.glob("*.safetensors"):
        part = load_file(path)
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= 20_000
        held |= dict.fromkeys(part, path.name)
    assert held == index["weight_map"]
    assert index["metadata"]["total_size"] == 4 * MODEL.num_parameters
    assert len(set(held.values())) > 3


def test_a_tied_head_is_written_once_and_read_as_the_embedding(tmp_path):
    weights = weights_of(TIED)
    save_huggingface(tmp_path / "small", TIED, weights | {"head.weight": weights["embed.weight"]}, context=512, dtype=torch.float32)
    assert "lm_head.weight" not in load_file(tmp_path / "small" / WEIGHTS)
    _, source = load_huggingface(tmp_path / "small")
    head = torch.empty(300, 32)
    source.fill("head.weight", (300, 32), (0, 0), head)
    assert torch.equal(head, weights["embed.weight"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"experts": Experts(num_experts=2, num_active=1, hidden=8, num_shared=1)}, "experts with num_shared = 1"),
        ({"attention_sinks": True}, "attention sinks"),
        ({"window": 8, "num_windowed_layers": 1}, "windows in some layers only"),
        ({"layer_norm": True}, "LayerNorm"),
        ({"num_positions": 8}, "learned positions"),
        ({"gated": False}, "an MLP without a gate"),
    ],
)
def test_a_model_of_other_blocks(change, what, tmp_path):
    with pytest.raises(InputError, match=f"small has {what}"):
        save_huggingface(tmp_path / "small", replace(MODEL, **change), {}, context=512)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda weights: weights.pop("head.norm.weight"), "head.norm.weight was not given"),
        (lambda weights: weights.update({"head.norm.weight": torch.zeros(16)}), r"head.norm.weight has shape \[16\], not \[32\]"),
        (lambda weights: weights.update({"head.bias": torch.zeros(16)}), "head.bias has no place in the model"),
    ],
)
def test_bad_tensors_are_named_and_nothing_is_left(change, what, tmp_path):
    weights = weights_of(MODEL)
    change(weights)
    with pytest.raises(InputError, match=what):
        save_huggingface(tmp_path / "small", MODEL, weights, context=512, shard_bytes=5000)
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_given_twice(tmp_path):
    pairs = [*weights_of(MODEL).items(), ("embed.weight", torch.zeros(300, 32))]
    with pytest.raises(InputError, match=r"embed\.weight was given twice"):
        save_huggingface(tmp_path / "small", MODEL, pairs, context=512)


def test_a_save_that_breaks_off_leaves_nothing(tmp_path):
    def breaking():
        yield from list(weights_of(MODEL).items())[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_huggingface(tmp_path / "small", MODEL, breaking(), context=512, shard_bytes=5000)
    assert list(tmp_path.iterdir()) == []


def test_what_stands_there_is_not_replaced(folder):
    before = (folder / WEIGHTS).read_bytes()
    with pytest.raises(InputError, match="there is something already"):
        save_huggingface(folder, MODEL, weights_of(MODEL, seed=1), context=512)
    assert (folder / WEIGHTS).read_bytes() == before


def test_the_tokenizer_comes_along(tmp_path):
    text = "Wer reitet so spät durch Nacht und Wind? <|endoftext|> It is the father with his child."
    tokenizer = train_tokenizer([text] * 3, 300)
    save_huggingface(tmp_path / "small", MODEL, weights_of(MODEL), context=512, tokenizer=tokenizer)
    assert (tmp_path / "small" / "tokenizer.json").read_bytes() == tokenizer.content
    again = read_tokenizer(tmp_path / "small")
    assert again.end_of_document == tokenizer.end_of_document
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"]) == (tokenizer.end_of_document, None)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    plain = text.replace("<|endoftext|>", "und")
    assert theirs(plain)["input_ids"] == tokenizer.encode(plain)
    assert theirs.decode(tokenizer.encode(plain)) == plain
    assert theirs.eos_token_id == tokenizer.end_of_document


def test_config_says_what_the_model_is() -> None:
    config = config_of(TIED, context=512, dtype=torch.bfloat16, tokenizer=None)
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    assert shape.items() <= config.items()
    assert (config["head_dim"], config["vocab_size"], config["max_position_embeddings"]) == (8, 300, 512)
    assert (config["tie_word_embeddings"], config["torch_dtype"], config["model_type"]) == (True, "bfloat16", "llama")
    assert (config["eos_token_id"], config["bos_token_id"]) == (None, None)
    assert config["rope_scaling"] == {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "family", "attention_bias", "mlp_bias"),
    [
        ({}, "llama", False, False),
        ({"attention_biases": True}, "llama", True, False),
        ({"biases": True}, "llama", True, True),
        ({"qkv_biases": True}, "qwen2", False, False),
    ],
)
def test_biases_decide_the_family(change, family, attention_bias, mlp_bias):
    config = config_of(replace(MODEL, rotary_scaling=None, **change), context=8, dtype=torch.float32, tokenizer=None)
    assert (config["model_type"], config["attention_bias"], config.get("mlp_bias", False)) == (family, attention_bias, mlp_bias)
    assert config["rope_scaling"] is None and config["torch_dtype"] == "float32"


def test_the_tokenizers_settings_name_the_end_of_a_document():
    tokenizer = train_tokenizer(["a text of some words"] * 3, 260)
    settings = tokenizer_config(tokenizer, 77)
    assert (settings["eos_token"], settings["model_max_length"]) == (tokenizer.end_of_document_token, 77)


@pytest.mark.parametrize(
    ("sizes", "most", "parts"),
    [
        ([4, 4, 4], 8, [2, 1]),
        ([4, 4, 4], 12, [3]),
        ([4, 40, 4], 8, [1, 1, 1]),  # a larger one is alone
        ([40], 8, [1]),
        ([], 8, [0]),
    ],
)
def test_tensors_go_into_as_few_files_as_their_order_allows(sizes, most, parts):
    tensors = [(f"t{number}", torch.zeros(size, dtype=torch.uint8)) for number, size in enumerate(sizes)]
    made = list(huggingface_save._parts(tensors, most))
    assert [len(part) for part in made] == parts and [name for part in made for name in part] == [name for name, _ in tensors]


def test_pairs_in_any_order_give_the_same_tensors(folder, tmp_path):
    backwards = reversed(list(weights_of(MODEL).items()))
    save_huggingface(tmp_path / "again", MODEL, backwards, context=512, dtype=torch.float32)
    before, after = (load_file(path / WEIGHTS) for path in (folder, tmp_path / "again"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_files_may_be_read_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        save_huggingface(tmp_path / "small", MODEL, weights_of(MODEL), context=512, shard_bytes=20_000)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "small").iterdir()} == {0o640}


@pytest.mark.parametrize("call", ["rename", "fsync", "mkdir"])
def test_a_disk_that_refuses_is_one_error_and_nothing_is_left(call, tmp_path, monkeypatch):
    def refuse(*given, **more):
        raise OSError(errno.ENOSPC, "as the system says it")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(CheckpointError, match=f"cannot write small: {os.strerror(errno.ENOSPC)}") as caught:
        save_huggingface(tmp_path / "small", MODEL, weights_of(MODEL), context=512)
    assert caught.value.where == str(tmp_path / "small") and list(tmp_path.iterdir()) == []
