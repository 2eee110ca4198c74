"""Multi-token prediction: the same losses, gradients and loads whatever the layout, and the same as a plain loop of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from expert_cases import MODELS as MIXTURES
from expert_cases import TRAININGS, WHOLE
from parity import LLAMA, SEED, TRAINING, WORKLOAD, Steps, differences, joined, run_evaluations, run_steps, samples
from ranks import Pools

from meshwright.describe.model import Model
from meshwright.describe.workload import Training
from meshwright.layout import Layout, parse_layout

NUM_STEPS = 3
WEIGHTED = replace(TRAINING, prediction_weight=0.7)  # large enough that a wrong share of the loss is found
MODELS: dict[str, tuple[Model, Training]] = {
    "dense": (replace(LLAMA, name="predicting-llama", num_prediction_layers=2), WEIGHTED),
    "tied": (replace(LLAMA, name="predicting-tied", vocab_size=97, tied_embeddings=True, num_prediction_layers=1), WEIGHTED),
    "prime": (replace(LLAMA, name="predicting-prime", vocab_size=97, num_prediction_layers=1), WEIGHTED),
    "mixtral": (
        replace(MIXTURES["mixtral"], name="predicting-mixtral", num_prediction_layers=1),
        replace(TRAININGS["gpt-oss"], prediction_weight=0.7),
    ),
    "deepseek": (
        replace(WHOLE["deepseek with latent attention"], name="predicting-deepseek", num_prediction_layers=2),
        replace(TRAININGS["deepseek"], prediction_weight=0.7),
    ),
}
CASES = [
    ("dense", "dp=2,mbs=2,zero=0"),
    ("dense", "dp=2,mbs=1,zero=1,recompute=full"),
    ("dense", "dp=4,mbs=1,zero=2,zero_ranks=2"),
    ("dense", "dp=2,mbs=2,zero=3"),
    ("dense", "tp=2,mbs=4"),
    ("dense", "cp=2,mbs=4,cp_kind=ring"),
    ("dense", "cp=2,mbs=4,cp_kind=all-to-all,zero=3,recompute=selective"),
    ("dense", "pp=2,mbs=2"),
    ("dense", "pp=2,vp=2,mbs=2,schedule=interleaved"),
    ("dense", "pp=2,dp=2,mbs=2,zero=2,schedule=zero-bubble"),
    ("dense", "pp=2,dp=2,mbs=2,zero=3"),
    ("prime", "pp=2,tp=2,mbs=2"),
    ("prime", "pp=2,dp=2,mbs=2,zero=1"),
    ("prime", "tp=2,dp=2,mbs=2,zero=3"),
    ("tied", "pp=2,tp=2,mbs=2"),
    ("tied", "pp=2,dp=2,mbs=2,zero=2"),
    ("tied", "dp=2,mbs=2,zero=3"),
    ("mixtral", "ep=2,dp=2,mbs=2,zero=2"),
    ("mixtral", "ep=2,dp=2,mbs=2,zero=3"),
    ("deepseek", "ep=2,tp=2,mbs=4,zero=1"),
    ("deepseek", "ep=2,pp=2,dp=2,mbs=2,zero=2"),
    ("deepseek", "ep=2,pp=2,cp=2,mbs=2,cp_kind=all-gather,schedule=zero-bubble"),
    ("deepseek", "ep=4,dp=2,cp=2,mbs=2,zero=3,cp_kind=ring,recompute=full"),
]

Reference = Callable[[str], Steps]


@pytest.fixture(scope="module")
def reference(pools: Pools) -> Reference:
    """The run of one process that takes the whole batch at once, once for each model."""
    found: dict[str, Steps] = {}

    def run(name: str) -> Steps:
        if name not in found:
            model, training = MODELS[name]
            whole = Layout(micro_batch=WORKLOAD.global_batch)
            found[name] = joined(pools.of(1).run(run_steps, model, WORKLOAD, whole, NUM_STEPS, False, training))
        return found[name]

    return run


@pytest.mark.parametrize("name, text", CASES)
def test_layout_equals_one_process(name: str, text: str, pools: Pools, reference: Reference) -> None:
    (model, training), layout = MODELS[name], parse_layout(text)
    found = joined(pools.of(layout.num_ranks).run(run_steps, model, WORKLOAD, layout, NUM_STEPS, False, training))
    assert differences(found, reference(name)) == []


def test_routers_of_prediction_layers_count_too(reference: Reference) -> None:
    layers = reference("deepseek").routing[0]
    assert [routing.layer for routing in layers] == [1, 2, 3, 4, 5]  # of four layers the first is dense, and two predict
    assert all(sum(routing.loads) == 3 * WORKLOAD.tokens_per_step for routing in layers)


def test_the_first_loss_is_that_of_the_next_token_alone_and_the_gradients_are_not(pools: Pools, reference: Reference) -> None:
    model, _ = MODELS["dense"]
    plain = joined(pools.of(1).run(run_steps, replace(model, num_prediction_layers=0), WORKLOAD, Layout(micro_batch=8), 1))
    unweighted = joined(
        pools.of(1).run(run_steps, model, WORKLOAD, Layout(micro_batch=8), 1, False, replace(TRAINING, prediction_weight=0.0))
    )
    assert reference("dense").losses[0] == plain.losses[0] == unweighted.losses[0]
    assert differences(replace(unweighted, gradients={k: unweighted.gradients[k] for k in plain.gradients}), plain) == []
    assert reference("dense").norms[0] > 1.01 * plain.norms[0]


def test_an_evaluation_leaves_prediction_out(pools: Pools) -> None:
    model, _ = MODELS["dense"]
    ((of_one, loss, tokens), *_), *_ = pools.of(2).run(run_evaluations, model, WORKLOAD, parse_layout("pp=2,mbs=2"), 8)
    assert tokens > 0 and loss / tokens == pytest.approx(of_one, rel=0.05)


def test_steps_equal_a_plain_loop_of_transformers_and_adamw(pools: Pools) -> None:
    layout = parse_layout("pp=2,tp=2,mbs=2")
    found = joined(pools.of(4).run(run_steps, PLAIN, UNPACKED, layout, 6, False, WEIGHTED))
    losses, norms = plain_losses(6)
    assert found.losses == pytest.approx(losses, rel=1e-5)
    assert found.norms == pytest.approx(norms, rel=1e-4)


PLAIN = replace(LLAMA, name="predicting-plain", num_layers=2, rotary_scaling=None, num_prediction_layers=2)
UNPACKED = replace(WORKLOAD, packed=False)


def plain_losses(num_steps: int) -> tuple[list[float], list[float]]:
    """Losses of the next token, and norms, of a plain loop: every token and label is taken from the samples by its position."""
    import torch
    from torch.nn import functional as F

    model, predictions = plain_model()
    parameters = [*model.parameters(), *(weight for weights in predictions for weight in weights["all"])]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": TRAINING.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(TRAINING.beta1, TRAINING.beta2), eps=TRAINING.epsilon)
    losses, norms = [], []
    for step in range(num_steps):
        tokens, labels, _ = (torch.from_numpy(array).long() for array in samples(UNPACKED, PLAIN.vocab_size, 8 * step, 8))
        whole = torch.cat((tokens, labels[:, -1:]), dim=1)  # one token more than there are positions
        out = model(tokens, output_hidden_states=True)
        loss = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
        total, hidden = loss, trunk_of(model, tokens)
        for distance, weights in enumerate(predictions, start=1):
            kept = tokens.shape[1] - distance  # positions whose label is known; no earlier one reads the others
            joined_ = torch.cat((rms(model.model.embed_tokens(whole[:, distance : distance + kept]), weights["embedding_norm"]),
                                 rms(hidden[:, :kept], weights["hidden_norm"])), dim=-1)  # fmt: skip
            positions = torch.arange(kept)[None]
            turned = model.model.rotary_emb(joined_, positions)
            mask = torch.full((kept, kept), -torch.inf).triu(1)[None, None]
            hidden = weights["block"](
                joined_ @ weights["projection"].T, attention_mask=mask, position_ids=positions, position_embeddings=turned
            )
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            logits = model.lm_head(rms(hidden, weights["norm"]))
            further = F.cross_entropy(logits.flatten(0, 1), whole[:, distance + 1 :].flatten(), reduction="sum") / labels.numel()
            total = total + WEIGHTED.prediction_weight / len(predictions) * further
        total.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, TRAINING.clip_norm).item())
        for group in optimizer.param_groups:
            group["lr"] = TRAINING.rate(8 * (step + 1))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def rms(x: Any, weight: Any) -> Any:
    """The norm, written out."""
    return weight * x / (x.square().mean(dim=-1, keepdim=True) + PLAIN.norm_epsilon).sqrt()


def trunk_of(model: Any, tokens: Any) -> Any:
    """Hidden states after the last layer, before the last norm."""
    found = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    model(tokens)
    hook.remove()
    return found[0]


def plain_model() -> tuple[Any, list[dict[str, Any]]]:
    """The model in transformers with the first weights of our runs, and its prediction layers: weights by name, and a decoder layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from meshwright.train.model.initial import draw

    config = LlamaConfig(
        vocab_size=PLAIN.vocab_size,
        hidden_size=PLAIN.hidden,
        intermediate_size=PLAIN.ffn_hidden,
        num_hidden_layers=PLAIN.num_layers,
        num_attention_heads=PLAIN.num_heads,
        num_key_value_heads=PLAIN.num_kv_heads,
        head_dim=PLAIN.head_dim,
        rms_norm_eps=PLAIN.norm_epsilon,
        rope_theta=PLAIN.rotary_theta,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )

    def drawn(name: str, *shape: int) -> torch.Tensor:
        return draw(PLAIN, name, shape, SEED, torch.device("cpu"))

    def filled(layer: Any, prefix: str) -> Any:
        modules = {f"attention.{part}": getattr(layer.self_attn, f"{part}_proj") for part in "qkvo"}
        modules |= {f"mlp.{part}": getattr(layer.mlp, f"{part}_proj") for part in ("gate", "up", "down")}
        for name, module in modules.items():
            module.weight.data.copy_(drawn(f"{prefix}.{name}.weight", *module.weight.shape))
        return layer

    model = LlamaForCausalLM(config)
    for name, module in (("embed.weight", model.model.embed_tokens), ("head.weight", model.lm_head)):
        module.weight.data.copy_(drawn(name, *module.weight.shape))
    for number, layer in enumerate(model.model.layers):
        filled(layer, f"layers.{number}")
    predictions: list[dict[str, Any]] = []
    for number in range(PLAIN.num_layers, PLAIN.num_layers + PLAIN.num_prediction_layers):
        block = filled(LlamaDecoderLayer(model.config, 0), f"layers.{number}.block")
        made: dict[str, Any] = {name: torch.ones(PLAIN.hidden, requires_grad=True) for name in ("embedding_norm", "hidden_norm", "norm")}
        made["projection"] = drawn(f"layers.{number}.projection.weight", PLAIN.hidden, 2 * PLAIN.hidden).requires_grad_()
        predictions.append({**made, "block": block, "all": [*made.values(), *block.parameters()]})
    return model, predictions
