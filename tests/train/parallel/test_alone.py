"""A rank without replicas: gradients stay where the backward left them, and shards are views of the parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from meshwright.describe.model import Model
from meshwright.layout import Layout
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.alone import Alone
from meshwright.train.parallel.buckets import Numbers

MODEL = Model(name="m", num_layers=2, hidden=16, ffn_hidden=32, num_heads=2, num_kv_heads=1, head_dim=8, vocab_size=32)
ONE = SimpleNamespace(size=1, index=0)
MESH = SimpleNamespace(tp=ONE, ep=ONE, layout=Layout(), device=torch.device("cpu"))


def made(numbers: Numbers) -> tuple[Transformer, Alone]:
    with torch.device("meta"):
        chunk = Transformer(MODEL)
    return chunk, Alone(chunk, MESH, numbers)  # type: ignore[arg-type]


def test_every_parameter_of_the_chunk_is_a_shard_that_decays_if_it_is_a_matrix() -> None:
    chunk, alone = made(Numbers())
    parameters = list(chunk.parameters())
    assert [one.data_ptr() for one in parameters] == [shard.values.data_ptr() for shard in alone.shards]
    assert [shard.decays for shard in alone.shards] == [one.dim() > 1 for one in parameters]
    names = {cut.name for shard in alone.shards for cut, *_ in shard.spans}
    assert names == {name for name, _ in chunk.named_tensors()}


def test_a_step_hands_gradients_over_and_forgets_them() -> None:
    chunk, alone = made(Numbers())
    parameter = next(chunk.parameters())
    alone.start()
    alone.add(parameter, torch.ones_like(parameter))
    alone.add(parameter, torch.ones_like(parameter))
    alone.finish()
    gradient = alone.shards[0].gradient
    assert gradient is not None and torch.equal(gradient, torch.full_like(gradient, 2.0))
    assert all(shard.gradient is None for shard in alone.shards[1:])  # nothing came
    alone.forget()
    assert alone.shards[0].gradient is None and parameter.grad is None


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_another_precision_of_the_state_has_a_copy_for_the_products(state: torch.dtype) -> None:
    chunk, alone = made(Numbers(compute=torch.bfloat16, gradient=torch.bfloat16, state=state))
    shard, parameter = alone.shards[0], next(chunk.parameters())
    assert parameter.dtype == torch.bfloat16 and shard.values.dtype == state
    assert (shard.copy is None) == (state == torch.bfloat16)
    shard.values.fill_(3.0)
    shard.renew_copy()
    assert float(parameter.detach().flatten()[0]) == 3.0
