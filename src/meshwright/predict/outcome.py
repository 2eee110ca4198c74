"""One row of a Prediction -> what the whole run needs: time, money, energy at the wall, carbon and water.

The numbers of a run of more than a day include interruptions, restarts, checkpoints and spare nodes (`predict.goodput`). Quantities that
grow with time have the interval of the prediction. If a price, a power cap or the water use of a facility is not stated, the quantity is
None, and `Outcome.unknown` gives the reason. `Outcome.notes` explain numbers that could be misread. The ledger uses the same prices and
watts, so that a run costs what its plan predicted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.arguments import check_types
from meshwright.cost.energy import (
    PowerConstants,
    accelerator_power_w,
    busy_fraction,
    carbon_kg,
    facility_energy_j,
    node_power_w,
    run_energy_j,
    water_l,
)
from meshwright.cost.money import accelerator_hours, cost_usd
from meshwright.describe import economics
from meshwright.describe.cluster import Cluster
from meshwright.describe.economics import Facility, Price, Region
from meshwright.describe.source import Source
from meshwright.describe.this_machine import CORE_W
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument
from meshwright.predict.goodput import LONG_S, Interruptions, expected_on
from meshwright.predict.prediction import Prediction, evaluation_time_s
from meshwright.units import seconds

Column = NDArray[np.float64]

POWER_FILE = Path(__file__).parents[1] / "evidence" / "power_constants.json"
DEFAULT_REGION = "usa"  # for a cluster without a region: most machines of the catalogue are there
DEFAULT_KIND = "on-demand"
COOLING = ("air", "liquid")
LIQUID_RACKS = ("gb200", "gb300")  # sold in racks cooled by liquid only
NOT_STATED = "not stated by the vendor"
ASSUMED = "assumed"  # kind of a price that nobody lists
CORE_USD_PER_HOUR = 0.045  # of a processor's core: what clouds ask on demand (AWS c7i, us-east-1, 2025; recalled)


@dataclass(frozen=True, slots=True)
class Spread:
    """A value, and the 80 % interval around it."""

    value: float
    low: float
    high: float  # infinite where only the lower end is known

    def times(self, factor: float) -> Spread:
        """The same in another unit, or of a quantity that grows with this one."""
        return Spread(self.value * factor, self.low * factor, self.high * factor)

    def between(self, shown: Callable[[float], str], to: str = " to ") -> str:
        """The interval in words."""
        return f"{shown(self.low)}{to}{shown(self.high)}" if math.isfinite(self.high) else f"{shown(self.low)} or more"


@dataclass(frozen=True, slots=True)
class Offer:
    """What the run costs at one listed price."""

    price: Price
    cost_usd: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the whole run needs. A quantity that cannot be computed is None, and `unknown` gives the reason."""

    num_steps: int
    num_evaluations: int
    evaluation_s: float  # one evaluation
    time_to_train_s: Spread | None
    ideal_s: float | None  # the same if nothing interrupts the run and nothing is saved
    interruptions: Interruptions | None  # that the run must expect; None if they are left out
    stalls: float  # share that stalls add to the steps; 0 if they are left out
    accelerator_hours: Spread | None  # spare nodes included
    offer: Offer | None  # at the price that is used
    alternatives: tuple[Offer, ...]  # all that are listed for the accelerator, cheapest first
    busy: float | None  # share of the run in which the accelerators work
    node_w: float | None  # mean watts of a node in use at the wall
    hosts: str  # where the watts besides the accelerators come from
    energy_j: Spread | None  # at the wall, switches left out
    facility_energy_j: Spread | None  # and with cooling and distribution
    carbon_kg: Spread | None
    water_l: Spread | None  # on site
    region: Region
    facility: Facility
    unknown: Mapping[str, str] = field(hash=False)
    batch_beyond: str = ""  # `above` or `below` the batches whose samples to the target are known: `above`, only lower ends are known

    def __repr__(self) -> str:
        spreads = {"time_to_train_s": self.time_to_train_s, "cost_usd": self.offer and self.offer.cost_usd, "energy_j": self.energy_j}
        known = ", ".join(f"{name}={spread.value:.4g}" for name, spread in spreads.items() if spread)
        return f"Outcome({self.num_steps:,} steps{', ' * bool(known)}{known})"

    @property
    def is_lower_bound(self) -> bool:
        """Whether the number of steps, and the lower end of all that grows with it, are lower bounds without an upper end."""
        return self.batch_beyond == "above"

    def words(self, spread: Spread, shown: Callable[[float], str]) -> str:
        """A quantity of the whole run in words: where only a lower end is known, that end."""
        if self.is_lower_bound:
            return f"at least {shown(spread.low)}"
        return f"{'about ' if self.batch_beyond == 'below' else ''}{shown(spread.value)}"

    @property
    def goodput(self) -> float | None:
        """Share of the time in which the run makes progress that is kept, 0 to 1; None if interruptions are left out."""
        return self.interruptions.goodput if self.interruptions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Prices, data centre, grid and cooling for a forecast, and whether it includes failures. Empty: as the cluster states.

    Args:
        provider: Cloud provider whose prices and data centre are used.
        price_kind: `on-demand`, `spot` or `reserved`.
        region: Region whose electricity grid is used.
        cooling: `air` or `liquid`: power of hosts and fans as in metered nodes, instead of the power that the cluster states.
        ideal: Leave out interruptions, restarts, checkpoints and spare nodes.
    """

    provider: str = ""
    price_kind: str = ""  # on-demand, spot or reserved
    region: str = ""
    cooling: str = ""  # air or liquid: hosts and fans as on metered nodes, instead of what the cluster states
    ideal: bool = False  # leave out interruptions, restarts, checkpoints and spare nodes

    def __post_init__(self) -> None:
        check_types(self)


def outcome(prediction: Prediction, row: int = 0, terms: Terms | None = None) -> Outcome:
    """What the whole run needs with layout number `row`.

    Without a provider or price kind, the on-demand price of the cluster's provider is used, or else the median of the listed on-demand
    prices. The data centre is the provider's. The grid is that of the terms, or of the cluster, or the default.

    Spare nodes are paid for, and draw as much power as waiting ones.
    """
    terms = terms or Terms()
    cluster, workload = prediction.job.cluster, prediction.job.workload
    provider = terms.provider or cluster.provider
    unknown: dict[str, str] = {}
    ideal_s = _ideal_s(prediction, workload, row, unknown)
    failing = expected_in(ideal_s.value, cluster, ideal=terms.ideal) if ideal_s else None
    step_s = float(prediction.step_s[row])
    time_s = _time_to_train_s(ideal_s, step_s, failing, unknown)
    num_paid = cluster.num_accelerators + (failing.num_spare_accelerators if failing else 0)
    hours = time_s.times(float(accelerator_hours(num_paid, 1.0))) if time_s else None
    price = price_of(cluster, terms.provider, terms.price_kind, unknown)
    trains = (failing.work + failing.lost) / (1 + failing.stalls(step_s)) if failing else 1.0
    busy = float(busy_share(prediction)[row]) * trains if time_s else None
    watts_w, hosts = node_w(cluster, math.nan if busy is None else busy, power_constants(), terms.cooling)
    spare_w = node_w(cluster, 0.0, power_constants(), terms.cooling)[0] * (failing.num_spares if failing else 0)
    energy_j = _energy_j(watts_w, spare_w, cluster, time_s, unknown)
    grid, halls = economics.region(terms.region or cluster.region or DEFAULT_REGION), economics.facility(provider)
    drawn_j = energy_j.times(float(facility_energy_j(1.0, halls.pue))) if energy_j else None
    return Outcome(
        num_steps=prediction.num_steps,
        num_evaluations=prediction.num_evaluations,
        evaluation_s=float(prediction.evaluation_s[row]),
        time_to_train_s=time_s,
        ideal_s=ideal_s.value if ideal_s else None,
        interruptions=failing,
        stalls=failing.stalls(step_s) if failing else 0.0,
        accelerator_hours=hours,
        offer=_offer(price, time_s, num_paid) if price and time_s else None,
        alternatives=tuple(_offer(p, time_s, num_paid) for p in _listed(cluster)) if time_s else (),
        busy=busy,
        node_w=watts_w if math.isfinite(watts_w) else None,
        hosts=hosts,
        energy_j=energy_j,
        facility_energy_j=drawn_j,
        carbon_kg=drawn_j.times(float(carbon_kg(1.0, grid.grid_gco2e_per_kwh))) if drawn_j else None,
        water_l=_water_l(energy_j, halls, provider, unknown),
        region=grid,
        facility=halls,
        unknown=unknown,
        batch_beyond=workload.batch_beyond if time_s else "",
    )


def samples_note(workload: Workload) -> str:
    """A note that the samples to the target are not known at this batch, and which number was used; empty if they are known."""
    if not workload.batch_beyond or not workload.measured_batches:
        return ""
    smallest, largest = workload.measured_batches
    batches = f"batches from {smallest:,} to {largest:,}" if smallest < largest else f"a batch of {smallest:,}"
    known = f"samples to the target of {workload.name} were measured at {batches} only ({workload.precision})"
    if workload.batch_beyond == "above":
        return (
            f"{known}: at {workload.global_batch:,} they are unknown, and larger batches need ever more, if they reach the target at all. "
            "Steps are a lower bound, and time to train, cost, energy, carbon and water have no upper end"
        )
    return (
        f"{known}: at {workload.global_batch:,} they are unknown, and those of the smallest batch are used. "
        "Steps, time to train, cost, energy, carbon and water are rough"
    )


def expected_in(ideal_s: float, cluster: Cluster, *, ideal: bool = False) -> Interruptions | None:
    """The interruptions to expect in a run that takes `ideal_s` without failures; None for a day or less, and for an ideal forecast."""
    return expected_on(cluster) if ideal_s > LONG_S and not ideal else None


def interruptions_note(whole: Outcome, cluster: Cluster, terms: Terms) -> str:
    """A note that interruptions are left out of a run of a day or less, if at least one is expected; otherwise empty."""
    if whole.ideal_s is None or whole.interruptions or terms.ideal:
        return ""
    expected = expected_on(cluster)
    count = whole.ideal_s / expected.between_s
    if count < 1:
        return ""
    return (
        f"interruptions are counted in runs of more than a day only: this one has to expect {count:.1f}, and would take "
        f"{seconds(expected.wall_s(whole.ideal_s))} with them (goodput {100 * expected.goodput:.1f} %)"
    )


def _ideal_s(prediction: Prediction, workload: Workload, row: int, unknown: dict[str, str]) -> Spread | None:
    """Seconds of all steps and evaluations, one after the other."""
    if not prediction.num_steps:
        unknown["time_to_train"] = unknown["cost"] = unknown["energy"] = f"{workload.name} states neither tokens nor a target"
        return None
    bounds, time_s = prediction.interval, float(prediction.time_to_train_s[row])
    return Spread(time_s, time_s * bounds.low, math.inf if workload.batch_beyond == "above" else time_s * bounds.high)


def _time_to_train_s(ideal_s: Spread | None, step_s: float, failing: Interruptions | None, unknown: dict[str, str]) -> Spread | None:
    if ideal_s is None or failing is None:
        return ideal_s
    stretch = failing.stretch(step_s)
    if math.isfinite(stretch):
        return ideal_s.times(stretch)
    down_s = failing.failures.detection_s + failing.failures.restart_s
    reason = f"the machine is interrupted every {seconds(failing.between_s)}, and a restart takes {seconds(down_s)}: no work gets done"
    unknown["time_to_train"] = unknown["cost"] = unknown["energy"] = reason
    return None


def price_of(cluster: Cluster, provider: str = "", kind: str = "", unknown: dict[str, str] | None = None) -> Price | None:
    """The price to use. A price that the user asked for and that is not listed is an error. If there is no price, `unknown` says why."""
    if _is_processor(cluster):
        return _core_price(cluster, provider or kind, {} if unknown is None else unknown)
    chip = cluster.accelerator.name
    if provider:
        return economics.price(chip, provider=provider, kind=kind or DEFAULT_KIND)
    listed = _listed(cluster)
    own = [p for p in listed if p.provider == cluster.provider and p.kind == (kind or DEFAULT_KIND)]
    if own:
        return own[0]
    if kind:
        return economics.price(chip, kind=kind)
    if any(p.kind == DEFAULT_KIND for p in listed):
        return economics.price(chip)
    if unknown is not None:
        unknown.setdefault("cost", f"no {DEFAULT_KIND} price is listed for {chip}")
    return None


def _is_processor(cluster: Cluster) -> bool:
    return cluster.accelerator.architecture == "cpu"


def _core_price(cluster: Cluster, asked: str, unknown: dict[str, str]) -> Price | None:
    """The price of a processor's share of cores, computed from its watts, because no price list has it."""
    chip = cluster.accelerator
    if asked:
        raise InputError(
            f"no {asked} price is listed for a processor: {CORE_USD_PER_HOUR} USD per core-hour is assumed",
            where=cluster.name,
            fix=f"leave {argument('provider')} and {argument('price_kind')} out",
        )
    if not math.isfinite(chip.power_cap_w):
        unknown.setdefault("cost", f"a processor's price is derived from its power, and the power of {chip.name} is {NOT_STATED}")
        return None
    return Price(
        provider="clouds",
        accelerator=chip.name,
        kind=ASSUMED,
        usd_per_accelerator_hour=chip.power_cap_w / CORE_W * CORE_USD_PER_HOUR,
        instance="a share of cores",
        source=Source(f"assumed {CORE_USD_PER_HOUR} USD per core-hour, as in clouds", "2025"),
    )


