"""The document of `describe`: the names of the catalogue, or one entry with its numbers, derived numbers and sources."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import singledispatch
from typing import Any

from meshwright.describe import economics, load
from meshwright.describe.cluster import Cluster
from meshwright.describe.economics import Facility, Price, Provider, Region
from meshwright.describe.find import finders
from meshwright.describe.hardware import Accelerator, Link
from meshwright.describe.model import Model
from meshwright.describe.recipe import Recipe
from meshwright.describe.source import Source
from meshwright.describe.workload import Workload
from meshwright.say.document import Block, Document, Pairs, Table, Text
from meshwright.units import GIB, MICROSECOND, parameters, si, usd

SEQUENCES = (2048, 8192)  # lengths at which a model's FLOPs are shown
# Words of adapters that have another meaning elsewhere.
ADAPTER_WORDS = {
    "rank": "lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "rank_stabilised": "is_rank_stabilised",
    "base": "frozen_base",
}

Rows = list[tuple[object, ...]]


@dataclass(frozen=True, kw_only=True)
class Description:
    """One entry: numbers in words, derived values for programs, and tables."""

    kind: str
    pairs: list[tuple[str, object]]
    derived: Mapping[str, object]
    tables: tuple[tuple[str, tuple[str, ...], Rows], ...] = field(default=())


def catalogue_document() -> Document:
    """Every name by kind, the price list's providers, and what was left out."""
    kinds = {kind: list(names()) for kind, (names, _) in finders().items()}
    left_out = load.left_out()
    blocks = (
        Pairs("the catalogue", tuple((f"{kind} ({len(names)})", ", ".join(names), "") for kind, names in kinds.items())),
        Pairs("left out, and why", tuple((f"{name}:", why, "") for name, why in left_out.items())),
        Text("meshwright describe NAME prints one of them with its numbers and their sources."),
    )
    return Document(kind="catalogue", title="the catalogue", blocks=blocks, values={**kinds, "left_out": left_out})


def entry_document(entry: object, note: str = "") -> Document:
    """One entry with its note."""
    found = description(entry)
    sources = _sources(entry)
    values = {**_values(entry), **found.derived, "note": note, "sources": {key: _source_values(one) for key, one in sources.items()}}
    title = f"{found.kind} {_name(entry)}"
    return Document(kind=found.kind, title=title, blocks=tuple(_blocks(entry, title, found, note, sources)), values=values)


def _blocks(entry: object, title: str, found: Description, note: str, sources: Mapping[str, Source]) -> Iterator[Block]:
    pairs = [*found.pairs, *([("note", note)] if note else [])]
    yield Pairs(title, tuple((name, str(value), "") for name, value in pairs))
    for name, columns, rows in found.tables:
        yield Table(name, columns, tuple(tuple(map(str, row)) for row in rows))
    if sources:
        yield Table("sources", ("key", "source", "date"), tuple((_key_words(k, sources), s.text, s.date) for k, s in sources.items()))
    elif not isinstance(entry, Provider):  # whose prices have theirs beside them
        yield Text("sources: none stated")


def _values(entry: Any) -> dict[str, Any]:
    """The fields of an entry under the names that all commands use."""
    fields = {key: getattr(entry, key) for key in entry.__dataclass_fields__ if key not in ("sources", "source")}
    if isinstance(entry, Cluster):
        hardware, network = fields.pop("accelerator"), fields.pop("tiers")
        of_one = {**_values(hardware), "sources": {key: _source_values(one) for key, one in hardware.sources.items()}}
        return {**fields, "accelerator": hardware.name, "hardware": of_one, "network": network}
    if isinstance(entry, Provider):
        return {**fields, "prices": [_price_values(price) for price in entry.prices]}
    if isinstance(entry, Recipe):  # a memory's optimizer_bytes are those of a stage
        return {"optimizer_bytes_per_parameter" if key == "optimizer_bytes" else key: value for key, value in fields.items()}
    if isinstance(entry, Region):
        return {"carbon_method" if key == "method" else key: value for key, value in fields.items()}
    if isinstance(entry, Workload):
        adapters = entry.adapters and {ADAPTER_WORDS.get(key, key): value for key, value in asdict(entry.adapters).items()}
        return {**fields, "adapters": adapters}
    return fields


def _price_values(price: Price) -> dict[str, Any]:
    return {**asdict(price), "source": price.source.text, "date": price.date}


def _source_values(source: Source) -> dict[str, str]:
    return {"source": source.text, "date": source.date}


def _name(entry: object) -> str:
    return str(getattr(entry, "name", ""))


