"""Families of models whose Hugging Face folders can be read and written: what each can hold, its names of tensors, its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from meshwright.describe.config_json import FULL, WINDOWED, YARN_SCALING
from meshwright.describe.model import YARN, Experts, Model, RotaryScaling
from meshwright.describe.router import Router
from meshwright.errors import InputError
from meshwright.train.interop.places import Named, Place

GPT_OSS = "gpt_oss"
ENDS = {"embed.weight": "model.embed_tokens.weight", "head.norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_down_norm": "self_attn.q_a_layernorm",
    "attention.q_up": "self_attn.q_b_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_down_norm": "self_attn.kv_a_layernorm",
    "attention.kv_up": "self_attn.kv_b_proj",
    "attention": "self_attn",  # the sinks
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


# Tensors of a layer of experts: our part of the name, and theirs. A place for each expert has its number in braces.
EXPERTS = {
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.router.selection_bias": "mlp.gate.e_score_correction_bias",
    "mlp.experts.gate.weight": "mlp.experts.{}.gate_proj.weight",
    "mlp.experts.up.weight": "mlp.experts.{}.up_proj.weight",
    "mlp.experts.down.weight": "mlp.experts.{}.down_proj.weight",
    "mlp.shared.gate.weight": "mlp.shared_experts.gate_proj.weight",
    "mlp.shared.up.weight": "mlp.shared_experts.up_proj.weight",
    "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
}
MIXTRAL_EXPERTS = {
    "mlp.router.weight": "block_sparse_moe.gate.weight",
    "mlp.experts.gate.weight": "block_sparse_moe.experts.{}.w1.weight",
    "mlp.experts.up.weight": "block_sparse_moe.experts.{}.w3.weight",
    "mlp.experts.down.weight": "block_sparse_moe.experts.{}.w2.weight",
}
# gpt-oss has matrices as [experts, in, out], and gate and up of an expert are columns in turn.
GPT_OSS_EXPERTS = {
    "mlp.experts.gate.weight": ("mlp.experts.gate_up_proj", 0),
    "mlp.experts.up.weight": ("mlp.experts.gate_up_proj", 1),
    "mlp.experts.gate.bias": ("mlp.experts.gate_up_proj_bias", 0),
    "mlp.experts.up.bias": ("mlp.experts.gate_up_proj_bias", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type` of transformers."""

    model_type: str
    architecture: str
    config: Callable[[Model], dict[str, object]]  # the keys that not all families have
    experts: Mapping[str, str] = field(default_factory=dict)  # names of the tensors of experts

    def named(self, name: str, shape: tuple[int, ...]) -> Named:
        """Where our tensor is in a folder of this family."""
        keeps_fp32 = name.endswith("selection_bias")
        layer, rest = _layer_of(name)
        if self.model_type == GPT_OSS and rest.startswith("mlp."):
            return Named(shape=shape, places=(_gpt_oss_place(layer, rest, shape),))
        theirs = self.experts.get(rest)
        if theirs is None:
            return Named(shape=shape, places=(Place(theirs=their_name(name), shape=shape),))
        if "{}" not in theirs:
            return Named(shape=shape, places=(Place(theirs=f"{layer}.{theirs}", shape=shape),), keeps_fp32=keeps_fp32)
        places = (Place(theirs=f"{layer}.{theirs.format(expert)}", shape=shape[1:], expert=expert) for expert in range(shape[0]))
        return Named(shape=shape, places=tuple(places))


def _layer_of(name: str) -> tuple[str, str]:
    """Their name of the layer, and ours of the tensor in it; empty for a tensor of the ends."""
    if name in ENDS:
        return "", ""
    _, number, rest = name.split(".", 2)
    return f"model.layers.{number}", rest


def _gpt_oss_place(layer: str, rest: str, shape: tuple[int, ...]) -> Place:
    if rest in GPT_OSS_EXPERTS:
        theirs, offset = GPT_OSS_EXPERTS[rest]
        stored = (*shape[:1], *reversed(shape[1:]))
        return Place(theirs=f"{layer}.{theirs}", shape=(*stored[:-1], 2 * stored[-1]), turned=len(shape) == 3, offset=offset, step=2)
    if rest == "mlp.experts.down.weight":
        return Place(theirs=f"{layer}.mlp.experts.down_proj", shape=(shape[0], shape[2], shape[1]), turned=True)
    theirs = "mlp.experts.down_proj_bias" if rest == "mlp.experts.down.bias" else rest
    return Place(theirs=f"{layer}.{theirs}", shape=shape)


