"""What a measurement says: rates, slices and collectives of a hardware profile, and what was not timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.profile import CollectiveTime, GroupedTime, ProductTime, Profile, load_profile, profile_text
from meshwright.describe.workload import Adapters
from meshwright.say.measurement import measurement_document
from meshwright.say.vocabulary import problems

from .conftest import notes, pairs, sentences, table

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUT = Path("mine.json")


@pytest.fixture(scope="module")
def card() -> Profile:
    return load_profile(FIXTURES / "profile_of_a_card.json")


@pytest.fixture(scope="module")
def cores() -> Profile:
    return load_profile(FIXTURES / "profile_of_cores.json")


def test_products_are_summed_up_by_format_and_rows(card: Profile) -> None:
    # 2 x 10 x 20 x 30 operations in 1 s and in 2 s
    products = [
        ProductTime(number_format="bf16", way="forward", rows=10, columns=20, inner=30, seconds=took_s) for took_s in (1.0, 2.0)
    ] + [ProductTime(number_format="bf16", way="forward", rows=4096, columns=1, inner=1, seconds=1.0)]
    document = measurement_document(replace(card, products=tuple(products)), OUT, is_usual=False)
    assert table(document, "products").rows == (
        ("bf16", "10", "6 kFLOP/s", "12 kFLOP/s"),
        ("bf16", "4,096", "8.192 kFLOP/s", "8.192 kFLOP/s"),
    )


def test_a_card_says_whose_attention_it_ran_and_processors_do_not(card: Profile, cores: Profile) -> None:
    on_card, on_cores = (pairs(measurement_document(profile, OUT, is_usual=False)) for profile in (card, cores))
    assert on_card["attention by"] and "attention by" not in on_cores
    assert {"measured in", "an empty kernel", "copy", "norm", "optimizer"} <= set(on_cores)


def test_a_slice_on_several_ranks_names_its_degree(card: Profile) -> None:
    cut = card.slices[0]
    shared = (replace(cut, tp=2, layer_saved_bytes=0.0), replace(cut, pp=4))
    document = measurement_document(replace(card, shared_slices=shared), OUT, is_usual=False)
    rows = table(document, "slices of the training step").rows
    assert [row[3] for row in rows] == ["1"] * len(card.slices) + ["tp=2", "pp=4"]
    assert rows[len(card.slices)][-1] == "not counted" and rows[0][2] == f"{cut.micro_batch} x {cut.seq_len:,}"


def test_collectives_stand_in_a_table_where_there_are_any(card: Profile) -> None:
    none = measurement_document(replace(card, collectives=()), OUT, is_usual=False)
    assert "collectives" not in {getattr(block, "title", "") for block in none.blocks}
    one = CollectiveTime(kind="all_reduce", num_ranks=8, payload_bytes=2_000_000, seconds=0.003)
    some = measurement_document(replace(card, collectives=(one,)), OUT, is_usual=False)
    assert table(some, "collectives").rows == (("all_reduce", "8", "2 MB", "3 ms"),)


def test_what_was_not_timed_is_a_note_and_the_file_says_how_to_use_it(cores: Profile) -> None:
    given = measurement_document(replace(cores, left_out=("fp8: no such cores",)), OUT, is_usual=False)
    assert notes(given) == ["not timed: fp8: no such cores"]
    assert sentences(given) == ["written to mine.json; use it with --profile mine.json"]
    usual = measurement_document(cores, OUT, is_usual=True)
    assert sentences(usual) == ["written to mine.json; predict, plan and train use it on this machine by default"]


@pytest.mark.parametrize("name", ["profile_of_a_card.json", "profile_of_cores.json"])
def test_the_values_are_the_file_and_its_path(name: str) -> None:
    profile = load_profile(FIXTURES / name)
    values = measurement_document(profile, OUT, is_usual=False).to_json()
    assert values["profile"] == json.loads(profile_text(profile))
    assert values["files"] == [{"what": "hardware profile", "path": "mine.json"}] and problems(values) == []


def test_experts_and_what_slices_train_are_shown(card: Profile) -> None:
    timed = GroupedTime(number_format="bf16", way="forward", num_groups=8, rows=10, columns=20, inner=30, seconds=1.0)
    pairs = Adapters(rank=16, targets=("q", "v"), base="nf4")
    tuned = replace(card.slices[0], adapters=pairs, recompute="mlp")
    document = measurement_document(replace(card, grouped=(timed,), slices=(tuned,)), OUT, is_usual=False)
    assert table(document, "products of experts").rows == (("bf16", "10", "12 kFLOP/s", "12 kFLOP/s"),)
    (row,) = table(document, "slices of the training step").rows
    assert row[1] == "bf16-pure, adapters of rank 16 and nf4 base, mlp recompute"
