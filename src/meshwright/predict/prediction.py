"""Job x Layouts (columns) -> Prediction: step time and its parts, memory, throughput, time to train, in closed form.

The closed form ranks layouts. Users see a `Forecast`, whose step is timed by the exact schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.describe.profile import Profile
from meshwright.describe.workload import Workload
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.footprint import Footprint, footprint, recipe_for
from meshwright.predict.inputs import inputs_of
from meshwright.predict.legality import legal_rows
from meshwright.predict.measured import format_of, measured
from meshwright.predict.slice_memory import with_slices
from meshwright.predict.software import on_profile, software
from meshwright.predict.step import PARTS, StepParts, price
from meshwright.predict.uncertainty import Interval, interval

Column = NDArray[np.float64]
PROFILE_SPREAD = {"cuda": 0.08, "cpu": 0.2}  # either side of a step priced by a hardware profile: what docs/measure.md holds it to


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for layouts: a column per quantity, a row per layout."""

    job: Job
    layouts: Layouts
    step_s: Column
    low_s: Column  # 80 % interval
    high_s: Column
    parts: dict[str, Column]  # seconds, by step.PARTS; they add up to the step
    memory: Footprint
    tokens_per_s: Column
    mfu: Column  # model FLOPs, causal attention once, of the peak of the layers' number format
    hfu: Column  # the same with what is recomputed
    time_to_train_s: Column
    evaluation_s: Column  # one evaluation
    num_steps: int
    num_evaluations: int
    interval: Interval
    detail: StepParts


def parts(job: Job, layouts: Layouts) -> StepParts:
    """The parts of a step of every layout."""
    profile = job.software.profile
    seen = measured(job.model, job.workload, profile) if profile else None
    return price(inputs_of(job), layouts, job.software.constants, seen)


def predict(job: Job, layouts: Layouts) -> Prediction:
    """Price every layout; a layout that does not divide the job or the cluster is an InputError."""
    cluster, workload, chip = job.cluster, job.workload, job.cluster.accelerator
    legal = legal_rows(job.model, cluster, workload, layouts)
    if not legal.all():
        job.check(layouts.row(int(np.argmin(legal))))
    priced = parts(job, layouts)
    step_s, bounds = priced.step_s, interval_of(job)
    num_steps = workload.num_steps()
    num_evaluations = num_evaluations_of(workload, num_steps)
    evaluation_s = evaluation_time_s(workload, layouts, priced) + job.software.evaluation_s * (num_evaluations > 0)
    tokens_per_s = workload.tokens_per_step / step_s
    flops_per_token = training_flops_per_token(job.model, workload)
    peak = chip.peak_flops_per_s(workload.precision) * cluster.num_accelerators
    return Prediction(
        job=job,
        layouts=layouts,
        step_s=step_s,
        low_s=step_s * bounds.low,
        high_s=step_s * bounds.high,
        parts=priced.seconds,
        memory=bytes_of(job, layouts),
        tokens_per_s=tokens_per_s,
        mfu=tokens_per_s * flops_per_token / peak,
        hfu=tokens_per_s * (flops_per_token + priced.recomputed_flops) / peak,
        time_to_train_s=num_steps * step_s + num_evaluations * evaluation_s,
        evaluation_s=evaluation_s,
        num_steps=num_steps,
        num_evaluations=num_evaluations,
        interval=bounds,
        detail=priced,
    )


def bytes_of(job: Job, layouts: Layouts) -> Footprint:
    """Bytes of every layout; if a hardware profile has slices of this model, as measured on them."""
    model, workload, profile = job.model, job.workload, job.software.profile
    counted = footprint(model, workload, layouts, recipe_for(workload.precision, job.cluster.accelerator), is_own=job.software.is_own)
    if profile is None:
        return counted
    cuts = profile.slices_of(model, format_of(workload.precision), workload.precision, workload.adapters)
    return with_slices(counted, model, workload, layouts, cuts)


