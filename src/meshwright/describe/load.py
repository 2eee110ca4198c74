"""TOML and config.json -> accelerators, links, clusters, models and workloads, in SI units.

A name is looked up in the catalogue (in upper or lower case, or by an alias); a path is read as the user's own file. The
content of a file is checked once, here, and every error names the file and the key.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from meshwright.arguments import typed
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.form import Checked, checked, located
from meshwright.describe.hardware import Accelerator, Link
from meshwright.describe.model import Experts, LatentAttention, Model, RotaryScaling
from meshwright.describe.recipe import recipe
from meshwright.describe.router import Balance, Router
from meshwright.describe.source import Source, Sources
from meshwright.describe.workload import Adapters, Convergence, Evaluation, Training, Workload
from meshwright.errors import InputError, nearest
from meshwright.files import read_text
from meshwright.units import GB, GBIT, MIB, MICROSECOND, TERA

CATALOGUE = Path(str(resources.files("meshwright.describe").joinpath("catalogue")))
THIS_MACHINE = "this-machine"
EMULATED = "this-machine-2x4"  # its processors as two racks of four

Table = dict[str, Any]

# Bounds far above any real value. They keep all later products finite.
Count = Annotated[int, Field(ge=1, le=10**8)]
CountOrNone = Annotated[int, Field(ge=0, le=10**8)]
Positive = Annotated[float, Field(gt=0, le=1e24, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e24, allow_inf_nan=False)]
Batch = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")]


class SourceTable(Checked):
    """Where a number comes from."""

    text: str
    date: str


class Entry(Checked):
    """The keys that every entry may have besides its numbers."""

    name: str = ""
    aliases: list[str] = Field(default_factory=list)
    note: str = ""
    sources: dict[str, SourceTable | str] = Field(default_factory=dict)


class AcceleratorTable(Entry):
    vendor: str
    architecture: str
    memory_GB: Positive
    memory_GB_per_s: Positive
    dense_TFLOP_per_s: Annotated[dict[str, Positive], Field(min_length=1)]
    power_cap_W: Positive | None = None
    softmax_speedup: Positive = 1.0
    driver_memory_MiB: Positive | None = None
    host_GB_per_s: Positive | None = None

    def value(self, name: str, sources: Sources) -> Accelerator:
        return Accelerator(
            name=self.name or name,
            vendor=self.vendor,
            architecture=self.architecture,
            memory_bytes=self.memory_GB * GB,
            memory_bytes_per_s=self.memory_GB_per_s * GB,
            dense_flops_per_s={number_format: peak * TERA for number_format, peak in self.dense_TFLOP_per_s.items()},
            power_cap_w=math.nan if self.power_cap_W is None else self.power_cap_W,
            softmax_speedup=self.softmax_speedup,
            driver_memory_bytes=(self.driver_memory_MiB or 0.0) * MIB,
            host_bytes_per_s=(self.host_GB_per_s or 0.0) * GB,
            sources=sources,
        )


class LinkTable(Entry):
    GB_per_s: Positive | None = None
    Gbit_per_s: Positive | None = None
    latency_us: NotNegative
    num_planes: Count = 1
    routing: Literal["scale-up", "adaptive", "spray", "hashed"] = "adaptive"
    routing_assumed: bool = False

    def value(self, name: str, sources: Sources) -> Link:
        return Link(
            name=self.name or name,
            bytes_per_s=_bandwidth(self.GB_per_s, self.Gbit_per_s),
            latency_s=self.latency_us * MICROSECOND,
            num_planes=self.num_planes,
            routing=self.routing,
            routing_assumed=self.routing_assumed,
            sources=sources,
        )


class RouterTable(Checked):
    scores: Literal["softmax", "sigmoid"] = "softmax"
    chooses_first: bool = False
    renormalizes: bool = True
    scale: Positive = 1.0
    num_groups: Count = 1
    num_chosen_groups: Count = 1
    num_group_scores: Count = 2
    has_bias: bool = False
    has_selection_bias: bool = False


class ExpertsTable(Checked):
    num_experts: Count
    num_active: Count
    hidden: Count
    num_shared: CountOrNone = 0
    num_dense_layers: CountOrNone = 0
    router: RouterTable = RouterTable()
    activation_limit: NotNegative = 0.0

    def value(self) -> Experts:
        return Experts(**self.model_dump(exclude={"router"}), router=Router(**self.router.model_dump()))


class LatentTable(Checked):
    query_rank: CountOrNone
    key_value_rank: Count
    nope_dim: Count
    rope_dim: CountOrNone
    value_dim: Count
    interleaved: bool = True


class RotaryScalingTable(Checked):
    factor: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
    original_positions: Count
    low_turns: Positive = 1.0
    high_turns: Positive = 4.0
    kind: Literal["llama3", "yarn"] = "llama3"
    truncates: bool = True
    mscale: NotNegative = 0.0
    mscale_all_dim: NotNegative = 0.0
    stated_magnitude: NotNegative = 0.0

    def value(self) -> RotaryScaling:
        if self.low_turns >= self.high_turns:
            what = f"low_turns {self.low_turns:g} is not below high_turns {self.high_turns:g}"
            raise InputError(what, where="rotary_scaling.low_turns", fix="Llama 3 has 1 and 4, YaRN 1 and 32")
        return RotaryScaling(**self.model_dump())


class ModelTable(Entry):
    num_layers: Count
    hidden: Count
    ffn_hidden: Count
    num_heads: Count
    vocab_size: Count
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    gated: bool = True
    biases: bool = False
    attention_biases: bool = False
    qkv_biases: bool = False
    tied_embeddings: bool = False
    num_positions: CountOrNone = 0
    rotary_theta: Positive = 10000.0
    rotary_scaling: RotaryScalingTable | None = None
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    layer_norm: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    window: CountOrNone = 0
    num_windowed_layers: CountOrNone = 0
    windowed_layers: tuple[CountOrNone, ...] = ()
    num_prediction_layers: CountOrNone = 0
    experts: ExpertsTable | None = None
    latent: LatentTable | None = None

    def value(self, name: str, sources: Sources) -> Model:
        if self.head_dim is None and self.hidden % self.num_heads:
            raise InputError(
                f"hidden size {self.hidden} does not divide into {self.num_heads} heads",
                where="head_dim",
                fix="state head_dim, or correct hidden or num_heads",
            )
        apart = {"rotary_scaling", "experts", "latent", "num_kv_heads", "head_dim"}
        shapes = self.model_dump(exclude={"name", "aliases", "note", "sources", *apart})
        return Model(
            **shapes,
            name=self.name or name,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden // self.num_heads,
            rotary_scaling=self.rotary_scaling.value() if self.rotary_scaling else None,
            experts=self.experts.value() if self.experts else None,
            latent=LatentAttention(**self.latent.model_dump()) if self.latent else None,
            sources=sources,
        )


class TierTable(Checked):
    name: str
    link: str | LinkTable
    num_accelerators: Count
    num_installed: Count | None = None
    GB_per_s: Positive | None = None
    Gbit_per_s: Positive | None = None
    latency_us: NotNegative | None = None
    num_planes: Count | None = None
    routing: Literal["scale-up", "adaptive", "spray", "hashed"] | None = None

    def value(self) -> Tier:
        of = link(self.link) if isinstance(self.link, str) else self.link.value(self.name, {})
        stated = self.GB_per_s is not None or self.Gbit_per_s is not None
        return Tier(
            name=self.name,
            link=of.name,
            num_accelerators=self.num_accelerators,
            num_installed=self.num_installed or self.num_accelerators,
            bytes_per_s=_bandwidth(self.GB_per_s, self.Gbit_per_s) if stated else of.bytes_per_s,
            latency_s=of.latency_s if self.latency_us is None else self.latency_us * MICROSECOND,
            num_planes=self.num_planes or of.num_planes,
            routing=self.routing or of.routing,
            routing_assumed=of.routing_assumed and self.routing is None,
        )


class ClusterTable(Entry):
    accelerator: str | AcceleratorTable
    accelerators_per_node: Count
    tiers: Annotated[list[TierTable], Field(min_length=1)]
    storage_GB_per_s: Positive | None = None
    node_overhead_W: NotNegative = 0.0
    provider: str = ""
    region: str = ""

    def value(self, name: str, sources: Sources) -> Cluster:
        given = self.accelerator
        device = accelerator(given) if isinstance(given, str) else given.value(f"{name}'s accelerator", {})
        return Cluster(
            name=self.name or name,
            accelerator=device,
            tiers=tuple(tier.value() for tier in self.tiers),
            accelerators_per_node=self.accelerators_per_node,
            storage_bytes_per_s=math.inf if self.storage_GB_per_s is None else self.storage_GB_per_s * GB,
            node_overhead_w=self.node_overhead_W,
            provider=self.provider,
            region=self.region,
            sources=sources,
        )


class ConvergenceTable(Checked):
    samples_by_batch: Annotated[dict[Batch, Positive], Field(min_length=1)]
    samples_by_precision: dict[str, Annotated[dict[Batch, Positive], Field(min_length=1)]] = Field(default_factory=dict)

    def value(self) -> Convergence:
        return Convergence(
            samples_by_batch=_by_batch(self.samples_by_batch),
            samples_by_precision={precision: _by_batch(table) for precision, table in self.samples_by_precision.items()},
        )


class EvaluationTable(Checked):
    num_samples: Count
    every_samples: Positive
    start_samples: NotNegative = 0.0
    start_samples_per_batch: NotNegative = 0.0


class AdaptersTable(Checked):
    rank: Count
    targets: Annotated[list[Literal["qkv", "proj", "mlp", "q", "k", "v", "o", "gate", "up", "down"]], Field(min_length=1)]
    alpha: NotNegative = 0.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rank_stabilised: bool = False
    base: Literal["bf16", "fp8", "nf4"] = "bf16"

    def value(self) -> Adapters:
        return Adapters(**{**self.model_dump(), "targets": tuple(self.targets)})


class BalanceTable(Checked):
    auxiliary: NotNegative = 0.0
    scope: Literal["sequence", "batch", "micro-batch"] = "sequence"
    z: NotNegative = 0.0
    bias_rate: NotNegative = 0.0
    capacity: NotNegative = 0.0


class TrainingTable(Checked):
    learning_rate: Positive
    min_learning_rate: NotNegative = 0.0
    warmup_samples: NotNegative = 0.0
    decay_samples: NotNegative = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.1
    clip_norm: NotNegative = 1.0
    target_loss: NotNegative = 0.0
    most_samples: NotNegative = 0.0
    corpus: str = ""
    prediction_weight: NotNegative = 0.3
    balance: BalanceTable = BalanceTable()

    def value(self) -> Training:
        return Training(**self.model_dump(exclude={"balance"}), balance=Balance(**self.balance.model_dump()))


class WorkloadTable(Entry):
    model: str = ""
    seq_len: Count
    global_batch: Count
    precision: str = "bf16"
    attention_precision: Literal["bf16", "fp8"] = "bf16"
    num_tokens: NotNegative = 0.0
    target: str = ""
    convergence: ConvergenceTable | None = None
    evaluation: EvaluationTable | None = None
    adapters: AdaptersTable | None = None
    training: TrainingTable | None = None
    expert_imbalance: Positive = 1.0
    packed: bool = False

    def value(self, name: str, sources: Sources) -> Workload:
        recipe(self.precision, where="precision")
        return Workload(
            name=self.name or name,
            model=self.model,
            seq_len=self.seq_len,
            global_batch=self.global_batch,
            precision=self.precision,
            attention_precision=self.attention_precision,
            num_tokens=self.num_tokens,
            convergence=self.convergence.value() if self.convergence else None,
            evaluation=Evaluation(**self.evaluation.model_dump()) if self.evaluation else None,
            adapters=self.adapters.value() if self.adapters else None,
            training=self.training.value() if self.training else None,
            expert_imbalance=self.expert_imbalance,
            packed=self.packed,
            target=self.target,
            sources=sources,
        )


def _bandwidth(gigabytes: float | None, gigabits: float | None) -> float:
    """Bytes per second from the one of two keys that is given."""
    if (gigabytes is None) == (gigabits is None):
        count = "neither" if gigabytes is None else "both"
        raise InputError(f"{count} of GB_per_s and Gbit_per_s is given", where="GB_per_s", fix="give one of the two, one way")
    return gigabytes * GB if gigabytes is not None else (gigabits or 0.0) * GBIT


def _by_batch(table: Mapping[str, float]) -> dict[int, float]:
    return {int(batch): samples for batch, samples in table.items()}


def read_toml(path: Path) -> Table:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", where=str(path), fix="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not a text file in UTF-8", where=str(path), fix="save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, as are numbers too long to read
        raise InputError(f"not valid TOML: {error}", where=str(path), fix="correct the file at that place") from None


def sources_of(entry: Entry, kind: str, where: str) -> Sources:
    """The entry's sources by key; names stand for the citations of the catalogue file `kind` ("" has none)."""
    known = citations(kind) if kind else {}
    found: dict[str, Source] = {}
    for key, source in entry.sources.items():
        if isinstance(source, SourceTable):
            found[key] = Source(source.text, source.date)
        elif source in known:
            found[key] = known[source]
        else:
            fix = nearest(source, known) if known else "write { text = ..., date = ... }"
            raise InputError(f"no citation named {source!r}", where=f"sources.{key} in {where}", fix=fix)
    return found


