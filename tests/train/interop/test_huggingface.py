"""Hugging Face folders: what transformers wrote is read in any pieces, and damage is named."""

import json
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from llamas import DEEPSEEK_V3, MIXTRAL, MODEL, QWEN3_MOE, TIED, VARIANTS, filled, our_logits, weights_of
from safetensors.torch import load_file, save_file

from meshwright.errors import InputError
from meshwright.train.interop.families import their_name
from meshwright.train.interop.huggingface import INDEX, WEIGHTS, load_huggingface, longest_context
from meshwright.train.interop.huggingface_save import save_huggingface


@pytest.mark.parametrize("model", VARIANTS)
def test_we_load_what_transformers_saves_and_say_the_same(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    save_huggingface(tmp_path / "ours", model, weights_of(model), context=512, dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "small", max_shard_size=20_000)
    read, source = load_huggingface(tmp_path / "small")
    assert replace(read, sources={}) == model
    tokens = torch.randint(model.vocab_size, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
    torch.testing.assert_close(our_logits(read, filled(source, read), tokens), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", VARIANTS)
@pytest.mark.parametrize("shard_bytes", [20_000, 10**9])
def test_tensors_come_back_bit_by_bit(model, shard_bytes, tmp_path):
    weights = weights_of(model)
    save_huggingface(tmp_path / "small", model, weights.items(), context=512, dtype=torch.float32, shard_bytes=shard_bytes)
    read, source = load_huggingface(str(tmp_path / "small"))
    assert replace(read, sources={}) == model
    again = filled(source, read)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    files = sorted(path.name for path in (tmp_path / "small").iterdir())
    assert (files == ["config.json", WEIGHTS]) == (shard_bytes == 10**9)
    assert longest_context(tmp_path / "small") == 512
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2), (3, 4), (8, 8)])
def test_pieces_of_any_grid_make_up_the_whole(sharded, grid):
    weights = weights_of(MODEL)
    _, source = load_huggingface(sharded)
    for name, whole in weights.items():
        put_together = torch.zeros_like(whole)
        cuts = [[length * i // parts for i in range(parts + 1)] for length, parts in zip(whole.shape, grid, strict=False)]
        for start, stop in boxes(cuts):
            piece = torch.empty([last - first for first, last in zip(start, stop, strict=True)])
            source.fill(name, whole.shape, start, piece)
            put_together[tuple(slice(first, last) for first, last in zip(start, stop, strict=True))] = piece
        assert torch.equal(put_together, whole), name


def boxes(cuts):
    """Start and stop of every cell of a grid."""
    if not cuts:
        return [((), ())]
    rest = boxes(cuts[1:])
    edges = list(pairwise(cuts[0]))
    return [((first, *start), (last, *stop)) for first, last in edges for start, stop in rest]


def test_a_piece_may_be_a_view_or_empty(folder):
    weights = weights_of(MODEL)
    _, source = load_huggingface(folder)
    transposed = torch.empty(32, 10).T
    source.fill("embed.weight", (300, 32), (7, 0), transposed)
    assert torch.equal(transposed, weights["embed.weight"][7:17])
    source.fill("embed.weight", (300, 32), (300, 0), torch.empty(0, 32))


def test_a_piece_outside_of_its_tensor(folder):
    _, source = load_huggingface(folder)
    with pytest.raises(InputError, match=r"embed_tokens.weight has shape \[300, 32\]: a piece of \[10, 32\] from \[295, 0\] on"):
        source.fill("embed.weight", (300, 32), (295, 0), torch.empty(10, 32))
    with pytest.raises(InputError, match=r"wanted with shape \[304, 32\]"):
        source.fill("embed.weight", (304, 32), (0, 0), torch.empty(10, 32))
    with pytest.raises(InputError, match=r"no tensor 'embed\.positions'"):
        source.fill("embed.positions", (304, 32), (0, 0), torch.empty(10, 32))


def expect_refusal(folder, *words):
    """Loading fails with one error that has all the words."""
    with pytest.raises(InputError) as caught:
        load_huggingface(folder)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def rewritten(folder, change):
    """The folder's one file with its tensors changed."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_a_missing_tensor(folder):
    rewritten(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    expect_refusal(folder, "model.layers.1.mlp.up_proj.weight is missing", str(folder))


@pytest.mark.parametrize("model, theirs", [(MIXTRAL, "block_sparse_moe.experts.2.w3"), (QWEN3_MOE, "mlp.experts.2.up_proj")])
def test_a_missing_expert(model, theirs, tmp_path):
    path = tmp_path / "small"
    save_huggingface(path, model, weights_of(model), context=512, dtype=torch.float32)
    rewritten(path, lambda tensors: tensors.pop(f"model.layers.1.{theirs}.weight"))
    number = model.experts.num_experts
    expect_refusal(path, f"model.layers.1.{theirs}.weight is missing", f"has {number} experts, and 1 of them", "config.json", str(path))


def test_fewer_experts_than_config_states(tmp_path):
    path = tmp_path / "small"
    save_huggingface(path, MIXTRAL, weights_of(MIXTRAL), context=512, dtype=torch.float32)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_local_experts": 6}))
    expect_refusal(path, "experts.4.w1.weight is missing", "has 6 experts, and 2 of them are not in the folder")


def test_layers_of_multi_token_prediction_are_left_out(tmp_path):
    path = tmp_path / "small"
    save_huggingface(path, DEEPSEEK_V3, weights_of(DEEPSEEK_V3), context=512, dtype=torch.float32)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    rewritten(path, lambda tensors: tensors.update({"model.layers.3.eh_proj.weight": torch.zeros(32, 64)}))
    model, _ = load_huggingface(path)
    assert replace(model, sources={}) == DEEPSEEK_V3


def test_a_tensor_of_another_shape(folder):
    rewritten(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(33)}))
    expect_refusal(folder, "model.norm.weight has shape [33]; according to config.json it is [32]", WEIGHTS)


def test_a_tensor_too_many(folder):
    rewritten(folder, lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(2)}))
    expect_refusal(folder, "model.layers.2.mlp.up_proj.weight has no place in this model", WEIGHTS)


def test_quantised_weights(folder):
    rewritten(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(300, 32, dtype=torch.int8)}))
    expect_refusal(folder, "lm_head.weight holds I8", "quantised")


def test_old_files_carry_a_rotary_buffer(folder):
    rewritten(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    _, source = load_huggingface(folder)
    assert "layers.0.attention.q.weight" in source.named


def test_a_tied_head_that_is_not_the_embedding(tmp_path):
    path, weights = tmp_path / "small", weights_of(TIED)
    save_huggingface(path, TIED, weights, context=512, dtype=torch.float32)
    rewritten(path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    load_huggingface(path)
    rewritten(path, lambda tensors: tensors["lm_head.weight"][299].zero_())
    expect_refusal(path, "lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings")


@pytest.mark.parametrize("keep_bytes", [0, 5, 100, -1])
def test_a_truncated_file(folder, keep_bytes):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:keep_bytes])
    expect_refusal(folder, "the file is damaged", WEIGHTS, "fetch the file again")


def header_of(content):
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": [300, 33]},
        {"dtype": "F16"},
        {"data_offsets": [0, 10**12]},
        {"data_offsets": [5, 1]},
        {"shape": [2**62, 2**62]},
        {"shape": "all"},
    ],
)
def test_a_header_that_lies(folder, lie):
    header, data = header_of((folder / WEIGHTS).read_bytes())
    header["lm_head.weight"] |= lie
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)
    expect_refusal(folder, "the file is damaged", WEIGHTS)


def test_a_missing_shard(sharded):
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.unlink()
    expect_refusal(sharded, "the shard is missing", path.name)


def test_an_index_that_lies(sharded):
    moved = "model.layers.0.input_layernorm.weight"  # not alone in its shard
    index = json.loads((sharded / INDEX).read_text())
    places = index["weight_map"]
    held, other = places[moved], places["lm_head.weight"]
    places[moved] = other
    (sharded / INDEX).write_text(json.dumps(index))
    expect_refusal(sharded, f"{moved} is in {held}; according to the index, in {other}", INDEX)
    del places[moved]
    (sharded / INDEX).write_text(json.dumps(index))
    expect_refusal(sharded, f"{moved} is in {held}; according to the index, in none")
    places |= {moved: held, "model.norm.weights": other}
    (sharded / INDEX).write_text(json.dumps(index))
    expect_refusal(sharded, f"model.norm.weights is in no shard that the index names; according to the index, in {other}")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not valid JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "is not a safetensors file of this folder"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "is not a safetensors file of this folder"),
        ('{"weight_map": {"a": 3}}', "is not a safetensors file of this folder"),
    ],
)
def test_a_bad_index(sharded, text, what):
    (sharded / INDEX).write_text(text)
    expect_refusal(sharded, what, INDEX)


def test_a_tensor_in_two_shards(sharded):
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    save_file(load_file(second) | load_file(first), second)
    expect_refusal(sharded, "is also in", second.name)


def test_pickled_weights_are_refused_with_the_reason(folder):
    (folder / WEIGHTS).unlink()
    expect_refusal(folder, "neither model.safetensors nor model.safetensors.index.json")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    expect_refusal(folder, "pytorch_model.bin holds pickled weights", "can run any code", "safetensors")


def test_no_folder(tmp_path):
    expect_refusal(tmp_path / "absent", "no such folder", "absent")


def test_names():
    assert their_name("layers.12.attention.q.bias") == "model.layers.12.self_attn.q_proj.bias"
    assert their_name("layers.0.mlp_norm.weight") == "model.layers.0.post_attention_layernorm.weight"
    assert their_name("head.norm.weight") == "model.norm.weight"
