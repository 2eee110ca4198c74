"""The price of an accelerator-hour, with provider and date: listed, or given by the user."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError, argument
from meshwright.predict.outcome import price_of

GIVEN = "given"
UNDERSTOOD = "write 2.5USD/h, $2.5 or 2.5: USD per accelerator-hour"
MOST_USD = Decimal(10**15)  # a larger amount is a typing error
MOST_DIGITS = 30  # before or after the point
_TIMES = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}
_NUMBER = r"[0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+"
_AMOUNT = re.compile(rf"(?:(?:US)?\$|(?i:USD))?\s*(?P<number>{_NUMBER})\s*(?P<times>[kKM]?)\s*(?:\$|(?i:USD))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """USD per accelerator-hour, with provider, kind and date."""

    usd_per_gpu_hour: Decimal
    provider: str
    kind: str  # on-demand, spot, reserved; `given` by the user; `assumed` for processors
    date: str  # of the price
    source: str

    def to_json(self) -> dict[str, str]:
        """The rate for an event; the number is text, so that no digit is lost."""
        return {name: str(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_json(entry: Any) -> Rate | None:
        """The rate of an event; None if it has none that can be read."""
        if not isinstance(entry, Mapping):
            return None
        try:
            usd = Decimal(str(entry["usd_per_gpu_hour"]))
            rest = {name: str(entry[name]) for name in ("provider", "kind", "date", "source")}
        except (KeyError, InvalidOperation):
            return None
        if not usd.is_finite() or not 0 <= usd < MOST_USD or abs(usd.adjusted()) > MOST_DIGITS:  # sums of such numbers would overflow
            return None
        return Rate(usd_per_gpu_hour=usd, **rest)

    def __str__(self) -> str:
        return f"${self.usd_per_gpu_hour.normalize():f} per accelerator-hour, {self.provider}, {self.kind}, {self.date}"


def rate_of(cluster: Cluster) -> Rate | None:
    """The price of the machine's accelerators as the predictor uses it; None if none is listed."""
    price = price_of(cluster)
    if price is None:
        return None
    return Rate(
        usd_per_gpu_hour=_decimal(price.usd_per_accelerator_hour),
        provider=price.provider,
        kind=price.kind,
        date=price.date,
        source=price.source.text,
    )


def read_rate(text: str, where: str = argument("price")) -> Rate:
    """The price that a user gives: `2.5USD/h`."""
    amount = re.sub(r"\s*(?:/|per)\s*(?:(?:gpu|accelerator)[ -]?)?(?:h|hour)\s*$", "", text.strip(), flags=re.I)
    usd = read_usd(amount, where, UNDERSTOOD)
    if usd > 100_000:
        raise InputError(f"${usd:f} per accelerator-hour", where=where, fix=UNDERSTOOD)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return Rate(usd_per_gpu_hour=usd, provider="the user", kind=GIVEN, date=today, source=f"given as {text.strip()}")


def read_usd(text: str, where: str, fix: str) -> Decimal:
    """An amount of USD above 0: 500USD, 500, $500, 500 USD, 1.2kUSD, 3MUSD."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise InputError(f"cannot read an amount of USD in {text!r}" if text.strip() else "no amount of USD", where=where, fix=fix)
    number = found["number"]
    if "," in number and not re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?", number):
        raise InputError(f"the comma in {text!r} could be a decimal point or a separator", where=where, fix=fix)
    plain = Decimal(number.replace(",", "").replace("_", ""))
    is_extreme = plain and abs(plain.adjusted()) > MOST_DIGITS  # where a product would overflow
    usd = plain if is_extreme else plain * _TIMES[found["times"]]
    if is_extreme or not 0 < usd < MOST_USD:
        size = "too large an amount" if usd >= MOST_USD else "too small an amount" if usd > 0 else "not above 0"
        raise InputError(f"{text.strip()} is {size}", where=where, fix=fix)
    return usd


def _decimal(value: float) -> Decimal:
    assert math.isfinite(value)
    return Decimal(repr(round(value, 12)))
