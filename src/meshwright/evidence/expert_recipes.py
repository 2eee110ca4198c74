"""How NVIDIA's published recipes ran mixtures of experts: facts of configuration files, by container, model, chip and layout.

The vendor's tables of measured throughput do not say what was in CUDA graphs, how tokens were sent or what overlapped. The recipes do;
`expert_recipes.csv` has them with their sources. Which version of a recipe a container was measured with is inferred from layouts that
agree, and command lines are not public, so a row has a confidence.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshwright.describe.recipe import recipe
from meshwright.layout import Layout
from meshwright.predict.practice import ExpertPractice

FILE = Path(__file__).parent / "expert_recipes.csv"
_ONCE = ("deepep", "hybridep")


@dataclass(frozen=True, slots=True)
class ExpertRecipe:
    """What a recipe says about experts, besides its layout."""

    practice: ExpertPractice
    has_fp8_attention: bool
    recomputed: str  # parts of a layer that the backward pass computes again, as the recipe names them
    source: str


def expert_recipe(container: str, model: str, chip: str, precision: str, layout: Layout) -> ExpertRecipe | None:
    """The recipe that a row of the vendor's tables was run with; None if none with that layout is known."""
    version, number_format = _version(container), recipe(precision).number_format
    shape = tuple(str(degree) for degree in (layout.tp, layout.pp, layout.vp, layout.ep, layout.micro_batch))
    for row in _rows():
        formats = {recipe(name).number_format for name in row["precision"].split("/") if name}
        same = (row["model"], row["gpu"]) == (model, chip) and tuple(row[key] for key in ("tp", "pp", "vp", "ep", "mbs")) == shape
        if same and _version(row["container_from"]) <= version <= _version(row["container_to"]) and number_format in formats:
            return _read(row)
    return None


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def _read(row: dict[str, str]) -> ExpertRecipe:
    practice = ExpertPractice(
        graphs=row["graphs"], sends_once=row["dispatcher"] in _ONCE, overlaps=row["overlaps"] == "yes", is_fused=row["fused"] == "yes"
    )
    return ExpertRecipe(practice, row["fp8_attention"] == "yes", row["recompute_modules"].replace("|", "+"), row["source"])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) + (0,) * (3 - len(text.split(".")))
