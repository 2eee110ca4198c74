"""A Hugging Face config.json -> Model. Only the architectures named here; another one is an error, not a guess."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.describe.load import Found, Table, model_from
from meshwright.describe.model import YARN, Model, spread_layers
from meshwright.errors import InputError, nearest
from meshwright.files import read_text

CONFIG = "config.json"

# What a config.json calls our keys; the first that the file has is meant.
THEIRS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "ffn_hidden": ("intermediate_size", "n_inner", "n_embd"),
    "num_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads",),
    "tied_embeddings": ("tie_word_embeddings",),
    "attention_biases": ("attention_bias",),
    "rotary_theta": ("rope_theta", "rope_parameters", "rope_scaling"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_epsilon"),
    "num_positions": ("n_positions",),
    "window": ("sliding_window",),
    "num_prediction_layers": ("num_nextn_predict_layers",),
    "experts.num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "experts.num_active": ("num_experts_per_tok",),
    "experts.hidden": ("moe_intermediate_size", "intermediate_size"),
    "experts.num_shared": ("n_shared_experts",),
    "experts.num_dense_layers": ("first_k_dense_replace", "mlp_only_layers"),
    "experts.activation_limit": ("swiglu_limit",),
    "experts.router.renormalizes": ("norm_topk_prob",),
    "experts.router.scale": ("routed_scaling_factor",),
    "experts.router.num_groups": ("n_group",),
    "experts.router.num_chosen_groups": ("topk_group",),
    "latent.query_rank": ("q_lora_rank",),
    "latent.key_value_rank": ("kv_lora_rank",),
    "latent.nope_dim": ("qk_nope_head_dim",),
    "latent.rope_dim": ("qk_rope_head_dim",),
    "latent.value_dim": ("v_head_dim",),
}
SCALING = {
    "factor": "factor",
    "original_positions": "original_max_position_embeddings",
    "low_turns": "low_freq_factor",
    "high_turns": "high_freq_factor",
}
YARN_SCALING = {
    "factor": "factor",
    "original_positions": "original_max_position_embeddings",
    "low_turns": "beta_slow",
    "high_turns": "beta_fast",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "stated_magnitude": "attention_factor",
    "truncates": "truncate",
}
GPT_OSS_SCALING = {"kind": YARN, "factor": 32.0, "original_positions": 4096, "low_turns": 1.0, "high_turns": 32.0, "truncates": False}
GPT_OSS_ALPHA = 1.702
WINDOWED, FULL = "sliding_attention", "full_attention"  # entries of layer_types


class Config:
    """The keys of one config.json; a missing one is reported with the file's name."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __getitem__(self, key: str) -> Any:
        if self.values.get(key) is None:
            raise InputError(f"{key} is missing", where=f"{key} in {self.where}", fix=f"add {key}, or describe the model in TOML")
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where the file has none or null."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int) -> int:
        """A whole number, or `default`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"{key} is {value!r}, not a whole number", where=f"{key} in {self.where}", fix=f'write a whole number: "{key}": 8'
            )
        return value


def load_config(path: Path) -> Model:
    """The model that a config.json, or a folder holding one, describes."""
    file = path / CONFIG if os.path.isdir(path) else path
    values = _read(file)
    config = Config(values, str(file))
    model_type = config["model_type"]
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise InputError(
            f"model_type {model_type!r} is not one meshwright can read",
            where=f"model_type in {file}",
            fix=f"{nearest(str(model_type), ARCHITECTURES)}; any other model can be described in TOML",
        )
    table = ARCHITECTURES[model_type](config)
    name = file.resolve().parent.name if file.name == CONFIG else file.stem
    table["sources"] = {"default": {"text": f"Hugging Face config.json at {file}", "date": "as read"}}
    try:
        return model_from(Found(table, name, str(file)))
    except InputError as error:
        raise _in_their_words(error, values, str(file)) from None


def _in_their_words(error: InputError, values: Mapping[str, Any], file: str) -> InputError:
    """The complaint with the file's keys in place of ours, which its reader has never seen."""
    words = {ours: next((key for key in theirs if key in values), theirs[0]) for ours, theirs in THEIRS.items()}
    table = "rope_parameters" if values.get("rope_parameters") is not None else "rope_scaling"
    stated = values.get(table)
    scaling = YARN_SCALING if isinstance(stated, dict) and YARN in (stated.get("rope_type"), stated.get("type")) else SCALING
    words |= {f"rotary_scaling.{ours}": f"{table}.{theirs}" for ours, theirs in scaling.items()}
    words |= {ours: scaling[ours] for ours in ("low_turns", "high_turns")}
    ours = re.compile(rf"(?<![\w.])(?:{'|'.join(sorted(map(re.escape, words), key=len, reverse=True))})(?![\w.]| size)")

    def translated(text: str) -> str:
        return ours.sub(lambda found: words[found[0]], text)

    place, inside, _ = error.where.partition(f" in {file}")  # the file's own name is left as it is
    prefix, colon, key = place.rpartition(": ")
    where = f"{prefix}{colon}{translated(key)}{inside}" if inside else error.where
    return InputError(translated(error.what), where=where, fix=translated(error.fix))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(read_text(file))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}", where=str(file), fix="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{file.name} is not a text file in UTF-8", where=str(file), fix="save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", where=str(file), fix="correct the file at that place") from None
    if not isinstance(values, dict):
        raise InputError("a config.json holds one table of keys", where=str(file), fix="give the file that came with the model")
    return values