def interval_of(job: Job) -> Interval:
    """The interval of the step: from the errors of comparable runs, or with a hardware profile the accuracy of such predictions."""
    model, profile = job.model, job.software.profile
    if profile is None:
        return interval(job)
    number_format = format_of(job.workload.precision)
    own = profile.slices_of(model, number_format, job.workload.precision, job.workload.adapters)
    spread = PROFILE_SPREAD[profile.device_type] * (1 if own else 2)
    kin = f"{profile.words}, slices of {'this model' if own else 'other models'}"
    note = "" if own else f"the profile has no slice of {model.name} in {number_format}: other models' corrections are used"
    return Interval(low=1 - spread, high=1 + spread, kin=kin, num_runs=len(own), distance="measured" if own else "near", note=note)


def training_flops_per_token(model: Model, workload: Workload) -> float:
    """FLOPs that training needs for one token; for a frozen base, without weight gradients."""
    if workload.adapters is None:
        return model.flops_per_token(workload.seq_len)
    products = 2 * (model.num_layers * model.layer_matrix_parameters_per_token + model.head_parameters)
    return 2 * products + 3 * model.num_layers * model.attention_flops_per_token(workload.seq_len)


def num_evaluations_of(workload: Workload, num_steps: int) -> int:
    """Evaluations in a run of so many steps."""
    return workload.num_evaluations(num_steps)


def evaluation_time_s(workload: Workload, layouts: Layouts, priced: StepParts) -> Column:
    """Seconds of the forward passes of one evaluation: every replica runs its share as micro-batches through the same pipeline."""
    if workload.evaluation is None:
        return np.zeros(len(layouts))
    times = priced.times
    rounds = np.ceil(workload.evaluation.num_samples / (layouts.dp * layouts.micro_batch))
    ends_s = np.where(layouts.pp == 1, times.first_forward_s + times.last_forward_s, np.maximum(times.last_forward_s, 0.0))
    fill_s = (layouts.pp - 1) * (times.forward_s + priced.message_s)
    return np.asarray(rounds * (layouts.vp * times.forward_s + ends_s) + fill_s)


def on_one_device(
    model: Model, profile: Profile, *, precision: str, seq_len: int, batch: int, recompute: str = "none", micro_batch: int = 0
) -> dict[str, Any]:
    """The prediction from a profile for a step of the trainer on the device where the profile was made, as plain values.

    No cluster is needed: only the profile, the model and the batch matter.
    """
    workload = Workload(name="one device", model="", seq_len=seq_len, global_batch=batch, precision=precision)
    layouts = Layouts.of([Layout(micro_batch=micro_batch or batch, zero_stage=0, recompute=recompute)])
    seen = measured(model, workload, profile)
    tier = Tier(name="node", link="none", num_accelerators=1, num_installed=1, bytes_per_s=1.0, latency_s=0.0)
    peak = {name: 1.0 for name in ("bf16", "tf32", "fp8")}
    chip = Accelerator(
        name=profile.device, vendor="", architecture="", memory_bytes=0.0, memory_bytes_per_s=1.0, dense_flops_per_s=peak, power_cap_w=1.0
    )
    cluster = Cluster(name=profile.device, accelerator=chip, tiers=(tier,), accelerators_per_node=1)
    job = Job(model, cluster, workload, on_profile(software(), profile))
    priced, memory = parts(job, layouts), bytes_of(job, layouts)
    step_s = float(priced.step_s[0])
    return {
        "model": model.name,
        "precision": precision,
        "seq_len": seq_len,
        "batch": batch,
        "recompute": recompute,
        "step_s": step_s,
        "tokens_per_s": batch * seq_len / step_s,
        "parts_s": {part: float(priced.seconds[part][0]) for part in PARTS},
        "peak_memory_bytes": float(memory.peak_bytes[0]),
        "from_slices": bool(seen.slices),
        "profile": profile.words,
    }
