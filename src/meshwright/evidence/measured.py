"""A measured run as the nouns of the field: what was trained, on what, how laid out, and how long a step took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.recipe import recipe_of_spelling
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.predict.practice import ExpertPractice
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
    release: str  # of the software: the round, or the container's version; never the framework text
    measured_s: float  # one step
    confidence: str
    vendor: str
    source_row: int  # line of the file
    wall_s: float = 0.0  # the same by the wall clock; 0 where nobody stated it
    evaluation_s: float = 0.0  # one evaluation; 0 where nobody stated it
    notes: str = ""
    kind: str = "pretrain"  # or "sft", "lora"
    peak_memory_bytes: float = 0.0  # measured on the fullest accelerator; 0 where nobody stated it
    practice: ExpertPractice | None = None  # how experts were run, where it is known
    assumptions: tuple[str, ...] = ()  # what the row does not say and was taken for granted

    @property
    def name(self) -> str:
        """What the row is called in a report."""
        return f"{self.round} {self.submitter} {self.system} {self.benchmark}"

    def job(self, software: Software) -> Job:
        """What was run, with the software it is predicted by."""
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
        """Accelerator, precision and release: runs so alike that one predicts the next."""
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
        """Whether the step time is one number: Oracle's 3,072 H100 in v4.1 slow down by 16 % within each run."""
        return (self.round, self.submitter, self.num_accelerators) != ("v4.1", "Oracle", 3072)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be expressed, and why."""

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

    What stands between parentheses refines the name where it is a recipe itself, and is a detail of scaling otherwise.
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
    """Refuse a layout that does not fill the machine, or does not make up the batch; 0 micro-batches: not stated."""
    if layout.num_ranks != num_accelerators:
        raise InputError(f"tp x cp x pp x dp = {layout.num_ranks} is not the {num_accelerators} accelerators")
    per_round = layout.dp * layout.micro_batch
    if global_batch % per_round or (num_micro_batches and per_round * num_micro_batches != global_batch):
        times = f" x {num_micro_batches} micro-batches" if num_micro_batches else ""
        raise InputError(f"dp {layout.dp} x micro-batch {layout.micro_batch}{times} do not make up the global batch of {global_batch}")


def with_stages(layout: Layout, model: Model) -> tuple[Layout, tuple[str, ...]]:
    """The layout with stated stages where the layers do not divide over them, and what was assumed: the last stage has what is left.

    So do NVIDIA's recipes for DeepSeek-V3: 61 layers over 4 stages are 16, 16, 16 and 13 beside the layer that predicts further tokens.
    """
    if layout.pp == 1 or stage_layers(model.num_layers, layout.pp, layout.vp).legal:
        return layout, ()
    each = -(-model.num_layers // (layout.pp * layout.vp)) * layout.vp
    last = model.num_layers - each * (layout.pp - 1)
    if last < 1 or not stage_layers(model.num_layers, layout.pp, layout.vp, each, last).legal:
        return layout, ()
    stated = replace(layout, first_stage_layers=each, last_stage_layers=last)
    return stated, (f"stages: {each} layers each, and {last} on the last",)


def missing_layout(columns: list[str]) -> InputError:
    """The reason to skip a row that leaves parts of its layout empty."""
    return InputError(f"the layout is not stated: {', '.join(columns)} empty")
