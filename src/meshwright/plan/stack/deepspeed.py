"""What DeepSpeed runs. Facts are of DeepSpeed 0.19, each rule with its source."""

from __future__ import annotations

from meshwright.layout import USUAL_RECOMPUTE
from meshwright.plan.numbering import PP_LAST
from meshwright.plan.stack.rule import JobRule, Rule, Stack, recompute_rule, sharing
from meshwright.plan.stack.vendors import GPUS
from meshwright.predict.practice import FSDP

PRECISIONS = ("bf16", "fp32")

DEEPSPEED = Stack(
    name="deepspeed",
    title="DeepSpeed",
    software=FSDP,
    export="deepspeed",
    schedules=("1f1b",),
    cp_kinds=("all-to-all",),
    orders=(PP_LAST,),
    switches={"overlap_tp": False, "cuda_graphs": False},
    source="deepspeed/runtime/pipe/schedule.py: TrainSchedule; deepspeed/sequence: Ulysses; deepspeed/runtime/pipe/topology.py",
    job_rules=(
        *GPUS,
        JobRule(
            what="trains in bf16, not {asked.workload.precision}, unless the model brings layers of Transformer Engine",
            where="workload.precision",
            fix=f"plan with precision {' or '.join(PRECISIONS)}",
            source="DeepSpeed configuration: bf16, fp16",
            forbids=lambda asked: asked.workload.precision not in PRECISIONS,
            is_near=True,
        ),
    ),
    rules=(
        recompute_rule(USUAL_RECOMPUTE, "deepspeed.checkpointing: whole layers, or what the model's own code picks"),
        Rule(
            what="has no pipeline with ZeRO {layout.zero_stage}",
            where="layout.zero",
            fix="plan with zero=1, or pp=1",
            source="deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
            forbids=lambda _, rows: (rows.pp > 1) & (rows.zero_stage >= 2),
        ),
        Rule(
            what="has no pipeline with Ulysses",
            where="layout.cp",
            fix="plan with cp=1, or pp=1",
            source="deepspeed/sequence: ranks are data and sequence groups alone",
            forbids=lambda _, rows: (rows.pp > 1) & (rows.cp > 1),
        ),
        Rule(
            what="has no degree by which single experts are divided over ranks, and etp is {layout.etp}",
            where="layout.etp",
            fix="plan with etp=1",
            source="DeepSpeed configuration, expert_parallel: autoep_size alone",
            forbids=lambda _, rows: rows.etp > 1,
        ),
        Rule(
            what="has no automatic tensor parallelism with ZeRO 3",
            where="layout.zero",
            fix="plan with zero=2 or less, or tp=1",
            source="DeepSpeed tutorial on automatic tensor parallelism for training: ZeRO 0 to 2",
            forbids=lambda _, rows: (rows.tp > 1) & (rows.zero_stage == 3),
        ),
        Rule(
            what="takes no number of layers for the first or last stage here",
            where="layout.first_stage_layers",
            fix="plan with an even split",
            source="deepspeed/runtime/pipe/module.py: partition_method",
            forbids=lambda _, rows: (rows.first_stage_layers > 0) | (rows.last_stage_layers > 0),
        ),
        Rule(
            what="has no sequence parallelism between tensor ranks: it keeps activations whole on each, so memory is higher than predicted",
            where="layout.tp",
            fix="plan with tp=1",
            source="deepspeed/module_inject/layers.py: LinearAllreduce",
            forbids=lambda _, rows: rows.tp > 1,
            is_near=True,
        ),
        Rule(
            what="captures no CUDA graphs in training",
            where="layout.cuda_graphs",
            fix="plan with cuda_graphs=no",
            source="DeepSpeed configuration: CUDA graphs are of the inference engine",
            forbids=lambda _, rows: rows.cuda_graphs > 0,
            is_near=True,
        ),
        Rule(
            what="shares states among all replicas, not among {layout.zero_ranks} ranks each",
            where="layout.zero_ranks",
            fix="plan without zero_ranks",
            source="DeepSpeed configuration: MiCS and hpZ are of ZeRO 3, with keys of their own",
            forbids=lambda _, rows: (rows.zero_ranks > 0) & sharing(rows),
            is_near=True,
        ),
    ),
)