def _shared(config: Config, *, theta: float = 10000.0, epsilon: float = 1e-6) -> Table:
    """Shapes in the words most architectures share. `theta` and `epsilon` are what transformers takes where a file does not say."""
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise InputError(
            f"hidden_act is {activation!r}: the gated MLP that can be described is SwiGLU",
            where=f"hidden_act in {config.where}",
            fix="use a model whose hidden_act is silu",
        )
    table: Table = {
        "num_layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "ffn_hidden": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "vocab_size": config["vocab_size"],
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "attention_biases": config.get("attention_bias", False),
        "rotary_theta": _rotary(config).get("rope_theta", config.get("rope_theta", theta)),
        "norm_epsilon": config.get("rms_norm_eps", epsilon),
    }
    for ours, theirs in (("num_kv_heads", "num_key_value_heads"), ("head_dim", "head_dim")):
        if config.get(theirs) is not None:
            table[ours] = config[theirs]
    return table


def _rotary(config: Config) -> Config:
    """What the file says of rotary positions: `rope_parameters` since transformers 5, `rope_scaling` before."""
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    stated = config.get(key, {})
    if not isinstance(stated, dict):
        raise InputError(
            f"{key} is {stated!r}, not a table", where=f"{key} in {config.where}", fix=f'write "{key}": {{...}}, or leave it out'
        )
    return Config(stated, f"{key} in {config.where}")


def _scaling(config: Config) -> Table:
    """How rotary positions are stretched: Llama 3's way, by YaRN, or not at all."""
    stated = _rotary(config)
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return {}
    if kind == YARN:
        return {"rotary_scaling": _yarn(stated)}
    if kind != "llama3":
        raise InputError(
            f"rotary positions are scaled by {kind!r}, which meshwright does not know",
            where=stated.where,
            fix="the types it knows are llama3, yarn and default; to plan with the shapes only, remove the key",
        )
    scaling = {
        "factor": stated["factor"],
        "original_positions": stated["original_max_position_embeddings"],
        "low_turns": stated["low_freq_factor"],
        "high_turns": stated["high_freq_factor"],
    }
    return {"rotary_scaling": scaling}


def _yarn(stated: Config) -> Table:
    """YaRN's settings; what the file does not say is as in transformers."""
    found = {"kind": YARN, "factor": stated["factor"], "original_positions": stated["original_max_position_embeddings"]}
    found |= {"low_turns": stated.get("beta_slow", 1.0), "high_turns": stated.get("beta_fast", 32.0)}
    optional = ("mscale", "mscale_all_dim", "stated_magnitude", "truncates")
    return found | {ours: stated[YARN_SCALING[ours]] for ours in optional if stated.get(YARN_SCALING[ours]) is not None}