def their_name(name: str) -> str:
    """Hugging Face's name of our tensor: `model.layers.7.mlp.up_proj.weight` for `layers.7.mlp.up.weight`."""
    layer, rest = _layer_of(name)
    if not layer:
        return ENDS[name]
    module, _, kind = rest.rpartition(".")
    return f"{layer}.{IN_LAYER[module]}.{kind}"


def family_of(model: Model) -> Family:
    """The family whose folders can hold the model; an error if there is none."""
    _check_blocks(model)
    some_windows = 0 < model.num_windowed_layers < model.num_layers
    if model.latent is not None:
        return _checked(model, DEEPSEEK_V3, windows=False, biases=(), router=DEEPSEEK_ROUTER)
    if model.attention_sinks:
        return _checked(model, GPT_OSS_FAMILY, windows=True, biases=("biases",), router=GPT_OSS_ROUTER)
    if model.experts is not None and some_windows:
        raise _refusal(model, "experts, and windows in some layers only")
    if model.experts is not None and model.qk_norm:
        return _checked(model, QWEN3_MOE, windows=True, biases=("attention_biases",), router=SOFTMAX)
    if model.experts is not None:
        return _checked(model, MIXTRAL, windows=True, biases=(), router=SOFTMAX)
    if model.qk_norm:
        return _checked(model, QWEN3, windows=True, biases=("attention_biases",))
    if model.qkv_biases:
        return _checked(model, QWEN2, windows=True, biases=("qkv_biases",))
    if some_windows:
        raise _refusal(model, "windows in some layers only, without norms of heads or biases of queries, keys and values")
    if model.num_windowed_layers:
        return _checked(model, MISTRAL, windows=True, biases=())
    return _checked(model, LLAMA, windows=False, biases=("attention_biases", "biases"))


def _check_blocks(model: Model) -> None:
    """Raise an error if the model has something that no family's folder can hold."""
    foreign = {
        "multi-token-prediction layers": model.num_prediction_layers > 0,
        "learned positions": model.num_positions > 0,
        "LayerNorm": model.layer_norm,
        "an MLP without a gate": not model.gated,
        "attention sinks, and no experts": model.attention_sinks and model.experts is None,
        "attention sinks, and latent attention": model.attention_sinks and model.latent is not None,
        "attention sinks, and norms of heads": model.attention_sinks and model.qk_norm,
        "latent attention, and norms of heads": model.latent is not None and model.qk_norm,
    }
    for what, is_so in foreign.items():
        if is_so:
            raise _refusal(model, what)


def _checked(model: Model, family: Family, *, windows: bool, biases: tuple[str, ...], router: Router | None = None) -> Family:
    """The family, if the model has no windows, biases and experts that its folders cannot hold. `router`: what its routers have."""
    if model.num_windowed_layers and not windows:
        raise _refusal(model, f"windowed attention, which {family.model_type} does not have")
    for key, what in (("biases", "biases everywhere"), ("attention_biases", "biases of attention"), ("qkv_biases", "biases of queries")):
        if getattr(model, key) and key not in biases:
            raise _refusal(model, f"{what}, which {family.model_type} does not have")
    if model.experts is not None and router is not None:
        _check_experts(model, model.experts, family, router)
    return family


def _check_experts(model: Model, experts: Experts, family: Family, router: Router) -> None:
    stated = STATED.get(family.model_type, {})
    for key in (each.name for each in fields(Router)):
        has, wants = getattr(experts.router, key), getattr(router, key)
        if key not in stated.get("router", ()) and has != wants:
            raise _refusal(model, f"routers with {key} = {has!r}, which is {wants!r} in {family.model_type}")
    for key, wants in (("num_shared", 0), ("num_dense_layers", 0), ("activation_limit", 0.0)):
        if key not in stated.get("experts", ()) and getattr(experts, key) != wants:
            raise _refusal(model, f"experts with {key} = {getattr(experts, key)!r}, which is {wants!r} in {family.model_type}")


def _refusal(model: Model, what: str) -> InputError:
    return InputError(
        f"{model.name} has {what}; no Hugging Face folder that meshwright reads and writes can hold this",
        where=f"model {model.name}",
        fix=f"use a model of one of these families: {', '.join(sorted(family.model_type for family in FAMILIES))}",
    )


def config_of_shapes(model: Model, *, context: int) -> dict[str, object]:
    """The keys of config.json that say what the model is, in a form that transformers 4 and 5 both read."""
    family = family_of(model)
    shapes: dict[str, object] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "hidden_act": "silu",
        "attention_bias": model.attention_biases or model.biases,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": context,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_theta,
        "rope_scaling": None if model.rotary_scaling is None else _scaling(model.rotary_scaling),
    }
    return shapes | family.config(model)