def _sources(entry: object) -> Mapping[str, Source]:
    if isinstance(entry, Region | Facility | Recipe):
        return {"default": entry.source}
    return dict(getattr(entry, "sources", {}))


def _key_words(key: str, sources: Mapping[str, Source]) -> str:
    if key != "default":
        return key
    return "all" if len(sources) == 1 else "all others"


@singledispatch
def description(entry: object) -> Description:
    """The description of an entry, by its type."""
    raise TypeError(type(entry))


@description.register
def _accelerator_page(entry: Accelerator) -> Description:
    peaks = [(f"peak {fmt}, dense", si(peak, "FLOP/s")) for fmt, peak in entry.dense_flops_per_s.items()]
    ridge = {fmt: peak / entry.memory_bytes_per_s for fmt, peak in entry.dense_flops_per_s.items()}
    pairs: list[tuple[str, object]] = [
        ("vendor", entry.vendor),
        ("architecture", entry.architecture),
        ("memory", f"{si(entry.memory_bytes, 'B')} ({entry.memory_bytes / GIB:.1f} GiB)"),
        *([("memory by the driver", f"{entry.driver_memory_bytes / GIB:.1f} GiB")] if entry.driver_memory_bytes else []),
        ("memory bandwidth", si(entry.memory_bytes_per_s, "B/s")),
        *peaks,
        ("power cap", _power(entry.power_cap_w)),
        ("FLOPs per byte to be compute-bound", ", ".join(f"{fmt} {value:.0f}" for fmt, value in ridge.items())),
    ]
    if entry.softmax_speedup != 1:
        pairs.append(("exponentials", f"{entry.softmax_speedup:g} x the first accelerator of its generation"))
    listed = economics.prices(entry.name) if entry.name in load.names("accelerators") else ()
    rows: Rows = [
        (p.provider, p.kind, usd(p.usd_per_accelerator_hour), p.instance, p.date, p.source.text + (f"; {p.note}" if p.note else ""))
        for p in listed
    ]
    columns = ("provider", "kind", "per hour>", "instance", "date", "source")
    tables = (("prices of one accelerator", columns, rows),) if rows else ()
    return Description(
        kind="accelerator",
        pairs=pairs,
        derived={"ridge_flops_per_byte": ridge, "prices": [_price_values(price) for price in listed]},
        tables=tables,
    )


@description.register
def _provider_page(entry: Provider) -> Description:
    rows: Rows = [
        (p.accelerator, p.kind, usd(p.usd_per_accelerator_hour), p.instance, p.date, p.source.text + (f"; {p.note}" if p.note else ""))
        for p in entry.prices
    ]
    columns = ("accelerator", "kind", "per hour>", "instance", "date", "source")
    return Description(
        kind="provider", pairs=[("prices listed", f"{len(rows)}")], derived={}, tables=(("prices of one accelerator", columns, rows),)
    )


@description.register
def _link_page(entry: Link) -> Description:
    pairs: list[tuple[str, object]] = [
        ("bandwidth, each way", f"{si(entry.bytes_per_s, 'B/s')} ({si(entry.bytes_per_s * 8, 'bit/s')})"),
        ("latency of a hop", f"{entry.latency_s / MICROSECOND:g} us"),
        ("planes", _planes(entry.num_planes, entry.bytes_per_s)),
    ]
    return Description(kind="link", pairs=pairs, derived={"plane_bytes_per_s": entry.bytes_per_s / entry.num_planes})


@description.register
def _model_page(entry: Model) -> Description:
    # Makers differ on whether the token embedding, a look-up, is active; where it is also the head, it is.
    without = entry.num_active_parameters - (0 if entry.tied_embeddings else entry.embedding_parameters)
    flops = {seq: entry.flops_per_token(seq) for seq in SEQUENCES}
    pairs: list[tuple[str, object]] = [
        ("layers", _layers(entry)),
        ("hidden, MLP", f"{entry.hidden:,}, {entry.ffn_hidden:,}{'' if entry.gated else ' (not gated)'}"),
        ("heads", f"{entry.num_heads} of {entry.head_dim}, {entry.num_kv_heads} for keys and values"),
        ("vocabulary", f"{entry.vocab_size:,}{', tied' if entry.tied_embeddings else ''}"),
    ]
    if entry.experts:
        experts = entry.experts
        shared = f" and {experts.num_shared} shared" if experts.num_shared else ""
        pairs.append(("experts", f"{experts.num_experts} of width {experts.hidden:,}; a token visits {experts.num_active}{shared}"))
    if entry.latent:
        latent = entry.latent
        pairs.append(("latent attention", f"query rank {latent.query_rank:,}, key-value rank {latent.key_value_rank:,}"))
    if entry.window:
        pairs.append(("window", f"{entry.window} tokens in {entry.num_windowed_layers} layers"))
    pairs.append(("parameters", _parameters(entry.num_parameters)))
    if entry.experts:
        pairs.append(("active parameters", _parameters(entry.num_active_parameters)))
        pairs.append(("active, without the token embedding", _parameters(without)))
    pairs += [
        ("weights in bf16", si(2 * entry.num_parameters, "B")),
        *((f"FLOPs per token, sequence {seq:,}", si(count, "FLOP")) for seq, count in flops.items()),
    ]
    derived = {
        "num_parameters": entry.num_parameters,
        "num_active_parameters": entry.num_active_parameters,
        "num_active_parameters_without_embedding": without,
        "flops_per_token": flops,
    }
    return Description(kind="model", pairs=pairs, derived=derived)


