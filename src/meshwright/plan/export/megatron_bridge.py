"""A plan as overrides of a Megatron-Bridge recipe (NeMo): a YAML file that its ConfigContainer merges.

Keys follow megatron-bridge 0.3. The recipe gives the model; the plan gives the layout.
"""

from __future__ import annotations

import json

from meshwright.plan.export import megatron
from meshwright.plan.export.heading import comment, heading
from meshwright.plan.numbering import DP_LAST
from meshwright.plan.plan import Plan
from meshwright.plan.stack.megatron import BRIDGE, CP_COMM_TYPE, MIXED_PRECISION
from meshwright.plan.stack.rule import Asked
from meshwright.predict.footprint import recipe_for
from meshwright.predict.placement import overlaps_tp

Value = str | int | bool | None | list[str]
Section = dict[str, Value]

# Catalogue name -> pre-training recipe of megatron.bridge.recipes; for other models the user names one.
RECIPES = {
    "llama-2-7b": "llama2_7b_pretrain_config",
    "llama-3.1-8b": "llama31_8b_pretrain_config",
    "llama-3.1-70b": "llama31_70b_pretrain_config",
    "llama-3.1-405b": "llama31_405b_pretrain_config",
    "llama-3.2-1b": "llama32_1b_pretrain_config",
    "llama-3.2-3b": "llama32_3b_pretrain_config",
    "gpt-3-175b": "gpt3_175b_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
    "gpt-oss-20b": "gpt_oss_20b_pretrain_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_config",
}

ADAPTED = {"qkv": ["linear_qkv"], "proj": ["linear_proj"], "mlp": ["linear_fc1", "linear_fc2"]}


def overrides(plan: Plan) -> str:
    """The YAML file, section by section, each with its reason."""
    BRIDGE.check(Asked(plan.model, plan.workload, plan.cluster), plan.layout)
    recipe = RECIPES.get(plan.model.name, "")
    merge = f"process_config_with_overrides({recipe or 'YOUR_RECIPE'}(), config_filepath=THIS_FILE)"
    use = f"Use: {merge} of megatron.bridge.training.utils.omegaconf_utils."
    lines = [*heading(plan, "Megatron-Bridge recipe overrides", limits(plan)), comment(use)]
    for name, why, section in sections(plan):
        lines += [comment(why), f"{name}:", *(f"  {key}: {_scalar(value)}" for key, value in section.items())]
    lines += [comment("The recipe of precisions."), f"mixed_precision: {MIXED_PRECISION[plan.workload.precision]}"]
    return "\n".join([*lines, ""])


def sections(plan: Plan) -> list[tuple[str, str, Section]]:
    """Name, reason and content of every section but the precision."""
    made: list[tuple[str, str, Section]] = [
        ("model", "Degrees, and how layers are cut over stages.", _model(plan)),
        ("train", f"{plan.layout.num_micro_batches(plan.workload.global_batch)} micro-batches per replica and step.", _train(plan)),
        ("dataset", "The sequence as planned.", {"seq_length": plan.workload.seq_len}),
        ("ddp", "What data parallelism shares out, and that it hides behind the backward pass.", _replicas(plan)),
        ("dist", "Rank order: with it a whole pipeline is neighbours.", {"use_tp_pp_dp_mapping": _maps_pipeline_first(plan)}),
        ("comm_overlap", "Overlap as planned, in the place of what the recipe tuned for its own degrees.", _overlap(plan)),
    ]
    if plan.workload.adapters:
        made.append(("peft", "Low-rank adapters; the base is frozen.", _adapters(plan)))
    return made


def limits(plan: Plan) -> list[str]:
    """What these overrides leave to the recipe, and what they cannot express."""
    differences = BRIDGE.differences(Asked(plan.model, plan.workload, plan.cluster), plan.layout)
    found = [f"Megatron-Bridge {text}" for text in differences]
    found += ["the model's shapes, data, tokenizer and learning rate: the recipe holds them"]
    if plan.model.name not in RECIPES:
        found.append(f"the recipe: none is known for {plan.model.name}; start from one with its shapes")
    if plan.workload.adapters:
        found.append("the adapters' alpha and dropout: the plan has only their rank and place")
        found.append("the recipe must be the fine-tuning one (..._peft_config) of the same model")
    return found


