"""Trained models from run folders and Hugging Face folders: the weights that were saved, and the error where they cannot be loaded."""

import json
from dataclasses import replace

import pytest
import torch

from meshwright.describe.load import load_cluster, load_workload
from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import plan_of
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter
from meshwright.train.checkpoint import Piece, save
from meshwright.train.data.tokenizer import train_tokenizer
from meshwright.train.interop.huggingface import named_tensors
from meshwright.train.interop.huggingface_save import save_huggingface
from meshwright.train.interop.trained import load_trained
from meshwright.train.model.transformer import Transformer

MODEL = Model(
    name="small", num_layers=2, hidden=32, ffn_hidden=48, num_heads=4, num_kv_heads=2, head_dim=8, vocab_size=304, tied_embeddings=True
)
CPU = torch.device("cpu")
TEXT = "Who rides so late through night and wind? It is the father with his child."
CLUSTER = """
accelerator = "rtx-4090"
accelerators_per_node = 1
tiers = [{ name = "node", link = "pcie-4", num_accelerators = 1 }]
"""
WORKLOAD = """
seq_len = 64
global_batch = 4
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT] * 3, 300)


def weights_of(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in named_tensors(model).items()}


def save_step(folder, step, weights, dtype=torch.float32):
    (folder / "checkpoints").mkdir(exist_ok=True)
    pieces = []
    for name, tensor in weights.items():
        halves = tensor.to(dtype).chunk(2)  # as two ranks would hold them
        starts = [0, halves[0].shape[0]]
        for start, half in zip(starts, halves, strict=True):
            begin = (start, *(0 for _ in tensor.shape[1:]))
            pieces.append(Piece(name=f"weights/{name}", shape=tuple(tensor.shape), start=begin, tensor=half))
    pieces.append(Piece(name="adam_mean/embed.weight", shape=(2,), start=(0,), tensor=torch.zeros(2)))
    return save(folder / "checkpoints", step, pieces, {}).path


@pytest.fixture
def run_folder(tmp_path, tokenizer):
    """A run that has saved steps 10 and 20."""
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "workload.toml").write_text(WORKLOAD)
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    nouns = (MODEL, load_cluster(tmp_path / "cluster.toml"), load_workload(tmp_path / "workload.toml"))
    plan_of(Job(*nouns).forecast(parse_layout("dp=1,mbs=1"))).write(folder / "plan.json")
    (folder / "tokenizer.json").write_bytes(tokenizer.content)
    for step in (10, 20):
        save_step(folder, step, weights_of(MODEL, seed=step))
    return folder


def test_a_run_gives_its_newest_checkpoint(run_folder, tokenizer):
    trained = load_trained(run_folder, CPU)
    held = dict(trained.transformer.named_tensors())
    for name, tensor in weights_of(MODEL, seed=20).items():
        assert torch.equal(held[name], tensor), name
    assert trained.transformer.head.weight is trained.transformer.embed.weight
    assert (trained.source, trained.notes, trained.context) == (f"{run_folder}, step 20", (), 64)
    assert trained.tokenizer.digest == tokenizer.digest
    assert not any(parameter.is_meta for parameter in held.values())
    assert trained.transformer.model == replace(MODEL, sources=trained.transformer.model.sources)


def test_prediction_layers_of_a_run_are_left_out(run_folder, tmp_path):
    ahead = replace(MODEL, num_prediction_layers=1)
    nouns = (ahead, load_cluster(tmp_path / "cluster.toml"), load_workload(tmp_path / "workload.toml"))
    plan_of(Job(*nouns).forecast(parse_layout("dp=1,mbs=1"))).write(run_folder / "plan.json")
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Transformer(ahead).named_tensors()}
    generator = torch.Generator().manual_seed(30)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    assert "layers.2.block.mlp.down.weight" in weights and "layers.2.projection.weight" in weights
    save_step(run_folder, 30, weights)
    trained = load_trained(run_folder, CPU)
    held = dict(trained.transformer.named_tensors())
    assert held.keys() == weights_of(MODEL, seed=0).keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in held.items())
    assert trained.notes == ("without the multi-token-prediction layers",)


def test_a_damaged_checkpoint_is_passed_over_with_the_reason(run_folder):
    shard = next((run_folder / "checkpoints" / "step-00000020").glob("shard-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-300] ^= 1
    shard.write_bytes(content)
    trained = load_trained(run_folder, CPU)
    assert trained.source == f"{run_folder}, step 10"
    assert len(trained.notes) == 1
    assert trained.notes[0].startswith("skipped step-00000020: ")
    assert torch.equal(trained.transformer.embed.weight, weights_of(MODEL, seed=10)["embed.weight"])


def test_weights_saved_in_bf16_are_widened(run_folder):
    save_step(run_folder, 30, weights_of(MODEL, seed=30), torch.bfloat16)
    trained = load_trained(run_folder, CPU)
    assert trained.source.endswith("step 30")
    assert torch.equal(trained.transformer.embed.weight, weights_of(MODEL, seed=30)["embed.weight"].bfloat16().float())


def test_weights_are_not_read_by_somebody_elses_plan(run_folder, tmp_path):
    header = RunHeader(name="own", kind="trained", seed=1, num_ranks=1, machine="here")
    content = (run_folder / "plan.json").read_bytes()
    RunWriter.create(tmp_path / "runs", header, content).finish("finished")
    own = tmp_path / "runs" / "own"
    (run_folder / "checkpoints").rename(own / "checkpoints")
    (run_folder / "tokenizer.json").rename(own / "tokenizer.json")
    assert load_trained(own, CPU).source == f"{own}, step 20"
    faster = json.loads(content)
    faster["model"]["rotary_theta"] = 500.0  # the same shapes, another model
    (own / "plan.json").write_text(json.dumps(faster))
    with pytest.raises(InputError, match="not the run's own plan") as caught:
        load_trained(own, CPU)
    assert caught.value.where == str(own / "plan.json")


def test_a_run_without_a_checkpoint(run_folder):
    for path in (run_folder / "checkpoints").iterdir():
        path.rename(run_folder / path.name)
    with pytest.raises(InputError, match="no checkpoint to use: there is none yet"):
        load_trained(run_folder, CPU)


def test_a_checkpoint_of_another_model(run_folder):
    weights = weights_of(replace(MODEL, num_layers=1), seed=0)
    save_step(run_folder, 30, weights)
    with pytest.raises(InputError, match=r"the checkpoint lacks 9 tensors: weights/layers\.1"):
        load_trained(run_folder, CPU)


def test_a_hugging_face_folder(tmp_path, tokenizer):
    weights = weights_of(MODEL, seed=1)
    save_huggingface(tmp_path / "small", MODEL, weights, context=128, tokenizer=tokenizer, dtype=torch.float32)
    trained = load_trained(tmp_path / "small", CPU)
    for name, parameter in trained.transformer.named_tensors():
        assert torch.equal(parameter, weights[name]), name
    assert (trained.context, trained.source) == (128, str(tmp_path / "small"))
    assert trained.tokens_of(TEXT) == tokenizer.encode(TEXT)


def test_an_empty_prompt_begins_behind_the_end_of_a_document(run_folder, tokenizer):
    assert load_trained(run_folder, CPU).tokens_of("") == [tokenizer.end_of_document]


def test_prompt_and_answer_fit_the_sequences_of_training(run_folder):
    trained = load_trained(run_folder, CPU)
    trained.check_fits(60, 4)
    with pytest.raises(InputError, match="more than the 64") as caught:
        trained.check_fits(60, 5)
    assert caught.value.fix.startswith("ask for at most 4")


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(InputError, match="neither a run"):
        load_trained(tmp_path, CPU)
    with pytest.raises(InputError, match="no such folder"):
        load_trained(tmp_path / "absent", CPU)
