"""What meshwright's own trainer runs. The trainer refuses by these rules too (`check_trainable`), so what is planned for it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.model import Model
from meshwright.describe.products import adaptable
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import ADAPTED, Workload
from meshwright.layout import USUAL_RECOMPUTE, Layout, Layouts
from meshwright.plan.stack.rule import Asked, JobRule, Mask, Rule, Stack, recompute_rule
from meshwright.predict.legality import check_division
from meshwright.predict.practice import MESHWRIGHT as MESHWRIGHT_CLASS

PRECISIONS = ("fp32", "bf16", "bf16-pure", "fp8-current", "fp8-current-pure")  # `train.replica.NUMBERS` says what each means
FP8_MULTIPLE = 16  # tensor cores require this of both sides of an fp8 matrix
CPU = "cpu"
Sides = Callable[[Asked, Layouts], NDArray[np.int64]]

FOREIGN: Mapping[str, Callable[[Asked], bool]] = {
    "experts that have no gates": lambda asked: asked.model.experts is not None and not asked.model.gated,
    "biases of latent attention": lambda asked: asked.model.latent is not None and _has_attention_biases(asked.model),
    "norms of the heads of latent attention": lambda asked: asked.model.latent is not None and asked.model.qk_norm,
    "latent attention and learned positions": lambda asked: asked.model.latent is not None and asked.model.num_positions > 0,
    "prediction layers and learned positions": lambda asked: asked.model.num_prediction_layers > 0 and asked.model.num_positions > 0,
}
SIDES: Mapping[str, Sides] = {
    "the hidden size": lambda asked, rows: np.full(len(rows), asked.model.hidden),
    "the width of the queries on a rank": lambda asked, rows: asked.model.query_dim // rows.tp,
    "the width of the keys on a rank": lambda asked, rows: asked.model.kv_dim * _key_copies(asked.model, rows) // rows.tp,
    "the width of the MLP on a rank": lambda asked, rows: asked.model.ffn_hidden // rows.tp,
    "the width of an expert": lambda asked, rows: (
        asked.model.experts.hidden // rows.etp if asked.model.experts else np.full(len(rows), FP8_MULTIPLE)
    ),
    "the common divisor of the ranks of latent attention": lambda asked, rows: np.full(len(rows), _latent_divisor(asked.model)),
    "the size of the vocabulary on a rank": lambda asked, rows: -(-asked.model.vocab_size // rows.tp),
    "the number of tokens of a micro-batch on a rank": lambda asked, rows: rows.micro_batch * asked.workload.seq_len // rows.cp,
}


def _key_copies(model: Model, rows: Layouts) -> NDArray[np.int64]:
    return np.ones_like(rows.tp) if model.latent else np.maximum(rows.tp // model.num_kv_heads, 1)


def _latent_divisor(model: Model) -> int:
    """What divides all ranks of latent attention; without it, what fp8 asks for."""
    latent = model.latent
    return math.gcd(latent.query_rank, latent.key_value_rank, latent.rope_dim) if latent else FP8_MULTIPLE


def _has_attention_biases(model: Model) -> bool:
    return model.biases or model.attention_biases or model.qkv_biases


def _is_fp8(asked: Asked) -> bool:
    return asked.workload.precision in PRECISIONS and recipe(asked.workload.precision).number_format == "fp8"


def _odd(sides: Sides) -> Callable[[Asked, Layouts], Mask]:
    return lambda asked, rows: np.asarray(sides(asked, rows) % FP8_MULTIPLE > 0)


def _is_elsewhere(asked: Asked) -> bool:
    if asked.cluster is None:
        return False
    chip = asked.cluster.accelerator
    return chip.vendor != "NVIDIA" and chip.architecture != CPU


def _moves_biases(asked: Asked) -> bool:
    return asked.workload.training is not None and asked.workload.training.balance.bias_rate > 0


def _moves_no_bias(asked: Asked) -> bool:
    experts = asked.model.experts
    return _moves_biases(asked) and experts is not None and not experts.router.has_selection_bias


def _adapts_nothing(asked: Asked) -> bool:
    """Whether a target names matrices that no layer of the model has."""
    adapters, known = asked.workload.adapters, adaptable(asked.model)
    return adapters is not None and any(not set(ADAPTED.get(target, (target,))) & set(known) for target in adapters.targets)


MESHWRIGHT = Stack(
    name="meshwright",
    title="the trainer",
    software=MESHWRIGHT_CLASS,
    switches={"overlap_tp": False, "cuda_graphs": False},
    divides_experts=True,
    job_rules=(
        *(
            JobRule(
                what=f"cannot run {{asked.model.name}} with {what}",
                where="model",
                fix="leave it out of the model, or train another model",
                source="train/model, train/parallel",
                forbids=forbids,
            )
            for what, forbids in FOREIGN.items()
        ),
        JobRule(
            what="cannot move selection biases of {asked.model.name}, whose router has none",
            where="workload.training.balance.bias_rate",
            fix="leave bias_rate out, or set has_selection_bias = true in the model's [experts.router]",
            source="train/parallel/balance.py",
            forbids=_moves_no_bias,
        ),
        JobRule(
            what="does not run in {asked.workload.precision!r}",
            where="workload.precision",
            fix=f"choose from {', '.join(PRECISIONS)}",
            source="train.replica.NUMBERS",
            forbids=lambda asked: asked.workload.precision not in PRECISIONS,
        ),
        JobRule(
            what="multiplies in bf16 or fp32 beside adapters, not in {asked.workload.precision!r}",
            where="workload.precision",
            fix="choose bf16; adapters.base = fp8 keeps the frozen base in fp8",
            source="train/model/adapters.py",
            forbids=lambda asked: asked.workload.adapters is not None and _is_fp8(asked),
        ),
        JobRule(
            what="cannot move selection biases of {asked.model.name} beside adapters: they are frozen with the router",
            where="workload.training.balance.bias_rate",
            fix="leave bias_rate out, or train all weights",
            source="train/replica.py",
            forbids=lambda asked: asked.workload.adapters is not None and _moves_biases(asked),
        ),
        JobRule(
            what="adapts models without prediction layers, and {asked.model.name} has {asked.model.num_prediction_layers}",
            where="workload.adapters",
            fix="set num_prediction_layers = 0 in the model, or train all weights",
            source="train/model/adapters.py",
            forbids=lambda asked: asked.workload.adapters is not None and asked.model.num_prediction_layers > 0,
        ),
        JobRule(
            what="finds no matrix of {asked.model.name} for each of the targets {asked.workload.adapters.listed}",
            where="workload.adapters.targets",
            fix="choose from the model's own: q, k, v, o, gate, up, down; q_down, q_up, kv_down, kv_up with latent attention; "
            "routed experts are not among them",
            source="describe/products.py",
            forbids=_adapts_nothing,
        ),
        JobRule(
            what="cannot run {asked.model.name}, which has {asked.model.num_positions} learned positions, on sequences of "
            "{asked.workload.seq_len} tokens",
            where="workload.seq_len",
            fix="use sequences that are no longer than the positions",
            source="train/model/transformer.py",
            forbids=lambda asked: 0 < asked.model.num_positions < asked.workload.seq_len,
        ),
        JobRule(
            what="does not run on {asked.cluster.accelerator.name} of {asked.cluster.accelerator.vendor}",
            where="cluster.accelerator",
            fix="plan for NVIDIA GPUs or for processors (this-machine)",
            source="it was run with CUDA and on processors",
            forbids=_is_elsewhere,
            is_near=True,
        ),
        JobRule(
            what="cannot start a plan of {asked.workload.name}, which does not say how to train: it has no [training]",
            where="workload.training",
            fix="add learning_rate and the rest to the workload's TOML, as python-stdlib has them",
            source="train.job.TrainingJob.training",
            forbids=lambda asked: asked.workload.training is None,
            is_near=True,
        ),
    ),
    rules=(
        recompute_rule((*USUAL_RECOMPUTE, "mlp"), "train.replica.set_recompute"),
        Rule(
            what="computes dense MLPs again, and {asked.model.name} has experts",
            where="layout.recompute",
            fix="choose from none, selective, full",
            source="train.model.compiled.repeats_half",
            forbids=lambda _, rows: rows.recomputes("mlp"),
            matters=lambda asked: asked.model.experts is not None,
        ),
        Rule(
            what="keeps a base in few bits whole on every replica, and cannot divide it by ZeRO 3",
            where="layout.zero_stage",
            fix="choose zero=1 or zero=2",
            source="train/parallel/frozen.py",
            forbids=lambda asked, rows: np.asarray((rows.zero_stage >= 3) & (rows.dp * rows.cp > 1)),
            matters=lambda asked: asked.workload.adapters is not None and asked.workload.adapters.base != "bf16",
        ),
        *(
            Rule(
                what=f"runs fp8 products only on matrices whose sides are multiples of {FP8_MULTIPLE}; {what} is {{value}}",
                where="workload.precision",
                fix="choose bf16",
                source="train/kernels/fp8.py",
                forbids=_odd(sides),
                matters=_is_fp8,
                value=sides,
            )
            for what, sides in SIDES.items()
        ),
    ),
)


def check_trainable(model: Model, workload: Workload, layout: Layout) -> None:
    """Raise where the trainer cannot run what a plan asks for: which part, and what would work."""
    MESHWRIGHT.check(Asked(model, workload), layout)
    check_division(model, workload, layout)
