"""Peaks by precision, and what cannot be multiplied."""

import pytest

from meshwright.describe.load import accelerator
from meshwright.errors import InputError


def test_recipes_multiply_in_a_number_format():
    gb200 = accelerator("gb200")
    assert [gb200.peak_flops_per_s(r) / 1e15 for r in ("fp32", "bf16", "fp8", "mxfp8", "nvfp4")] == [1.25, 2.5, 5, 5, 10]


def test_an_accelerator_without_the_format_says_which_it_has():
    with pytest.raises(InputError) as error:
        accelerator("a100").peak_flops_per_s("fp8")
    assert str(error.value) == (
        "a100-80gb has no fp8 tensor cores, which precision 'fp8' needs\n"
        "  where: accelerator a100-80gb\n"
        "  fix:   choose another precision (changes='workload.precision=...'): fp32, bf16, bf16-lean, bf16-pure"
    )


def test_an_unknown_recipe_gets_the_nearest():
    with pytest.raises(InputError, match="did you mean bf16"):
        accelerator("h100").peak_flops_per_s("bf15")
