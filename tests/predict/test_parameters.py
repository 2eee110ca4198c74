"""What ranks hold of a model: all of it together, and each parameter in one bucket."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.describe.load import load_model
from meshwright.layout import Layout, parse_layout
from meshwright.predict.parameters import buckets, chunks_of, gathered_units

law = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"])
@pytest.mark.parametrize("text", ["pp=1", "pp=4", "pp=2,vp=2"])
def test_stages_hold_the_models_parameters(name: str, text: str) -> None:
    model, layout = load_model(name), parse_layout(text)
    held = sum(p.size for stage in range(layout.pp) for chunk in chunks_of(model, layout, stage) for p in chunk.parameters)
    copies = model.head_parameters if model.tied_embeddings and layout.pp > 1 else 0  # both ends have the table
    assert held == model.num_parameters + copies


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_expert_ranks_hold_equal_parts_of_the_routed_experts(ep: int) -> None:
    model = load_model("mixtral-8x7b")
    (chunk,) = chunks_of(model, Layout(dp=ep, ep=ep), 0)
    whole = sum(p.size for p in chunks_of(model, Layout(), 0)[0].parameters if p.is_routed)
    assert ep * sum(p.size for p in chunk.parameters if p.is_routed) == whole > 0


def test_layers_with_experts_begin_after_the_dense_ones() -> None:
    model = load_model("deepseek-v3")
    layout = Layout(pp=2, vp=2, first_stage_layers=31, last_stage_layers=30)
    found = [chunk.num_dense for number in range(2) for stage in range(2) for chunk in [chunks_of(model, layout, stage)[number]]]
    assert found == [3, 0, 0, 0]


def test_routed_experts_are_gathered_apart_from_their_layer() -> None:
    model = load_model("mixtral-8x7b")
    (chunk,) = chunks_of(model, Layout(), 0)
    units = gathered_units(chunk, model)
    assert len(units) == 2 * 32 + 2
    assert all(len({p.is_routed for p in unit}) == 1 for unit in units)


@law
@given(st.sampled_from(["llama-2m", "mixtral-8x7b"]), st.integers(1, 10**9))
def test_buckets_hold_every_parameter_once(name: str, most: int) -> None:
    (chunk,) = chunks_of(load_model(name), Layout(), 0)
    held = list(buckets(chunk.parameters, most, shared=False))
    assert sorted(repr(p) for bucket in held for p in bucket) == sorted(map(repr, chunk.parameters))
    assert all(len({p.is_routed for p in bucket}) == 1 for bucket in held)