def _model(plan: Plan) -> Section:
    layout = plan.layout
    ends = megatron.counts_ends(plan)
    made: dict[str, Value] = {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vp if layout.vp > 1 else None,
        "pipeline_model_parallel_layout": None,
        "sequence_parallel": layout.tp > 1,
        "seq_length": plan.workload.seq_len,
        "account_for_embedding_in_pipeline_split": ends,
        "account_for_loss_in_pipeline_split": ends,
    }
    if layout.first_stage_layers:
        made["num_layers_in_first_pipeline_stage"] = layout.first_stage_layers
    if layout.last_stage_layers:
        made["num_layers_in_last_pipeline_stage"] = layout.last_stage_layers
    if layout.cp > 1:
        made["cp_comm_type"] = CP_COMM_TYPE[layout.cp_kind]
    if plan.model.experts:
        made |= {"expert_model_parallel_size": layout.ep, "expert_tensor_parallel_size": layout.etp}
    elif megatron.stand_in_degree(plan):
        made["expert_tensor_parallel_size"] = megatron.stand_in_degree(plan)
    return made | _recompute(plan) | _graphs(plan)


def _recompute(plan: Plan) -> Section:
    kind = plan.layout.recompute
    if kind == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    modules = megatron.recompute_modules(plan.layout)
    made: dict[str, Value] = {"recompute_granularity": "selective" if modules else None}
    if modules and modules != ["core_attn"]:
        made["recompute_modules"] = modules
    if plan.layout.has_part("act_fp8"):
        made["activation_func_fp8_input_store"] = True
    if plan.layout.has_part("offload"):
        made |= {"cpu_offloading": True, "cpu_offloading_num_layers": max(plan.model.num_layers // 2, 1)}
    return made


def _graphs(plan: Plan) -> Section:
    captured = plan.layout.cuda_graphs and plan.layout.recompute != "full"
    made: dict[str, Value] = {"cuda_graph_impl": "transformer_engine" if captured else "none", "use_te_rng_tracker": captured}
    if captured and plan.model.experts:
        made["cuda_graph_scope"] = "attn"
    return made


def _train(plan: Plan) -> Section:
    made: dict[str, Value] = {"micro_batch_size": plan.layout.micro_batch, "global_batch_size": plan.workload.global_batch}
    if plan.workload.num_steps():
        made["train_iters"] = plan.workload.num_steps()
    return made


def _replicas(plan: Plan) -> Section:
    layout = plan.layout
    made: dict[str, Value] = {
        "use_distributed_optimizer": layout.zero_stage > 0,
        "overlap_grad_reduce": layout.overlap_dp,
        "overlap_param_gather": layout.overlap_dp and layout.zero_stage > 0,
        "grad_reduce_in_fp32": recipe_for(plan.workload.precision).gradient_bytes == 4,
        "bucket_size": megatron.BUCKET_ELEMENTS,
    }
    if layout.zero_stage and layout.sharing_ranks < layout.dp * layout.cp:
        made["num_distributed_optimizer_instances"] = layout.dp * layout.cp // layout.sharing_ranks
    if layout.zero_stage >= 2:
        made |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": megatron.FSDP_STRATEGY[layout.zero_stage]}
    return made


def _maps_pipeline_first(plan: Plan) -> bool:
    return megatron.rank_order(plan) == DP_LAST


def _overlap(plan: Plan) -> Section:
    layout = plan.layout
    return {
        "_target_": "megatron.bridge.training.comm_overlap.CommOverlapConfig",
        "tp_comm_overlap": overlaps_tp(layout, plan.cluster),
        "overlap_grad_reduce": layout.overlap_dp,
        "overlap_param_gather": layout.overlap_dp and layout.zero_stage > 0,
        "bucket_size": megatron.BUCKET_ELEMENTS,
    }


def _adapters(plan: Plan) -> Section:
    adapters = plan.workload.adapters
    assert adapters is not None
    modules = [module for kind, held in ADAPTED.items() if adapters.adapts(kind) for module in held]
    return {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": adapters.rank, "target_modules": modules}


def _scalar(value: Value) -> str:
    """A value as YAML: the same as JSON, except that words need no quotes."""
    return value if isinstance(value, str) else json.dumps(value)
