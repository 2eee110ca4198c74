"""A checkpoint is the same whatever layout saved it, and loads in any other: equal bits, the same next samples, the same next loss."""

from __future__ import annotations

import base64
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import Pools
from resharding import NUM_STEPS, Next, load_at, save_at
from small_run import MODEL, Small, tensors_of

from meshwright.describe.model import Experts, Model
from meshwright.describe.router import Balance, Router
from meshwright.errors import InputError
from meshwright.train.checkpoint import save
from meshwright.train.job import TrainingJob
from meshwright.train.saves import check_resumable

TEN = [
    "dp=1",
    "tp=2",
    "pp=2,vp=2",
    "dp=2,zero=1",
    "cp=2,dp=2,zero=3",
    "tp=2,pp=2",
    "dp=4,zero=2,mbs=1",
    "tp=2,cp=2,dp=2,zero=1",
    "tp=2,pp=2,dp=2",
    "pp=4,dp=2,zero=2,mbs=1",
]
FEW = ["dp=1", "tp=2", "dp=2,zero=3", "pp=2,dp=2,zero=1"]
TIED = replace(MODEL, name="tied", tied_embeddings=True)
LOSS_TOLERANCE = 1e-6  # relative


def check_pairs(
    pools: Pools, small: Small, folder: Path, model: Model, layouts: list[str], training: dict[str, object] | None = None
) -> None:
    """Save in every layout, load each of these in every layout, and compare."""
    plans = {text: small.plan(text, model=model, training=training) for text in layouts}
    saved: dict[str, list[Next]] = {}
    for number, (text, plan) in enumerate(plans.items()):
        saved[text] = pools.of(plan.layout.num_ranks).run(save_at, plan, small.corpus, folder / str(number))
    paths = [next((folder / str(number) / "checkpoints").glob(f"*{NUM_STEPS}")) for number in range(len(layouts))]
    whole = {text: tensors_of(path) for text, path in zip(layouts, paths, strict=True)}
    for target, plan in plans.items():
        of_ranks = pools.of(plan.layout.num_ranks).run(load_at, plan, small.corpus, paths)
        for source, found in zip(layouts, zip(*of_ranks, strict=True), strict=True):
            same_state(list(found), whole[source], f"{source} -> {target}")
            same_next(list(found), saved[source], f"{source} -> {target}")


def same_state(found: list[Next], whole: dict[str, np.ndarray], which: str) -> None:
    """Every rank holds what was saved, bit for bit, and together they hold all of it."""
    held = {name: np.zeros(tensor.shape, dtype=bool) for name, tensor in whole.items()}
    for name, start, values in (piece for one in found for piece in one.pieces):
        box = tuple(slice(first, first + length) for first, length in zip(start, values.shape, strict=True))
        assert np.array_equal(whole[name][box].view(np.int32), values.view(np.int32)), f"{which}: {name}"
        held[name][box] = True
    assert all(mask.all() for mask in held.values()), which


def same_next(found: list[Next], before: list[Next], which: str) -> None:
    """The next step sees the same samples and has the same loss."""
    assert joined(found) == joined(before), which
    assert {one.random_state for one in found} == {before[0].random_state}, which
    assert abs(found[0].loss - before[0].loss) <= LOSS_TOLERANCE * before[0].loss, which
    assert abs(found[0].grad_norm - before[0].grad_norm) <= 1e-5 * before[0].grad_norm, which


def joined(of_ranks: list[Next]) -> dict[int, str]:
    return {number: digest for one in of_ranks for number, digest in one.samples.items()}


def test_covering_pairs(pools: Pools, small: Small, tmp_path: Path) -> None:
    check_pairs(pools, small, tmp_path, MODEL, FEW)


def test_a_tied_table_on_both_ends_of_a_pipeline(pools: Pools, small: Small, tmp_path: Path) -> None:
    check_pairs(pools, small, tmp_path, TIED, ["pp=2", "tp=2"])


@pytest.mark.parametrize("num_kv_heads, layouts", [(2, ["tp=4", "tp=2", "dp=1"]), (1, ["tp=2,dp=2,zero=3", "dp=1"])])
def test_a_key_value_head_that_several_ranks_hold_is_saved_once(
    num_kv_heads: int, layouts: list[str], pools: Pools, small: Small, tmp_path: Path
) -> None:
    check_pairs(pools, small, tmp_path, replace(MODEL, name="few", num_kv_heads=num_kv_heads, biases=True), layouts)


