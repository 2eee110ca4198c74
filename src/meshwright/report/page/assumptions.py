"""Every number that a plan is based on, with its origin: numbers that were chosen, fitted, or looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshwright.describe.failures import Failures
from meshwright.describe.load import link
from meshwright.describe.source import Sources
from meshwright.errors import InputError
from meshwright.predict import footprint
from meshwright.predict import software as sw
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import POWER_FILE, power_constants
from meshwright.units import gib, seconds, usd


@dataclass(frozen=True, slots=True)
class Assumption:
    """One number that the prediction is based on."""

    what: str
    value: str
    origin: str  # its source, the reason for it, or the value expected before the fit


def chosen() -> list[Assumption]:
    """Numbers that were chosen for a reason, and not fitted."""
    found = [Assumption(one.meaning, _value(getattr(sw, name), one.unit), one.reason) for name, one in sw.ASSUMED.items()]
    reserve = "CUDA context, NCCL channels, buffers of overlapped collectives, fragments"
    found.append(Assumption("memory reserved on every accelerator", gib(footprint.RESERVE_BYTES), reserve))
    layers = "the layer at work and the one fetched ahead"
    found.append(Assumption("layers that ZeRO 3 holds gathered", f"{footprint.NUM_GATHERED_LAYERS}", layers))
    return found


def fitted(forecast: Forecast) -> list[Assumption]:
    """Numbers that were fitted on measured runs, for the plan's software."""
    constants = forecast.job.software.constants
    found = [
        Assumption(entry.meaning, _value(getattr(constants, name), _unit(entry.unit)), _expected(entry))
        for name, entry in sw.FITTED.items()
        if not name.startswith("release ")
    ]
    release = (
        f"time of {forecast.job.software.name} against {sw.REFERENCE_RELEASE}'s, as a logarithm (fitted as {forecast.job.software.release})"
    )
    found.append(Assumption(release, f"{forecast.job.software.log_factor:+.3f}", forecast.job.software.note or "0 \u00b1 0.15"))
    for name, value in _power().items():
        found.append(Assumption(f"node power: {name.replace('_', ' ')}", f"{value:.4g}", "fitted freely"))
    return found


def fitted_on() -> str:
    """The runs that the constants were fitted on."""
    values = sw.fitted_values()
    return f"Fitted on {values.fitted_on} ({values.date}); node power on metered runs ({POWER_FILE.name})."


def _expected(entry: sw.Fitted) -> str:
    unit = _unit(entry.unit)
    return f"{_value(entry.expected, unit)} \u00b1 {_value(entry.spread, unit)}"


def looked_up(forecast: Forecast) -> list[Assumption]:
    """The sources of model, cluster and workload, and of prices, grid and data centers."""
    plan, whole = forecast.job, forecast.outcome
    named: tuple[tuple[str, str, Sources], ...] = (
        ("model", plan.model.name, plan.model.sources),
        ("cluster", plan.cluster.name, plan.cluster.sources),
        ("accelerator", plan.cluster.accelerator.name, plan.cluster.accelerator.sources),
        *((f"link of {tier.name}", tier.link, _link_sources(tier.link)) for tier in plan.cluster),
        ("workload", plan.workload.name, plan.workload.sources),
    )
    found = [entry for kind, name, sources in named for entry in _of(kind, name, sources)]
    if whole.offer:
        price = whole.offer.price
        value = f"{usd(price.usd_per_accelerator_hour)} per accelerator-hour, {price.provider} {price.kind}"
        found.append(Assumption("price", value, str(price.source)))
    grid, halls = whole.region, whole.facility
    found.append(
        Assumption(f"grid of {grid.name}", f"{grid.grid_gco2e_per_kwh:g} g CO2e/kWh, {grid.method}, {grid.year}", str(grid.source))
    )
    found.append(Assumption(f"data centre of {halls.name}", f"PUE {halls.pue:g}, {halls.year}", str(halls.source)))
    if whole.interruptions:
        known = whole.interruptions.failures
        found.append(Assumption(f"failures as {known.name}", _failures(known), known.note))
        found += [Assumption(f"failures: {key}", known.name, text) for key, text in known.sources.items()]
    found.append(Assumption("watts besides the accelerators", whole.hosts, "see the cluster, or the node power constants"))
    return found


def _failures(known: Failures) -> str:
    times = f"{seconds(known.detection_s)} to detect, {seconds(known.restart_s)} to restart, {seconds(known.checkpoint_s)} per checkpoint"
    return f"{known.per_accelerator_hour:.3g} per accelerator-hour; {times}, {seconds(known.repair_s)} until a lost node is back"


def evidence(forecast: Forecast) -> str:
    """What the interval is based on, in a sentence."""
    bounds = forecast.evidence
    where = {"measured": "inside the evidence", "near": "near the evidence", "far": "far from the evidence"}[bounds.distance]
    factors = f"{100 * (bounds.low - 1):+.1f} % to {100 * (bounds.high - 1):+.1f} %"
    kin = f"from the errors on {bounds.num_runs} runs ({bounds.kin})"
    return f"The 80 % interval, {factors}, comes {kin}. This job is {where}."


def _of(kind: str, name: str, sources: Sources) -> Iterator[Assumption]:
    if not sources:
        yield Assumption(kind, name, "no source is stated")
    for key, source in sources.items():
        yield Assumption(kind if key == "default" else f"{kind}: {key}", name, str(source))


def _link_sources(name: str) -> Sources:
    """Sources of a link; none for a link that only the plan's own file describes."""
    try:
        return link(name).sources
    except InputError:
        return {}


def _power() -> Mapping[str, float]:
    constants = power_constants()
    return {
        "waiting fraction of the cap": constants.waiting_fraction,
        "host W per accelerator": constants.host_w_per_accelerator,
        "fans, share of the heat": constants.fan_fraction,
        "wall over DC": constants.wall_per_dc,
    }


def _unit(unit: str) -> str:
    return "" if unit in ("fraction", "1") else unit


def _value(value: object, unit: str) -> str:
    """A number, or a table or pair of them, with its unit."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number:g}" for key, number in value.items()) + (f" {unit}" if unit else "")
    if isinstance(value, tuple):
        return ", ".join(f"{number:g}" for number in value) + (f" {unit}" if unit else "")
    assert isinstance(value, int | float)
    if unit == "s":
        return seconds(value)
    shown = f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.4g}"
    return f"{shown} {unit}".strip()
