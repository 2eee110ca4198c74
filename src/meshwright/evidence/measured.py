"""A measured run in the types of meshwright: what was trained, on which machine, with which layout, and how long a step took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.recipe import recipe_of_spelling
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.footprint import check_fits, footprint, recipe_for, reserve_for
from meshwright.predict.legality import check_layout
from meshwright.predict.practice import ExpertPractice
from meshwright.predict.recompute import fits, least_recompute
from meshwright.predict.software import Software
from meshwright.predict.stages import stage_layers

MEGATRON_ORDER = ("tp", "cp", "dp", "pp")  # Megatron's default: pipeline stages outermost


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row of a file of measured runs."""

    round: str
    submitter: str
    system: str
    benchmark: str
    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    release: str  # of the software: the round, or the version of the container; never from the framework text
    measured_s: float  # one step
    confidence: str
    vendor: str
    source_row: int  # line of the file
    wall_s: float = 0.0  # the same by the wall clock; 0 if not stated
    evaluation_s: float = 0.0  # one evaluation; 0 if not stated
    notes: str = ""
    kind: str = "pretrain"  # or "sft", "lora"
    peak_memory_bytes: float = 0.0  # measured on the fullest accelerator; 0 if not stated
    practice: ExpertPractice | None = None  # how experts were run, if known
    assumptions: tuple[str, ...] = ()  # what was assumed because the row does not say it

    @property
    def name(self) -> str:
        """The name of the row in a report."""
        return f"{self.round} {self.submitter} {self.system} {self.benchmark}"

    def job(self, software: Software) -> Job:
        """What was run, with the software that is used to predict it."""
        stack = replace(software, practice=self.practice) if self.practice else software
        return Job(self.model, self.cluster, self.workload, stack)

    @property
    def accelerator(self) -> str:
        """Name of the accelerator in the catalogue."""
        return self.cluster.accelerator.name

    @property
    def num_accelerators(self) -> int:
        """Accelerators in use."""
        return self.cluster.num_accelerators

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        return self.layout.num_micro_batches(self.workload.global_batch)

    @property
    def family(self) -> tuple[str, str, str]:
        """Accelerator, precision and release: runs with the same family are so similar that one predicts the other."""
        return self.accelerator, self.workload.precision, self.release

    @property
    def is_nvidia(self) -> bool:
        """Whether NVIDIA made the accelerator."""
        return self.vendor == "NVIDIA"

    @property
    def is_high_confidence(self) -> bool:
        """Whether the layout was read from the run's own logs and launch files."""
        return self.confidence == "high"

    @property
    def is_clean(self) -> bool:
        """Whether the step time is one number: Oracle's 3,072 H100 in v4.1 became 16 % slower within each run."""
        return (self.round, self.submitter, self.num_accelerators) != ("v4.1", "Oracle", 3072)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be predicted, and the reason."""

    name: str
    reason: str
    source_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of a file: those that can be predicted, and those that cannot."""

    rows: tuple[MeasuredRun, ...]
    skipped: tuple[Skipped, ...]

    def num_skipped_by_reason(self) -> dict[str, int]:
        """How many rows were skipped for each reason, the most frequent first."""
        return dict(Counter(row.reason for row in self.skipped).most_common())


def recipe(text: str) -> str:
    """The precision recipe that `fp8 (delayed)`, `fp4 (nvfp4)` or `FP8-CS` stands for.

    Text in parentheses is used instead of the name if it is a recipe itself; otherwise it is a detail of scaling.
    """
    name, _, detail = text.lower().partition("(")
    name, detail = name.strip(), detail.strip(" )")
    if " or " in text.lower():
        raise InputError(f"the precision is ambiguous: {text}")
    spellings = recipe_of_spelling()
    if "mxfp4" in (name, detail) or name not in spellings:
        raise InputError(f"no recipe for precision {text!r}")
    for spelling in (f"{name} {detail}", detail):
        if spelling in spellings:
            return spellings[spelling]
    return spellings[name]


