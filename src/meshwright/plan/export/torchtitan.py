"""A plan as a torchtitan job file (TOML).

Sections and keys follow torchtitan 0.2.2. The file names a model flavor of torchtitan; for other shapes it says which flavor to add.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from meshwright.describe.model import Model
from meshwright.layout import OPS
from meshwright.plan.export.heading import comment, heading
from meshwright.plan.export.megatron import counts_ends
from meshwright.plan.plan import Plan
from meshwright.plan.stack.rule import Asked
from meshwright.plan.stack.torchtitan import FLAVORS, ROTATION, TORCHTITAN, flavor_of
from meshwright.predict.placement import overlaps_tp

Value = str | int | bool | list[str] | list[list[str]]
Section = dict[str, Value]

RECOMPUTE: Mapping[str, Section] = {
    "none": {"mode": "none"},
    "selective": {"mode": "selective", "selective_ac_option": "op"},
    OPS: {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}


def job_file(plan: Plan) -> str:
    """The TOML file, section by section, each with its reason."""
    TORCHTITAN.check(Asked(plan.model, plan.workload, plan.cluster), plan.layout)
    lines = heading(plan, "torchtitan job file", limits(plan))
    for name, why, section in sections(plan):
        lines += ["", comment(why), f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join([*lines, ""])


def sections(plan: Plan) -> list[tuple[str, str, Section]]:
    """Name, reason and content of every section."""
    layout = plan.layout
    made: list[tuple[str, str, Section]] = [
        ("job", "What the run is called.", {"description": f"{plan.name}: {layout.degrees}"}),
        ("model", _model_reason(plan.model), _model(plan)),
        ("training", _batch_reason(plan), _training(plan)),
        ("parallelism", "Degrees, from the outside in: pp, dp, cp, tp.", _parallelism(plan)),
        ("activation_checkpoint", f"Recompute: {layout.recompute}.", RECOMPUTE[layout.recompute]),
        ("compile", "Fused kernels stand in for the graphed ones of the prediction.", {"enable": True}),
    ]
    return [*made, *_quantized(plan)]


def limits(plan: Plan) -> list[str]:
    """What the plan says and this file cannot express."""
    layout, model = plan.layout, plan.model
    found = [f"torchtitan {text}" for text in TORCHTITAN.differences(Asked(model, plan.workload, plan.cluster), layout)]
    found += ["data, tokenizer (model.hf_assets_path) and learning rate: a plan does not hold them"]
    if layout.ep > 1:
        found.append("groups of experts are neighbours over dp, cp and tp ranks, as in torchtitan's mesh")
    if model.num_prediction_layers:
        found.append(
            f"{model.num_prediction_layers} multi-token-prediction layer: torchtitan's model has none, and does that much less work"
        )
    if overlaps_tp(layout, plan.cluster):
        found.append("overlapped tensor parallelism is torchtitan's asynchronous one, which needs torch.compile and symmetric memory")
    return found


def _flavor(model: Model) -> tuple[str, str]:
    flavor = flavor_of(model)
    assert flavor is not None, "the stack's rules refuse other models"
    return flavor


def _model_reason(model: Model) -> str:
    name, flavor = _flavor(model)
    if (name, flavor) in FLAVORS.values():
        return f"The shapes of {model.name}."
    return (
        f"torchtitan has no flavor of these shapes: add {flavor!r} to llama3_args with dim={model.hidden}, n_layers={model.num_layers}, "
        f"n_heads={model.num_heads}, n_kv_heads={model.num_kv_heads}, vocab_size={model.vocab_size} and an MLP of {model.ffn_hidden} "
        "(ffn_dim_multiplier, multiple_of)."
    )


def _model(plan: Plan) -> Section:
    name, flavor = _flavor(plan.model)
    converters = {"fp8-current": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}.get(plan.workload.precision, [])
    if plan.model.experts and converters:
        converters = [*converters, converters[0].replace("linear", "grouped_mm")]
    made: dict[str, Value] = {"name": name, "flavor": flavor}
    return made | ({"converters": converters} if converters else {})


def _batch_reason(plan: Plan) -> str:
    count = plan.layout.num_micro_batches(plan.workload.global_batch)
    if plan.layout.pp > 1:
        return f"A replica's whole batch goes through the pipeline at once, as {count} micro-batches."
    return f"Gradients of {count} micro-batches are accumulated."


def _training(plan: Plan) -> Section:
    job, layout = plan.workload, plan.layout
    local = job.global_batch // layout.dp if layout.pp > 1 else layout.micro_batch
    made: dict[str, Value] = {"local_batch_size": local, "global_batch_size": job.global_batch, "seq_len": job.seq_len}
    if job.num_steps():
        made["steps"] = job.num_steps()
    width = "float32" if job.precision == "fp32" else "bfloat16"
    return made | {"mixed_precision_param": width, "mixed_precision_reduce": "float32"}


def _parallelism(plan: Plan) -> Section:
    layout = plan.layout
    sharded = layout.zero_stage > 0
    made: dict[str, Value] = {
        "pipeline_parallel_degree": layout.pp,
        "data_parallel_replicate_degree": 1 if sharded else layout.dp,
        "data_parallel_shard_degree": layout.dp if sharded else 1,
        "context_parallel_degree": layout.cp,
        "tensor_parallel_degree": layout.tp,
        "fsdp_reshard_after_forward": "always" if layout.zero_stage == 3 else "never",
        "enable_async_tensor_parallel": overlaps_tp(layout, plan.cluster),
    }
    if plan.model.experts:
        made |= {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": layout.etp}
    if layout.cp > 1:
        made["context_parallel_rotate_method"] = ROTATION[layout.cp_kind]
    return made | (_pipeline(plan) if layout.pp > 1 else {})


def _pipeline(plan: Plan) -> Section:
    layout = plan.layout
    schedule = "1F1B" if layout.vp == 1 else "InterleavedZeroBubble" if layout.is_zero_bubble else "Interleaved1F1B"
    made: dict[str, Value] = {"pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": layout.micro_batch}
    return made | {"module_fqns_per_model_part": model_parts(plan)}


def model_parts(plan: Plan) -> list[list[str]]:
    """Modules of every chunk in the order of the model (first stage's first chunk to last stage's last), as the plan divides the layers."""
    layout, layers = plan.layout, plan.model.num_layers
    ends = int(counts_ends(plan))
    num_parts = layout.pp * layout.vp
    head, tail = layout.first_stage_layers, layout.last_stage_layers
    if head or tail:
        sizes = _stated(layers, layout.pp, layout.vp, head, tail)
    else:
        sizes = [(layers + 2 * ends) // num_parts] * num_parts
        sizes[0] -= ends
        sizes[-1] -= ends
    names = iter(f"layers.{i}" for i in range(layers))
    parts = [[next(names) for _ in range(size)] for size in sizes]
    return [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", "output"]]


def _stated(layers: int, pp: int, vp: int, head: int, tail: int) -> list[int]:
    """Layers of every chunk if the layers of the first or the last stage are stated: each stage divides its layers over its chunks."""
    others = pp - bool(head) - bool(tail)
    even = (layers - head - tail) // max(others, 1)
    stages = [head or even, *[even] * (pp - 2), tail or even]
    return [stages[stage] // vp for _ in range(vp) for stage in range(pp)]


def _quantized(plan: Plan) -> list[tuple[str, str, Section]]:
    precision, experts = plan.workload.precision, plan.model.experts
    made: list[tuple[str, str, Section]] = []
    if precision == "fp8-current":
        section: dict[str, Value] = {"recipe_name": "tensorwise", "filter_fqns": ["output"]}
        section |= {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True}
        made.append(("quantize.linear.float8", "fp8 with current scaling; the output projection stays in bf16.", section))
        made += [("quantize.grouped_mm.float8", "The experts too.", {"fqns": ["experts"]})] if experts else []
    if precision == "mxfp8":
        made.append(("quantize.linear.mx", "MXFP8; the output projection stays in bf16.", {"recipe_name": "mxfp8_cublas"}))
        made += [("quantize.grouped_mm.mx", "The experts too.", {"fqns": ["experts"]})] if experts else []
    return made
