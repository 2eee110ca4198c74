"""A plan as Megatron-LM arguments: a shell file that fills the array MEGATRON_ARGS, each group with its reason.

Names and meanings follow megatron/training/arguments.py of Megatron-LM (core 0.15-0.16).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from meshwright.describe.model import Model
from meshwright.layout import Layout, Layouts
from meshwright.plan.export.heading import comment, heading
from meshwright.plan.numbering import DP_LAST, PP_LAST, Order, is_numbered
from meshwright.plan.plan import Plan
from meshwright.plan.stack.megatron import CP_COMM_TYPE, MEGATRON, maps_replicas_last
from meshwright.plan.stack.rule import Asked
from meshwright.predict.footprint import recipe_for
from meshwright.predict.placement import overlaps_tp
from meshwright.predict.stages import stage_layers

FSDP_STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}
BUCKET_ELEMENTS = 134_217_728  # gradients in one reduction, as in the record run


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments that belong together, and the reason for their values."""

    why: str
    arguments: tuple[tuple[str, ...], ...]  # each a flag and its values


def arguments(plan: Plan) -> str:
    """The file: a comment, then `MEGATRON_ARGS=(...)`, to be sourced and passed on as "${MEGATRON_ARGS[@]}"."""
    asked = Asked(plan.model, plan.workload, plan.cluster)
    MEGATRON.check(asked, plan.layout)
    lines = heading(plan, "Megatron-LM arguments", limits(plan))
    lines += [comment('Use: source this file, then torchrun ... pretrain_gpt.py "${MEGATRON_ARGS[@]}" with your data and tokenizer.')]
    lines += ["MEGATRON_ARGS=("]
    for group in groups(plan):
        if group.arguments:
            lines += [comment(group.why, indent="  "), *(f"  {shlex.join(argument)}" for argument in group.arguments)]
    return "\n".join([*lines, ")", ""])


def groups(plan: Plan) -> list[Group]:
    """All arguments, in groups."""
    model, layout = plan.model, plan.layout
    made = [_shapes(model), _widths(model), _vocabulary(model, layout), _experts(model), _latent(model)]
    made += [_axes(plan), _ranks(plan), _pipeline(plan), _context(layout), _batch(plan), _sharding(layout)]
    return [*made, _overlap(plan), _precision(plan), _recompute(layout, plan.model.num_layers), _graphs(plan)]


def limits(plan: Plan) -> list[str]:
    """What the plan says and these arguments cannot express, and what they need besides."""
    model, layout, job = plan.model, plan.layout, plan.workload
    found = [f"Megatron-LM {text}" for text in MEGATRON.differences(Asked(model, job, plan.cluster), layout)]
    found += ["data, tokenizer, learning rate, rotary base and scaling, initialisation: a plan does not hold them"]
    if job.attention_precision == "fp8":
        found.append("attention in fp8: fp8_dot_product_attention of TransformerConfig, which not every release has as an argument")
    if layout.has_part("act_fp8"):
        found.append("inputs of activation functions in fp8: activation_func_fp8_input_store of TransformerConfig, which is no argument")
    if model.attention_biases:
        found.append("biases on all four attention projections: Megatron-LM has them on queries, keys and values alone")
    if model.num_windowed_layers and _full_every(model) == 0:
        found.append(f"which {model.num_windowed_layers} of {model.num_layers} layers are windowed: --window-attn-skip-freq takes a list")
    if model.attention_sinks:
        found.append("the activation: models with attention sinks clamp their gate (--quick-geglu, --activation-func-clamp-value)")
    if layout.zero_stage >= 2:
        found.append("CUDA_DEVICE_MAX_CONNECTIONS must not be 1: Megatron-FSDP refuses it")
    return found


def _shapes(model: Model) -> Group:
    shapes: list[tuple[str, ...]] = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(model.ffn_hidden)),
        ("--num-attention-heads", str(model.num_heads)),
    ]
    if not model.latent:
        shapes.append(("--kv-channels", str(model.head_dim)))
        if model.num_kv_heads < model.num_heads:
            shapes += [("--group-query-attention",), ("--num-query-groups", str(model.num_kv_heads))]
    if model.num_prediction_layers:
        shapes.append(("--mtp-num-layers", str(model.num_prediction_layers)))
    return Group(f"The shapes of {model.name}.", tuple(shapes))


