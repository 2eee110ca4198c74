"""Energy of a run at the wall and of the facility around it, and the resulting carbon and water.

An accelerator draws its power cap while it computes, and a fixed share of the cap while it waits: for a collective, for the pipeline, for
the host. The node adds its CPUs, memory, NICs and switch chips at all times, fans if it is cooled by air, and the losses of its power
supplies. Every argument may be a number or an array; they broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.units import KILO, KWH

Quantity = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConstants:
    """Constants of a node's power that no data sheet gives; fitted on metered runs."""

    waiting_fraction: float  # of the power cap, while the accelerator does not compute
    host_w_per_accelerator: float  # CPUs, memory, NICs, switch chips and regulators behind one accelerator
    fan_fraction: float  # fans of an air-cooled node, as a share of the heat they carry away
    wall_per_dc: float  # watts at the wall for one behind the power supply

    def __post_init__(self) -> None:
        for key, low, high in (
            ("waiting_fraction", 0.0, 1.0),
            ("host_w_per_accelerator", 0.0, np.inf),
            ("fan_fraction", 0.0, np.inf),
            ("wall_per_dc", 1.0, np.inf),
        ):
            if not low <= getattr(self, key) <= high:
                bounds = f"give a number from {low:g} to {high:g}" if np.isfinite(high) else f"give a number of at least {low:g}"
                raise InputError(f"{key} is {getattr(self, key)}", where=f"power constants: {key}", fix=bounds)


def busy_fraction(num_steps: Quantity, step_compute_s: Quantity, evaluations_compute_s: Quantity, run_s: Quantity) -> Quantity:
    """Share of a run of `run_s` seconds in which an accelerator computes, in its steps and in its evaluations."""
    return (num_steps * step_compute_s + evaluations_compute_s) / run_s


def accelerator_power_w(power_cap_w: Quantity, busy: Quantity, waiting_fraction: Quantity) -> Quantity:
    """Mean watts of an accelerator that computes for a fraction `busy` of the time.

    Dense matrix work drives every data-centre GPU to its cap. A GPU that waits in a collective keeps its clocks and its memory active, so
    it draws far more than an idle one.
    """
    return power_cap_w * (waiting_fraction + (1 - waiting_fraction) * busy)


def node_power_w(accelerators_w: Quantity, host_w: Quantity, fan_fraction: Quantity = 0.0, wall_per_dc: Quantity = 1.0) -> Quantity:
    """Mean watts of a node: all its accelerators and its host, the fans that cool both, and the losses of the power supply.

    A fan fraction of 0 is a node cooled by liquid; a ratio of 1 is a meter behind the power supply.
    """
    return (accelerators_w + host_w) * (1 + fan_fraction) * wall_per_dc


def run_energy_j(node_w: Quantity, num_nodes: Quantity, seconds: Quantity, network_w: Quantity = 0.0) -> Quantity:
    """Joules of a run's machines: its nodes and, if known, the switches between them."""
    return (node_w * num_nodes + network_w) * seconds


def facility_energy_j(it_energy_j: Quantity, pue: Quantity) -> Quantity:
    """Joules that the whole facility draws for `it_energy_j` at the machines, with cooling and distribution (PUE)."""
    return it_energy_j * pue


def carbon_kg(facility_energy_j: Quantity, grid_g_per_kwh: Quantity) -> Quantity:
    """Kilograms of CO2-equivalent for energy drawn from a grid of `grid_g_per_kwh`."""
    return facility_energy_j / KWH * grid_g_per_kwh / KILO


def water_l(it_energy_j: Quantity, wue_l_per_kwh: Quantity) -> Quantity:
    """Litres of water evaporated on site: WUE is defined per kWh at the machines, not of the facility."""
    return it_energy_j / KWH * wue_l_per_kwh