def _listed(cluster: Cluster) -> tuple[Price, ...]:
    """Prices of the cluster's accelerator, cheapest first; none for one that is not in the catalogue."""
    found = (p for p in economics.all_prices() if p.accelerator == cluster.accelerator.name)
    return tuple(sorted(found, key=lambda p: p.usd_per_accelerator_hour))


def _offer(price: Price, time_s: Spread, num_paid: int) -> Offer:
    return Offer(price, time_s.times(float(cost_usd(num_paid, 1.0, price.usd_per_accelerator_hour))))


@cache
def power_constants(path: Path = POWER_FILE) -> PowerConstants:
    """The constants of node power that the package carries, fitted on metered runs (`evidence.power`)."""
    return PowerConstants(**json.loads(path.read_text(encoding="utf-8"))["constants"])


def busy_seconds(prediction: Prediction) -> tuple[Column, Column]:
    """Seconds of a step, and of an evaluation, in which the accelerators work, by layout.

    Work is compute and the optimizer, at the speed of the reference release, and the exposed time of tensor, context and expert
    parallelism, because their copies and reductions run on the same cores. The additional time of a slower release counts as waiting, like
    bubble, exposed data- and pipeline-parallel traffic, overhead and data. If all compute of a slow release counted as work, metered runs
    that are left out in turn would be off by 9 % on average; this way they are off by 2 %. The definition was chosen by these errors, so
    the 2 % are too good.
    """
    slowdown = math.exp(prediction.job.log_factor)
    evaluation_s = evaluation_time_s(prediction.job.workload, prediction.layouts, prediction.detail)
    return working_s(prediction.parts, slowdown), evaluation_s / slowdown