def _widths(model: Model) -> Group:
    kinds: list[tuple[str, ...]] = [("--normalization", "LayerNorm" if model.layer_norm else "RMSNorm")]
    kinds += [("--swiglu",)] if model.gated else []
    kinds += [] if model.biases else [("--disable-bias-linear",)]
    kinds += [("--add-qkv-bias",)] if model.qkv_biases or (model.attention_biases and not model.biases) else []
    kinds += [("--qk-layernorm",)] if model.qk_norm else []
    kinds += [("--softmax-type", "learnable")] if model.attention_sinks else []
    kinds += [("--position-embedding-type", "learned_absolute" if model.num_positions else "rope")]
    if model.num_windowed_layers and _full_every(model):
        kinds += [("--window-size", f"({model.window},0)"), ("--window-attn-skip-freq", str(_full_every(model)))]
    return Group("What its layers are made of.", tuple(kinds))


def _full_every(model: Model) -> int:
    """N if every N-th layer has full attention and the others have windows; 0 if there is no such N."""
    num_full = model.num_layers - model.num_windowed_layers
    return model.num_layers // num_full if num_full and model.num_layers % num_full == 0 else 0


def _vocabulary(model: Model, layout: Layout) -> Group:
    """Megatron pads the vocabulary to a multiple of this times tp: the largest power of two that adds nothing, or 1."""
    multiple = next((power for power in (128, 64, 32, 16, 8, 4, 2) if model.vocab_size % (power * layout.tp) == 0), 1)
    words = [("--vocab-size", str(model.vocab_size)), ("--make-vocab-size-divisible-by", str(multiple))]
    tied = () if model.tied_embeddings else (("--untie-embeddings-and-output-weights",),)
    return Group("The vocabulary as it was planned: padded only where tp does not divide it.", (*words, *tied))


def _experts(model: Model) -> Group:
    if not model.experts:
        return Group("", ())
    experts = model.experts
    made: list[tuple[str, ...]] = [
        ("--num-experts", str(experts.num_experts)),
        ("--moe-router-topk", str(experts.num_active)),
        ("--moe-ffn-hidden-size", str(experts.hidden)),
    ]
    if experts.num_shared:
        made.append(("--moe-shared-expert-intermediate-size", str(experts.num_shared * experts.hidden)))
    if experts.num_dense_layers:
        made.append(("--moe-layer-freq", f"([0]*{experts.num_dense_layers}+[1]*{model.num_expert_layers})"))
    made += [("--moe-grouped-gemm",), ("--moe-token-dispatcher-type", "alltoall")]
    return Group("Experts: grouped multiplications and an all-to-all, as in the prediction.", tuple(made))


def _latent(model: Model) -> Group:
    if not model.latent:
        return Group("", ())
    latent = model.latent
    made: list[tuple[str, ...]] = [("--multi-latent-attention",)]
    made += [("--q-lora-rank", str(latent.query_rank))] if latent.query_rank else []
    made += [
        ("--kv-lora-rank", str(latent.key_value_rank)),
        ("--qk-head-dim", str(latent.nope_dim)),
        ("--qk-pos-emb-head-dim", str(latent.rope_dim)),
        ("--v-head-dim", str(latent.value_dim)),
    ]
    return Group("Latent attention: the low ranks and the parts of a head.", tuple(made))


def _axes(plan: Plan) -> Group:
    layout = plan.layout
    made: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(layout.tp)),
        ("--context-parallel-size", str(layout.cp)),
        ("--pipeline-model-parallel-size", str(layout.pp)),
    ]
    made += [("--sequence-parallel",)] if layout.tp > 1 else []
    if plan.model.experts:
        made += [("--expert-model-parallel-size", str(layout.ep)), ("--expert-tensor-parallel-size", str(layout.etp))]
    where = "; ".join(f"{axis} crosses {' and '.join(tiers)}" for axis, tiers in plan.placement.items())
    return Group(f"Degrees; data parallelism takes the other {layout.dp}. {where or 'One accelerator'}.", tuple(made))


