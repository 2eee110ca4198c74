"""The document of a ledger: what the accelerators of a run did, what that cost, and how much energy it used."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ledger import Ledger, ledger_json
from meshwright.say.document import Block, Document, Note, Pairs, Table
from meshwright.units import HOUR, carbon, energy, per_cent, seconds, water

COLUMNS = ("state", "accelerator-hours>", "share>", "USD>", "energy>")


def ledger_document(ledger: Ledger) -> Document:
    """The whole ledger; its values have every entry."""
    title = f"ledger of {ledger.name}: {ledger.kind}, {ledger.status.replace('_', ' ')}"
    return Document(kind="ledger", title=title, blocks=tuple(_blocks(ledger, title)), values=ledger_json(ledger))


def _blocks(ledger: Ledger, title: str) -> Iterator[Block]:
    yield Pairs(title, tuple((name, value, "") for name, value in _pairs(ledger)))
    yield Table("by state", COLUMNS, tuple(_rows(ledger)))
    yield from map(Note, ledger.notes)


def _pairs(ledger: Ledger) -> Iterator[tuple[str, str]]:
    site = ledger.energy
    hours = _number(sum(ledger.gpu_seconds.values()) / HOUR)
    yield "paid for", f"{seconds(ledger.wall_s)} of {ledger.num_gpus:,} accelerators: {hours} accelerator-hours"
    yield "cost", _money(ledger)
    yield "price", str(ledger.price) if ledger.price else "unknown"
    if ledger.price:
        yield "price from", ledger.price.source
    if ledger.lost_gpu_seconds:
        lost = f"{_number(ledger.lost_gpu_seconds / HOUR)} accelerator-hours"
        yield "done again", lost if ledger.lost_usd is None else f"{lost}, {ledger.lost_usd:,} USD"
    yield "energy", "unknown" if ledger.energy_j is None else f"{energy(ledger.energy_j)} at the wall, {ledger.energy_source}"
    if site.carbon_kg is not None:
        grid = f"grid of {site.region}, {site.method}, {site.region_year}"
        yield "carbon", f"{carbon(site.carbon_kg)} ({grid}; PUE {site.pue:g}, {site.facility}, {site.facility_year})"
    yield "water", "unknown" if site.water_l is None else f"{water(site.water_l)} on site ({site.water_of})"


def _money(ledger: Ledger) -> str:
    """The cost to the cent; for a run below a dollar, with three digits."""
    if ledger.usd is None or ledger.usd_unrounded is None:
        return "unknown: no price"
    return f"{ledger.usd:,} USD" if ledger.usd >= 1 or not ledger.usd_unrounded else f"{float(ledger.usd_unrounded):.3g} USD"


def _rows(ledger: Ledger) -> Iterator[tuple[str, ...]]:
    total = sum(ledger.gpu_seconds.values())
    joules = {state: sum(entry.joules or 0.0 for entry in ledger.entries if entry.state == state) for state in ledger.gpu_seconds}
    for state, gpu_seconds in ledger.gpu_seconds.items():
        usd = f"{ledger.usd_by_state[state]:,}" if ledger.usd_by_state else "-"
        drawn = energy(joules[state], ledger.energy_j) if ledger.energy_j is not None else "-"
        yield state, f"{gpu_seconds / HOUR:,.4f}", per_cent(gpu_seconds / total, ".2f") if total else "-", usd, drawn
    drawn = energy(ledger.energy_j) if ledger.energy_j is not None else "-"
    yield "total", f"{total / HOUR:,.4f}", per_cent(1.0, ".2f") if total else "-", "-" if ledger.usd is None else f"{ledger.usd:,}", drawn


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