def plain(name: str) -> str:
    """A name as the catalogue spells it: lower case, words joined by hyphens."""
    return "-".join(name.strip().lower().replace("_", "-").split())


@cache
def tables(kind: str) -> Mapping[str, Table]:
    """The raw tables of a many-entry catalogue file (accelerators, links), by name."""
    return {name: table for name, table in read_toml(CATALOGUE / f"{kind}.toml").items() if name not in ("citations", "left_out")}


@cache
def citations(kind: str) -> Mapping[str, Source]:
    """The named sources of a many-entry catalogue file."""
    named = read_toml(CATALOGUE / f"{kind}.toml").get("citations", {})
    return {name: Source(source["text"], source["date"]) for name, source in named.items()}


@cache
def names(kind: str) -> tuple[str, ...]:
    """Catalogue names of a kind: accelerators, links, models, clusters or workloads."""
    folder = CATALOGUE / kind
    if not folder.is_dir():
        return tuple(sorted(tables(kind)))
    extra = [THIS_MACHINE, EMULATED] if kind == "clusters" else []
    return tuple(sorted([path.stem for path in folder.glob("*.toml")] + extra))


@cache
def aliases(kind: str) -> Mapping[str, str]:
    """Other spellings of a kind's names -> the catalogue's."""
    if (CATALOGUE / kind).is_dir():
        entries = {path.stem: read_toml(path) for path in sorted((CATALOGUE / kind).glob("*.toml"))}
    else:
        entries = dict(tables(kind))
    return {plain(alias): name for name, table in entries.items() for alias in table.get("aliases", [])}


