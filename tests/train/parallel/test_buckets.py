"""Buckets: every parameter once, of one kind, those whose gradients come first in front; and predicted traffic is divided alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expert_cases import MODELS as MIXTURES
from expert_cases import WHOLE
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import num_threads
from parity import LLAMA, MODELS, WORKLOAD, run_steps
from ranks import Pools

from meshwright.layout import Layout, parse_layout
from meshwright.predict.parameters import buckets, chunks_of
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.buckets import grouped_parameters
from meshwright.train.parallel.pipeline import chunk_layers
from meshwright.train.parallel.tensor import decays, is_partial

law = settings(deadline=None, max_examples=60)

models = st.sampled_from(list(MODELS.values()))


def chunks(model, layout: Layout, stage: int) -> list[Transformer]:
    """A stage's chunks, as the trainer makes them."""
    made = []
    for number, layers in enumerate(chunk_layers(model, layout)[stage]):
        is_first, is_last = stage == 0 and number == 0, stage == layout.pp - 1 and number == layout.vp - 1
        with torch.device("meta"):
            made.append(Transformer(model, layers, is_first=is_first, is_last=is_last))
    return made


@law
@given(models, st.integers(1, 40_000))
def test_buckets_hold_every_parameter_once(model, most: int) -> None:
    chunk = chunks(model, Layout(), 0)[0]
    names = [name for bucket in grouped_parameters(chunk, most) for name in bucket]
    assert sorted(names) == sorted(name for name, _ in chunk.named_parameters())


@law
@given(models, st.integers(1, 40_000))
def test_a_bucket_is_of_one_kind_and_closed_once_full(model, most: int) -> None:
    chunk = chunks(model, Layout(), 0)[0]
    parameters = dict(chunk.named_parameters())
    for bucket in grouped_parameters(chunk, most):
        assert len({(decays(name, parameters[name]), is_partial(name)) for name in bucket}) == 1
        assert sum(parameters[name].numel() for name in bucket[:-1]) < most
        assert not model.tied_embeddings or len(bucket) == 1 or "embed.weight" not in bucket


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gradients_that_come_first_leave_first(model) -> None:
    chunk = chunks(model, Layout(), 0)[0]
    products = [name for bucket in grouped_parameters(chunk, 4000) for name in bucket if name.endswith("mlp.down.weight")]
    assert products == [f"layers.{number}.mlp.down.weight" for number in reversed(range(model.num_layers))]


PREDICTING = {
    "predicting": replace(LLAMA, name="predicting-llama", num_prediction_layers=2),
    "predicting, tied": replace(MODELS["tied"], name="predicting-tied", num_prediction_layers=1),
    "predicting, experts": replace(WHOLE["deepseek with latent attention"], name="predicting-deepseek", num_prediction_layers=1),
}
EVERY = {**MODELS, **MIXTURES, **WHOLE, **PREDICTING}


@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("layout", [Layout(), Layout(pp=2), Layout(pp=2, vp=2), Layout(pp=4)], ids=str)
def test_what_is_reported_to_be_sent_has_the_same_parameters_in_the_same_buckets(model, layout: Layout) -> None:
    for stage in range(layout.pp):
        for ours, real in zip(chunks_of(model, layout, stage), chunks(model, layout, stage), strict=True):
            shapes = [tuple(parameter.shape) for _, parameter in real.named_parameters()]
            assert [parameter.shape for parameter in ours.parameters] == shapes
            assert [p.is_cut for p in ours.parameters] == [not is_partial(name) for name, _ in real.named_parameters()]
            sizes = {name: parameter.numel() for name, parameter in real.named_parameters()}
            for most in (1, 3000, 10**9):
                predicted = [[p.size for p in bucket] for bucket in buckets(ours.parameters, most, shared=model.ends_share_table)]
                assert predicted == [[sizes[name] for name in bucket] for bucket in grouped_parameters(real, most)]


@pytest.mark.parametrize("model", PREDICTING.values(), ids=PREDICTING)
def test_prediction_layers_have_as_many_parameters_as_the_model_says(model) -> None:
    (chunk,) = chunks(model, Layout(), 0)
    assert sum(parameter.numel() for parameter in chunk.parameters()) == model.num_parameters + model.prediction_parameters
    ends = [sum(parameter.numel() for parameter in chunks(model, Layout(pp=2), stage)[0].parameters()) for stage in (0, 1)]
    assert sum(ends) == model.num_parameters + model.prediction_parameters + model.embedding_parameters  # of which both ends have a copy


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
@pytest.mark.parametrize("layout", ["dp=2,zero=1", "cp=2"])
def test_a_replica_that_is_gone_leaves_no_groups_behind(layout: str, pools: Pools) -> None:
    pool, job = pools.of(2), parse_layout(layout)
    pool.run(run_steps, LLAMA, WORKLOAD, job, 1)
    before = pool.run(num_threads)
    pool.run(run_steps, LLAMA, WORKLOAD, job, 1)
    assert pool.run(num_threads) == before
