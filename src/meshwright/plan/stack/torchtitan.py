"""What torchtitan runs. Facts are of torchtitan 0.2.2 and PyTorch's pipelining, each rule with its source."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.describe.model import Model
from meshwright.layout import OPS, USUAL_RECOMPUTE, Layouts
from meshwright.plan.numbering import PP_LAST
from meshwright.plan.stack.rule import Asked, JobRule, Mask, Rule, Stack, micro_batches, recompute_rule, sharing
from meshwright.plan.stack.vendors import GPUS
from meshwright.predict.practice import TORCHTITAN as TORCHTITAN_CLASS
from meshwright.predict.stages import stage_layers

# (layers, hidden, heads, key-value heads, MLP width, vocabulary) -> torchtitan's model and flavor.
FLAVORS: Mapping[tuple[int, ...], tuple[str, str]] = {
    (32, 4096, 32, 8, 14336, 128256): ("llama3", "8B"),
    (80, 8192, 64, 8, 28672, 128256): ("llama3", "70B"),
    (126, 16384, 128, 8, 53248, 128256): ("llama3", "405B"),
    (60, 5120, 128, 128, 12288, 102400): ("deepseek_v3", "236B"),
    (61, 7168, 128, 128, 18432, 129280): ("deepseek_v3", "671B"),
    (48, 2048, 32, 4, 6144, 151936): ("qwen3", "30B-A3B"),
    (94, 4096, 64, 4, 12288, 151936): ("qwen3", "235B-A22B"),
    (24, 2880, 64, 8, 2880, 201088): ("gpt_oss", "20b"),
    (36, 2880, 64, 8, 2880, 201088): ("gpt_oss", "120b"),
}
WITHOUT_PIPELINE = ("qwen3", "gpt_oss")  # torchtitan 0.2.2 gives them no pipelining function
# torchtitan rotates key-value shards by an all-to-all: that is the ring. It has no exchange of heads.
ROTATION = {"ring": "alltoall", "all-gather": "allgather"}
PRECISIONS = ("fp32", "bf16", "fp8-current", "mxfp8")
TORCH_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def flavor_of(model: Model) -> tuple[str, str] | None:
    """torchtitan's model and flavor of these shapes; a flavor to be added where only the architecture is known; None where it is not."""
    shape = (model.num_layers, model.hidden, model.num_heads, model.num_kv_heads, model.ffn_hidden, model.vocab_size)
    if shape in FLAVORS:
        return FLAVORS[shape]
    plain = model.gated and not (model.biases or model.layer_norm or model.num_positions or model.tied_embeddings or model.qk_norm)
    if plain and not (model.experts or model.latent or model.attention_biases or model.qkv_biases or model.num_windowed_layers):
        return "llama3", model.name
    return None


def _has_no_pipeline(asked: Asked, rows: Layouts) -> Mask:
    flavor = flavor_of(asked.model)
    return np.asarray((rows.pp > 1) & (flavor is not None and flavor[0] in WITHOUT_PIPELINE))


def _uneven_rounds(asked: Asked, rows: Layouts) -> Mask:
    count = micro_batches(asked, rows)
    return np.asarray((rows.vp > 1) & (count % np.maximum(count // rows.pp, 1) > 0))


def _too_few(asked: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.pp > 1) & (rows.vp == 1) & (micro_batches(asked, rows) < rows.pp))


def _broken_chunks(asked: Asked, rows: Layouts) -> Mask:
    stated = (rows.first_stage_layers > 0) | (rows.last_stage_layers > 0)
    split = stage_layers(asked.model.num_layers, rows.pp, rows.vp, rows.first_stage_layers, rows.last_stage_layers)
    return np.asarray(stated & ((split.first % rows.vp > 0) | (split.last % rows.vp > 0)))


def _sums_late(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.zero_stage == 1) & (rows.pp == 1) & sharing(rows))


def _sums_early(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.zero_stage == 2) & (rows.pp > 1) & sharing(rows))


def _replicates(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.zero_stage == 0) & ((rows.cp > 1) | ((rows.dp > 1) & ((rows.tp > 1) | (rows.pp > 1)))))


def _shares_in_groups(_: Asked, rows: Layouts) -> Mask:
    return np.asarray((rows.zero_ranks > 0) & (rows.zero_stage > 0) & (rows.zero_ranks < rows.dp * rows.cp))


