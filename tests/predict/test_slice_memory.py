"""The peak of a step on one device from what slices kept: worked out by hand from round numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, Model
from meshwright.describe.profile import Profile, Slice, load_profile
from meshwright.describe.workload import Adapters, Workload
from meshwright.layout import Layout, Layouts
from meshwright.predict.footprint import Footprint, footprint, kept_bytes
from meshwright.predict.layer_work import layers_alike
from meshwright.predict.slice_memory import with_slices

CARD = Path(__file__).parents[1] / "fixtures" / "profile_of_a_card.json"
MODEL = load_model("llama-3.1-8b")
WORKLOAD = Workload(name="w", model="", seq_len=8192, global_batch=1, precision="bf16-pure")
GB = 1e9


@pytest.fixture
def card() -> Profile:
    return load_profile(CARD)


def priced(cuts: list[Slice], model: Model = MODEL, workload: Workload = WORKLOAD, **layout: object) -> Footprint:
    layouts = Layouts.of([Layout(micro_batch=1, zero_stage=0, **layout)])  # type: ignore[arg-type]
    return with_slices(footprint(model, workload, layouts, is_own=True), model, workload, layouts, cuts)


def test_a_slices_work_in_the_backward_counts_where_it_is_known(card: Profile) -> None:
    (cut,) = card.slices
    usual = float(priced([cut]).peak_bytes[0])
    assert usual == pytest.approx(6 * 8.03e9 + 35 * GB, rel=1e-3)  # states, 32 layers of 1 GB, 3 GB at the loss
    gradients = 2 * (128256 * 4096 + (MODEL.num_parameters - 2 * 128256 * 4096) / 32)
    busy = float(priced([replace(cut, work_bytes=5 * GB)]).peak_bytes[0])
    assert busy == pytest.approx(6 * MODEL.num_parameters + 32 * GB + 5 * GB + gradients, rel=1e-6)


def test_of_several_slices_the_one_that_computed_the_same_again_counts(card: Profile) -> None:
    plain = card.slices[0]
    again = replace(plain, recompute="full", layer_saved_bytes=0.1 * GB, ends_bytes=30 * GB)
    assert float(priced([plain, again]).peak_bytes[0]) == float(priced([plain]).peak_bytes[0])
    found = priced([again, plain], recompute="full")
    assert float(found.peak_bytes[0]) == pytest.approx(6 * MODEL.num_parameters + 32 * 0.1 * GB + 30 * GB, rel=1e-6)
    assert float(priced([again]).peak_bytes[0]) == float(
        footprint(MODEL, WORKLOAD, Layouts.of([Layout(zero_stage=0)]), is_own=True).peak_bytes[0]
    )


def test_leading_dense_layers_keep_in_proportion_to_what_is_counted(card: Profile) -> None:
    experts = Experts(num_experts=8, num_active=2, hidden=2048, num_dense_layers=2)
    model = replace(MODEL, experts=experts, num_layers=8)
    counts = [float(kept_bytes(one, WORKLOAD, is_own=True)[0]) for one in (model, layers_alike(model))]
    cut = replace(card.slices[0], experts=replace(experts, num_dense_layers=0), ends_bytes=80 * GB)
    found = priced([cut], model)
    assert float(found.activations.max()) == pytest.approx(8 * GB * counts[0] / counts[1], rel=1e-6) and counts[0] != counts[1]


def test_beside_adapters_what_stays_of_a_layer_counts(card: Profile) -> None:
    workload = replace(WORKLOAD, adapters=Adapters(rank=16, targets=("q", "v")))
    tuned = replace(
        card.slices[0],
        adapters=workload.adapters,
        num_parameters=(2_000_000, 6_000_000),
        layer_state_bytes=0.5 * GB,
        ends_state_bytes=2 * GB,
        work_bytes=1 * GB,
    )
    found = priced([tuned], workload=workload)
    assert float(found.peak_bytes[0]) == pytest.approx(32 * 0.5 * GB + 2 * GB + 32 * GB + 3 * GB)
    assert float((found.weights + found.optimizer)[0, 0]) == pytest.approx(18 * GB)
    counted = footprint(MODEL, workload, Layouts.of([Layout(zero_stage=0)]), is_own=True).peak_bytes[0]
    assert priced(list(card.slices), workload=workload).peak_bytes[0] == counted  # slices that trained all weights say nothing


def test_prediction_layers_and_several_ranks_are_counted_as_before(card: Profile) -> None:
    model = replace(MODEL, num_prediction_layers=1)
    counted = footprint(model, WORKLOAD, Layouts.of([Layout(zero_stage=0)]), is_own=True)
    assert priced(list(card.slices), model).peak_bytes[0] == counted.peak_bytes[0]
    several = {"dp": 2}
    layouts = Layouts.of([Layout(zero_stage=0, **several)])
    workload = replace(WORKLOAD, global_batch=2)
    assert (
        priced(list(card.slices), workload=workload, **several).peak_bytes[0]
        == footprint(MODEL, workload, layouts, is_own=True).peak_bytes[0]
    )
