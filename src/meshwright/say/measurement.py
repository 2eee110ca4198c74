"""The document of a measurement of this machine: the rates and times of its hardware profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.describe.profile import GroupedTime, ProductTime, Profile, Slice, profile_text
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text
from meshwright.units import seconds, si


def measurement_document(profile: Profile, path: Path, *, is_usual: bool) -> Document:
    """The profile that was written to `path`; `is_usual`: where commands on this machine look for it."""
    values = {"profile": json.loads(profile_text(profile)), "files": [{"what": "hardware profile", "path": str(path)}]}
    return Document(kind="measurement", title=profile.words, blocks=tuple(_blocks(profile, path, is_usual=is_usual)), values=values)


def _blocks(profile: Profile, path: Path, *, is_usual: bool) -> Iterator[Block]:
    bandwidths = {"copy": profile.copy_bytes_per_s, "norm": profile.norm_bytes_per_s, "optimizer": profile.optimizer_bytes_per_s}
    pairs = [("measured in", seconds(profile.measured_s)), ("an empty kernel", seconds(profile.launch_s))]
    if profile.device_type == "cuda":
        by = dict.fromkeys(each.kernel or "torch's own kernels" for each in profile.attentions)
        pairs.append(("attention by", ", ".join(by)))
    pairs += [(name, si(rate, "B/s")) for name, rate in bandwidths.items()]
    yield Pairs(profile.words, tuple((name, value, "") for name, value in pairs))
    rates = ("format", "rows>", "slowest>", "fastest>")
    yield Table("products", rates, tuple(_product_rows(profile.products)))
    if profile.grouped:
        yield Table("products of experts", rates, tuple(_product_rows(profile.grouped)))
    columns = ("model", "precision", "batch>", "ranks>", "layer>", "ends>", "update>", "kept per layer>")
    yield Table("slices of the training step", columns, tuple(map(_slice_row, (*profile.slices, *profile.shared_slices))))
    if profile.on_one_machine:
        rows = tuple((c.kind, str(c.num_ranks), si(c.payload_bytes, "B"), seconds(c.seconds)) for c in profile.on_one_machine)
        yield Table("collectives", ("kind", "processes>", "payload>", "seconds>"), rows)
    if profile.between_hosts:
        placed = ("kind", "processes>", "in one of each tier", "payload>", "seconds>", "payload per second>")
        yield Table(f"collectives between hosts: {', '.join(t.name for t in profile.tiers)}", placed, tuple(_placed_rows(profile)))
    yield from (Note(f"not timed: {what}") for what in profile.left_out)
    use = "predict, plan and train use it on this machine by default" if is_usual else f"use it with --profile {path}"
    yield Text(f"written to {path}; {use}")


def _placed_rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    for c in profile.between_hosts:
        inside = ", ".join(f"{count} in a {tier.name}" for tier, count in zip(profile.tiers, c.members, strict=True))
        rate = si(c.payload_bytes / c.seconds, "B/s")
        yield c.kind, str(c.num_ranks), inside, si(c.payload_bytes, "B"), seconds(c.seconds), rate


def _slice_row(cut: Slice) -> tuple[str, ...]:
    ranks = f"tp={cut.tp}" if cut.tp > 1 else f"pp={cut.pp}" if cut.pp > 1 else "1"
    kept = si(cut.layer_saved_bytes, "B") if cut.layer_saved_bytes else "not counted"
    times = map(seconds, (cut.layer_s, cut.ends_s, cut.updates_s[1]))
    return cut.model, ", ".join((cut.precision, *_trained(cut))), f"{cut.micro_batch} x {cut.seq_len:,}", ranks, *times, kept


def _trained(cut: Slice) -> Iterator[str]:
    """What differs from training all weights with nothing computed again."""
    if cut.adapters:
        yield f"adapters of rank {cut.adapters.rank} and {cut.adapters.base} base"
    if cut.recompute != "none":
        yield f"{cut.recompute} recompute"


def _product_rows(products: Sequence[ProductTime | GroupedTime]) -> Iterator[tuple[str, ...]]:
    found: dict[tuple[str, int], list[float]] = {}
    for p in products:
        found.setdefault((p.number_format, p.rows), []).append(2.0 * p.rows * p.columns * p.inner / p.seconds)
    for (name, rows), rates in sorted(found.items()):
        yield name, f"{rows:,}", si(min(rates), "FLOP/s"), si(max(rates), "FLOP/s")
