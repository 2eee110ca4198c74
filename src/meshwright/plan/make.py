"""A plan from a layout: priced, checked, placed; and with what the whole run takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout, Layouts
from meshwright.plan.plan import Plan
from meshwright.predict.exact import step_excess_s
from meshwright.predict.footprint import check_fits, reserve_for
from meshwright.predict.outcome import Outcome, notes_of, outcome
from meshwright.predict.placement import overlap_note, tiers_of
from meshwright.predict.prediction import Prediction, check, predict
from meshwright.predict.software import Software, software


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Whose prices and halls, and which grid; empty: the cluster's own."""

    provider: str = ""
    price_kind: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan, the prediction it stands on, and what the run takes."""

    plan: Plan
    prediction: Prediction  # of one row, the step from its exact schedule
    outcome: Outcome


def make_plan(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software | None = None, name: str = "") -> Plan:
    """The plan of one layout; refuses one that does not divide or does not fit."""
    return _plan(model, cluster, workload, layout, exact_prediction(model, cluster, workload, layout, stack), name)


def priced_plan(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    stack: Software | None = None,
    terms: Terms | None = None,
    name: str = "",
    note: str = "",
) -> PricedPlan:
    """The plan of one layout with its costs, and with a note beside those of the prediction."""
    terms = terms or Terms()
    prediction = exact_prediction(model, cluster, workload, layout, stack)
    takes = outcome(prediction, cluster, workload, provider=terms.provider, price_kind=terms.price_kind, region=terms.region)
    return PricedPlan(plan=_plan(model, cluster, workload, layout, prediction, name, note), prediction=prediction, outcome=takes)


def exact_prediction(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software | None = None) -> Prediction:
    """One layout's prediction with the step of its exact schedule; what that adds to the closed form is bubble."""
    check(model, cluster, workload, layout)
    closed = predict(model, cluster, workload, Layouts.of([layout]), stack or software())
    closed_s = float(closed.step_time_s[0])
    exact_s = closed_s + step_excess_s(closed, layout)
    bubble = closed.parts["bubble"] + exact_s - closed_s
    parts = {**closed.parts, "bubble": np.maximum(bubble, 0.0), "compute": closed.parts["compute"] + np.minimum(bubble, 0.0)}
    return replace(
        closed,
        step_time_s=np.array([exact_s]),
        low_s=exact_s * closed.low_s / closed_s,
        high_s=exact_s * closed.high_s / closed_s,
        parts=parts,
        tokens_per_s=closed.tokens_per_s * closed_s / exact_s,
        mfu=closed.mfu * closed_s / exact_s,
        hfu=closed.hfu * closed_s / exact_s,
        time_to_train_s=closed.time_to_train_s + closed.num_steps * (exact_s - closed_s),
    )


def _plan(model: Model, cluster: Cluster, workload: Workload, layout: Layout, prediction: Prediction, name: str, note: str = "") -> Plan:
    check_fits(prediction.memory, cluster.accelerator, reserve_bytes=reserve_for(cluster.accelerator))
    inner, stack, doubts = cluster.tiers[0], prediction.software, notes_of(prediction, cluster, workload)
    return Plan(
        name=name or f"{model.name} on {cluster.name}",
        model=model,
        cluster=cluster,
        workload=workload,
        layout=layout,
        software=stack.name,
        step_time_s=float(prediction.step_time_s[0]),
        low_s=float(prediction.low_s[0]),
        high_s=float(prediction.high_s[0]),
        parts_s={part: float(column[0]) for part, column in prediction.parts.items()},
        placement=tiers_of(layout, cluster),
        spares_per_domain=inner.num_installed - inner.num_accelerators,
        peak_memory_bytes=float(prediction.memory.peak_bytes[0]),
        time_to_train_s=float(prediction.time_to_train_s[0]),
        notes=tuple(said for said in (stack.note, prediction.interval.kin, overlap_note(layout, cluster), note, *doubts) if said),
        profile=stack.profile,
    )
