"""Hugging Face config.json files: the architectures that are read, against the catalogue's own entries."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.describe.config_json import ARCHITECTURES
from meshwright.describe.load import load_model
from meshwright.describe.model import RotaryScaling
from meshwright.errors import InputError, MeshwrightError

LLAMA_3_1 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "rope_scaling": YARN,
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}
CONFIGS = {
    "llama-3.1-8b": {**LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA_3_1},
    "llama-3.2-1b": {
        **LLAMA,
        "rope_parameters": {**LLAMA_3_1, "factor": 32.0, "rope_theta": 500000.0},
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "mixtral-8x7b": {
        **LLAMA,
        "model_type": "mixtral",
        "rope_theta": 1e6,
        "rope_scaling": None,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3-30b-a3b": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": 4096,
    },
    "deepseek-v3": DEEPSEEK,
    "deepseek-v2": {
        **DEEPSEEK,
        "model_type": "deepseek_v2",
        "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        "num_hidden_layers": 60,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "vocab_size": 102400,
        "num_nextn_predict_layers": 0,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1,
        "topk_method": "group_limited_greedy",
        "n_group": 8,
        "topk_group": 3,
        "routed_scaling_factor": 16.0,
    },
    "gpt-oss-20b": {
        **LLAMA,
        "model_type": "gpt_oss",
        "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "head_dim": 64,
        "vocab_size": 201088,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "attention_bias": True,
    },
}


@pytest.fixture
def write(tmp_path):
    def write_config(config, name="config.json"):
        path = tmp_path / name
        path.write_text(json.dumps(config))
        return path

    return write_config


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_catalogues_model(write, name):
    ours = load_model(name)
    read = load_model(str(write(CONFIGS[name])))
    for key in ours.__dataclass_fields__:
        if key not in ("name", "sources"):
            assert getattr(read, key) == getattr(ours, key), key


def test_gpt2(write):
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    assert load_model(str(write(config))).num_parameters == 124_439_808  # as transformers counts it
    assert load_model(str(write({**config, "layer_norm_epsilon": 1e-6}))).norm_epsilon == 1e-6


def test_what_a_llama_config_does_not_say_is_as_in_transformers(write):
    model = load_model(str(write({key: value for key, value in LLAMA.items() if key != "rms_norm_eps"})))
    assert (model.rotary_theta, model.rotary_scaling, model.norm_epsilon) == (10000.0, None, 1e-6)


def test_llama_3s_scaling(write):
    scaling = load_model(str(write({**LLAMA, "rope_scaling": LLAMA_3_1}))).rotary_scaling
    assert scaling == RotaryScaling(factor=8.0, original_positions=8192, low_turns=1.0, high_turns=4.0)


def test_a_llama_may_have_biases_on_attention_or_on_everything(write):
    attention = load_model(str(write({**LLAMA, "attention_bias": True})))
    assert (attention.attention_biases, attention.biases) == (True, False)
    everything = load_model(str(write({**LLAMA, "attention_bias": True, "mlp_bias": True})))
    assert (everything.attention_biases, everything.biases) == (False, True)


def test_qwen2_has_biases_on_queries_keys_and_values(write):
    config = {
        **LLAMA,
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    assert load_model(str(write(config))).num_parameters == 7_615_616_512  # Qwen2-7B, as transformers counts it


def test_mistral_looks_back_over_a_window(write):
    model = load_model(str(write({**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096})))
    assert (model.num_parameters, model.window, model.num_windowed_layers) == (7_241_732_096, 4096, 32)


def test_qwen3_windows_only_where_switched_on(write):
    config = {**LLAMA, "model_type": "qwen3", "use_sliding_window": True, "sliding_window": 100, "max_window_layers": 20}
    model = load_model(str(write(config)))
    assert (model.qk_norm, model.window, model.num_windowed_layers) == (True, 100, 12)
    assert [layer for layer in range(32) if model.window_of(layer)] == list(range(20, 32))


def test_a_folder_is_read_by_its_config(write, tmp_path, monkeypatch):
    write(LLAMA)
    assert load_model(tmp_path).name == tmp_path.name
    monkeypatch.chdir(tmp_path.parent)
    assert load_model(tmp_path.name).hidden == 4096


@pytest.mark.parametrize(
    ("config", "what", "key"),
    [
        ({**LLAMA, "model_type": "lama"}, "model_type 'lama' is not one meshwright can read", "model_type"),
        ({**LLAMA, "model_type": ["llama"]}, "is not one meshwright can read", "model_type"),
        ({k: v for k, v in LLAMA.items() if k != "model_type"}, "model_type is missing", "model_type"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size is missing", "hidden_size"),
        ({**LLAMA, "num_hidden_layers": -1}, "num_hidden_layers is -1", "num_hidden_layers"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size is 'wide'", "hidden_size in "),
        ({**CONFIGS["qwen3-30b-a3b"], "moe_intermediate_size": 0}, "moe_intermediate_size is 0", "moe_intermediate_size"),
        ({**LLAMA, "vocab_size": "many"}, "vocab_size is 'many'", "vocab_size"),
        ({**LLAMA, "num_key_value_heads": 5}, "cannot share 5 key-value heads", ": num_key_value_heads"),
        ({**CONFIGS["qwen3-30b-a3b"], "decoder_sparse_step": 2}, "experts in some layers only", "decoder_sparse_step"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}}, "scaled by 'linear'", "rope_scaling"),
        ({**LLAMA, "rope_parameters": {**YARN, "type": "longrope"}}, "scaled by 'longrope'", "rope_parameters"),
        ({**LLAMA, "rope_scaling": {**YARN, "factor": None}}, "factor is missing", "rope_scaling"),
        ({**LLAMA, "rope_scaling": {**YARN, "beta_slow": 40}}, "beta_slow 40 is not below beta_fast 32", "rope_scaling.beta_slow"),
        ({**CONFIGS["gpt-oss-20b"], "layer_types": ["chunked_attention"] * 24}, "'chunked_attention'", "layer_types"),
        ({**CONFIGS["gpt-oss-20b"], "layer_types": ["full_attention"]}, "the type of each layer", "layer_types"),
        ({**DEEPSEEK, "attention_bias": True}, "biases of latent attention", "attention_bias"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, "is missing", "original_max_position_embeddings"),
        ({**LLAMA, "rope_scaling": {**LLAMA_3_1, "factor": "8"}}, "rope_scaling.factor is '8'", "rope_scaling.factor"),
        (
            {**LLAMA, "rope_scaling": {**LLAMA_3_1, "low_freq_factor": 4}},
            "low_freq_factor 4 is not below high_freq_factor 4",
            "rope_scaling.low_freq_factor",
        ),
        ({**LLAMA, "rope_scaling": [1]}, "rope_scaling is [1], not a table", "rope_scaling"),
        ({**LLAMA, "rope_theta": 0}, "rope_theta is 0", "rope_theta"),
        ({**LLAMA, "rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05", "rms_norm_eps"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act is 'gelu'", "hidden_act"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias is True where attention_bias is False", "mlp_bias"),
        ([], "holds one table of keys", ""),
    ],
)
def test_a_bad_config_is_reported_with_file_and_key(write, config, what, key):
    path = write(config)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert what in caught.value.what
    assert key in caught.value.where
    assert str(path) in caught.value.where


def test_bad_json_and_a_missing_file(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_model(str(tmp_path / "config.json"))
    with pytest.raises(InputError, match="No such file"):
        load_model(str(tmp_path / "other.json"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(2**70)]) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_config_raises_anything_but_our_error(tmp_path, data):
    base = data.draw(st.sampled_from(sorted(CONFIGS)))
    config = dict(CONFIGS[base], model_type=data.draw(st.sampled_from(sorted(ARCHITECTURES))))
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=2)):
        config[key] = data.draw(JSON)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    try:
        assert load_model(str(path)).num_parameters > 0
    except MeshwrightError as error:
        assert error.where
