"""A plan as the simulator needs it: operations with their seconds, weights that they wait for, and gradients that are sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.schedule import BACKWARD, FORWARD, Hops, Schedule
from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError
from meshwright.plan.plan import Plan, forecast_of
from meshwright.predict.exact import timeline
from meshwright.predict.forecast import Forecast
from meshwright.predict.software import Software
from meshwright.predict.step import TOKEN_BYTES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAME = 1e-6  # relative difference of two predictions of one plan that can be rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Seconds of traffic between replicas in a step on one accelerator, and the share of hidden traffic that slows compute."""

    reduce_s: float  # of all gradients of the fullest rank
    gather_s: float  # of all its weights
    contention: float
    closed_s: float  # the exposed time of the closed form, for jobs whose traffic is not simulated


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedStep:
    """One step of one plan, ready to be simulated.

    Operations are in the order of the schedule's columns; seconds are those of the slowest chip.
    """

    plan: Plan
    forecast: Forecast
    schedule: Schedule
    duration_s: Floats  # of each operation
    end_s: Floats  # of each operation, without noise
    hop_s: Floats  # time until its result has arrived
    pipeline_s: float  # the makespan without noise
    traffic: Traffic
    parts_s: dict[str, float]  # predicted, by step.PARTS

    @property
    def step_s(self) -> float:
        """Seconds of the predicted step."""
        return sum(self.parts_s.values())

    @property
    def busy_s(self) -> float:
        """Seconds of the step without waiting for data; delay and drift are shares of this time."""
        return self.step_s - self.parts_s["data"]

    @property
    def ranks_per_group(self) -> int:
        """Ranks of a stage that wait for each other within every layer."""
        return self.plan.layout.tp * self.plan.layout.cp

    @property
    def chains(self) -> bool:
        """Whether gradients and weights are sent once per step, chunk by chunk, behind a pipeline.

        Otherwise the closed form prices them.
        """
        layout = self.plan.layout
        return layout.pp > 1 and layout.zero_stage < 2 and layout.overlap_dp and self.traffic.reduce_s > 0

    @property
    def read_s(self) -> float:
        """Seconds to read one batch from storage. A step with prefetching takes at least as long."""
        workload, cluster = self.plan.workload, self.plan.cluster
        return workload.tokens_per_step * TOKEN_BYTES / cluster.storage_bytes_per_s

    @cached_property
    def first_forward(self) -> Ints:
        """Stage x chunk: the operation that needs the chunk's weights first."""
        return _extreme(self.schedule, FORWARD, last=False)

    @cached_property
    def last_backward(self) -> Ints:
        """Stage x chunk: the operation after which the gradients of the chunk are complete."""
        return _extreme(self.schedule, max(int(self.schedule.kind.max()), BACKWARD), last=True)

    @property
    def last_operation(self) -> int:
        """The last operation of a pipeline without noise: of the first stage, or of the last stage with weight gradients."""
        return int(np.argmax(self.end_s))

    @cached_property
    def is_awaited(self) -> NDArray[np.bool_]:
        """Whether another operation waits for each operation."""
        awaited = np.zeros(len(self.schedule.stage), dtype=bool)
        awaited[self.schedule.waits_for[self.schedule.waits_for >= 0]] = True
        return awaited


def _extreme(schedule: Schedule, kind: int, *, last: bool) -> Ints:
    """Stage x chunk: the first or last operation of a kind, in the order the stage runs them."""
    found = np.zeros((schedule.num_stages, schedule.num_chunks), dtype=np.int64)
    mine = np.flatnonzero(schedule.kind == kind)
    for i in mine if last else mine[::-1]:  # later entries overwrite earlier ones
        found[schedule.stage[i], schedule.chunk[i]] = i
    return found


def planned_step(plan: Plan, cluster: Cluster | None = None, software: Software | str = "") -> PlannedStep:
    """The step of the plan, on the plan's own machine or on `cluster`, the same machine with a degraded fabric."""
    if cluster is not None:
        plan = replace(plan, cluster=cluster)
    forecast = forecast_of(plan, software)
    detail = forecast.detail
    order = timeline(detail, plan.layout)
    stretch = float(detail.stretch[0])
    hops = Hops(hop_s=float(detail.message_s[0]) if plan.layout.overlap_pp else 0.0)
    return PlannedStep(
        plan=plan,
        forecast=forecast,
        schedule=order.schedule,
        duration_s=(order.end_s - order.start_s) * stretch,
        end_s=order.end_s * stretch,
        hop_s=hops.by_message()[order.schedule.message] * stretch,
        pipeline_s=order.makespan_s * stretch,
        traffic=traffic_of(forecast),
        parts_s=dict(forecast.parts),
    )


def check_plan(plan: Plan, software: Software | str = "") -> None:
    """Raise an InputError if the step time in the plan is not what its machine, model and software give."""
    predicted = forecast_of(plan, software)
    if not abs(plan.step_s / predicted.step_s - 1) <= SAME:
        raise InputError(
            f"the plan says {plan.step_s:.4g} s per step; {plan.cluster.name} with software {predicted.job.software.name} "
            f"takes {predicted.step_s:.4g} s",
            where="plan",
            fix="it was made for another machine or version: make it again with `meshwright plan`",
        )


def traffic_of(forecast: Forecast) -> Traffic:
    """The traffic between replicas in a step, priced without any overlap."""
    carried = forecast.detail.carried()
    return Traffic(
        reduce_s=float(carried.reduced_s[0]),
        gather_s=float(carried.gathered_s[0]),
        contention=float(carried.contention[0]),
        closed_s=forecast.parts["exposed_dp"],
    )
