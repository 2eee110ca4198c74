"""Accelerators and links as their vendors specify them: ceilings, not what software reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.describe.source import Sources
from meshwright.errors import InputError, nearest

# A recipe is what people switch on; a number format is what the tensor cores multiply. "fp8" scales tensors by what was seen in
# earlier steps (delayed), "fp8-current" by what it finds in them (tensorwise, current scaling).
FORMAT_OF_RECIPE: Mapping[str, str] = {
    "fp32": "tf32",
    "bf16": "bf16",
    "bf16-pure": "bf16",  # gradients, weights and moments in bf16 too: half the memory, and small updates are lost
    "fp8": "fp8",
    "fp8-current": "fp8",
    "fp8-current-pure": "fp8",  # the same with everything beside the products as in bf16-pure
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}


# How a network spreads traffic over its paths: a switched scale-up domain; InfiniBand and Spectrum-X pick paths by load; packets
# sprayed over planes; or a hash that sends each flow down one path, whatever else goes there.
ROUTINGS = ("scale-up", "adaptive", "spray", "hashed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator: what its data sheet promises."""

    name: str
    vendor: str
    architecture: str  # generation of the cores: decides which fitted efficiencies apply
    memory_bytes: float
    memory_bytes_per_s: float
    dense_flops_per_s: Mapping[str, float]  # by number format: bf16, fp8, fp4, tf32
    power_cap_w: float  # nan where the vendor publishes none
    softmax_speedup: float = 1.0  # exponentials a clock against the first chip of its generation
    sources: Sources = field(default_factory=dict)

    def can_run(self, recipe: str) -> bool:
        """Whether the chip multiplies in what `recipe` needs; scaling by blocks came with the chips that have fp4."""
        number_format = FORMAT_OF_RECIPE[recipe]
        return number_format in self.dense_flops_per_s and (recipe != "mxfp8" or "fp4" in self.dense_flops_per_s)

    def peak_flops_per_s(self, recipe: str) -> float:
        """Dense FLOP/s of the number format that `recipe` multiplies in."""
        number_format = FORMAT_OF_RECIPE.get(recipe)
        if number_format is None:
            raise InputError(f"no precision named {recipe!r}", where="workload.precision", fix=nearest(recipe, FORMAT_OF_RECIPE))
        if not self.can_run(recipe):
            able = [name for name in FORMAT_OF_RECIPE if self.can_run(name)]
            what = "block-scaled" if recipe == "mxfp8" else number_format
            raise InputError(
                f"{self.name} has no {what} tensor cores, which precision {recipe!r} needs",
                where=f"accelerator {self.name}",
                fix=f"choose another precision (--precision): {', '.join(able)}",
            )
        return self.dense_flops_per_s[number_format]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A kind of network port: bytes per second each way for one accelerator, and the time of one hop."""

    name: str
    bytes_per_s: float
    latency_s: float
    num_planes: int = 1
    routing: str = "adaptive"  # one of ROUTINGS
    sources: Sources = field(default_factory=dict)