def _resolved(kind: str, name: str) -> str:
    """The catalogue's name for `name`, which may be an alias in any case."""
    wanted = plain(name)
    if wanted in names(kind):
        return wanted
    if wanted in aliases(kind):
        return aliases(kind)[wanted]
    known = [*names(kind), *aliases(kind)]
    raise InputError(f"no {kind[:-1]} named {name!r}", where=f"the catalogue's {kind}", fix=nearest(wanted, known))


@dataclass(frozen=True)
class Found:
    """A table, its name, and the file that it is in."""

    table: Table
    name: str
    where: str
    citations: str = ""  # the many-entry file whose citations it uses


def _in_file(path: Path) -> Found:
    return Found(read_toml(path), path.stem, str(path))


def _in_catalogue(kind: str, name: str) -> Found:
    if (CATALOGUE / kind).is_dir():
        return Found(read_toml(CATALOGUE / kind / f"{name}.toml"), name, f"{kind}/{name}.toml")
    return Found(dict(tables(kind)[name]), name, f"{kind}.toml [{name}]", citations=kind)


def accelerator(name: str) -> Accelerator:
    """The catalogue's accelerator of that name or alias."""
    return _catalogue_accelerator(_resolved("accelerators", name))


@cache
def _catalogue_accelerator(name: str) -> Accelerator:
    found = _in_catalogue("accelerators", name)
    entry = checked(AcceleratorTable, found.table, found.where)
    return entry.value(name, sources_of(entry, found.citations, found.where))