TORCHTITAN = Stack(
    name="torchtitan",
    title="torchtitan 0.2.2",
    software=TORCHTITAN_CLASS,
    export="torchtitan",
    cp_kinds=tuple(ROTATION),
    orders=(PP_LAST,),
    switches={"cuda_graphs": False},
    source="torchtitan/config/job_config.py: context_parallel_rotate_method; torchtitan/distributed/parallel_dims.py: order of the mesh",
    job_rules=(
        *GPUS,
        JobRule(
            what="has no model like {asked.model.name}",
            where="model",
            fix="export to megatron, which takes shapes; torchtitan holds Llama 3, DeepSeek, Qwen3 and gpt-oss",
            source="torchtitan/models",
            forbids=lambda asked: flavor_of(asked.model) is None,
        ),
        JobRule(
            what="has no precision {asked.workload.precision!r}",
            where="workload.precision",
            fix=f"plan with precision {', '.join(PRECISIONS)}",
            source="torchtitan/components/quantization: float8 with current scaling, MXFP8",
            forbids=lambda asked: asked.workload.precision not in PRECISIONS,
        ),
        JobRule(
            what="has no attention in fp8",
            where="workload.attention_precision",
            fix="plan with attention_precision = bf16",
            source="torchtitan/components/quantization: linear layers and grouped products",
            forbids=lambda asked: asked.workload.attention_precision == "fp8",
        ),
        JobRule(
            what="has no low-rank adapters",
            where="workload.adapters",
            fix="export to megatron-bridge",
            source="torchtitan/models",
            forbids=lambda asked: asked.workload.adapters is not None,
        ),
    ),
    rules=(
        recompute_rule((*USUAL_RECOMPUTE, OPS), "torchtitan/config/job_config.py, ActivationCheckpoint: none, selective, full"),
        Rule(
            what="does not pad a vocabulary, and {asked.model.vocab_size} entries do not divide by tp",
            where="layout.tp",
            fix="plan with a tp that divides the vocabulary, or export to megatron, which pads it",
            source="torchtitan/config/job_config.py: no option pads a vocabulary",
            forbids=lambda asked, rows: asked.model.vocab_size % rows.tp > 0,
        ),
        Rule(
            what="has zero-bubble schedules for two or more chunks per stage, not for one",
            where="layout.schedule",
            fix="plan with vp=2 or more",
            source=f"{TORCH_SCHEDULES}: ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble",
            forbids=lambda _, rows: rows.is_zero_bubble & (rows.vp == 1),
        ),
        Rule(
            what="has no pipeline for {asked.model.name}",
            where="layout.pp",
            fix="plan with pp=1",
            source="torchtitan/models/qwen3, torchtitan/models/gpt_oss: no pipelining function",
            forbids=_has_no_pipeline,
        ),
        Rule(
            what="runs several chunks per stage only where the rounds (micro-batches // pp) divide the micro-batches",
            where="layout.vp",
            fix="plan with vp=1, or with micro-batches that pp divides",
            source=f"{TORCH_SCHEDULES}: ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble",
            forbids=_uneven_rounds,
        ),
        Rule(
            what="runs 1F1B only with at least as many micro-batches as stages",
            where="layout.pp",
            fix="plan with fewer stages, or smaller micro-batches",
            source=f"{TORCH_SCHEDULES}: Schedule1F1B",
            forbids=_too_few,
        ),
        Rule(
            what="takes whole chunks, and the layers of the first or last stage do not divide into {layout.vp}",
            where="layout.first_stage_layers",
            fix="plan with vp=1",
            source="module_fqns_per_model_part holds whole layers",
            forbids=_broken_chunks,
        ),
        Rule(
            what="shards gradients too without a pipeline and reduces them in every micro-batch, which is ZeRO 2",
            where="layout.zero",
            fix="plan with zero=2",
            source="torchtitan/train.py: gradients of every micro-batch are reduced by FSDP2",
            forbids=_sums_late,
            is_near=True,
        ),
        Rule(
            what="reduces the gradients of a pipeline once, after its last backward, which is ZeRO 1",
            where="layout.zero",
            fix="plan with zero=1",
            source="torch/distributed/pipelining/stage.py: backward_maybe_with_nosync",
            forbids=_sums_early,
            is_near=True,
        ),
        Rule(
            what="replicates weights over data ranks alone: it shards them over the context ranks, and has DDP with no other axis",
            where="layout.zero",
            fix="plan with zero=1 or more",
            source="torchtitan/models/llama3/infra/parallelize.py: apply_fsdp, apply_ddp",
            forbids=_replicates,
            is_near=True,
        ),
        Rule(
            what="divides each expert over all tensor ranks or over none, and etp is {layout.etp} with tp={layout.tp}",
            where="layout.etp",
            fix="plan with etp=1, or with etp equal to tp",
            source="torchtitan/config/job_config.py: expert_tensor_parallel_degree",
            forbids=lambda _, rows: (rows.etp > 1) & (rows.etp != rows.tp),
        ),
        Rule(
            what="needs its degrees of replication and of sharding set by hand for states shared by {layout.zero_ranks} ranks",
            where="layout.zero_ranks",
            fix="plan without zero_ranks",
            source="torchtitan/config/job_config.py: data_parallel_replicate_degree",
            forbids=_shares_in_groups,
            is_near=True,
        ),
    ),
)