def _windows(config: Config, windowed: Sequence[int]) -> Table:
    """The window, and the layers that have it: by their numbers, unless they are spread evenly."""
    window, num_layers = config.get("sliding_window"), config.count("num_hidden_layers", 0)
    if not window or not windowed:
        return {}
    table: Table = {"window": window, "num_windowed_layers": len(windowed)}
    is_spread = num_layers > 0 and tuple(windowed) == spread_layers(len(windowed), num_layers)
    return table if is_spread else table | {"windowed_layers": tuple(windowed)}


def _typed_layers(config: Config, otherwise: Sequence[int]) -> Sequence[int]:
    """The windowed layers by `layer_types`, or `otherwise` if the file has none."""
    types = config.get("layer_types")
    if types is None:
        return otherwise
    where = f"layer_types in {config.where}"
    if not isinstance(types, list) or len(types) != config.count("num_hidden_layers", 0):
        raise InputError(
            "layer_types does not name the type of each layer", where=where, fix="give one type for each layer, or leave it out"
        )
    for kind in types:
        if kind not in (WINDOWED, FULL):
            what = f"layer_types has {kind!r}, which meshwright does not know"
            raise InputError(what, where=where, fix=f"the types it knows are {WINDOWED} and {FULL}")
    return [layer for layer, kind in enumerate(types) if kind == WINDOWED]


def _llama(config: Config) -> Table:
    """The MLP has biases only where attention has them too: no known model is otherwise."""
    table = _shared(config) | _scaling(config)
    if not config.get("mlp_bias", False):
        return table
    if config["mlp_bias"] is not True or table["attention_biases"] is not True:
        raise InputError(
            f"mlp_bias is {config['mlp_bias']!r} where attention_bias is {table['attention_biases']!r}",
            where=f"mlp_bias in {config.where}",
            fix="only both, attention_bias alone, or neither can be described",
        )
    return table | {"biases": True, "attention_biases": False}


def _mistral(config: Config, *, theta: float = 10000.0, epsilon: float = 1e-6) -> Table:
    """All layers look back over the same window, where one is stated."""
    table = _shared(config, theta=theta, epsilon=epsilon) | _scaling(config)
    return table | _windows(config, range(config.count("num_hidden_layers", 0)))


def _qwen2(config: Config) -> Table:
    table = _shared(config) | _scaling(config) | {"qkv_biases": True, "attention_biases": False}
    return table | _qwen_window(config)


def _qwen3(config: Config) -> Table:
    return _shared(config) | _scaling(config) | {"qk_norm": True} | _qwen_window(config)


def _qwen_window(config: Config) -> Table:
    """Qwen looks back over a window only where `use_sliding_window` is on, from layer `max_window_layers` on or by `layer_types`."""
    if not config.get("use_sliding_window", False):
        return {}
    return _windows(config, _typed_layers(config, range(config.count("max_window_layers", 0), config.count("num_hidden_layers", 0))))


def _qwen3_moe(config: Config) -> Table:
    if config.count("decoder_sparse_step", 1) != 1:
        raise InputError(
            f"decoder_sparse_step is {config['decoder_sparse_step']}: experts in some layers only cannot be described yet",
            where=f"decoder_sparse_step in {config.where}",
            fix="use a model with experts in every layer",
        )
    experts = {
        "num_experts": config["num_experts" if config.get("num_experts") is not None else "num_local_experts"],
        "num_active": config["num_experts_per_tok"],
        "hidden": config["moe_intermediate_size"],
        "num_dense_layers": _leading_layers(config),
        "router": {"renormalizes": config.get("norm_topk_prob", False)},
    }
    windows = _windows(config, range(config.count("num_hidden_layers", 0))) if config.get("use_sliding_window", False) else {}
    return _shared(config) | _scaling(config) | {"qk_norm": True, "experts": experts} | windows


def _leading_layers(config: Config) -> int:
    """How many layers, the first of the model, keep the dense MLP."""
    dense = config.get("mlp_only_layers", [])
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise InputError(
            f"mlp_only_layers is {dense!r}: only the first layers of a model may be without experts",
            where=f"mlp_only_layers in {config.where}",
            fix="use a model whose dense layers come first",
        )
    return len(dense)


def _mixtral(config: Config) -> Table:
    experts = {
        "num_experts": config["num_local_experts"],
        "num_active": config["num_experts_per_tok"],
        "hidden": config["intermediate_size"],
    }
    return _mistral(config, theta=1e6, epsilon=1e-5) | {"experts": experts}