def _scaling(scaling: RotaryScaling) -> Mapping[str, object]:
    if scaling.kind == YARN:
        stated = {theirs: getattr(scaling, ours) for ours, theirs in YARN_SCALING.items()}
        return {"rope_type": YARN} | {key: value for key, value in stated.items() if value or key == "truncate"}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_positions,
        "low_freq_factor": scaling.low_turns,
        "high_freq_factor": scaling.high_turns,
    }


def _llama(model: Model) -> dict[str, object]:
    return {"mlp_bias": model.biases}


def _mistral(model: Model) -> dict[str, object]:
    return {"sliding_window": model.window if model.num_windowed_layers else None}


def _qwen(model: Model) -> dict[str, object]:
    types = [WINDOWED if model.window_of(layer) else FULL for layer in range(model.num_layers)]
    return {"use_sliding_window": model.num_windowed_layers > 0, "sliding_window": model.window or None, "layer_types": types}


def _deepseek_v3(model: Model) -> dict[str, object]:
    latent = model.latent
    assert latent is not None, "the family of latent attention"
    return {
        "head_dim": latent.rope_dim,
        "q_lora_rank": latent.query_rank or None,
        "kv_lora_rank": latent.key_value_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
        "rope_interleave": latent.interleaved,
        "first_k_dense_replace": model.num_dense_layers,
        "num_nextn_predict_layers": 0,
        **(_deepseek_experts(model.experts) if model.experts else {}),
    }


def _deepseek_experts(experts: Experts) -> dict[str, object]:
    router = experts.router
    return {
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_active,
        "moe_intermediate_size": experts.hidden,
        "n_shared_experts": experts.num_shared,
        "n_group": router.num_groups,
        "topk_group": router.num_chosen_groups,
        "norm_topk_prob": router.renormalizes,
        "routed_scaling_factor": router.scale,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }


def _mixtral(model: Model) -> dict[str, object]:
    experts = model.experts
    assert experts is not None, "the family has experts"
    shapes = {"intermediate_size": experts.hidden, "num_local_experts": experts.num_experts, "num_experts_per_tok": experts.num_active}
    return _mistral(model) | shapes


def _qwen3_moe(model: Model) -> dict[str, object]:
    experts = model.experts
    assert experts is not None, "the family has experts"
    return {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_active,
        "moe_intermediate_size": experts.hidden,
        "norm_topk_prob": experts.router.renormalizes,
        "mlp_only_layers": list(range(experts.num_dense_layers)),
        "decoder_sparse_step": 1,
        "use_sliding_window": model.num_windowed_layers > 0,
        "sliding_window": model.window or None,
        "max_window_layers": 0,
    }


def _gpt_oss(model: Model) -> dict[str, object]:
    experts = model.experts
    assert experts is not None, "the family has experts"
    types = [WINDOWED if model.window_of(layer) else FULL for layer in range(model.num_layers)]
    shapes = {"intermediate_size": experts.hidden, "num_local_experts": experts.num_experts, "num_experts_per_tok": experts.num_active}
    scaling = {} if model.rotary_scaling else {"rope_scaling": {"rope_type": "default"}}  # otherwise transformers takes YaRN
    return {**shapes, **scaling, "sliding_window": model.window or None, "layer_types": types, "swiglu_limit": experts.activation_limit}


SOFTMAX = Router()
DEEPSEEK_ROUTER = Router(scores="sigmoid", has_selection_bias=True)
GPT_OSS_ROUTER = Router(chooses_first=True, has_bias=True)
# What the config.json of a family states, and so may be any value.
STATED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "qwen3_moe": {"router": ("renormalizes",), "experts": ("num_dense_layers",)},
    "deepseek_v3": {"router": ("renormalizes", "scale", "num_groups", "num_chosen_groups"), "experts": ("num_shared", "num_dense_layers")},
    "gpt_oss": {"experts": ("activation_limit",)},
}
LLAMA = Family(model_type="llama", architecture="LlamaForCausalLM", config=_llama)
MISTRAL = Family(model_type="mistral", architecture="MistralForCausalLM", config=_mistral)
QWEN2 = Family(model_type="qwen2", architecture="Qwen2ForCausalLM", config=_qwen)
QWEN3 = Family(model_type="qwen3", architecture="Qwen3ForCausalLM", config=_qwen)
MIXTRAL = Family(model_type="mixtral", architecture="MixtralForCausalLM", config=_mixtral, experts=MIXTRAL_EXPERTS)
QWEN3_MOE = Family(model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM", config=_qwen3_moe, experts=EXPERTS)
DEEPSEEK_V3 = Family(model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", config=_deepseek_v3, experts=EXPERTS)
GPT_OSS_FAMILY = Family(model_type=GPT_OSS, architecture="GptOssForCausalLM", config=_gpt_oss)
FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3, GPT_OSS_FAMILY)
