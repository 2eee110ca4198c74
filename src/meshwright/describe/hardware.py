"""Accelerators and links as their vendors specify them: upper limits, which software does not reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.describe.recipe import recipe, recipes
from meshwright.describe.source import Sources
from meshwright.errors import InputError, argument

# How a network spreads traffic over its paths: inside a switched scale-up domain; by load (InfiniBand, Spectrum-X); packets
# sprayed over planes; or by a hash that sends each flow over one path, regardless of other traffic.
ROUTINGS = ("scale-up", "adaptive", "spray", "hashed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator, as in its data sheet."""

    name: str
    vendor: str
    architecture: str  # generation of the cores: decides which fitted efficiencies apply
    memory_bytes: float  # as the data sheet has it
    memory_bytes_per_s: float
    dense_flops_per_s: Mapping[str, float] = field(hash=False)  # by number format: bf16, fp8, fp4, tf32
    power_cap_w: float  # nan where the vendor publishes none
    softmax_speedup: float = 1.0  # exponentials a clock against the first chip of its generation
    driver_memory_bytes: float = 0.0  # in all, as the driver reports it; 0 where nobody stated it
    host_bytes_per_s: float = 0.0  # each way to the memory of a processor on the same module; 0 where it is behind PCIe
    sources: Sources = field(default_factory=dict, hash=False)

    @property
    def room_bytes(self) -> float:
        """Bytes of memory that processes can use: as the driver reports, or else as in the data sheet. The two differ by up to 7 %."""
        return self.driver_memory_bytes or self.memory_bytes

    def can_run(self, precision: str) -> bool:
        """Whether the chip multiplies in what a precision recipe needs."""
        wanted = recipe(precision)
        return {wanted.number_format, wanted.needs or wanted.number_format} <= self.dense_flops_per_s.keys()

    def peak_flops_per_s(self, precision: str) -> float:
        """Dense FLOP/s of the number format that a precision recipe multiplies in."""
        wanted = recipe(precision)
        if not self.can_run(precision):
            able = [name for name in recipes() if self.can_run(name)]
            what = "block-scaled" if wanted.needs else wanted.number_format
            raise InputError(
                f"{self.name} has no {what} tensor cores, which precision {precision!r} needs",
                where=f"accelerator {self.name}",
                fix=f"choose another precision ({argument('changes', 'workload.precision=...')}): {', '.join(able)}",
            )
        return self.dense_flops_per_s[wanted.number_format]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A kind of network port: bytes per second each way for one accelerator, and the time of one hop."""

    name: str
    bytes_per_s: float
    latency_s: float
    num_planes: int = 1
    routing: str = "adaptive"  # one of ROUTINGS
    routing_assumed: bool = False  # whether ports of this kind come with several, and the one given is only the most common
    sources: Sources = field(default_factory=dict, hash=False)
