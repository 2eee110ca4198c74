"""A plan from a layout: priced, checked, placed."""

from __future__ import annotations

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.footprint import check_fits
from meshwright.layout import Layout, Layouts
from meshwright.placement import tiers_of
from meshwright.plan.plan import Plan
from meshwright.predict import check, exact_step_s, predict
from meshwright.software import Software, software


def make_plan(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software | None = None, name: str = "") -> Plan:
    """The plan of one layout; refuses one that does not divide or does not fit."""
    stack = stack or software()
    check(model, cluster, workload, layout)
    prediction = predict(model, cluster, workload, Layouts.of([layout]), stack)
    check_fits(prediction.memory, cluster.accelerator)
    closed_s, exact_s = float(prediction.step_time_s[0]), exact_step_s(prediction, layout)
    inner = cluster.tiers[0]
    return Plan(
        name=name or f"{model.name} on {cluster.name}",
        model=model,
        cluster=cluster,
        workload=workload,
        layout=layout,
        software=stack.name,
        step_time_s=exact_s,
        low_s=exact_s * prediction.interval.low,
        high_s=exact_s * prediction.interval.high,
        parts_s={part: float(column[0]) for part, column in prediction.parts.items()},
        placement=tiers_of(layout, cluster),
        spares_per_domain=inner.num_installed - inner.num_accelerators,
        peak_memory_bytes=float(prediction.memory.peak_bytes[0]),
        time_to_train_s=float(prediction.time_to_train_s[0]) + prediction.num_steps * (exact_s - closed_s),
        notes=tuple(note for note in (stack.note, prediction.interval.kin) if note),
    )
