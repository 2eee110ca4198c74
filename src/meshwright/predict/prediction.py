"""Model x Cluster x Workload x Layouts (columns) -> Prediction: step time and its parts, memory, throughput, time to train."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.pipeline import ChunkTimes, pipeline_s
from meshwright.cost.schedule import Hops, Timeline, evaluate, schedule_named
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.hardware import Accelerator
from meshwright.describe.model import Model
from meshwright.describe.profile import Profile
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import AXES, Layout, Layouts
from meshwright.predict.footprint import Footprint, footprint, recipe_for, with_slice
from meshwright.predict.inputs import GENERATION, format_of, measured, question
from meshwright.predict.software import Software, on_profile, software
from meshwright.predict.stages import check_split
from meshwright.predict.step import PARTS, StepParts, price
from meshwright.predict.uncertainty import Interval, interval

Column = NDArray[np.float64]
PROFILE_SPREAD = {"cuda": 0.08, "cpu": 0.2}  # either side of a step priced by a hardware profile: what docs/measure.md holds it to


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What layouts will do: a column per quantity, a row per layout."""

    layouts: Layouts
    step_time_s: Column
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
    software: Software
    detail: StepParts


def parts(model: Model, cluster: Cluster, workload: Workload, layouts: Layouts, stack: Software) -> StepParts:
    """The parts of a step of every layout under a software stack."""
    generation = GENERATION.get(cluster.accelerator.architecture, "hopper")
    factor = stack.log_factor_of(workload.adapters is not None, generation)
    seen = measured(model, workload, stack.profile) if stack.profile else None
    return price(question(model, cluster, workload, factor), layouts, stack.constants, seen)


def predict(model: Model, cluster: Cluster, workload: Workload, layouts: Layouts, stack: Software | None = None) -> Prediction:
    """Price every layout; which of them are legal is the caller's to know (see `check`)."""
    stack = stack or software()
    chip = cluster.accelerator
    priced = parts(model, cluster, workload, layouts, stack)
    step_s, bounds = priced.step_time_s, interval_of(model, cluster, workload, stack)
    num_steps = workload.num_steps()
    num_evaluations = num_evaluations_of(workload, num_steps)
    evaluation_s = evaluation_time_s(workload, layouts, priced) + stack.evaluation_s * (num_evaluations > 0)
    tokens_per_s = workload.tokens_per_step / step_s
    flops_per_token = training_flops_per_token(model, workload)
    peak = chip.peak_flops_per_s(workload.precision) * cluster.num_accelerators
    return Prediction(
        layouts=layouts,
        step_time_s=step_s,
        low_s=step_s * bounds.low,
        high_s=step_s * bounds.high,
        parts=priced.seconds,
        memory=bytes_of(model, cluster, workload, layouts, stack),
        tokens_per_s=tokens_per_s,
        mfu=tokens_per_s * flops_per_token / peak,
        hfu=tokens_per_s * (flops_per_token + priced.recomputed_flops) / peak,
        time_to_train_s=num_steps * step_s + num_evaluations * evaluation_s,
        evaluation_s=evaluation_s,
        num_steps=num_steps,
        num_evaluations=num_evaluations,
        interval=bounds,
        software=stack,
        detail=priced,
    )


def bytes_of(model: Model, cluster: Cluster, workload: Workload, layouts: Layouts, stack: Software) -> Footprint:
    """Bytes of every layout; as slices of the trainer's step kept them, where a profile has some of this model."""
    counted = footprint(model, workload, layouts, recipe_for(workload.precision, cluster.accelerator))
    cuts = stack.profile.slices_of(model, format_of(workload.precision), workload.precision) if stack.profile else []
    return with_slice(counted, model, workload, layouts, cuts[-1]) if cuts else counted


def interval_of(model: Model, cluster: Cluster, workload: Workload, stack: Software) -> Interval:
    """How far the step may be off: by errors of comparable runs, or on a profile by what such predictions are held to."""
    profile = stack.profile
    if profile is None:
        return interval(model, cluster, workload, stack)
    own = profile.slices_of(model, format_of(workload.precision), workload.precision)
    spread = PROFILE_SPREAD[profile.device_type] * (1 if own else 2)
    kin = f"{profile.words}, slices of {'this model' if own else 'other models'}"
    note = (
        "" if own else f"the profile has no slice of {model.name} in {format_of(workload.precision)}: other models' corrections are taken"
    )
    return Interval(low=1 - spread, high=1 + spread, kin=kin, num_runs=len(own), distance="measured" if own else "near", note=note)


def training_flops_per_token(model: Model, workload: Workload) -> float:
    """FLOPs that training needs for one token: of a frozen base, no weight gradients."""
    if workload.adapters is None:
        return model.flops_per_token(workload.seq_len)
    products = 2 * (model.num_layers * model.layer_matrix_parameters_per_token + model.head_parameters)
    return 2 * products + 3 * model.num_layers * model.attention_flops_per_token(workload.seq_len)