def working_s(parts: Mapping[str, Column], slowdown: float) -> Column:
    """Seconds of a step in which the accelerators work, from its parts and the release's time over the reference's."""
    shared_s = parts["exposed_tp"] + parts["exposed_cp"] + parts["exposed_ep"]
    return (parts["compute"] + parts["optimizer"]) / slowdown + shared_s


def busy_share(prediction: Prediction) -> Column:
    """Share of the whole run in which the accelerators work, by layout; at most 1, also for a release that is faster than the reference."""
    step_s, evaluation_s = busy_seconds(prediction)
    share = busy_fraction(prediction.num_steps, step_s, prediction.num_evaluations * evaluation_s, prediction.time_to_train_s)
    return np.minimum(share, 1.0)


def node_w(cluster: Cluster, busy: float, constants: PowerConstants, cooling: str = "") -> tuple[float, str]:
    """Mean watts of a node at the wall (nan where the accelerator's are not stated), and where its host's watts come from.

    The power that a cluster states for its nodes is everything at the wall besides the accelerators, with fans and losses of the power
    supply. A processor is its own host, and draws the same power when its processes work and when they wait for messages.
    """
    if _is_processor(cluster):
        return _processor_w(cluster, cooling)
    accelerators_w = cluster.accelerators_per_node * accelerator_power_w(cluster.accelerator.power_cap_w, busy, constants.waiting_fraction)
    if cluster.node_overhead_w > 0 and not cooling:
        return float(
            node_power_w(accelerators_w, cluster.node_overhead_w)
        ), f"{cluster.node_overhead_w:,.0f} W per node, stated for {cluster.name}"
    if cooling and cooling not in COOLING:
        raise InputError(f"no cooling by {cooling!r}", where=argument("cooling"), fix=f"choose from {', '.join(COOLING)}")
    cooling = cooling or ("liquid" if cluster.accelerator.name in LIQUID_RACKS else "air")
    fan_fraction = constants.fan_fraction if cooling == "air" else 0.0
    host_w = cluster.accelerators_per_node * constants.host_w_per_accelerator
    return float(node_power_w(accelerators_w, host_w, fan_fraction, constants.wall_per_dc)), f"as metered nodes cooled by {cooling}"