def _deepseek(config: Config) -> Table:
    """DeepSeek V2 and V3: latent attention, shared experts, leading dense layers."""
    table = _shared(config) | _scaling(config)
    if table["attention_biases"]:
        raise InputError(
            "attention_bias is on: biases of latent attention cannot be described",
            where=f"attention_bias in {config.where}",
            fix="use a model without them: DeepSeek's have none",
        )
    table["latent"] = {
        "query_rank": config.get("q_lora_rank", 0),
        "key_value_rank": config["kv_lora_rank"],
        "nope_dim": config["qk_nope_head_dim"],
        "rope_dim": config["qk_rope_head_dim"],
        "value_dim": config["v_head_dim"],
        "interleaved": config.get("rope_interleave", True),
    }
    table["head_dim"] = config["v_head_dim"]
    table["num_prediction_layers"] = config.get("num_nextn_predict_layers", 0)
    num_dense, num_layers = config.count("first_k_dense_replace", 0), config.count("num_hidden_layers", 0)
    if config.get("n_routed_experts") is not None and (num_dense < num_layers or num_layers < 1):
        table["experts"] = {
            "num_experts": config["n_routed_experts"],
            "num_active": config["num_experts_per_tok"],
            "hidden": config["moe_intermediate_size"],
            "num_shared": config.get("n_shared_experts", 0),
            "num_dense_layers": config.get("first_k_dense_replace", 0),
            "router": _deepseek_router(config),
        }
    return table


def _deepseek_router(config: Config) -> Table:
    """V3 adds a bias to sigmoids and chooses groups by their two best experts; V2 takes a softmax, and may limit tokens to groups."""
    if config["model_type"] == "deepseek_v3":
        return {
            "scores": "sigmoid",
            "has_selection_bias": True,
            "renormalizes": config.get("norm_topk_prob", True),
            "scale": config.get("routed_scaling_factor", 2.5),
            "num_groups": config.get("n_group", 8),
            "num_chosen_groups": config.get("topk_group", 4),
        }
    router = {"renormalizes": config.get("norm_topk_prob", False), "scale": config.get("routed_scaling_factor", 1.0)}
    if config.get("topk_method", "greedy") == "greedy":
        return router
    return router | {"num_groups": config["n_group"], "num_chosen_groups": config["topk_group"], "num_group_scores": 1}


def _gpt_oss(config: Config) -> Table:
    """Biases everywhere, sinks, and a window on every second layer (or where `layer_types` says)."""
    if config.get("swiglu_alpha", GPT_OSS_ALPHA) != GPT_OSS_ALPHA:
        raise InputError(
            f"swiglu_alpha is {config['swiglu_alpha']!r}: the gate that can be described has {GPT_OSS_ALPHA}",
            where=f"swiglu_alpha in {config.where}",
            fix="use a model with OpenAI's value",
        )
    windowed = _typed_layers(config, range(0, config.count("num_hidden_layers", 0), 2))
    experts = {
        "num_experts": config["num_local_experts"],
        "num_active": config["num_experts_per_tok"],
        "hidden": config["intermediate_size"],
        "activation_limit": config.get("swiglu_limit", 7.0),
        "router": {"chooses_first": True, "has_bias": True},
    }
    table = _shared(config, theta=150000.0, epsilon=1e-5) | {"rotary_scaling": GPT_OSS_SCALING} | _scaling(config)
    table |= {"biases": True, "attention_biases": False, "attention_sinks": True, "experts": experts}
    return table | _windows(config, windowed)


def _gpt2(config: Config) -> Table:
    """GPT-2's own words; learned positions, biases, LayerNorm, tied embeddings."""
    return {
        "num_layers": config["n_layer"],
        "hidden": config["n_embd"],
        "ffn_hidden": config.get("n_inner", 4 * config.count("n_embd", 0)),
        "num_heads": config["n_head"],
        "vocab_size": config["vocab_size"],
        "num_positions": config["n_positions"],
        "gated": False,
        "biases": True,
        "layer_norm": True,
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "tied_embeddings": config.get("tie_word_embeddings", True),
    }


ARCHITECTURES: Mapping[str, Callable[[Config], Table]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
