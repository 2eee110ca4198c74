"""What `describe` prints of each kind of entry: its numbers with units, what follows from them, and who says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.describe import economics, load
from meshwright.describe.cluster import Cluster
from meshwright.describe.config_json import CONFIG
from meshwright.describe.economics import Facility, Provider, Region
from meshwright.describe.hardware import Accelerator, Link
from meshwright.describe.model import Model
from meshwright.describe.source import Source
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, nearest
from meshwright.units import GIB, MICROSECOND, parameters, si, usd

SEQUENCES = (2048, 8192)  # lengths at which a model's FLOPs are shown

Pairs = list[tuple[str, object]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """One entry laid out: numbers in words, the same for programs, and tables below."""

    kind: str
    pairs: Pairs
    derived: Mapping[str, object]
    tables: tuple[tuple[str, tuple[str, ...], list[tuple[object, ...]]], ...] = field(default=())


def finders() -> Mapping[str, tuple[Callable[[], Iterable[str]], Callable[[str], object]]]:
    """For each kind of entry: its names, and how one is loaded."""
    kinds: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], object]]] = {}
    for kind, loader in load.LOADERS.items():
        kinds[kind] = (partial(load.names, kind), loader)
    kinds["regions"] = (economics.regions, economics.region)
    kinds["facilities"] = (economics.facilities, economics.facility)
    kinds["providers"] = (economics.providers, economics.provider)
    return kinds


# -- all entries --------------------------------------------------------------------------------------


def show_catalogue(*, as_json: bool) -> None:
    """Every name by kind, the price list's providers, and what was left out."""
    kinds = {kind: list(names()) for kind, (names, _) in finders().items()}
    left_out = load.left_out()
    if as_json:
        show_json({**kinds, "left_out": left_out})
        return
    show_pairs("the catalogue", [(f"{kind} ({len(names)})", ", ".join(names)) for kind, names in kinds.items()])
    show_text("left out, and why")
    for name, reason in left_out.items():
        show_text(f"  {name}: {reason}")
    print()
    show_text("meshwright describe NAME prints one of them with its numbers and their sources.")


# -- one entry ----------------------------------------------------------------------------------------


def show_entry(name: str, *, as_json: bool) -> None:
    """One entry, found by name or path."""
    entry, note = find(name)
    page = page_of(entry)
    sources = _sources(entry)
    if as_json:
        facts = {key: value for key, value in _fields(entry).items() if key not in ("sources", "source")}
        show_json({"kind": page.kind, **facts, **page.derived, "note": note, "sources": sources})
        return
    show_pairs(f"{page.kind} {_name(entry)}", page.pairs + ([("note", note)] if note else []))
    for title, columns, rows in page.tables:
        show_table(title, columns, rows)
    if sources:
        show_table("sources", ("key", "source", "date"), [(_key_words(k, sources), s.text, s.date) for k, s in sources.items()])
    elif not isinstance(entry, Provider):  # whose prices have theirs beside them
        show_text("sources: none stated")


def find(name: str) -> tuple[object, str]:
    """The entry of that name, and its note. A path is read as whatever it describes."""
    if load.looks_like_path(name):
        return _from_path(Path(name)), ""
    wanted = load.plain(name)
    if _is_folder(name, wanted):
        raise _no_entry(name)
    for kind, (names, loader) in finders().items():
        if wanted in names():
            return loader(wanted), load.note(kind, wanted)
    known: list[str] = [name for names, _ in finders().values() for name in names()]
    for kind in load.LOADERS:
        known += load.aliases(kind)
        if wanted in load.aliases(kind):
            found = load.aliases(kind)[wanted]
            return load.LOADERS[kind](found), load.note(kind, found)
    for kind, spellings, get in (
        ("regions", economics.spellings("regions"), economics.region),
        ("facilities", economics.spellings("facilities"), economics.facility),
    ):
        if wanted in spellings:
            return get(wanted), load.note(kind, wanted)
    if wanted in load.left_out():
        raise InputError(f"{name!r} is left out of the catalogue: {load.left_out()[wanted]}", fix="describe it in a TOML file of your own")
    offer = nearest(wanted, known)
    fix = f"{offer} meshwright describe lists all" if offer.endswith("?") else "meshwright describe lists all names"
    raise InputError(f"nothing named {name!r} is in the catalogue", fix=fix)


