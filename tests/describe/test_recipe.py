"""Precision recipes: bytes worked by hand, what chips change, and names in files of measured runs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshwright.describe.load import accelerator
from meshwright.describe.recipe import Recipe, recipe, recipe_of_spelling, recipes
from meshwright.errors import InputError

FORMATS = {"tf32", "bf16", "fp8", "fp4"}


@pytest.mark.parametrize(
    ("name", "bytes_of_a_parameter"),
    [
        ("fp32", 4 + 4 + 8),  # weight, gradient, two moments: the weight is the optimizer's own
        ("bf16", 2 + 4 + 12),  # bf16 weight, fp32 gradient, fp32 weight and two moments: the 18 bytes of mixed precision
        ("bf16-pure", 2 + 2 + 4),
        ("fp8", 2 * 1 + 2 + 12),  # a weight in both orientations
        ("nvfp4", 2 + 2 * 0.5 + 2 / 16 + 2 + 12),  # a bf16 weight, fp4 in both orientations, a scale for 16 elements in each
    ],
)
def test_bytes_that_a_parameter_takes(name, bytes_of_a_parameter):
    one = recipe(name)
    assert one.weight_bytes + one.gradient_bytes + one.optimizer_bytes == bytes_of_a_parameter


def test_scales_of_blocks_are_counted():
    assert recipe("mxfp8").input_bytes == 1 + 1 / 32 and recipe("mxfp8").weight_bytes == 2 * (1 + 1 / 32)
    assert recipe("nvfp4").input_bytes == 0.5 + 1 / 16


def test_what_a_recipe_leaves_out_is_the_default():
    assert (recipe("bf16").gather_bytes, recipe("bf16").logit_bytes) == (2.0, 6.0)
    assert recipe("bf16").needs == "" and recipe("bf16").overlaps_tensor_traffic


def test_every_recipe_multiplies_in_a_known_format_and_has_sensible_bytes_and_a_source():
    for one in recipes().values():
        assert one.number_format in FORMATS and one.needs in FORMATS | {""}, one.name
        sizes = {f.name: getattr(one, f.name) for f in fields(Recipe) if f.name.endswith("_bytes")}
        assert all(size is None or 0 <= size <= 16 for size in sizes.values()), (one.name, sizes)
        assert one.meaning and one.source.text and one.source.date


def test_narrower_products_never_keep_wider_inputs():
    kept = [recipe(name).input_bytes for name in ("fp32", "bf16", "mxfp8", "fp8", "nvfp4")]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize(("chip", "weight_bytes"), [("h100", 2.0), ("b200", 1.0)])
def test_chips_with_fp4_keep_one_copy_of_fp8_weights(chip, weight_bytes):
    formats = accelerator(chip).dense_flops_per_s
    assert recipe("fp8").on(formats).weight_bytes == weight_bytes
    for name in ("bf16", "mxfp8", "nvfp4"):
        assert recipe(name).on(formats) is recipe(name)


def test_profiles_name_tf32_products_fp32():
    assert [recipe(name).profile_format for name in ("fp32", "bf16", "fp8-current", "nvfp4")] == ["fp32", "bf16", "fp8", "fp4"]


def test_spellings_of_measured_runs_lead_to_one_recipe_each():
    spelled = [spelling for one in recipes().values() for spelling in one.names]
    assert len(spelled) == len(set(spelled)) == len(recipe_of_spelling())
    assert (recipe_of_spelling()["fp16"], recipe_of_spelling()["fp8-ds"], recipe_of_spelling()["fp8-cs"]) == ("bf16", "fp8", "fp8-current")
    for spelling, name in recipe_of_spelling().items():
        assert spelling not in recipes() or spelling == name  # a spelling never hides another recipe's name


def test_no_two_recipes_share_a_name_in_mlperfs_logs():
    logged = [one.mlperf_name for one in recipes().values() if one.mlperf_name]
    assert len(logged) == len(set(logged))


@pytest.mark.parametrize("name", ["bf61", "", "FP8"])
def test_an_unknown_recipe_is_refused_with_its_place(name):
    with pytest.raises(InputError, match=f"no precision named '{name}'") as caught:
        recipe(name, where="precision in mine.toml")
    assert caught.value.where == "precision in mine.toml" and caught.value.fix
