"""Adapters in PEFT's format: the same logits there and here, merged and not; ten steps as transformers, PEFT and AdamW take them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llamas import DEEPSEEK_V3, GPT_OSS, LATENT, MIXTRAL, MODEL, QWEN3, QWEN3_MOE, weights_of
from safetensors.torch import load_file, save_file

from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters, Training, Workload
from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.train.interop.huggingface import load_huggingface
from meshwright.train.interop.huggingface_save import save_huggingface
from meshwright.train.interop.peft import CONFIG, WEIGHTS, load_peft, named_pairs, save_peft
from meshwright.train.interop.trained import read_whole
from meshwright.train.model.initial import initial_weights
from meshwright.train.model.transformer import Context
from meshwright.train.parallel.batches import micro_batch
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.replica import Replica
from meshwright.train.tuning.targets import matrix_named

ALL = ("q", "k", "v", "o", "gate", "up", "down")
ADAPTERS = Adapters(rank=4, targets=ALL, alpha=12.0)
TOKENS = torch.from_numpy(np.random.default_rng(5).integers(0, MODEL.vocab_size, (4, 24)))
TRAINING = Training(learning_rate=3e-3, beta2=0.999, weight_decay=0.0, clip_norm=1.0)


def workload_of(adapters: Adapters | None) -> Workload:
    return Workload(name="tune", model="", seq_len=23, global_batch=4, precision="fp32", adapters=adapters, training=TRAINING)


def replica_of(folder: Path, adapters: Adapters | None, adapter: Path | None = None, seed: int = 0) -> Replica:
    """One rank's replica of the folder's model."""
    model, source = load_huggingface(folder)
    mesh = make_mesh(Layout(micro_batch=4), torch.device("cpu"))
    replica = Replica(model, workload_of(adapters), mesh, TRAINING, seed)

    def fill(piece: Any) -> None:
        source.fill(piece.name.partition("/")[2], piece.shape, piece.start, piece.tensor)

    if adapters is None:
        replica.fill_weights(fill)
    else:
        replica.fill_base(fill)
        replica.fill_weights(load_peft(adapter, model).fill if adapter else initial_weights(model, seed))
    return replica


def logits_of(replica: Replica) -> torch.Tensor:
    (chunk,) = replica.stage.chunks
    with torch.no_grad():
        return chunk.head.logits(chunk.hidden(TOKENS, Context(positions=torch.arange(TOKENS.shape[1]))))


def transformer_of(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def with_peft(folder: Path, adapter: Path) -> Any:
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(transformer_of(folder), adapter, is_trainable=True)


def pairs_of(model: Model, adapters: Adapters, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) * 0.1 for name, tensor in named_pairs(model, adapters).items()}


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-5 * max(1.0, float(other.abs().max())))


@pytest.fixture
def adapter(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "adapter"
    save_peft(path, MODEL, ADAPTERS, pairs_of(MODEL, ADAPTERS), str(folder), {})
    return path


@pytest.mark.parametrize(
    "adapters",
    [ADAPTERS, replace(ADAPTERS, rank_stabilised=True), Adapters(rank=2, targets=("q", "v")), Adapters(rank=3, targets=("proj", "mlp"))],
    ids=["all", "rank-stabilised", "q and v", "o and mlp"],
)
def test_an_adapter_of_ours_gives_the_same_logits_in_peft_and_merged(adapters: Adapters, tmp_path: Path, folder: Path, world: None) -> None:
    path = tmp_path / "ours"
    save_peft(path, MODEL, adapters, pairs_of(MODEL, adapters), str(folder), {})
    ours = logits_of(replica_of(folder, adapters, path))
    with torch.no_grad():
        assert close(with_peft(folder, path)(TOKENS).logits, ours)
        plain = transformer_of(folder)(TOKENS).logits
        assert not close(plain, ours)
        save_huggingface(tmp_path / "merged", MODEL, read_whole(path).weights, context=512, dtype=torch.float32)
        assert close(transformer_of(tmp_path / "merged")(TOKENS).logits, ours)
    assert close(logits_of(replica_of(tmp_path / "merged", None)), ours)


def test_an_adapter_of_peft_gives_the_same_logits_here(tmp_path: Path, folder: Path, world: None) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_peft_model(transformer_of(folder), config).eval()
        theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_peft(tmp_path / "theirs", MODEL)
    assert loaded.adapters == Adapters(rank=4, targets=ALL, alpha=8.0, dropout=0.1)
    with torch.no_grad():
        assert close(logits_of(replica_of(folder, loaded.adapters, tmp_path / "theirs")), theirs(TOKENS).logits)


def losses_of_ours(replica: Replica, num_steps: int) -> list[float]:
    """The losses of steps on the same samples, and then of one more batch: the second half of each carries loss."""
    tokens, labels = TOKENS[:, :-1].numpy(), TOKENS[:, 1:].clone().numpy()
    labels[:, :11] = -100
    labels[0, :17] = -100  # samples with different numbers of tokens: a mean of means would show
    found = []
    for step in range(num_steps):
        batch = micro_batch((tokens, labels, np.zeros_like(tokens)), range(4 * step, 4 * step + 4), replica.workload, replica.mesh)
        result = replica.gradients([batch])
        replica.update(result, TRAINING.learning_rate)
        found.append(result.loss)
    return found


def losses_of_theirs(model: Any, num_steps: int) -> list[float]:
    """The same steps in a plain loop of transformers and torch."""
    model.train()
    labels = TOKENS.clone()
    labels[:, :12] = -100
    labels[0, :18] = -100
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=TRAINING.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    found = []
    for _ in range(num_steps):
        loss = model(TOKENS, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, TRAINING.clip_norm)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("kind", ["adapters", "full"])
def test_ten_steps_are_those_of_transformers_and_peft(kind: str, folder: Path, adapter: Path, world: None) -> None:
    adapters = ADAPTERS if kind == "adapters" else None
    ours = losses_of_ours(replica_of(folder, adapters, adapter if adapters else None), 10)
    theirs = losses_of_theirs(with_peft(folder, adapter) if adapters else transformer_of(folder), 10)
    assert ours[-1] < ours[0] - 0.1
    assert np.abs(np.array(ours) / np.array(theirs) - 1).max() < 1e-5


FAMILIES = {  # each with its matrices that adapters may be beside: what `all-linear` means for it
    "qwen2": (replace(MODEL, qkv_biases=True), ALL),
    "qwen3": (replace(QWEN3, norm_epsilon=1e-6), ALL),
    "mistral": (replace(MODEL, rotary_scaling=None, window=7, num_windowed_layers=2), ALL),
    "mixtral": (MIXTRAL, ("q", "k", "v", "o")),
    "qwen3_moe": (QWEN3_MOE, ("q", "k", "v", "o")),
    "gpt_oss": (GPT_OSS, ("q", "k", "v", "o")),
    "deepseek_v3": (DEEPSEEK_V3, ("q_down", "q_up", "kv_down", "kv_up", "o")),
    "deepseek_v3, direct queries": (
        replace(LATENT, latent=replace(LATENT.latent, query_rank=0, interleaved=False)),
        ("q", "kv_down", "kv_up", "o"),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_of_a_family_are_those_of_peft(name: str, tmp_path: Path, world: None) -> None:
    model, wanted = FAMILIES[name]
    folder, ours, theirs = tmp_path / "model", tmp_path / "ours", tmp_path / "theirs"
    save_huggingface(folder, model, weights_of(model), context=512, dtype=torch.float32)
    adapters = Adapters(rank=4, targets=matrix_named("all-linear", model), alpha=12.0)
    assert adapters.targets == wanted
    save_peft(ours, model, adapters, pairs_of(model, adapters), str(folder), {})
    replica, peft = replica_of(folder, adapters, ours), with_peft(folder, ours)
    with torch.no_grad():
        logits = peft(TOKENS).logits
        assert close(logits_of(replica), logits) and not close(transformer_of(folder)(TOKENS).logits, logits)
    save_huggingface(tmp_path / "merged", model, read_whole(ours).weights, context=512, dtype=torch.float32)
    assert close(logits_of(replica_of(tmp_path / "merged", None)), logits)
    losses = losses_of_ours(replica, 10)
    assert losses[-1] < losses[0] - 0.01
    assert losses == pytest.approx(losses_of_theirs(peft, 10), rel=1e-5)
    peft.save_pretrained(theirs)
    with torch.no_grad():
        assert close(logits_of(replica_of(folder, load_peft(theirs, model).adapters, theirs)), peft.eval()(TOKENS).logits)


def test_an_adapter_of_another_base_is_refused(adapter: Path) -> None:
    for other, message in (
        (replace(MODEL, hidden=64), "for another base"),
        (replace(MODEL, num_layers=3), "has no base_model.model.model.layers.2"),
        (replace(MODEL, num_layers=1), "which has no place in this base"),
    ):
        with pytest.raises(InputError, match=message) as found:
            load_peft(adapter, other)
        assert found.value.fix


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"peft_type": "IA3"}, "of the kind 'IA3'"),
        ({"r": None}, "lacks or misstates"),
        ({"target_modules": ["conv"]}, "no linear layer of small is named 'conv'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_a_configuration_that_means_something_else_is_refused(change: dict[str, Any], message: str, adapter: Path) -> None:
    config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    (adapter / CONFIG).write_text(json.dumps({**config, **change}), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_peft(adapter, MODEL)


def test_a_folder_without_its_files_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the adapter"):
        load_peft(tmp_path, MODEL)
    (adapter / WEIGHTS).write_bytes(b"{}")
    with pytest.raises(InputError, match="cannot read the adapter's weights"):
        load_peft(adapter, MODEL)
    (adapter / CONFIG).write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="not valid JSON"):
        load_peft(adapter, MODEL)


def test_the_base_of_an_adapter_must_be_there(adapter: Path, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="which is no folder here"):
        read_whole(adapter)
    assert set(read_whole(adapter, tmp_path / "moved").weights) == set(weights_of(MODEL))


def test_halves_keep_their_values_in_the_file(adapter: Path) -> None:
    held = load_file(adapter / WEIGHTS)
    pairs = pairs_of(MODEL, ADAPTERS)
    named = named_pairs(MODEL, ADAPTERS)
    assert all(torch.equal(held[named[name].theirs], tensor) for name, tensor in pairs.items()) and len(held) == len(pairs)
    save_file(held, adapter / WEIGHTS)
    assert load_peft(adapter, MODEL).adapters == ADAPTERS