def num_evaluations_of(workload: Workload, num_steps: int) -> int:
    """Evaluations in a run of so many steps."""
    return workload.num_evaluations(num_steps)


def evaluation_time_s(workload: Workload, layouts: Layouts, priced: StepParts) -> Column:
    """Seconds of the forward passes of one evaluation: every replica takes its share in micro-batches through the same pipeline."""
    if workload.evaluation is None:
        return np.zeros(len(layouts))
    times = priced.times
    rounds = np.ceil(workload.evaluation.num_samples / (layouts.dp * layouts.micro_batch))
    ends_s = np.where(layouts.pp == 1, times.first_forward_s + times.last_forward_s, np.maximum(times.last_forward_s, 0.0))
    fill_s = (layouts.pp - 1) * (times.forward_s + priced.message_s)
    return np.asarray(rounds * (layouts.vp * times.forward_s + ends_s) + fill_s)


def usual_layout(model: Model, cluster: Cluster, workload: Workload) -> Layout:
    """The switches and rank order that stacks of this kind run with where a user does not say, degrees all 1.

    As in the measured rows: tensor traffic is overlapped but for NVFP4, and CUDA graphs came with Blackwell. Experts want their ranks
    close together, so pipeline stages go outermost.
    """
    blackwell = GENERATION.get(cluster.accelerator.architecture) == "blackwell"
    order = ("tp", "cp", "dp", "pp") if model.experts else AXES
    return Layout(overlap_tp=workload.precision != "nvfp4", cuda_graphs=blackwell, order=order)


def check(model: Model, cluster: Cluster, workload: Workload, layout: Layout) -> None:
    """Raise an InputError where the layout does not divide the model, the batch or the machine: which number, and what would."""
    if layout.num_ranks != cluster.num_accelerators:
        raise InputError(
            f"tp={layout.tp} x cp={layout.cp} x pp={layout.pp} x dp={layout.dp} = {layout.num_ranks} accelerators, "
            f"but {cluster.name} has {cluster.num_accelerators} in use",
            where="layout",
            fix=_fill_advice(layout, cluster),
        )
    layout.num_micro_batches(workload.global_batch)
    if layout.schedule == "1f1b" and layout.vp > 1:
        raise InputError(
            f"1F1B runs one chunk a stage, and vp is {layout.vp}", where="layout.schedule", fix="use schedule=interleaved, or vp=1"
        )
    check_split(model.num_layers, layout.pp, layout.vp, layout.first_stage_layers, layout.last_stage_layers)
    for what, count in (("attention heads", model.num_heads), ("vocabulary entries", model.vocab_size), ("MLP columns", model.ffn_hidden)):
        if count % layout.tp:
            _refuse("tp", layout.tp, count, what)
    pieces = 2 * layout.cp * layout.tp if layout.cp > 1 else layout.tp  # causal balance gives a rank two pieces of the sequence
    if workload.seq_len % pieces:
        raise InputError(
            f"a sequence of {workload.seq_len} tokens does not divide into {pieces} pieces (cp={layout.cp}, tp={layout.tp})",
            where="layout.cp",
            fix="choose cp and tp whose product, twice over with cp, divides the sequence",
        )
    if model.experts and model.experts.num_experts % layout.ep:
        _refuse("ep", layout.ep, model.experts.num_experts, "experts")
    if layout.ep > 1 and not model.experts:
        raise InputError(f"ep={layout.ep}, but {model.name} has no experts", where="layout.ep", fix="leave ep out")
    if layout.cp_kind == "all-to-all" and model.num_kv_heads % (layout.cp * layout.tp):
        _refuse("cp", layout.cp * layout.tp, model.num_kv_heads, "key-value heads (all-to-all gives each rank whole heads)")


def _refuse(axis: str, degree: int, count: int, what: str) -> None:
    divisors = ", ".join(str(d) for d in range(1, min(count, 4096) + 1) if count % d == 0 and d <= 512)
    names = {"tp": "tensor degree", "ep": "expert degree", "cp": "context x tensor degree"}
    raise InputError(f"{names[axis]} {degree} does not divide {count} {what}", where=f"layout.{axis}", fix=f"choose from {divisors}")


def _fill_advice(layout: Layout, cluster: Cluster) -> str:
    inner = layout.tp * layout.cp * layout.pp
    resize = [f"--gpus {layout.num_ranks}"] if cluster.takes(layout.num_ranks) else []
    if cluster.num_accelerators % inner == 0:
        return "use " + ", or ".join([f"dp={cluster.num_accelerators // inner}", *resize])
    return "use " + ", or ".join([*resize, f"degrees whose product is {cluster.num_accelerators}"])


def timeline(model: Model, cluster: Cluster, workload: Workload, layout: Layout, stack: Software | None = None) -> Timeline:
    """The exact schedule of one step: when every operation of every stage starts and ends."""
    return _exact(predict(model, cluster, workload, Layouts.of([layout]), stack), layout)


