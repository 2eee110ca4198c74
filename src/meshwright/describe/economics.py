"""Prices by provider, grid carbon by region, PUE and WUE of data centres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from meshwright.describe.form import Checked, checked
from meshwright.describe.load import CATALOGUE, Entry, Positive, SourceTable, accelerator, plain, read_toml, sources_of
from meshwright.describe.source import Source
from meshwright.errors import InputError, argument, nearest

KINDS = ("on-demand", "spot", "reserved")
INDUSTRY = "industry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The listed price of one provider per accelerator-hour."""

    provider: str
    accelerator: str
    kind: str  # one of KINDS
    usd_per_accelerator_hour: float
    instance: str
    source: Source  # its date is the price's
    note: str = ""

    @property
    def date(self) -> str:
        """The day the price was listed."""
        return self.source.date


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region and the carbon intensity of its grid."""

    name: str
    grid_gco2e_per_kwh: float
    method: str  # operational: from fuel only; lifecycle: with the construction of power plants
    year: int
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """The overhead of a provider's data centres: PUE and water."""

    name: str
    pue: float  # energy at the meter over energy of the computers
    wue_l_per_kwh: float | None  # litres of water on site per kWh of the computers; None if not published
    year: int
    source: Source


Year = Annotated[int, Field(ge=1990, le=2100)]


class PriceTable(Checked):
    provider: str
    accelerator: str
    kind: Literal["on-demand", "spot", "reserved"]
    instance: str
    usd_per_hour: Positive
    note: str = ""
    source: SourceTable


class RegionTable(Entry):
    grid_gCO2e_per_kWh: Positive
    year: Year
    method: Literal["operational", "lifecycle"]


class FacilityTable(Entry):
    pue: Annotated[float, Field(ge=1, le=10)]
    wue_L_per_kWh: Positive | None = None
    year: Year


@cache
def all_prices() -> tuple[Price, ...]:
    """Every listed price."""
    rows = read_toml(CATALOGUE / "prices.toml")["prices"]
    return tuple(_price(checked(PriceTable, row, f"prices.toml, price {number}")) for number, row in enumerate(rows, 1))


def _price(row: PriceTable) -> Price:
    return Price(
        provider=row.provider,
        accelerator=row.accelerator,
        kind=row.kind,
        usd_per_accelerator_hour=row.usd_per_hour,
        instance=row.instance,
        source=Source(row.source.text, row.source.date),
        note=row.note,
    )


def prices(accelerator_name: str, *, provider: str = "", kind: str = "") -> tuple[Price, ...]:
    """Listed prices of an accelerator, cheapest first; only of one provider or kind if given."""
    name = accelerator(accelerator_name).name
    if provider and plain(provider) not in providers():
        raise InputError(
            f"no provider named {provider!r} in the price list", where=argument("provider"), fix=nearest(provider, providers())
        )
    if kind and kind not in KINDS:
        raise InputError(f"no price kind named {kind!r}", where=argument("price_kind"), fix=f"choose from {', '.join(KINDS)}")
    found = (p for p in all_prices() if p.accelerator == name and plain(provider) in ("", p.provider) and kind in ("", p.kind))
    return tuple(sorted(found, key=lambda p: p.usd_per_accelerator_hour))


def price(accelerator_name: str, *, provider: str = "", kind: str = "on-demand") -> Price:
    """The price to use: the provider's cheapest of that kind; without a provider, the median of all providers'."""
    found = prices(accelerator_name, provider=provider, kind=kind)
    if not found:
        listed = [f"{p.provider} {p.kind}" for p in prices(accelerator_name)]
        of_provider = f" from {provider}" if provider else ""
        raise InputError(
            f"no {kind} price is listed for {accelerator_name}{of_provider}",
            where="prices.toml",
            fix=f"choose from {', '.join(dict.fromkeys(listed))}" if listed else "give a price of your own",
        )
    return found[0] if provider else found[(len(found) - 1) // 2]


@cache
def providers() -> tuple[str, ...]:
    """Providers that list a price."""
    return tuple(sorted({p.provider for p in all_prices()}))


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider and all it lists."""

    name: str
    prices: tuple[Price, ...]


def provider(name: str) -> Provider:
    """The price list of one provider, by accelerator."""
    if plain(name) not in providers():
        raise InputError(f"no provider named {name!r} in the price list", where=argument("provider"), fix=nearest(name, providers()))
    listed = (price for price in all_prices() if price.provider == plain(name))
    return Provider(plain(name), tuple(sorted(listed, key=lambda price: (price.accelerator, price.usd_per_accelerator_hour))))


@cache
def _tables(kind: str) -> Mapping[str, dict[str, Any]]:
    tables: Mapping[str, dict[str, Any]] = read_toml(CATALOGUE / "regions.toml")[kind]
    return tables


@cache
def spellings(kind: str) -> Mapping[str, str]:
    """Names and aliases of `regions` or `facilities` -> the name."""
    names = {name: name for name in _tables(kind)}
    return names | {plain(alias): name for name, table in _tables(kind).items() for alias in table.get("aliases", [])}


def regions() -> tuple[str, ...]:
    """Regions with a known grid."""
    return tuple(sorted(_tables("regions")))


def facilities() -> tuple[str, ...]:
    """Providers with a published PUE, and `industry`, the mean of all."""
    return tuple(sorted(_tables("facilities")))


def region(name: str) -> Region:
    """The region of that name or alias."""
    found = spellings("regions").get(plain(name))
    if found is None:
        raise InputError(f"no region named {name!r}", where="the catalogue's regions", fix=nearest(plain(name), spellings("regions")))
    where = f"regions.toml [regions.{found}]"
    table = checked(RegionTable, _tables("regions")[found], where)
    return Region(
        name=found,
        grid_gco2e_per_kwh=table.grid_gCO2e_per_kWh,
        method=table.method,
        year=table.year,
        source=sources_of(table, "regions", where)["default"],
    )


def facility(provider: str) -> Facility:
    """The data centres of a provider; the mean of the industry (as its name says) if the provider publishes nothing."""
    found = spellings("facilities").get(plain(provider), INDUSTRY)
    where = f"regions.toml [facilities.{found}]"
    table = checked(FacilityTable, _tables("facilities")[found], where)
    return Facility(
        name=found,
        pue=table.pue,
        wue_l_per_kwh=table.wue_L_per_kWh,
        year=table.year,
        source=sources_of(table, "regions", where)["default"],
    )