def _is_folder(name: str, wanted: str) -> bool:
    """Whether `name` means a folder: one that is there, and no entry of the catalogue."""
    try:
        return Path(name).is_dir() and not any(wanted in names() for names, _ in finders().values())
    except (OSError, ValueError):  # longer than a path may be, or with a zero byte in it
        return False


def _no_entry(folder: str) -> InputError:
    return InputError("a folder without a config.json describes nothing", where=folder, fix="give a TOML file or a config.json in it")


def _from_path(path: Path) -> object:
    """What a file describes: clusters have tiers, models have layers, workloads have sequences."""
    if path.is_dir() and not (path / CONFIG).is_file():
        raise _no_entry(str(path))
    if path.suffix != ".toml":
        return load.load_model(path)
    table = load.read_toml(path)
    for key, loader in (("tiers", load.load_cluster), ("num_layers", load.load_model), ("seq_len", load.load_workload)):
        if key in table:
            return loader(path)
    raise InputError(
        "cannot tell what this file describes",
        where=str(path),
        fix="a cluster has tiers, a model num_layers, a workload seq_len",
    )


def _fields(entry: object) -> dict[str, Any]:
    return {key: getattr(entry, key) for key in entry.__dataclass_fields__}  # type: ignore[attr-defined]


def _name(entry: object) -> str:
    return str(getattr(entry, "name", ""))


def _sources(entry: object) -> Mapping[str, Source]:
    if isinstance(entry, Region | Facility):
        return {"default": entry.source}
    return dict(getattr(entry, "sources", {}))


def _key_words(key: str, sources: Mapping[str, Source]) -> str:
    if key != "default":
        return key
    return "all" if len(sources) == 1 else "all others"


@singledispatch
def page_of(entry: object) -> Page:
    """The page of an entry, by its type."""
    raise TypeError(type(entry))


@page_of.register
def _accelerator_page(entry: Accelerator) -> Page:
    peaks = [(f"peak {fmt}, dense", si(peak, "FLOP/s")) for fmt, peak in entry.dense_flops_per_s.items()]
    ridge = {fmt: peak / entry.memory_bytes_per_s for fmt, peak in entry.dense_flops_per_s.items()}
    pairs: Pairs = [
        ("vendor", entry.vendor),
        ("architecture", entry.architecture),
        ("memory", f"{si(entry.memory_bytes, 'B')} ({entry.memory_bytes / GIB:.1f} GiB)"),
        ("memory bandwidth", si(entry.memory_bytes_per_s, "B/s")),
        *peaks,
        ("power cap", _power(entry.power_cap_w)),
        ("FLOPs a byte to be compute-bound", ", ".join(f"{fmt} {value:.0f}" for fmt, value in ridge.items())),
    ]
    if entry.softmax_speedup != 1:
        pairs.append(("exponentials", f"{entry.softmax_speedup:g} x the generation's first chip"))
    listed = economics.prices(entry.name) if entry.name in load.names("accelerators") else ()
    rows: list[tuple[object, ...]] = [
        (p.provider, p.kind, usd(p.usd_per_accelerator_hour), p.instance, p.date, p.source.text + (f"; {p.note}" if p.note else ""))
        for p in listed
    ]
    columns = ("provider", "kind", "an hour>", "instance", "date", "source")
    tables = (("prices of one", columns, rows),) if rows else ()
    return Page(kind="accelerator", pairs=pairs, derived={"ridge_flops_per_byte": ridge, "prices": listed}, tables=tables)


@page_of.register
def _provider_page(entry: Provider) -> Page:
    rows: list[tuple[object, ...]] = [
        (p.accelerator, p.kind, usd(p.usd_per_accelerator_hour), p.instance, p.date, p.source.text + (f"; {p.note}" if p.note else ""))
        for p in entry.prices
    ]
    columns = ("accelerator", "kind", "an hour>", "instance", "date", "source")
    return Page(
        kind="provider", pairs=[("prices listed", f"{len(rows)}")], derived={}, tables=(("prices of one accelerator", columns, rows),)
    )


@page_of.register
def _link_page(entry: Link) -> Page:
    pairs: Pairs = [
        ("bandwidth, each way", f"{si(entry.bytes_per_s, 'B/s')} ({si(entry.bytes_per_s * 8, 'bit/s')})"),
        ("latency of a hop", f"{entry.latency_s / MICROSECOND:g} us"),
        ("planes", _planes(entry.num_planes, entry.bytes_per_s)),
    ]
    return Page(kind="link", pairs=pairs, derived={"plane_bytes_per_s": entry.bytes_per_s / entry.num_planes})


