"""A plan as a DeepSpeed configuration (JSON).

Keys follow DeepSpeed 0.19. JSON holds no comments: the key `meshwright`, which DeepSpeed passes over, says where the file comes from.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.errors import InputError
from meshwright.plan.export.heading import origin
from meshwright.plan.export.megatron import BUCKET_ELEMENTS
from meshwright.plan.export.numbering import PP_LAST, rank_note
from meshwright.plan.plan import Plan
from meshwright.predict.footprint import recipe_for


def configuration(plan: Plan) -> str:
    """The JSON file."""
    check(plan)
    job, layout = plan.workload, plan.layout
    made: dict[str, Any] = {
        "meshwright": {"written_by": "meshwright", "origin": origin(plan), "not_in_this_file": limits(plan)},
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro_batches(job.global_batch),
        "gradient_clipping": 1.0,
        "bf16": {"enabled": job.precision != "fp32"},
        "data_types": {"grad_accum_dtype": "fp32" if recipe_for(job.precision).gradient_bytes == 4 else "bf16"},
        "zero_optimization": _zero(plan),
    }
    if layout.tp > 1:
        made["tensor_parallel"] = {"autotp_size": layout.tp, "tp_overlap_comm": layout.overlap_tp}
    if layout.cp > 1:
        made["sequence_parallel_size"] = layout.cp
    if layout.pp > 1:
        made["pipeline"] = {"stages": layout.pp, "partition": "uniform", "activation_checkpoint_interval": int(layout.recompute == "full")}
    if layout.ep > 1:
        made["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
    return json.dumps(made, indent=2) + "\n"


def _zero(plan: Plan) -> dict[str, Any]:
    """Sharding; buckets are those of the record run, which counts elements as DeepSpeed does."""
    stage = plan.layout.zero_stage
    made: dict[str, Any] = {"stage": stage}
    if stage:
        made |= {"overlap_comm": plan.layout.overlap_dp, "reduce_bucket_size": BUCKET_ELEMENTS, "contiguous_gradients": True}
    if stage in (1, 2):
        made |= {"reduce_scatter": True, "allgather_bucket_size": BUCKET_ELEMENTS}
    return made


def check(plan: Plan) -> None:
    """Refuse what DeepSpeed has no way to run."""
    layout = plan.layout
    if layout.cp > 1 and layout.cp_kind != "all-to-all":
        raise _refused(f"has no context parallelism by {layout.cp_kind}, only Ulysses", "layout.cp_kind", "plan with cp_kind=all-to-all")
    if layout.vp > 1 or layout.is_zero_bubble:
        what = f"{layout.vp} model chunks per stage" if layout.vp > 1 else "a zero-bubble schedule"
        raise _refused(f"has no {what}: its pipeline is 1F1B", "layout.schedule", "plan with vp=1,schedule=1f1b")
    if layout.pp > 1 and layout.zero_stage >= 2:
        raise _refused(f"has no pipeline with ZeRO {layout.zero_stage}", "layout.zero", "plan with zero=1, or pp=1")
    if layout.pp > 1 and layout.cp > 1:
        raise _refused("has no pipeline with Ulysses", "layout.cp", "plan with cp=1, or pp=1")
    if layout.tp > 1 and layout.zero_stage == 3:
        raise _refused("has no automatic tensor parallelism with ZeRO 3", "layout.zero", "plan with zero=2 or less, or tp=1")
    if layout.first_stage_layers or layout.last_stage_layers:
        raise _refused("takes no number of layers for the first or last stage here", "layout.first_stage_layers", "plan with an even split")


def _refused(what: str, where: str, fix: str) -> InputError:
    return InputError(f"DeepSpeed {what}", where=where, fix=fix)


def limits(plan: Plan) -> list[str]:
    """What the plan says and this file cannot."""
    layout, job = plan.layout, plan.workload
    found = rank_note(layout, PP_LAST, "DeepSpeed")
    found += ["the model's shapes, data, sequence length, optimizer and learning rate: they are in the training script"]
    if job.precision not in ("bf16", "fp32"):
        found.append(f"precision {job.precision}: without Transformer Engine layers in the model it trains in bf16, slower than predicted")
    if layout.recompute != "none" and layout.pp == 1:
        found.append(f"recompute {layout.recompute}: the model calls deepspeed.checkpointing or its own checkpointing")
    if layout.recompute == "selective" and layout.pp > 1:
        found.append("selective recompute: the model does it, DeepSpeed's pipeline recomputes whole layers or none")
    if layout.pp > 1:
        found.append(f"the pipeline: the script hands DeepSpeed a PipelineModule with num_stages={layout.pp}")
    if layout.cp > 1:
        found.append("Ulysses: the script shards sequences and attends through DistributedAttention or UlyssesSPAttentionHF")
    if layout.tp > 1:
        found.append(
            "sequence parallelism between tensor ranks: DeepSpeed keeps activations whole on each, so memory is higher than predicted"
        )
    if layout.ep > 1:
        found.append("experts: AutoEP takes over the layers of Hugging Face models it knows")
    if layout.cuda_graphs:
        found.append("CUDA graphs: DeepSpeed captures none in training")
    if job.adapters:
        found.append("low-rank adapters: the script adds them, for example with PEFT")
    return found
