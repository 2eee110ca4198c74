"""What Megatron-LM and Megatron-Bridge run. Facts are of Megatron core 0.15-0.16 and Megatron-Bridge 0.3, each rule with its source."""

from __future__ import annotations

import numpy as np

from meshwright.layout import CP_KINDS, OPS, ORDERS, RECOMPUTE, Layouts
from meshwright.plan.numbering import DP_LAST, PP_LAST, same_numbers
from meshwright.plan.stack.rule import Asked, JobRule, Mask, Rule, Stack, micro_batches, recompute_rule, sharing
from meshwright.plan.stack.vendors import GPUS
from meshwright.predict.practice import MEGATRON as MEGATRON_CLASS
from meshwright.predict.practice import NEMO

ARGUMENTS = "megatron/training/arguments.py"
SCHEDULES_PY = "megatron/core/pipeline_parallel/schedules.py"
PRECISIONS = ("fp32", "bf16", "fp8", "fp8-current", "mxfp8", "nvfp4")
MIXED_PRECISION = {
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-current": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
CP_COMM_TYPE = {"ring": "p2p", "all-gather": "all_gather", "all-to-all": "a2a"}


def _uneven_rounds(asked: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.vp > 1) & (micro_batches(asked, rows) % rows.pp > 0))


def _silent_pairs(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.vp > 1) & (rows.overlap_pp == 0) & (rows.pp == 2))


def _sharded_pipeline(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.zero_stage >= 2) & (rows.pp > 1) & sharing(rows))


def maps_replicas_last(asked: Asked, rows: Layouts) -> Mask:
    """Where ranks can be numbered with dp outermost: with pp > 1 only where the experts' data-parallel degree is that of other weights."""
    able = np.ones(len(rows), dtype=bool) if not asked.model.experts else (rows.cp * rows.tp == rows.expert_ranks)
    return np.asarray((rows.pp == 1) | (able & (rows.zero_stage < 2)))


def _unmapped(asked: Asked, rows: Layouts) -> Mask:
    unable = ~maps_replicas_last(asked, rows)
    return unable & same_numbers(rows, DP_LAST) & ~same_numbers(rows, PP_LAST) if unable.any() else unable


def _graphs_of_recomputed(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.cuda_graphs > 0) & (rows.recompute == RECOMPUTE.index("full")))


def _single_chunks_overlapped(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.overlap_pp > 0) & (rows.vp == 1) & (rows.pp > 1))


RULES = (
    recompute_rule(tuple(kind for kind in RECOMPUTE if kind != OPS), f"{ARGUMENTS}: --recompute-modules"),
    Rule(
        what="runs several model chunks per stage only where the stages divide the micro-batches, and pp={layout.pp} does not",
        where="layout.vp",
        fix="plan with vp=1, or with micro-batches that pp divides",
        source=f"{SCHEDULES_PY}, forward_backward_pipelining_with_interleaving: an unfilled group of pp is an error",
        forbids=_uneven_rounds,
    ),
    Rule(
        what="runs model chunks on 2 stages only with overlapped pipeline messages",
        where="layout.overlap_pp",
        fix="plan with overlap_pp=yes, vp=1 or pp > 2",
        source=f"{ARGUMENTS}, validate_args",
        forbids=_silent_pairs,
    ),
    Rule(
        what="shards gradients and weights through Megatron-FSDP, whose guide names TP, EP and CP and no pipeline",
        where="layout.zero",
        fix="plan with zero=1, or pp=1",
        source="Megatron Core developer guide, Megatron FSDP, key features; NVIDIA/Megatron-LM issue 1455",
        forbids=_sharded_pipeline,
        is_near=True,
    ),
    Rule(
        what="puts dp outermost only where the experts' data-parallel degree is that of the other weights (ep x etp = tp x cp) and without "
        "Megatron-FSDP: start it with the rank file of kind `rankfile-pp-last`, or the axes land on other tiers than planned",
        where="layout.order",
        fix="plan with order=tp-cp-dp-pp",
        source="megatron/core/parallel_state.py, initialize_model_parallel; Megatron-Bridge, ConfigContainer.validate",
        forbids=_unmapped,
        is_near=True,
    ),
    Rule(
        what="does not capture layers that are recomputed in full in CUDA graphs, so launches cost more than predicted",
        where="layout.cuda_graphs",
        fix="plan with cuda_graphs=no, or without full recompute",
        source="megatron/core/transformer/transformer_config.py, __post_init__",
        forbids=_graphs_of_recomputed,
        is_near=True,
    ),
    Rule(
        what="overlaps pipeline messages only with more than one chunk per stage (vp > 1)",
        where="layout.overlap_pp",
        fix="plan with overlap_pp=no, or vp=2 or more",
        source=f"{ARGUMENTS}, validate_args: overlap_p2p_comm is for the interleaved schedule",
        forbids=_single_chunks_overlapped,
        is_near=True,
    ),
)

MEGATRON = Stack(
    name="megatron",
    title="Megatron-LM",
    software=MEGATRON_CLASS,
    export="megatron",
    schedules=("1f1b", "interleaved"),
    cp_kinds=tuple(kind for kind in CP_KINDS if kind in CP_COMM_TYPE),
    orders=tuple(order for order in ORDERS if order in (DP_LAST, PP_LAST)),
    overlaps_single_chunks=False,
    captures_recomputed=False,
    source=f"{ARGUMENTS}: --cp-comm-type, --use-tp-pp-dp-mapping; {SCHEDULES_PY}",
    job_rules=(
        *GPUS,
        JobRule(
            what="has no precision {asked.workload.precision!r}",
            where="workload.precision",
            fix=f"plan with one of {', '.join(PRECISIONS)}",
            source=f"{ARGUMENTS}: --fp8-recipe, --fp4-recipe",
            forbids=lambda asked: asked.workload.precision not in PRECISIONS,
        ),
        JobRule(
            what="has no low-rank adapters in its pre-training script",
            where="workload.adapters",
            fix="export to megatron-bridge",
            source="pretrain_gpt.py; Megatron-Bridge has megatron.bridge.peft.lora",
            forbids=lambda asked: asked.workload.adapters is not None,
        ),
    ),
    rules=RULES,
)

BRIDGE = Stack(
    name="bridge",
    title="Megatron-Bridge",
    software=NEMO,
    export="megatron-bridge",
    schedules=MEGATRON.schedules,
    cp_kinds=MEGATRON.cp_kinds,
    orders=MEGATRON.orders,
    overlaps_single_chunks=False,
    captures_recomputed=False,
    source=MEGATRON.source,
    job_rules=(
        *GPUS,
        JobRule(
            what="has no recipe for precision {asked.workload.precision!r}",
            where="workload.precision",
            fix=f"plan with one of {', '.join(MIXED_PRECISION)}",
            source="megatron.bridge.training.mixed_precision",
            forbids=lambda asked: asked.workload.precision not in MIXED_PRECISION,
        ),
    ),
    rules=RULES,
)
