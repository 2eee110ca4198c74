"""Precision recipes as catalogue data: the number format of the products, and the bytes of everything beside them.

A recipe is what people switch on (`fp8-current`); a number format is what the tensor cores multiply (`fp8`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from meshwright.describe.source import Source
from meshwright.errors import InputError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One precision recipe. Bytes are of one element; `catalogue/recipes.toml` says what each of them means."""

    name: str
    meaning: str
    number_format: str  # of the matrix products: tf32, bf16, fp8 or fp4
    cast_bytes: float
    gather_bytes: float
    reduce_bytes: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    tensor_bytes: float
    input_bytes: float
    preactivation_bytes: float
    logit_bytes: float
    weight_bytes_one_copy: float | None = None  # on chips that need no transposed copy; None: as elsewhere
    frozen_weight_bytes: float | None = None  # all copies of a weight that is not trained; None: as of one that is
    needs: str = ""  # a number format that the chip must have beside the recipe's own
    overlaps_tensor_traffic: bool = True  # whether software usually overlaps tensor traffic with products
    trainer_gather_bytes: float | None = None  # what meshwright's trainer sends, where it differs
    trainer_reduce_bytes: float | None = None
    names: tuple[str, ...] = ()  # in files of measured runs
    mlperf_name: str = ""  # in MLPerf's logs
    source: Source  # of the bytes

    def on(self, number_formats: Mapping[str, float]) -> Recipe:
        """The recipe on a chip with these number formats: those with fp4 need no transposed copy of fp8 weights."""
        if self.weight_bytes_one_copy is None or "fp4" not in number_formats:
            return self
        return replace(self, weight_bytes=self.weight_bytes_one_copy)

    @property
    def profile_format(self) -> str:
        """The number format as hardware profiles name it."""
        return "fp32" if self.number_format == "tf32" else self.number_format


@cache
def recipes() -> Mapping[str, Recipe]:
    """Every recipe of the catalogue by its name."""
    entries = tomllib.loads((files("meshwright.describe") / "catalogue" / "recipes.toml").read_text(encoding="utf-8"))
    default = entries.pop("default")
    default["source"] = Source(**default["source"])
    return {name: Recipe(name=name, **{**default, **entry, "names": tuple(entry.get("names", ()))}) for name, entry in entries.items()}


def recipe(name: str, where: str = "workload.precision") -> Recipe:
    """The recipe called `name`; an unknown name is an InputError."""
    if name not in recipes():
        raise InputError(f"no precision named {name!r}", where=where, fix=nearest(name, recipes()))
    return recipes()[name]


@cache
def recipe_of_spelling() -> Mapping[str, str]:
    """Names of recipes by how files of measured runs write them."""
    return {spelling: one.name for one in recipes().values() for spelling in one.names}