@pytest.mark.parametrize(
    "is_tied, layouts", [(False, ["tp=4", "tp=2,dp=2,zero=3", "dp=1"]), (True, ["tp=2,pp=2", "tp=2,dp=2,zero=1", "dp=1"])]
)
def test_padding_of_the_vocabulary_is_in_no_checkpoint(
    is_tied: bool, layouts: list[str], pools: Pools, small: Small, tmp_path: Path
) -> None:
    model = replace(MODEL, name="padded", vocab_size=515, tied_embeddings=is_tied)
    check_pairs(pools, small, tmp_path, model, layouts)
    (saved,) = (tmp_path / "0" / "checkpoints").glob(f"*{NUM_STEPS}")
    tables = {name: tensor.shape for name, tensor in tensors_of(saved).items() if name.endswith(("embed.weight", "head.weight"))}
    assert len(tables) == (3 if is_tied else 6) and set(tables.values()) == {(515, MODEL.hidden)}


EXPERTS = replace(
    MODEL,
    name="experts",
    num_layers=2,
    experts=Experts(num_experts=8, num_active=2, hidden=16, num_shared=1, router=Router(scores="sigmoid", has_selection_bias=True)),
)
BALANCE = Balance(auxiliary=0.1, scope="batch", bias_rate=0.01)


@pytest.mark.parametrize(
    "layouts",
    [["dp=1", "dp=2,ep=2,zero=1", "dp=2,tp=2,ep=4,zero=3", "dp=2,tp=2,ep=2,etp=2,zero=1"], ["pp=2,dp=2,ep=2,zero=2", "tp=2,zero=0"]],
)
def test_experts_load_on_any_number_of_ranks(layouts: list[str], pools: Pools, small: Small, tmp_path: Path) -> None:
    check_pairs(pools, small, tmp_path, EXPERTS, layouts, {"balance": BALANCE})
    (saved,) = (tmp_path / "0" / "checkpoints").glob(f"*{NUM_STEPS}")
    tensors = tensors_of(saved)
    assert tensors["weights/layers.1.mlp.experts.gate.weight"].shape == (8, 16, MODEL.hidden)
    assert np.abs(tensors["weights/layers.0.mlp.router.selection_bias"]).max() > 0
    assert tensors["router_shares/layers.1.mlp.router"].mean() == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.parametrize("model", [MODEL, TIED], ids=lambda model: model.name)
def test_every_pair_of_ten_layouts(pools: Pools, small: Small, tmp_path: Path, model: Model) -> None:
    assert len(list(product(TEN, TEN))) == 100
    check_pairs(pools, small, tmp_path, model, TEN)


STATE = base64.b64encode(torch.random.get_rng_state().numpy().tobytes()).decode()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"samples": None}, "samples is None"),
        ({"samples": -1}, "samples is -1"),
        ({"samples": "8"}, "samples is '8'"),
        ({"samples": 2**64}, "samples is 18446744073709551616"),
        ({"digests": []}, r"digests are \[\]"),
        ({"digests": {"plan": 3}}, "digests are"),
        ({"random_state": "AAAA"}, "random_state is 'AAAA'"),
        ({"random_state": 7}, "random_state is 7"),
    ],
)
def test_a_manifest_with_a_good_hash_and_a_wrong_value_is_one_message(small: Small, tmp_path: Path, changes: dict, message: str) -> None:
    job = TrainingJob(plan=small.plan("dp=1"), runs=tmp_path, name="a", corpus=small.corpus)
    marks = {"plan": "1", "corpus": "2", "code": "3"}
    scalars = {"samples": 8, "seed": 0, "digests": marks, "random_state": STATE, **changes}
    path = save(tmp_path, 1, [], scalars).path
    with pytest.raises(InputError, match=f"lacks what a run needs to continue: {message}"):
        check_resumable(job, path, marks)
    good = save(tmp_path, 2, [], {**scalars, "samples": 8, "digests": marks, "random_state": STATE}).path
    assert check_resumable(job, good, marks).step == 2
