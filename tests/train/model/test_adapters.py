"""Adapters on one rank: which matrices they are beside, and what dropout leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from expert_cases import DEEPSEEK, MIXTRAL, WHOLE
from parity import GPT, LLAMA

from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError
from meshwright.train.data import permutation
from meshwright.train.model.adapters import Dropout, add_adapters, mixed, products_of, signed
from meshwright.train.model.transformer import Context, Transformer


def chunk_of(adapters: Adapters) -> Transformer:
    with torch.device("meta"):
        chunk = Transformer(LLAMA, [0, 1])
    add_adapters(chunk, adapters)
    return chunk


def test_only_pairs_are_trained() -> None:
    chunk = chunk_of(Adapters(rank=2, targets=("q", "v", "down")))
    names = [name for name, _ in chunk.trained_parameters()]
    assert len(names) == 2 * 3 * 2 and all(".adapter." in name for name in names)
    assert "layers.1.attention.q.lora_b" in dict(chunk.named_tensors())
    assert all(parameter.shape[0 if name.endswith("lora_a") else 1] == 2 for name, parameter in chunk.trained_parameters())


@pytest.mark.parametrize("model", [LLAMA, GPT, MIXTRAL, DEEPSEEK, *WHOLE.values()], ids=lambda model: model.name)
def test_sides_are_those_of_the_matrices(model: Model) -> None:
    with torch.device("meta"):
        chunk = Transformer(model)
    add_adapters(chunk, Adapters(rank=1, targets=("qkv", "proj", "mlp")))
    for layer, parts in products_of(chunk).values():
        if layer.adapter is None:
            assert model.experts or model.latent, "only families with experts have matrices without adapters"
            continue
        pairs = [layer.adapter[part] for part in parts]  # type: ignore[index]
        assert sum(pair.lora_b.shape[0] for pair in pairs) == layer.weight.shape[0]
        assert {pair.lora_a.shape[1] for pair in pairs} == {layer.weight.shape[1]}
    trained = {name for name, parameter in chunk.named_parameters() if parameter.requires_grad}
    assert trained and not any(part in name for name in trained for part in (".experts.", ".router."))


def test_words_are_mixed_as_by_numpy() -> None:
    numbers = np.array([0, 1, 2**40, 12345678901234567], dtype=np.uint64)
    found = mixed(torch.from_numpy(numbers.astype(np.int64)))
    assert found.numpy().astype(np.uint64).tolist() == permutation.mixed(numbers).tolist()
    assert signed(2**64 - 1) == -1 and signed(5) == 5


def context(samples: list[int], positions: list[int]) -> Context:
    return Context(positions=torch.tensor(positions), samples=torch.tensor(samples))


def test_dropout_depends_on_sample_position_matrix_and_column_alone() -> None:
    dropout, x = Dropout(0.25, seed=3), torch.ones(2, 4, 64)
    key, another = torch.tensor(11), torch.tensor(12)
    dropout.use(context([7, 8], [0, 1, 2, 3]))
    whole = dropout(x, key, 0)
    assert whole.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((whole == 0).float().mean()) == pytest.approx(0.25, abs=0.06)
    assert torch.equal(dropout(x[:, :, :16], key, 32), whole[:, :, 32:48])  # a part of the columns, on another rank
    assert not torch.equal(dropout(x, another, 0), whole)
    assert torch.equal(dropout(x[:, :2], key, 0, part=(1, 2)), whole[:, 2:])  # a part of the positions, on another rank
    dropout.use(context([8], [2, 3]))  # another micro-batch with the same sample, and other positions
    assert torch.equal(dropout(x[:1, :2], key, 0), whole[1:, 2:])
    assert dropout.drops and not Dropout(0.0, seed=3).drops
    with torch.no_grad():
        assert not dropout.drops
    other = Dropout(0.25, seed=4)
    other.use(context([7, 8], [0, 1, 2, 3]))
    assert not torch.equal(other(x, key, 0), whole)


def test_adapters_that_mean_nothing_are_refused() -> None:
    for wrong in ({"rank": 0}, {"targets": ()}, {"dropout": 1.0}, {"base": "int3"}, {"targets": ("qq",)}):
        with pytest.raises(InputError):
            Adapters(**{"rank": 2, "targets": ("q",), **wrong})  # type: ignore[arg-type]
    assert Adapters(rank=4, targets=("q",)).scale == 2.0
    assert Adapters(rank=4, targets=("q",), alpha=8, rank_stabilised=True).scale == 4.0