def _exact(prediction: Prediction, layout: Layout, row: int = 0, num_micro_batches: int = 0) -> Timeline:
    times, detail = _times_of(prediction.detail.times, row), prediction.detail
    pp, vp = layout.pp, layout.vp

    def grid(middle: Any, first: Any, last: Any) -> NDArray[np.float64]:
        cells = np.full((pp, vp), middle)
        cells[0, 0] += first
        cells[-1, -1] += last
        return cells

    name = layout.schedule if layout.schedule == "zero-bubble" else ("interleaved" if vp > 1 else "1f1b")
    order = schedule_named(name, pp, vp, num_micro_batches or int(detail.num_micro_batches[row]))
    weight_s = grid(times.weight_s, times.first_weight_s, times.last_weight_s) if name == "zero-bubble" else None
    backward_s = grid(times.backward_s, times.first_backward_s, times.last_backward_s)
    return evaluate(
        order,
        grid(times.forward_s, times.first_forward_s, times.last_forward_s),
        backward_s,
        weight_s=weight_s,
        hops=Hops(hop_s=float(detail.message_s[row]) if layout.overlap_pp else 0.0),
    )


def exact_step_s(prediction: Prediction, layout: Layout, row: int = 0) -> float:
    """Seconds of the step of layout number `row` with the pipeline timed operation by operation instead of in closed form."""
    return sum(float(prediction.parts[part][row]) for part in PARTS) + schedule_excess_s(prediction, layout, row)


def schedule_excess_s(prediction: Prediction, layout: Layout, row: int = 0, num_micro_batches: int = 0) -> float:
    """Seconds by which the exact schedule of layout number `row` is longer than its closed form, or of a step of so many micro-batches."""
    whole_s = _closed_pipeline_s(prediction, layout, row)
    inside = ("compute", "bubble", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp")
    slowest = sum(float(prediction.parts[part][row]) for part in inside) / max(whole_s, 1e-30)
    closed_s = _closed_pipeline_s(prediction, layout, row, num_micro_batches) if num_micro_batches else whole_s
    return (_exact(prediction, layout, row, num_micro_batches).makespan_s - closed_s) * slowest


def _times_of(times: ChunkTimes, row: int) -> ChunkTimes:
    """The times of one row, as numbers."""
    return ChunkTimes(**{f.name: float(np.ravel(getattr(times, f.name))[row]) for f in fields(ChunkTimes)})


def _closed_pipeline_s(prediction: Prediction, layout: Layout, row: int, num_micro_batches: int = 0) -> float:
    detail = prediction.detail
    m = num_micro_batches or int(detail.num_micro_batches[row])
    hop_s = float(detail.message_s[row]) if layout.overlap_pp else 0.0
    zero_bubble = layout.schedule == "zero-bubble" and layout.pp > 1
    return float(pipeline_s(m, layout.pp, layout.vp, _times_of(detail.times, row), hop_s, zero_bubble=zero_bubble))


def on_one_device(
    model: Model, profile: Profile, *, precision: str, seq_len: int, batch: int, recompute: str = "none", micro_batch: int = 0
) -> dict[str, Any]:
    """What a profile predicts for a step of the trainer on the one device it was made on, in plain values.

    Without a cluster: nothing but the profile, the model and the batch decides.
    """
    workload = Workload(name="one device", model="", seq_len=seq_len, global_batch=batch, precision=precision)
    layouts = Layouts.of([Layout(micro_batch=micro_batch or batch, zero_stage=0, recompute=recompute)])
    stack, seen = on_profile(software(), profile), measured(model, workload, profile)
    tier = Tier(name="node", link="none", num_accelerators=1, num_installed=1, bytes_per_s=1.0, latency_s=0.0)
    peak = {name: 1.0 for name in ("bf16", "tf32", "fp8")}
    chip = Accelerator(
        name=profile.device, vendor="", architecture="", memory_bytes=0.0, memory_bytes_per_s=1.0, dense_flops_per_s=peak, power_cap_w=1.0
    )
    cluster = Cluster(name=profile.device, accelerator=chip, tiers=(tier,), accelerators_per_node=1)
    priced = price(question(model, cluster, workload), layouts, stack.constants, seen)
    memory = bytes_of(model, cluster, workload, layouts, stack)
    step_s = float(priced.step_time_s[0])
    return {
        "model": model.name,
        "precision": precision,
        "seq_len": seq_len,
        "batch": batch,
        "recompute": recompute,
        "step_time_s": step_s,
        "tokens_per_s": batch * seq_len / step_s,
        "parts_s": {part: float(priced.seconds[part][0]) for part in PARTS},
        "peak_memory_bytes": float(memory.peak_bytes[0]),
        "from_slices": bool(seen.slices),
        "profile": profile.words,
    }