def _processor_w(cluster: Cluster, cooling: str) -> tuple[float, str]:
    if cooling:
        raise InputError(
            f"no node of processors cooled by {cooling} was metered", where=argument("cooling"), fix=f"leave {argument('cooling')} out"
        )
    beside = (
        f"and {cluster.node_overhead_w:,.0f} W per node, stated for {cluster.name}" if cluster.node_overhead_w > 0 else "nothing beside"
    )
    watts_w = cluster.accelerators_per_node * cluster.accelerator.power_cap_w + cluster.node_overhead_w
    return watts_w, f"the processor itself, {beside}"


def _energy_j(watts_w: float, spare_w: float, cluster: Cluster, time_s: Spread | None, unknown: dict[str, str]) -> Spread | None:
    if math.isnan(cluster.accelerator.power_cap_w):
        unknown.setdefault("energy", f"power of {cluster.accelerator.name} {NOT_STATED}")
    if "energy" in unknown or time_s is None:
        return None
    num_nodes = cluster.num_accelerators / cluster.accelerators_per_node  # a node in use by half is counted by half
    return time_s.times(float(run_energy_j(watts_w, num_nodes, 1.0)) + spare_w)


def _water_l(energy_j: Spread | None, halls: Facility, provider: str, unknown: dict[str, str]) -> Spread | None:
    if energy_j is None:
        unknown["water"] = unknown["energy"]
        return None
    if halls.wue_l_per_kwh is None:
        unknown["water"] = (
            f"{provider} publishes no litres per kWh" if provider else "no provider is named whose litres per kWh could be used"
        )
        return None
    return energy_j.times(float(water_l(1.0, halls.wue_l_per_kwh)))
