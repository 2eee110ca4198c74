"""What a run cost: accelerator-seconds by state, money to the cent, energy, carbon and water."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson, RegionName

if TYPE_CHECKING:
    from meshwright.ledger import Ledger


def ledger(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `meshwright train` or `meshwright simulate`.")],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every entry to this file, as CSV.", show_default=False)] = None,
    price: Annotated[
        str | None, typer.Option(metavar="USD/H", help="2.5USD/h per accelerator, instead of the recorded price.", show_default=False)
    ] = None,
    region: RegionName = "",
    as_json: AsJson = False,
) -> None:
    """Show the ledger of a run: what its accelerators did, what that cost, and how much energy they used.

    Examples:

      meshwright ledger runs/first --csv first.csv

      meshwright ledger runs/first --price 2.5USD/h --json
    """
    from meshwright.cli.show import show_json, show_pairs, show_table
    from meshwright.errors import InputError
    from meshwright.files import write_whole
    from meshwright.ledger import ledger_csv, ledger_json, ledger_of, read_rate

    if csv is not None and csv.is_dir():
        raise InputError("cannot write a table over a folder", where=str(csv), fix="name a file: --csv ledger.csv")
    found = ledger_of(run, price=None if price is None else read_rate(price), region=region)
    if csv is not None:
        write_whole(csv, ledger_csv(found))
    if as_json:
        show_json(ledger_json(found))
        return
    show_pairs(f"ledger of {found.name}: {found.kind}, {found.status.replace('_', ' ')}", _pairs(found))
    show_table("by state", ("state", "accelerator-hours>", "share>", "USD>", "energy>"), _rows(found))
    for note in found.notes:
        print(f"note: {note}")
    if csv is not None:
        print(f"written: {csv}")


def _pairs(found: Ledger) -> Iterator[tuple[str, str]]:
    from meshwright.units import HOUR, seconds

    energy = found.energy
    yield (
        "paid for",
        f"{seconds(found.wall_s)} of {found.num_gpus:,} accelerators: {_number(sum(found.gpu_seconds.values()) / HOUR)} accelerator-hours",
    )
    yield "cost", money(found)
    yield "price", str(found.price) if found.price else "unknown"
    if found.price:
        yield "price from", found.price.source
    if found.lost_gpu_seconds:
        lost = f"{_number(found.lost_gpu_seconds / HOUR)} accelerator-hours"
        yield "done again", lost if found.lost_usd is None else f"{lost}, {found.lost_usd:,} USD"
    yield "energy", power(found)
    if energy.carbon_kg is not None:
        grid = f"grid of {energy.region}, {energy.method}, {energy.region_year}"
        yield "carbon", f"{_kg(energy.carbon_kg)} CO2e ({grid}; PUE {energy.pue:g}, {energy.facility}, {energy.facility_year})"
    yield "water", "unknown" if energy.water_l is None else f"{_number(energy.water_l)} l on site ({energy.water_of})"


def money(found: Ledger) -> str:
    """The cost in words: to the cent, and of a run below a dollar with the digits that tell."""
    if found.usd is None or found.usd_unrounded is None:
        return "unknown: no price"
    return f"{found.usd:,} USD" if found.usd >= 1 or not found.usd_unrounded else f"{float(found.usd_unrounded):.3g} USD"


def power(found: Ledger) -> str:
    """The energy in words, and where it is from."""
    from meshwright.units import energy

    return "unknown" if found.energy_j is None else f"{energy(found.energy_j)} at the wall, {found.energy_source}"


def _rows(found: Ledger) -> Iterator[tuple[str, ...]]:
    from meshwright.units import HOUR, energy

    total = sum(found.gpu_seconds.values())
    joules = {state: sum(e.joules or 0.0 for e in found.entries if e.state == state) for state in found.gpu_seconds}
    for state, gpu_seconds in found.gpu_seconds.items():
        usd = f"{found.usd_by_state[state]:,}" if found.usd_by_state else "-"
        drawn = energy(joules[state], found.energy_j) if found.energy_j is not None else "-"
        yield state, f"{gpu_seconds / HOUR:,.4f}", f"{gpu_seconds / total:.2%}" if total else "-", usd, drawn
    drawn = energy(found.energy_j) if found.energy_j is not None else "-"
    yield "total", f"{total / HOUR:,.4f}", "100.00%" if total else "-", "-" if found.usd is None else f"{found.usd:,}", drawn


def _kg(mass_kg: float) -> str:
    return f"{_number(mass_kg)} kg" if mass_kg >= 1 else f"{mass_kg * 1e3:.4g} g"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
