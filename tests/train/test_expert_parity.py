"""Mixtures of experts: the same loss, gradients, loads, balance losses and biases whatever the layout, against one process.

`make test` runs `COVERING`; `make test-all` adds every factorisation of 1, 2, 4 and 8 ranks with every expert degree and accumulation, and
products of schedules, ZeRO stages, kinds of context parallelism and recompute. Tolerances are those of `test_parity`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from expert_cases import COVERING, MATRIX, MODELS, PRODUCTS, SHORT, TRAININGS, Case
from parity import SEED, TRAINING, WORKLOAD, Steps, differences, joined, run_steps, samples
from ranks import Pools

from meshwright.layout import Layout, parse_layout

Reference = Callable[[Case], Steps]

NUM_STEPS = 5
FEWER_STEPS = 2  # of eight ranks in the covering set


@pytest.fixture(scope="module")
def reference(pools: Pools) -> Reference:
    """The run of one process that takes the whole batch at once, computed once for each model and workload."""
    found: dict[object, Steps] = {}

    def run(case: Case) -> Steps:
        key = (case.shapes.name, case.shapes.num_layers, case.short)
        if key not in found:
            whole = Layout(micro_batch=case.workload.global_batch)
            found[key] = joined(pools.of(1).run(run_steps, case.shapes, case.workload, whole, NUM_STEPS, False, case.training))
        return found[key]

    return run


def departures(case: Case, num_steps: int, pools: Pools, reference: Reference) -> list[str]:
    """Where the run of a case departs from that of one process."""
    ranks = pools.of(case.layout.num_ranks)
    found = joined(ranks.run(run_steps, case.shapes, case.workload, case.layout, num_steps, False, case.training))
    return differences(found, reference(case).first(num_steps))


@pytest.mark.parametrize("case", COVERING, ids=str)
def test_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert departures(case, NUM_STEPS if case.layout.num_ranks < 8 else FEWER_STEPS, pools, reference) == []


@pytest.mark.long
@pytest.mark.parametrize("case", [*MATRIX, *PRODUCTS], ids=str)
def test_every_layout_equals_one_process(case: Case, pools: Pools, reference: Reference) -> None:
    assert departures(case, NUM_STEPS, pools, reference) == []


def test_runs_differ_enough_that_parity_compares_something(reference: Reference) -> None:
    for name in MODELS:
        steps = reference(Case(Layout(), name))
        assert len(set(steps.losses)) == NUM_STEPS
        assert len({routing.loads for layers in steps.routing for routing in layers}) > NUM_STEPS
        assert all(routing.entropy > 0 for layers in steps.routing for routing in layers)
    biased = reference(Case(Layout(), "deepseek")).routing
    assert biased[0][0].bias_norm == 0 < biased[-1][0].bias_norm
    assert any(min(routing.loads) == 0 for layers in reference(Case(Layout(), "deepseek", short=True)).routing for routing in layers)


def test_every_family_has_a_balance() -> None:
    assert TRAININGS.keys() == MODELS.keys()
    assert SHORT.seq_len < WORKLOAD.seq_len


def test_ten_steps_equal_a_plain_loop_of_transformers_and_adamw(pools: Pools) -> None:
    """Mixtral with random weights: losses and the last weights of a layout with expert parallelism, against one process of transformers."""
    found = joined(pools.of(4).run(run_steps, PLAIN_MIXTRAL, WHOLE, parse_layout("dp=2,tp=2,ep=2,mbs=2,zero=1"), 10))
    assert found.losses == pytest.approx(transformers_losses(10), rel=1e-5)


WHOLE = replace(WORKLOAD, packed=False)
PLAIN_MIXTRAL = replace(MODELS["mixtral"], rotary_scaling=None, num_layers=2)


def transformers_losses(num_steps: int) -> list[float]:
    """Losses of a plain loop over the same samples, from the same first weights."""
    import torch
    from torch.nn import functional as F

    model = transformers_mixtral()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": decayed, "weight_decay": TRAINING.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(TRAINING.beta1, TRAINING.beta2), eps=TRAINING.epsilon)
    losses = []
    for step in range(num_steps):
        tokens, labels, _ = (torch.from_numpy(array).long() for array in samples(WHOLE, PLAIN_MIXTRAL.vocab_size, 8 * step, 8))
        loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = TRAINING.rate(8 * (step + 1))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def transformers_mixtral() -> Any:
    """The same model in transformers, with the first weights of our runs."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    from meshwright.train.model.initial import draw

    shapes, experts = PLAIN_MIXTRAL, PLAIN_MIXTRAL.experts
    assert experts is not None
    config = MixtralConfig(
        vocab_size=shapes.vocab_size,
        hidden_size=shapes.hidden,
        intermediate_size=experts.hidden,
        num_hidden_layers=shapes.num_layers,
        num_attention_heads=shapes.num_heads,
        num_key_value_heads=shapes.num_kv_heads,
        head_dim=shapes.head_dim,
        num_local_experts=experts.num_experts,
        num_experts_per_tok=experts.num_active,
        rms_norm_eps=shapes.norm_epsilon,
        rope_theta=shapes.rotary_theta,
        sliding_window=None,
        tie_word_embeddings=False,
        experts_implementation="eager",
    )
    model = MixtralForCausalLM(config)

    def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
        return draw(shapes, name, tuple(like.shape), SEED, torch.device("cpu"))

    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(drawn("embed.weight", model.model.embed_tokens.weight))
        model.lm_head.weight.copy_(drawn("head.weight", model.lm_head.weight))
        for number, layer in enumerate(model.model.layers):
            for part in "qkvo":
                weight = getattr(layer.self_attn, f"{part}_proj").weight
                weight.copy_(drawn(f"layers.{number}.attention.{part}.weight", weight))
            before = f"layers.{number}.mlp"
            layer.mlp.gate.weight.copy_(drawn(f"{before}.router.weight", layer.mlp.gate.weight))
            gate, up = layer.mlp.experts.gate_up_proj.chunk(2, dim=1)
            for tensor, name in ((gate, "gate"), (up, "up"), (layer.mlp.experts.down_proj, "down")):
                tensor.copy_(drawn(f"{before}.experts.{name}.weight", tensor))
    return model