def link(name: str) -> Link:
    """The catalogue's link of that name or alias."""
    return _catalogue_link(_resolved("links", name))


@cache
def _catalogue_link(name: str) -> Link:
    found = _in_catalogue("links", name)
    entry = checked(LinkTable, found.table, found.where)
    return entry.value(name, sources_of(entry, found.citations, found.where))


@typed
def load_model(name: str | Path) -> Model:
    """Load a model by its catalogue name, or from a TOML file, a `config.json`, or a folder with a `config.json`."""
    if looks_like_path(name):
        path = Path(name)
        if path.suffix == ".toml":
            return model_from(_in_file(path))
        from meshwright.describe.config_json import load_config

        return load_config(path)
    return _catalogue_model(_resolved("models", str(name)))


def model_from(found: Found) -> Model:
    """The model that a table describes."""
    entry = checked(ModelTable, found.table, found.where)
    with located(found.where):
        return entry.value(found.name, sources_of(entry, found.citations, found.where))


@cache
def _catalogue_model(name: str) -> Model:
    return model_from(_in_catalogue("models", name))


@typed
def load_cluster(name: str | Path) -> Cluster:
    """Load a cluster by its catalogue name or from a TOML file. `this-machine` describes the machine that runs this code."""
    if looks_like_path(name):
        return cluster_from(_in_file(Path(name)))
    return _catalogue_cluster(_resolved("clusters", str(name)))


