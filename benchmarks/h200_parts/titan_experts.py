"""torchtitan's own mixtures of experts with the shapes of our cases. Its balancing is off, as ours is: that is its fastest setting."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from meshwright.describe.model import Model


def family_of(model: Model) -> tuple[ModuleType, str]:
    """torchtitan's module of a family, and the name of its table of models."""
    if model.latent:
        import torchtitan.models.deepseek_v3 as deepseek

        return deepseek, "deepseekv3_args"
    import torchtitan.models.qwen3 as qwen

    return qwen, "qwen3_args"


def arguments_of(model: Model, seq_len: int, *, is_gpu: bool) -> Any:
    """The model in torchtitan's words."""
    from torchtitan.models.moe import MoEArgs

    assert model.experts is not None
    experts = model.experts
    mixture = MoEArgs(
        num_experts=experts.num_experts,
        num_shared_experts=experts.num_shared,
        top_k=experts.num_active,
        score_func=experts.router.scores,
        route_norm=experts.router.renormalizes,
        route_scale=experts.router.scale,
        score_before_experts=False,
        use_grouped_mm=is_gpu,
        load_balance_coeff=None,
    )
    shared = {
        "dim": model.hidden,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "vocab_size": model.vocab_size,
        "norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_theta,
        "max_seq_len": seq_len,
        "moe_inter_dim": experts.hidden,
        "moe_args": mixture,
    }
    return _deepseek(model, shared) if model.latent else _qwen(model, shared)


def _qwen(model: Model, shared: dict[str, Any]) -> Any:
    from torchtitan.models.qwen3 import Qwen3ModelArgs

    heads = {"n_kv_heads": model.num_kv_heads, "head_dim": model.head_dim, "hidden_dim": model.ffn_hidden, "qk_norm": model.qk_norm}
    return Qwen3ModelArgs(**shared, **heads, moe_enabled=True)


def _deepseek(model: Model, shared: dict[str, Any]) -> Any:
    from torchtitan.models.deepseek_v3 import DeepSeekV3ModelArgs

    assert model.latent is not None
    assert model.experts is not None
    latent = model.latent
    return DeepSeekV3ModelArgs(
        **shared,
        inter_dim=model.ffn_hidden,
        n_dense_layers=model.experts.num_dense_layers,
        q_lora_rank=latent.query_rank,
        kv_lora_rank=latent.key_value_rank,
        qk_nope_head_dim=latent.nope_dim,
        qk_rope_head_dim=latent.rope_dim,
        v_head_dim=latent.value_dim,
        original_seq_len=shared["max_seq_len"],  # positions are not scaled
    )