@page_of.register
def _model_page(entry: Model) -> Page:
    # Makers differ on whether the token embedding, a look-up, is active; where it is also the head, it is.
    without = entry.num_active_parameters - (0 if entry.tied_embeddings else entry.embedding_parameters)
    flops = {seq: entry.flops_per_token(seq) for seq in SEQUENCES}
    pairs: Pairs = [
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
        *((f"FLOPs a token, sequence {seq:,}", si(count, "FLOP")) for seq, count in flops.items()),
    ]
    derived = {
        "num_parameters": entry.num_parameters,
        "num_active_parameters": entry.num_active_parameters,
        "num_active_parameters_without_embedding": without,
        "flops_per_token": flops,
    }
    return Page(kind="model", pairs=pairs, derived=derived)


@page_of.register
def _cluster_page(entry: Cluster) -> Page:
    count = entry.num_accelerators
    peaks = {fmt: peak * count for fmt, peak in entry.accelerator.dense_flops_per_s.items()}
    power_w = count * entry.accelerator.power_cap_w + entry.num_nodes * entry.node_overhead_w
    storage = si(entry.storage_bytes_per_s, "B/s") if math.isfinite(entry.storage_bytes_per_s) else "not stated"
    pairs: Pairs = [
        ("accelerators", f"{count:,} x {entry.accelerator.name}"),
        ("nodes", f"{entry.num_nodes:,} of {entry.accelerators_per_node}"),
        *((f"peak {fmt}, dense", si(peak, "FLOP/s")) for fmt, peak in peaks.items()),
        ("memory", si(count * entry.accelerator.memory_bytes, "B")),
        ("memory bandwidth", si(count * entry.accelerator.memory_bytes_per_s, "B/s")),
        ("storage into the job", storage),
        ("power at most", _power(power_w)),
        ("a node beside its accelerators", _power(entry.node_overhead_w) if entry.node_overhead_w else "not stated"),
    ]
    rate = _hourly(entry)
    if rate:
        pairs.append(("price", f"{usd(rate.usd_per_accelerator_hour * count)} an hour ({rate.provider}, {rate.kind}, {rate.date})"))
    if entry.region:
        region = economics.region(entry.region)
        pairs.append(("grid", f"{region.grid_gco2e_per_kwh:g} gCO2e/kWh ({region.name}, {region.method}, {region.year})"))
    hall = economics.facility(entry.provider)
    pairs.append(("PUE", f"{hall.pue:g} ({hall.name})"))
    rows: list[tuple[object, ...]] = [
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
        "memory_bytes": count * entry.accelerator.memory_bytes,
        "power_w": power_w,
        "usd_per_hour": rate.usd_per_accelerator_hour * count if rate else None,
        "pue": hall.pue,
    }
    columns = ("tier", "link", "in use>", "installed>", "each way>", "hop>", "planes")
    return Page(kind="cluster", pairs=pairs, derived=derived, tables=(("network, inner to outer", columns, rows),))


@page_of.register
def _workload_page(entry: Workload) -> Page:
    samples = entry.convergence.samples(entry.global_batch, entry.precision) if entry.convergence else None
    evaluations = entry.num_evaluations(entry.num_steps()) if entry.evaluation else None
    tokens = samples * entry.seq_len if samples else entry.num_tokens
    pairs: Pairs = [
        ("model", entry.model or "any"),
        ("sequence", f"{entry.seq_len:,} tokens"),
        ("global batch", f"{entry.global_batch:,} sequences, {si(entry.tokens_per_step, ' tokens')} a step"),
        ("precision", entry.precision),
    ]
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
    rows: list[tuple[object, ...]] = []
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
    return Page(kind="workload", pairs=pairs, derived=derived, tables=tables)


@page_of.register
def _region_page(entry: Region) -> Page:
    pairs: Pairs = [("grid", f"{entry.grid_gco2e_per_kwh:g} gCO2e/kWh"), ("method", entry.method), ("year", entry.year)]
    return Page(kind="region", pairs=pairs, derived={})


@page_of.register
def _facility_page(entry: Facility) -> Page:
    water = f"{entry.wue_l_per_kwh:g} L/kWh" if math.isfinite(entry.wue_l_per_kwh) else "not published"
    return Page(kind="facility", pairs=[("PUE", f"{entry.pue:g}"), ("WUE", water), ("year", entry.year)], derived={})


def _hourly(entry: Cluster) -> economics.Price | None:
    """The provider's on-demand price of the cluster's accelerator, else the median of all; none where nobody lists one."""
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