def rank_order(plan: Plan) -> Order:
    """The order in which Megatron-LM will number the ranks: the plan's order if it can."""
    layout = plan.layout
    able = maps_replicas_last(Asked(plan.model, plan.workload), Layouts.of([layout]))[0]
    return DP_LAST if able and not is_numbered(layout, PP_LAST) and is_numbered(layout, DP_LAST) else PP_LAST


def stand_in_degree(plan: Plan) -> int:
    """The expert tensor degree with which a dense model can have dp outermost; 0 if none is needed.

    Megatron-LM makes groups of experts, without context parallelism, even for a model without experts. It refuses the order unless
    the pipelines of these groups have the same ranks as the others. An expert tensor degree of tp x cp makes them equal; nothing else
    reads this degree.
    """
    needed = rank_order(plan) == DP_LAST and not plan.model.experts and plan.layout.cp > 1 and plan.layout.pp > 1
    return plan.layout.tp * plan.layout.cp if needed else 0


def _ranks(plan: Plan) -> Group:
    if rank_order(plan) == PP_LAST:
        return Group("", ())
    why = "Rank order tp-cp-ep-pp-dp: a whole pipeline is neighbours, so that only data parallelism leaves the inner domain."
    if not stand_in_degree(plan):
        return Group(why, (("--use-tp-pp-dp-mapping",),))
    why += " Megatron-LM checks it on groups of experts too, which this model does not have: their tensor degree is tp x cp for that alone."
    return Group(why, (("--use-tp-pp-dp-mapping",), ("--expert-tensor-parallel-size", str(stand_in_degree(plan)))))


def counts_ends(plan: Plan) -> bool:
    """Whether the embedding and the loss each count as a layer when the plan divides layers over stages."""
    layout, layers = plan.layout, plan.model.num_layers
    stated = layout.first_stage_layers or layout.last_stage_layers
    split = stage_layers(layers, layout.pp, layout.vp, layout.first_stage_layers, layout.last_stage_layers)
    return layout.pp > 1 and not stated and int(split.first) != int(split.middle)


def _pipeline(plan: Plan) -> Group:
    layout = plan.layout
    made: list[tuple[str, ...]] = []
    why = f"{layout.vp} model chunks per stage."
    if layout.vp > 1:
        made.append(("--num-virtual-stages-per-pipeline-rank", str(layout.vp)))
        made += [] if layout.overlap_pp else [("--no-overlap-p2p-communication",)]
    if counts_ends(plan):
        made += [("--account-for-embedding-in-pipeline-split",), ("--account-for-loss-in-pipeline-split",)]
        why += f" {plan.model.num_layers} layers do not divide, {plan.model.num_layers} + 2 do: embedding and loss count as one each."
    if layout.first_stage_layers:
        made.append(("--decoder-first-pipeline-num-layers", str(layout.first_stage_layers)))
    if layout.last_stage_layers:
        made.append(("--decoder-last-pipeline-num-layers", str(layout.last_stage_layers)))
    return Group(why, tuple(made))


def _context(layout: Layout) -> Group:
    if layout.cp == 1:
        return Group("", ())
    return Group(f"Context parallelism by {layout.cp_kind}.", (("--cp-comm-type", CP_COMM_TYPE[layout.cp_kind]),))