@description.register
def _cluster_page(entry: Cluster) -> Description:
    count = entry.num_accelerators
    peaks = {fmt: peak * count for fmt, peak in entry.accelerator.dense_flops_per_s.items()}
    power_w = count * entry.accelerator.power_cap_w + entry.num_nodes * entry.node_overhead_w
    storage = si(entry.storage_bytes_per_s, "B/s") if math.isfinite(entry.storage_bytes_per_s) else "not stated"
    pairs: list[tuple[str, object]] = [
        ("accelerators", f"{count:,} x {entry.accelerator.name}"),
        ("nodes", f"{entry.num_nodes:,} of {entry.accelerators_per_node}"),
        *((f"peak {fmt}, dense", si(peak, "FLOP/s")) for fmt, peak in peaks.items()),
        ("memory", si(count * entry.accelerator.memory_bytes, "B")),
        ("memory bandwidth", si(count * entry.accelerator.memory_bytes_per_s, "B/s")),
        ("storage into the job", storage),
        ("power at most", _power(power_w)),
        ("a node besides its accelerators", _power(entry.node_overhead_w) if entry.node_overhead_w else "not stated"),
    ]
    rate = _hourly(entry)
    if rate:
        pairs.append(("price", f"{usd(rate.usd_per_accelerator_hour * count)} per hour ({rate.provider}, {rate.kind}, {rate.date})"))
    if entry.region:
        region = economics.region(entry.region)
        pairs.append(("grid", f"{region.grid_gco2e_per_kwh:g} gCO2e/kWh ({region.name}, {region.method}, {region.year})"))
    hall = economics.facility(entry.provider)
    pairs.append(("PUE", f"{hall.pue:g} ({hall.name})"))
    rows: Rows = [
        (
            tier.name,
            tier.link,
            f"{tier.num_accelerators:,}",
            f"{tier.num_installed:,}",
            si(tier.bytes_per_s, "B/s"),
            f"{tier.latency_s / MICROSECOND:g} us",
            _planes(tier.num_planes, tier.bytes_per_s),
        )
        for tier in entry
    ]
    derived = {
        "num_accelerators": count,
        "num_nodes": entry.num_nodes,
        "peak_flops_per_s": peaks,
        "total_memory_bytes": count * entry.accelerator.memory_bytes,
        "power_w": power_w,
        "usd_per_hour": rate.usd_per_accelerator_hour * count if rate else None,
        "pue": hall.pue,
    }
    columns = ("tier", "link", "in use>", "installed>", "each way>", "hop>", "planes")
    return Description(kind="cluster", pairs=pairs, derived=derived, tables=(("network, inner to outer", columns, rows),))