def cluster_from(found: Found) -> Cluster:
    """The cluster that a table describes."""
    entry = checked(ClusterTable, found.table, found.where)
    with located(found.where):
        return entry.value(found.name, sources_of(entry, found.citations, found.where))


@cache
def _catalogue_cluster(name: str) -> Cluster:
    if name == THIS_MACHINE:
        from meshwright.describe.this_machine import this_machine

        return this_machine()
    if name == EMULATED:
        from meshwright.describe.this_machine import emulated_racks

        return emulated_racks(2, 4)
    return cluster_from(_in_catalogue("clusters", name))


@typed
def load_workload(name: str | Path) -> Workload:
    """Load a workload by its catalogue name or from a TOML file."""
    if looks_like_path(name):
        return workload_from(_in_file(Path(name)))
    return _catalogue_workload(_resolved("workloads", str(name)))


def workload_from(found: Found) -> Workload:
    """The workload that a table describes."""
    entry = checked(WorkloadTable, found.table, found.where)
    with located(found.where):
        return entry.value(found.name, sources_of(entry, found.citations, found.where))


@cache
def _catalogue_workload(name: str) -> Workload:
    return workload_from(_in_catalogue("workloads", name))


LOADERS: Mapping[str, Callable[[str], object]] = {
    "accelerators": accelerator,
    "links": link,
    "models": load_model,
    "clusters": load_cluster,
    "workloads": load_workload,
}


@cache
def left_out() -> Mapping[str, str]:
    """Entries that are not in the catalogue on purpose, with the reasons."""
    reasons: dict[str, str] = {}
    for kind in ("accelerators", "models", "prices", "regions"):
        reasons |= read_toml(CATALOGUE / f"{kind}.toml").get("left_out", {})
    return reasons


def note(kind: str, name: str) -> str:
    """The remark of a catalogue entry, if it has one."""
    folder = CATALOGUE / kind
    if folder.is_dir():
        path = folder / f"{name}.toml"
        return str(read_toml(path).get("note", "")) if path.exists() else ""
    return str(tables(kind)[name].get("note", "")) if kind in LOADERS else ""


def looks_like_path(name: str | Path) -> bool:
    """Whether `name` means a file, or a folder with a config.json, rather than a catalogue entry."""
    if isinstance(name, Path) or "/" in name or "\\" in name or name.endswith((".toml", ".json")):
        return True
    try:
        return bool(name) and (Path(name) / "config.json").is_file()
    except OSError:  # longer than any path may be
        return False
