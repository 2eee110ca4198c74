"""A plan as a DeepSpeed configuration (JSON).

Keys follow DeepSpeed 0.19. JSON has no comments: the key `meshwright`, which DeepSpeed ignores, says where the file comes from.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.plan.export.heading import origin
from meshwright.plan.export.megatron import BUCKET_ELEMENTS
from meshwright.plan.plan import Plan
from meshwright.plan.stack.deepspeed import DEEPSPEED
from meshwright.plan.stack.rule import Asked
from meshwright.predict.footprint import recipe_for


def configuration(plan: Plan) -> str:
    """The JSON file."""
    DEEPSPEED.check(Asked(plan.model, plan.workload, plan.cluster), plan.layout)
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
    """Sharding; the bucket sizes are those of the record run, which counts elements as DeepSpeed does."""
    stage = plan.layout.zero_stage
    made: dict[str, Any] = {"stage": stage}
    if stage:
        made |= {"overlap_comm": plan.layout.overlap_dp, "reduce_bucket_size": BUCKET_ELEMENTS, "contiguous_gradients": True}
    if stage in (1, 2):
        made |= {"reduce_scatter": True, "allgather_bucket_size": BUCKET_ELEMENTS}
    return made


def limits(plan: Plan) -> list[str]:
    """What the plan says and this file cannot express."""
    layout, job = plan.layout, plan.workload
    found = [f"DeepSpeed {text}" for text in DEEPSPEED.differences(Asked(plan.model, job, plan.cluster), layout)]
    found += ["the model's shapes, data, sequence length, optimizer and learning rate: they are in the training script"]
    if layout.recompute != "none" and layout.pp == 1:
        found.append(f"recompute {layout.recompute}: the model calls deepspeed.checkpointing or its own checkpointing")
    if layout.recompute == "selective" and layout.pp > 1:
        found.append("selective recompute: the model does it, DeepSpeed's pipeline recomputes whole layers or none")
    if layout.pp > 1:
        found.append(f"the pipeline: the script hands DeepSpeed a PipelineModule with num_stages={layout.pp}")
    if layout.cp > 1:
        found.append("Ulysses: the script shards sequences and attends through DistributedAttention or UlyssesSPAttentionHF")
    if layout.ep > 1:
        found.append("experts: AutoEP takes over the layers of Hugging Face models it knows")
    if job.adapters:
        found.append("low-rank adapters: the script adds them, for example with PEFT")
    return found
