"""The least recomputing with which a layout fits, where a user or a table does not say what is recomputed."""

from __future__ import annotations

from dataclasses import replace

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Workload
from meshwright.layout import USUAL_RECOMPUTE, Layout, Layouts
from meshwright.predict.footprint import footprint, recipe_for, reserve_for, spare_bytes


def choices(model: Model, cluster: Cluster, workload: Workload, layout: Layout, *, parts: bool = True) -> tuple[str, ...]:
    """Kinds of recomputing in the order of what they cost; without `parts`, those that every trainer has."""
    if not parts:
        return USUAL_RECOMPUTE
    usable = {
        "act_fp8": recipe(workload.precision).number_format in ("fp8", "fp4"),
        "mla_up_proj": model.latent is not None,
        "moe_act": model.experts is not None,
        "layernorm": model.experts is not None,
        "offload": layout.pp == 1 and cluster.accelerator.host_bytes_per_s > 0,
        "mlp": True,
    }
    found: list[str] = []
    for part in (part for part, can in usable.items() if can):
        found.append("+".join([*found[-1:], part]))
    return ("none", *found, "full")


def fits(model: Model, cluster: Cluster, workload: Workload, layout: Layout, *, is_own: bool = False) -> bool:
    """Whether the layout's fullest stage fits, beside what is reserved; `is_own` if meshwright's trainer runs it."""
    chip = cluster.accelerator
    priced = footprint(model, workload, Layouts.of([layout]), recipe_for(workload.precision, chip), is_own=is_own)
    return bool(spare_bytes(priced, chip, reserve_for(chip))[0] >= 0)


def least_recompute(
    model: Model, cluster: Cluster, workload: Workload, layout: Layout, *, parts: bool = True, is_own: bool = False
) -> Layout:
    """The layout with the cheapest recomputing that fits; as it is where nothing does, so that the reason can be given."""
    for kind in choices(model, cluster, workload, layout, parts=parts):
        tried = replace(layout, recompute=kind)
        if fits(model, cluster, workload, tried, is_own=is_own):
            return tried
    return layout