def check_degrees(layout: Layout, num_accelerators: int, global_batch: int, num_micro_batches: int) -> None:
    """Raise an error if a layout does not fill the machine, or does not give the batch; 0 micro-batches: not stated."""
    if layout.num_ranks != num_accelerators:
        raise InputError(f"tp x cp x pp x dp = {layout.num_ranks} is not the {num_accelerators} accelerators")
    per_round = layout.dp * layout.micro_batch
    if global_batch % per_round or (num_micro_batches and per_round * num_micro_batches != global_batch):
        times = f" x {num_micro_batches} micro-batches" if num_micro_batches else ""
        raise InputError(f"dp {layout.dp} x micro-batch {layout.micro_batch}{times} do not make up the global batch of {global_batch}")


def with_stages(layout: Layout, model: Model) -> tuple[Layout, tuple[str, ...]]:
    """The layout with stated stages if the layers do not divide evenly, and what was assumed: the last stage has the remaining layers.

    NVIDIA's recipes for DeepSeek-V3 do the same: 61 layers on 4 stages are 16, 16, 16, and 13 with the layer that predicts further tokens.
    """
    if layout.pp == 1 or stage_layers(model.num_layers, layout.pp, layout.vp).legal:
        return layout, ()
    each = -(-model.num_layers // (layout.pp * layout.vp)) * layout.vp
    last = model.num_layers - each * (layout.pp - 1)
    if last < 1 or not stage_layers(model.num_layers, layout.pp, layout.vp, each, last).legal:
        return layout, ()
    stated = replace(layout, first_stage_layers=each, last_stage_layers=last)
    return stated, (f"stages: {each} layers each, and {last} on the last",)


def with_room(layout: Layout, model: Model, cluster: Cluster, workload: Workload, stated: str) -> tuple[Layout, tuple[str, ...]]:
    """The layout with the cheapest recompute that fits, if the row does not state it, and what was assumed.

    If nothing fits without a pipeline, the table does not say that weights were sharded (FSDP).
    """
    if stated:
        return layout, ()
    found = least_recompute(model, cluster, workload, layout)
    if layout.pp == 1 and layout.zero_stage < 3 and not fits(model, cluster, workload, found):
        sharded = least_recompute(model, cluster, workload, replace(layout, zero_stage=3))
        if fits(model, cluster, workload, sharded):
            return sharded, (f"ZeRO stage 3 and recompute {sharded.recompute}: nothing less fits",)
    return found, (f"recompute: {found.recompute}" + (", the least that fits" if found.recompute != "none" else ""),)


def with_experts(layout: Layout, model: Model, cluster: Cluster, stated: str) -> tuple[Layout, tuple[str, ...]]:
    """The layout with experts spread over a scale-up domain if the row does not say over how many ranks, and what was assumed."""
    if stated or not model.experts:
        return layout, ()
    ranks = min(layout.dp * layout.cp * layout.tp, cluster.tiers[0].num_accelerators)
    usable = [ep for ep in range(1, ranks + 1) if model.experts.num_experts % ep == 0 and (layout.dp * layout.cp * layout.tp) % ep == 0]
    return replace(layout, ep=usable[-1]), (f"ep: {usable[-1]}, as many as a scale-up domain holds",)


def check_runs(model: Model, cluster: Cluster, workload: Workload, layout: Layout, *, is_own: bool = False) -> None:
    """Raise an error for a row that `meshwright predict` would refuse, because it does not divide or does not fit into memory.

    `is_own` if meshwright's trainer ran it.
    """
    check_layout(model, cluster, workload, layout)
    chip = cluster.accelerator
    used = footprint(model, workload, Layouts.of([layout]), recipe_for(workload.precision, chip), is_own=is_own)
    check_fits(used, chip, reserve_bytes=reserve_for(chip))


def missing_layout(columns: list[str]) -> InputError:
    """The reason to skip a row that does not state its whole layout."""
    return InputError(f"the layout is not stated: {', '.join(columns)} empty")
