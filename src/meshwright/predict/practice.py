"""How software runs what data sheets do not decide: its class, and how it runs a mixture of experts.

A class of software (`mlperf`, `nemo`, `fsdp` ...) has its own effects, fitted on measured runs of that class. Within a class, releases
differ in how they run experts: what is in CUDA graphs, how tokens are sent, and whether this is overlapped with compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.describe.hardware import Accelerator
from meshwright.describe.recipe import recipe

MLPERF, NEMO, MEGATRON, TORCHTITAN, FSDP, MESHWRIGHT = "mlperf", "nemo", "megatron", "torchtitan", "fsdp", "meshwright"


@dataclass(frozen=True, slots=True)
class SoftwareClass:
    """A class of software: what belongs to it, and the class that is used for it if no run of it was measured."""

    name: str
    meaning: str
    relative: str = ""


CLASSES: Mapping[str, SoftwareClass] = {
    one.name: one
    for one in (
        SoftwareClass(MLPERF, "submissions to a round of MLPerf Training, tuned for the record"),
        SoftwareClass(NEMO, "NVIDIA's NeMo containers with Megatron-Bridge, as published"),
        SoftwareClass(MEGATRON, "Megatron-LM and its relatives, as others run them"),
        SoftwareClass(TORCHTITAN, "torchtitan, compiled"),
        SoftwareClass(FSDP, "ordinary PyTorch: FSDP, accelerate, llm-foundry"),
        SoftwareClass(MESHWRIGHT, "meshwright's own trainer", relative=TORCHTITAN),
    )
}

UNTUNED = (MEGATRON, TORCHTITAN, FSDP)  # classes whose rows nobody tuned for a record; unknown software is taken as their mean

UNKNOWN = "unknown"  # what a user writes for software of none of these classes

_RELATIVES = {"megascale": MEGATRON, "primus": MEGATRON, "llama3": MEGATRON}  # stacks that are based on Megatron-LM or work in the same way


def class_of(release: str) -> str:
    """The class of a release by its name (`v5.1`, `nemo-26.04`, `torchtitan-2025.06`); empty if it belongs to none."""
    head = release.partition("-")[0].lower()
    if head in CLASSES:
        return head
    if head in _RELATIVES:
        return _RELATIVES[head]
    return MLPERF if head[:1] == "v" and head[1:2].isdigit() else ""


EARLY = "megatron before 2024"  # what its effects are kept under
FUSED_FROM = 2024  # from then on runs of Megatron-LM in our files have flash attention


def is_early(release: str) -> bool:
    """Whether a release is a Megatron-LM of 2021 to 2023, which writes attention scores to memory."""
    year = release.rpartition("-")[2]
    return class_of(release) == MEGATRON and year.isdigit() and int(year) < FUSED_FROM


def further_effects(release: str, architecture: str, precision: str) -> tuple[str, ...]:
    """Names of the effects that a run has besides those of its class."""
    return architecture, precision, *([EARLY] if is_early(release) else [])


NO_GRAPHS, ROUTER_GRAPHS, ATTENTION_GRAPHS, WHOLE_GRAPHS = "none", "router", "attention", "whole"


@dataclass(frozen=True, slots=True)
class ExpertPractice:
    """How experts are run.

    What CUDA graphs contain, whether a token is sent once per rank, whether this overlaps, whether MLPs are fused; or all of it as
    meshwright's trainer does it.
    """

    graphs: str = NO_GRAPHS  # none; router: the router alone; attention: attention and router; whole: the whole step
    sends_once: bool = False  # to a rank or domain, also if it has several of the token's experts (DeepEP, HybridEP)
    overlaps: bool = False  # all-to-all of one micro-batch during the compute of another
    is_fused: bool = False  # the experts' products and their activation in one kernel
    is_own: bool = (
        False  # tokens go once to each rank, beside shared experts, and what returns is not sent again when a layer is recomputed
    )


def expert_practice(release: str, chip: Accelerator, precision: str) -> ExpertPractice:
    """How a release runs experts on a chip by default: as in NVIDIA's recipes (`evidence/expert_recipes.csv`).

    Container 26.06 put whole steps into CUDA graphs, with overlapped all-to-all and fused MLPs, for MXFP8 on Blackwell. From 26.02 on,
    graphs contained attention and router on racks. On Hopper there were none.
    """
    kind, version = class_of(release), _version(release)
    blackwell, rack = chip.architecture.startswith("blackwell"), chip.name.startswith("gb")
    if kind == MLPERF:
        newest = version >= (6, 0, 0)
        return ExpertPractice(WHOLE_GRAPHS if newest and blackwell else ROUTER_GRAPHS, sends_once=True, overlaps=newest, is_fused=newest)
    if kind != NEMO:
        return ExpertPractice(sends_once=kind == MEGATRON, is_own=kind == MESHWRIGHT)
    whole_from = (26, 6, 0) if rack else (26, 6, 1)
    if version >= whole_from and blackwell and recipe(precision).number_format == "fp8":
        return ExpertPractice(WHOLE_GRAPHS, sends_once=True, overlaps=True, is_fused=True)
    if version < (25, 11, 0):
        return ExpertPractice()
    if rack:
        return ExpertPractice(ATTENTION_GRAPHS if version >= (26, 2, 0) else ROUTER_GRAPHS, sends_once=True)
    return ExpertPractice(ATTENTION_GRAPHS if blackwell and version >= (26, 4, 1) else NO_GRAPHS, sends_once=version >= (26, 2, 0))


def _version(release: str) -> tuple[int, int, int]:
    numbers = release.lower().rpartition("-")[2].lstrip("v").split(".")
    parts = [int(number) if number.isdigit() else 0 for number in numbers]
    first, second, third = (*parts, 0, 0, 0)[:3]
    return first, second, third


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """How a class of software, or a generation of chips, differs from the reference release on the chips that were fitted; logarithms."""

    log_factor: float = 0.0  # time of all compute
    log_attention: float = 0.0  # further time of attention
    log_memory: float = 0.0  # further time of kernels that move bytes
    host_s: float = 0.0  # seconds of the host to launch a layer's forward pass without CUDA graphs
    log_products: float = 0.0  # further time of matrix products
    score_bytes: float = 0.0  # moved for each score of attention that no kernel fuses, forward; twice that backward
    tp_hidden: float | None = None  # share of tensor traffic that is hidden if it is overlapped; None: as assumed for all software

    def __add__(self, other: Effects) -> Effects:
        return Effects(
            log_factor=self.log_factor + other.log_factor,
            log_attention=self.log_attention + other.log_attention,
            log_memory=self.log_memory + other.log_memory,
            host_s=max(self.host_s, other.host_s),
            log_products=self.log_products + other.log_products,
            score_bytes=max(self.score_bytes, other.score_bytes),
            tp_hidden=self.tp_hidden if other.tp_hidden is None else other.tp_hidden,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConstants:
    """What a mixture of experts costs besides its FLOPs and its bytes on the network; fitted, see `evidence.mixtures`."""

    sync_s: float = 0.0
    router_share: float = 1.0
    attention_share: float = 1.0
    all_to_all_s: float = 0.0
    hidden: float = 0.0
    log_grouped: float = 0.0
    log_fused: float = 0.0
    moved_bytes: float = 8.0
    fused_moved_bytes: float = 8.0
    bias_bytes: float = 0.0
    fused_bias_bytes: float = 0.0

    def inputs(self, practice: ExpertPractice, *, has_biases: bool) -> dict[str, float]:
        """The numbers by which a layer with experts is priced (fields of `predict.inputs.Inputs`).

        With whole steps in graphs there is no waiting.
        """
        share = {
            NO_GRAPHS: 1.0,
            ROUTER_GRAPHS: self.router_share,
            ATTENTION_GRAPHS: self.attention_share,
            WHOLE_GRAPHS: 1.0,
        }  # without them
        bias_bytes = self.fused_bias_bytes if practice.is_fused else self.bias_bytes
        return {
            "expert_sync_s": self.sync_s * share[practice.graphs] + (0.0 if practice.sends_once else self.all_to_all_s),
            "expert_hidden": self.hidden if practice.overlaps else 0.0,
            "sends_once": float(practice.sends_once),
            "own_exchange": float(practice.is_own),
            "log_grouped": self.log_fused if practice.is_fused else self.log_grouped,
            "expert_bytes": self.fused_moved_bytes if practice.is_fused else self.moved_bytes,
            "expert_mlp_bytes": bias_bytes if has_biases else 0.0,
        }
