"""MLPerf Training submissions, one row each, as measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import load_model, load_workload, names
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, nearest
from meshwright.evidence.machine import machine
from meshwright.evidence.measured import (
    MEGATRON_ORDER,
    MeasuredRun,
    check_degrees,
    check_runs,
    missing_layout,
    recipe,
    with_experts,
    with_room,
    with_stages,
)
from meshwright.evidence.table import Row
from meshwright.layout import RECOMPUTE, Layout
from meshwright.units import GIB

REQUIRED = (
    *("round", "submitter", "system", "benchmark", "accelerator", "num_accelerators", "accelerators_per_node"),
    *("host_network", "scaleup_interconnect", "seq_len", "global_batch_size", "micro_batch_size", "num_micro_batches"),
    *("tp", "cp", "pp", "vp", "dp", "precision", "step_time_s"),
)

BENCHMARKS: Mapping[str, tuple[str, str]] = {  # model, workload
    "gpt3": ("gpt-3-175b", "mlperf-gpt3"),
    "llama31_405b": ("llama-3.1-405b", "mlperf-llama31-405b"),
    "llama31_8b": ("llama-3.1-8b", "mlperf-llama31-8b"),
    "llama2_70b_lora": ("llama-2-70b", "mlperf-llama2-70b-lora"),
    "deepseekv3_671b": ("deepseek-v3", "mlperf-deepseekv3"),
    "gpt_oss_20b": ("gpt-oss-20b", "mlperf-gpt-oss-20b"),
}

_YES = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


def row_name(row: Row) -> str:
    """The name of a row in the list of rows that cannot be expressed."""
    return " ".join(row.text(column) for column in ("round", "submitter", "system", "benchmark"))


def mlperf_run(row: Row) -> MeasuredRun:
    """The run that a row describes. Its release is its round: the framework text is wrong in places."""
    num_accelerators, per_node = row.count("num_accelerators"), row.count("accelerators_per_node")
    seq_len, global_batch = row.count("seq_len"), row.count("global_batch_size")
    measured_s, benchmark = row.positive("step_time_s"), row.filled("benchmark")
    round_name, submitter, system = (row.filled(column) for column in ("round", "submitter", "system"))
    device = row.filled("accelerator")
    model_name, workload_name = _benchmark(benchmark)
    model = load_model(model_name)
    layout, split_assumptions = with_stages(_layout(row, num_accelerators, global_batch), model)
    built = machine(f"{submitter} {system}", device, num_accelerators, per_node, *_networks(row))
    precision, assumptions = _precision(row.text("precision"), built.cluster.accelerator)
    workload = replace(
        _workload(workload_name, model_name),
        seq_len=seq_len,
        global_batch=global_batch,
        precision=precision,
        attention_precision="fp8" if _flag(row, "fp8_attention", False) else "bf16",
    )
    layout, ep_assumptions = with_experts(layout, model, built.cluster, row.text("ep"))
    layout, room_assumptions = with_room(layout, model, built.cluster, workload, row.text("activation_recompute"))
    check_runs(model, built.cluster, workload, layout)
    return MeasuredRun(
        round=round_name,
        submitter=submitter,
        system=system,
        benchmark=benchmark,
        model=model,
        cluster=built.cluster,
        workload=workload,
        layout=layout,
        release=round_name,
        measured_s=measured_s,
        wall_s=row.positive_or("step_time_wall_s", 0.0),
        evaluation_s=row.positive_or("eval_time_s", 0.0),
        confidence=row.text("layout_confidence") or "not stated",
        vendor=row.text("vendor") or built.cluster.accelerator.vendor,
        source_row=row.line,
        notes=row.text("notes"),
        kind="lora" if workload.adapters else "pretrain",
        peak_memory_bytes=row.positive_or("max_memory_gb", 0.0) * GIB if "max_memory_gb" in row.cells else 0.0,
        assumptions=(
            *built.assumptions,
            *assumptions,
            *split_assumptions,
            *ep_assumptions,
            *room_assumptions,
            *_assumed_order(row, layout),
            *_assumed_overlap(row, layout),
        ),
    )


def _networks(row: Row) -> tuple[str, str]:
    return row.text("host_network"), row.text("scaleup_interconnect")


def _benchmark(name: str) -> tuple[str, str]:
    if name not in BENCHMARKS:
        raise InputError(f"no model for benchmark {name!r}", fix=nearest(name, BENCHMARKS))
    return BENCHMARKS[name]


def _workload(name: str, model: str) -> Workload:
    """The workload of the benchmark; one without a target if the catalogue does not describe it."""
    return load_workload(name) if name in names("workloads") else Workload(name=name, model=model, seq_len=1, global_batch=1)


def _precision(text: str, chip: Accelerator) -> tuple[str, tuple[str, ...]]:
    """The recipe, and what was assumed about it.

    A row without a launch file has no precision. Then fp8 is assumed on a chip that has it, as in most rows that state a precision.
    """
    assumed = "fp8" if "fp8" in chip.dense_flops_per_s else "bf16"
    precision = recipe(text) if text else assumed
    chip.peak_flops_per_s(precision)  # raises an error for a format that the chip cannot multiply
    return precision, () if text else (f"precision: {assumed}, as in most rows that state one",)


def _layout(row: Row, num_accelerators: int, global_batch: int) -> Layout:
    """The layout of the row, after a check that its degrees fill the machine and give the batch."""
    cp, vp, ep = row.count_or("cp", 1), row.count_or("vp", 1), row.count_or("ep", 1)
    tp, pp, micro_batch = row.count_or("tp", 0), row.count_or("pp", 0), row.count_or("micro_batch_size", 0)
    dp, num_micro_batches = row.count_or("dp", 0), row.count_or("num_micro_batches", 0)
    empty = [column for column in ("tp", "pp", "micro_batch_size") if not row.text(column)]
    if empty:
        raise missing_layout(empty)
    layout = Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=vp,
        dp=dp or max(num_accelerators // (tp * cp * pp), 1),
        ep=ep,
        micro_batch=micro_batch,
        zero_stage=1 if _flag(row, "distributed_optimizer", True) else 0,
        recompute=_recompute(row.text("activation_recompute")),
        order=_order(row.text("rank_order")),
        overlap_tp=bool(_flag(row, "tp_comm_overlap", _usual_overlap(row))),
        overlap_pp=bool(_flag(row, "p2p_overlap", True)),
        overlap_dp=bool(_flag(row, "dp_overlap_grad_reduce", True) and _flag(row, "dp_overlap_param_gather", True)),
        cuda_graphs=row.text("cuda_graph").lower() not in ("", "no", "none", "off", "false", "0"),
    )
    check_degrees(layout, num_accelerators, global_batch, num_micro_batches)
    return layout


def _usual_overlap(row: Row) -> bool:
    """Whether tensor traffic is overlapped if the row does not say: always except with FP4, as in the rows that say it."""
    return "fp4" not in row.text("precision").lower()


def _flag(row: Row, column: str, default: bool | None) -> bool | None:
    """Yes or no, or `default` if the cell is empty."""
    text = row.text(column).lower()
    if text and text not in _YES:
        raise InputError(f"{column} is {text!r}, neither yes nor no")
    return _YES[text] if text else default


def _recompute(text: str) -> str:
    kind = text.lower() or "none"
    if kind not in RECOMPUTE:
        raise InputError(f"no kind of recompute named {text!r}")
    return kind


def _order(text: str) -> tuple[str, ...]:
    """Axes from the innermost out, from `tp-cp-pp-dp (dp outermost)`; ep takes no ranks of its own."""
    if not text:
        return MEGATRON_ORDER
    return tuple(axis for axis in text.partition("(")[0].strip().lower().split("-") if axis != "ep")


def _assumed_order(row: Row, layout: Layout) -> tuple[str, ...]:
    """The assumed rank order, if there is a pipeline, for which it matters."""
    return ("rank order: pp outermost, Megatron's default",) if layout.pp > 1 and not row.text("rank_order") else ()


def _assumed_overlap(row: Row, layout: Layout) -> tuple[str, ...]:
    """The assumed overlap of tensor traffic, if there is such traffic."""
    state = "on" if layout.overlap_tp else "off"
    return (f"TP overlap: {state}, as in most rows of that precision",) if layout.tp > 1 and not row.text("tp_comm_overlap") else ()