@description.register
def _workload_page(entry: Workload) -> Description:
    samples = entry.convergence.samples(entry.global_batch, entry.precision) if entry.convergence else None
    evaluations = entry.num_evaluations(entry.num_steps()) if entry.evaluation else None
    tokens = samples * entry.seq_len if samples else entry.num_tokens
    pairs: list[tuple[str, object]] = [
        ("model", entry.model or "any"),
        ("sequence", f"{entry.seq_len:,} tokens"),
        ("global batch", f"{entry.global_batch:,} sequences, {si(entry.tokens_per_step, ' tokens')} per step"),
        ("precision", entry.precision),
    ]
    if entry.expert_imbalance != 1:
        pairs.append(("expert imbalance", f"{entry.expert_imbalance:g} times the mean on the busiest rank"))
    if entry.target:
        pairs.append(("target", entry.target))
    if entry.adapters:
        pairs.append(("adapters", f"LoRA of rank {entry.adapters.rank} on {', '.join(entry.adapters.targets)}; the base is frozen"))
    if samples:
        pairs.append(("samples to target", f"{samples:,.0f}"))
    pairs += [("tokens", si(tokens, " tokens")), ("steps", f"{entry.num_steps():,}")]
    if entry.evaluation and evaluations:
        every = f"every {entry.evaluation.every_samples:,.0f} samples"
        pairs.append(("evaluations", f"{evaluations} of {entry.evaluation.num_samples:,} sequences, {every}"))
    rows: Rows = []
    if entry.convergence:
        for precision, table in (("", entry.convergence.samples_by_batch), *entry.convergence.samples_by_precision.items()):
            rows += [(precision or "others", f"{batch:,}", f"{count:,.0f}") for batch, count in sorted(table.items())]
        if not entry.convergence.samples_by_precision:
            rows = [("any", *row[1:]) for row in rows]
    derived = {
        "num_steps": entry.num_steps(),
        "total_tokens": tokens,
        "tokens_per_step": entry.tokens_per_step,
        "samples_to_target": samples,
        "num_evaluations": evaluations,
    }
    tables = (("samples to target, measured", ("precision", "global batch>", "samples>"), rows),) if rows else ()
    return Description(kind="workload", pairs=pairs, derived=derived, tables=tables)


@description.register
def _region_page(entry: Region) -> Description:
    pairs: list[tuple[str, object]] = [("grid", f"{entry.grid_gco2e_per_kwh:g} gCO2e/kWh"), ("method", entry.method), ("year", entry.year)]
    return Description(kind="region", pairs=pairs, derived={})


@description.register
def _facility_page(entry: Facility) -> Description:
    water = f"{entry.wue_l_per_kwh:g} L/kWh" if entry.wue_l_per_kwh is not None else "not published"
    return Description(kind="facility", pairs=[("PUE", f"{entry.pue:g}"), ("WUE", water), ("year", entry.year)], derived={})


@description.register
def _recipe_page(entry: Recipe) -> Description:
    formats = ", ".join(filter(None, [entry.number_format, entry.needs and f"on accelerators that have {entry.needs} too"]))
    one_copy = entry.weight_bytes_one_copy
    pairs: list[tuple[str, object]] = [
        ("meaning", entry.meaning),
        ("products in", formats),
        ("a weight", f"{_bytes(entry.weight_bytes)}" + (f", {one_copy:g} on accelerators that have fp4" if one_copy is not None else "")),
        ("a gradient", f"{_bytes(entry.gradient_bytes)}, accumulated over micro-batches"),
        ("the optimizer", f"{_bytes(entry.optimizer_bytes)} a parameter"),
        ("sent for a parameter", f"{_bytes(entry.gather_bytes)} to gather weights, {_bytes(entry.reduce_bytes)} to reduce gradients"),
        ("an activation", f"{_bytes(entry.tensor_bytes)} between operations, {_bytes(entry.input_bytes)} kept as the input of a product"),
        ("a cast", f"{_bytes(entry.cast_bytes)} of memory traffic an element"),
        ("other names", ", ".join(name for name in entry.names if name != entry.name) or "none"),
    ]
    return Description(kind="recipe", pairs=pairs, derived={})


def _bytes(count: float) -> str:
    return f"{count:g} byte{'' if count == 1 else 's'}"


def _hourly(entry: Cluster) -> economics.Price | None:
    """The provider's on-demand price of the cluster's accelerator, or else the median of all; None if nobody lists one."""
    if entry.accelerator.name not in load.names("accelerators"):
        return None
    listed = economics.prices(entry.accelerator.name, kind="on-demand")
    own = [p for p in listed if p.provider == entry.provider]
    return own[0] if own else listed[(len(listed) - 1) // 2] if listed else None


def _layers(entry: Model) -> str:
    dense = f", the first {entry.num_dense_layers} dense" if entry.experts and entry.num_dense_layers else ""
    extra = f", and {entry.num_prediction_layers} to predict a second token" if entry.num_prediction_layers else ""
    return f"{entry.num_layers}{dense}{extra}"


def _parameters(count: int) -> str:
    return f"{parameters(count)} ({count:,})" if count >= 1000 else f"{count}"


def _planes(num_planes: int, bytes_per_s: float) -> str:
    return "1" if num_planes == 1 else f"{num_planes} of {si(bytes_per_s / num_planes, 'B/s')}"


def _power(watts: float) -> str:
    return si(watts, "W") if math.isfinite(watts) else "not published"
