"""Families of models whose Hugging Face folders can be read and written: what each can hold, its names of tensors, its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.describe.config_json import FULL, WINDOWED, YARN_SCALING
from meshwright.describe.model import YARN, Model, RotaryScaling
from meshwright.errors import InputError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type` of transformers."""

    model_type: str
    architecture: str
    config: Callable[[Model], dict[str, object]]  # the keys that not all families have


def their_name(name: str) -> str:
    """Hugging Face's name of our tensor: `model.layers.7.mlp.up_proj.weight` for `layers.7.mlp.up.weight`."""
    if name in ENDS:
        return ENDS[name]
    _, number, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"model.layers.{number}.{IN_LAYER[module]}.{kind}"


def family_of(model: Model) -> Family:
    """The family whose folders can hold the model; an error if there is none."""
    _check_blocks(model)
    if model.latent is not None:
        return _checked(model, DEEPSEEK_V3, windows=False, biases=())
    if model.qk_norm:
        return _checked(model, QWEN3, windows=True, biases=("attention_biases",))
    if model.qkv_biases:
        return _checked(model, QWEN2, windows=True, biases=("qkv_biases",))
    if model.num_windowed_layers:
        if model.num_windowed_layers < model.num_layers:
            raise _refusal(model, "windows in some layers only, without norms of heads or biases of queries, keys and values")
        return _checked(model, MISTRAL, windows=True, biases=())
    return _checked(model, LLAMA, windows=False, biases=("attention_biases", "biases"))


def _check_blocks(model: Model) -> None:
    """Raise an error if the model has something that no family's folder can hold."""
    foreign = {
        "a mixture of experts": model.experts is not None,
        "attention sinks": model.attention_sinks,
        "multi-token-prediction layers": model.num_prediction_layers > 0,
        "learned positions": model.num_positions > 0,
        "LayerNorm": model.layer_norm,
        "an MLP without a gate": not model.gated,
    }
    for what, is_so in foreign.items():
        if is_so:
            raise _refusal(model, what)


def _checked(model: Model, family: Family, *, windows: bool, biases: tuple[str, ...]) -> Family:
    """The family, if the model has no windows and biases that its folders cannot hold."""
    if model.num_windowed_layers and not windows:
        raise _refusal(model, f"windowed attention, which {family.model_type} does not have")
    for key, what in (("biases", "biases everywhere"), ("attention_biases", "biases of attention"), ("qkv_biases", "biases of queries")):
        if getattr(model, key) and key not in biases:
            raise _refusal(model, f"{what}, which {family.model_type} does not have")
    return family


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
    }


LLAMA = Family(model_type="llama", architecture="LlamaForCausalLM", config=_llama)
MISTRAL = Family(model_type="mistral", architecture="MistralForCausalLM", config=_mistral)
QWEN2 = Family(model_type="qwen2", architecture="Qwen2ForCausalLM", config=_qwen)
QWEN3 = Family(model_type="qwen3", architecture="Qwen3ForCausalLM", config=_qwen)
DEEPSEEK_V3 = Family(model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", config=_deepseek_v3)
FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, DEEPSEEK_V3)
