"""A plan as a torchtitan job file (TOML).

Sections and keys follow torchtitan 0.2.2. The file names a model flavor that torchtitan holds; other shapes are spelled out to be added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from meshwright.describe.model import Model
from meshwright.errors import InputError
from meshwright.plan.export.heading import comment, heading
from meshwright.plan.export.megatron import counts_ends
from meshwright.plan.export.numbering import PP_LAST, rank_note
from meshwright.plan.plan import Plan
from meshwright.predict.placement import overlaps_tp

Value = str | int | bool | list[str] | list[list[str]]
Section = dict[str, Value]

# (layers, hidden, heads, key-value heads, MLP width, vocabulary) -> torchtitan's model and flavor.
FLAVORS: Mapping[tuple[int, ...], tuple[str, str]] = {
    (32, 4096, 32, 8, 14336, 128256): ("llama3", "8B"),
    (80, 8192, 64, 8, 28672, 128256): ("llama3", "70B"),
    (126, 16384, 128, 8, 53248, 128256): ("llama3", "405B"),
    (60, 5120, 128, 128, 12288, 102400): ("deepseek_v3", "236B"),
    (61, 7168, 128, 128, 18432, 129280): ("deepseek_v3", "671B"),
    (48, 2048, 32, 4, 6144, 151936): ("qwen3", "30B-A3B"),
    (94, 4096, 64, 4, 12288, 151936): ("qwen3", "235B-A22B"),
    (24, 2880, 64, 8, 2880, 201088): ("gpt_oss", "20b"),
    (36, 2880, 64, 8, 2880, 201088): ("gpt_oss", "120b"),
}
WITHOUT_PIPELINE = ("qwen3", "gpt_oss")  # torchtitan 0.2.2 gives them no pipelining function

# torchtitan rotates key-value shards by an all-to-all: that is the ring. It has no exchange of heads.
ROTATION = {"ring": "alltoall", "all-gather": "allgather"}
RECOMPUTE: Mapping[str, Section] = {
    "none": {"mode": "none"},
    "selective": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}


def job_file(plan: Plan) -> str:
    """The TOML file, section by section, each with its reason."""
    check(plan)
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


def check(plan: Plan) -> None:
    """Refuse what torchtitan has no way to run."""
    layout, name = plan.layout, _flavor(plan.model)[0]
    if layout.cp > 1 and layout.cp_kind not in ROTATION:
        raise _refused(
            "has no context parallelism by all-to-all of heads", "layout.cp_kind", "plan with cp_kind=ring or cp_kind=all-gather"
        )
    if layout.is_zero_bubble and layout.vp == 1:
        raise _refused(
            "has zero-bubble schedules for two or more chunks per stage, not for one", "layout.schedule", "plan with vp=2 or more"
        )
    if layout.pp > 1 and name in WITHOUT_PIPELINE:
        raise _refused(f"has no pipeline for {name}", "layout.pp", "plan with pp=1")
    if plan.workload.precision in ("fp8", "nvfp4"):
        kind = "fp8 with delayed scaling" if plan.workload.precision == "fp8" else "NVFP4"
        raise _refused(f"has no {kind}", "workload.precision", "plan with precision bf16, fp8-current or mxfp8")
    if plan.workload.attention_precision == "fp8":
        raise _refused("has no attention in fp8", "workload.attention_precision", "plan with attention_precision = bf16")
    if plan.workload.adapters:
        raise _refused("has no low-rank adapters", "workload.adapters", "export to megatron-bridge")


def _refused(what: str, where: str, fix: str) -> InputError:
    return InputError(f"torchtitan 0.2.2 {what}", where=where, fix=fix)


def limits(plan: Plan) -> list[str]:
    """What the plan says and this file cannot."""
    layout, model = plan.layout, plan.model
    found = rank_note(layout, PP_LAST, "torchtitan")
    found += ["data, tokenizer (model.hf_assets_path) and learning rate: a plan does not hold them"]
    if layout.zero_stage == 1 and layout.dp * layout.cp > 1:
        found.append("ZeRO 1: FSDP also shards gradients and reduces them in every micro-batch, which is ZeRO 2")
    if layout.zero_stage == 0 and layout.cp > 1:
        found.append("ZeRO 0: torchtitan always shards over the context ranks")
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
    """torchtitan's model and flavor of these shapes; a flavor to be added where only the architecture is known."""
    shape = (model.num_layers, model.hidden, model.num_heads, model.num_kv_heads, model.ffn_hidden, model.vocab_size)
    if shape in FLAVORS:
        return FLAVORS[shape]
    plain = model.gated and not (model.biases or model.layer_norm or model.num_positions or model.tied_embeddings or model.qk_norm)
    if plain and not (model.experts or model.latent or model.attention_biases or model.qkv_biases or model.num_windowed_layers):
        return "llama3", model.name
    raise InputError(
        f"torchtitan 0.2.2 has no model like {model.name}",
        where="model",
        fix="export to megatron, which takes shapes; torchtitan holds Llama 3, DeepSeek, Qwen3 and gpt-oss",
    )


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
        made |= {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": 1}
    if layout.cp > 1:
        made["context_parallel_rotate_method"] = ROTATION[layout.cp_kind]
    return made | (_pipeline(plan) if layout.pp > 1 else {})


def _pipeline(plan: Plan) -> Section:
    layout = plan.layout
    schedule = "1F1B" if layout.vp == 1 else "InterleavedZeroBubble" if layout.is_zero_bubble else "Interleaved1F1B"
    made: dict[str, Value] = {"pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": layout.micro_batch}
    return made | {"module_fqns_per_model_part": model_parts(plan)}


def model_parts(plan: Plan) -> list[list[str]]:
    """Modules of every chunk, from the first stage's first to the last stage's last, as the plan splits the layers."""
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
    """Layers of every chunk where the first or the last stage's are stated: each stage shares its own out over its chunks."""
    others = pp - bool(head) - bool(tail)
    even = (layers - head - tail) // max(others, 1)
    stages = [head or even, *[even] * (pp - 2), tail or even]
    uneven = [count for count in stages if count % vp]
    if uneven:
        raise _refused(f"takes whole chunks, and {uneven[0]} layers do not divide into {vp}", "layout.first_stage_layers", "plan with vp=1")
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