def _batch(plan: Plan) -> Group:
    job, layout = plan.workload, plan.layout
    positions = max(job.seq_len, plan.model.num_positions)
    made: list[tuple[str, ...]] = [
        ("--micro-batch-size", str(layout.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
        ("--seq-length", str(job.seq_len)),
        ("--max-position-embeddings", str(positions)),
    ]
    if job.num_steps():
        made.append(("--train-samples", str(job.num_steps() * job.global_batch)))
    return Group(f"{layout.num_micro_batches(job.global_batch)} micro-batches per replica and step.", tuple(made))


def _sharding(layout: Layout) -> Group:
    if layout.zero_stage == 0:
        return Group("", ())
    if layout.zero_stage == 1:
        groups = layout.dp * layout.cp // layout.sharing_ranks
        copies = (("--num-distributed-optimizer-instances", str(groups)),) if groups > 1 else ()
        return Group(
            f"ZeRO 1: optimizer states are shared out over {layout.sharing_ranks} ranks.", (("--use-distributed-optimizer",), *copies)
        )
    return Group(
        f"ZeRO {layout.zero_stage}: Megatron-FSDP, which writes checkpoints of its own kind.",
        (
            ("--use-megatron-fsdp",),
            ("--use-distributed-optimizer",),
            ("--data-parallel-sharding-strategy", FSDP_STRATEGY[layout.zero_stage]),
            ("--no-gradient-accumulation-fusion",),
            ("--ckpt-format", "fsdp_dtensor"),
        ),
    )


def _overlap(plan: Plan) -> Group:
    layout = plan.layout
    made: list[tuple[str, ...]] = []
    if layout.overlap_dp and layout.dp * layout.cp > 1:
        made.append(("--overlap-grad-reduce",))
        made += [("--overlap-param-gather",)] if layout.zero_stage else []
        made.append(("--ddp-bucket-size", str(BUCKET_ELEMENTS)))
    if overlaps_tp(layout, plan.cluster):
        made.append(("--tp-comm-overlap",))
    why = f"Gradients are reduced behind the backward pass in buckets of {BUCKET_ELEMENTS:,} elements (the record run's)."
    return Group(why, tuple(made))


def _precision(plan: Plan) -> Group:
    job, sharded = plan.workload, plan.layout.zero_stage > 0
    if job.precision == "fp32":
        return Group("", ())
    formats: dict[str, tuple[tuple[str, ...], ...]] = {
        "bf16": (),
        "fp8": (("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
        "fp8-current": (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
        "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
        "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
    }
    made = [("--bf16",), *formats[job.precision]]
    if job.precision in ("fp8", "fp8-current", "mxfp8") and sharded:
        made.append(("--fp8-param-gather",))
    if recipe_for(job.precision).gradient_bytes == 2:
        made.append(("--grad-reduce-in-bf16",))
    return Group(f"Precision {job.precision}; gradients and weights are stored as the plan's memory assumes.", tuple(made))


def _recompute(layout: Layout, num_layers: int) -> Group:
    if layout.recompute == "none":
        return Group("", ())
    if layout.recompute == "selective":
        return Group("Attention is recomputed in the backward pass.", (("--recompute-activations",),))
    if layout.recompute == "full":
        made = (("--recompute-granularity", "full"), ("--recompute-method", "uniform"), ("--recompute-num-layers", "1"))
        return Group("Every layer is recomputed from its input.", made)
    parts: list[tuple[str, ...]] = []
    modules = recompute_modules(layout)
    if modules:
        parts += [("--recompute-granularity", "selective"), ("--recompute-modules", *modules)]
    if layout.has_part("offload"):
        parts.append(("--cpu-offloading-num-layers", str(max(num_layers // 2, 1))))
    return Group("Some parts of a layer are recomputed, or moved to the host, so that activations fit.", tuple(parts))


def recompute_modules(layout: Layout) -> list[str]:
    """Parts of a layer that are recomputed, as Megatron-core names them."""
    names = {"selective": "core_attn", "layernorm": "layernorm", "moe_act": "moe_act", "mla_up_proj": "mla_up_proj", "mlp": "mlp"}
    return [name for part, name in names.items() if layout.has_part(part)]


def _graphs(plan: Plan) -> Group:
    if not plan.layout.cuda_graphs or plan.layout.recompute == "full":
        return Group("", ())
    made: list[tuple[str, ...]] = [("--cuda-graph-impl", "transformer_engine"), ("--te-rng-tracker",)]
    if plan.model.experts:
        return Group("CUDA graphs of attention alone: routing has no fixed shapes.", (*made, ("--cuda-graph-scope", "attn")))
    return Group("CUDA graphs, which the prediction counts on.", tuple(made))
