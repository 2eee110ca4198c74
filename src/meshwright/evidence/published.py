"""Measured configurations from papers and vendors' tables, one row each, as measured runs.

Such a row says less than the logs of a submission: the network is assumed to be that of the vendor's reference system. What depends on the
software is filled in below, by source, and listed in the assumptions of the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import aliases, left_out, load_model, names, plain
from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters, Workload
from meshwright.errors import InputError, nearest
from meshwright.evidence.expert_recipes import expert_recipe
from meshwright.evidence.machine import machine
from meshwright.evidence.measured import (
    MEGATRON_ORDER,
    MeasuredRun,
    check_degrees,
    check_runs,
    missing_layout,
    recipe,
    with_experts,
    with_room,
    with_stages,
)
from meshwright.evidence.table import Row
from meshwright.layout import OPS, Layout
from meshwright.predict.practice import MESHWRIGHT, TORCHTITAN, WHOLE_GRAPHS, class_of, expert_practice
from meshwright.predict.recompute import fits
from meshwright.units import GIB

REQUIRED = ("source", "section", "model", "seq", "gpu", "n_gpus", "gbs", "mbs", "tp", "pp", "precision", "tokens_s_gpu")

COUNTS = ("gbs", "mbs", "tp", "pp", "cp", "vp", "ep", "dp")  # may be empty, but not invalid

GPT_VOCAB = 51200  # Megatron's GPT models of 2021: the GPT-2 vocabulary, padded (arXiv 2104.04473)
LORA = Adapters(rank=16, targets=("qkv",))  # assumed: the tables do not state rank or targets

_LORA_SAID = (f"adapters: rank {LORA.rank} on {', '.join(LORA.targets)}",)
_CONTAINER = re.compile(r"^(\d\d\.\d\d(?:\.\d\d)?) NeMo Container")
_SHAPE = re.compile(r"\bh=(\d{1,7}) l=(\d{1,5}) heads=(\d{1,5})\b")
_CUT_NOTE = re.compile(r"\blayers cut to (\d{1,5})\b")
_CUT_NAME = re.compile(r"_l(\d{1,5})(?=_|$)")
_DEGREES_IN_NAME = re.compile(r"_(?=(?:l|tp|cp|pp|ep|dp|mbc|seq)\d+(?:_|$))")
_AMP = re.compile(r"^amp_|/\w+$")  # `amp_bf16/DEFAULT`: Composer's precision, and what FSDP does with it
_FSDP = re.compile(r"\bFSDP\b(?:=(\d+))?")


@dataclass(frozen=True, slots=True)
class Software:
    """What the software of a source is assumed to do if its rows do not say."""

    release: str
    zero_stage: int = 1
    overlap_tp: bool = False
    cp_kind: str = "ring"
    graphs: tuple[str, ...] = ()  # architectures on which it captures CUDA graphs


def software(source: str, section: str) -> Software:
    """The software of a row, which follows from the source that published it."""
    container = _CONTAINER.match(section)
    if container:
        return _nemo(container[1])
    nemo = re.search(r"\bNeMo (\d\d\.\d\d)\b", source)
    if nemo:
        return _nemo(nemo[1])
    month = re.search(r"(20\d\d)-?(\d\d)", source)
    if "llm-foundry" in source:
        return Software("fsdp-llm-foundry", zero_stage=3)
    if "torchtitan" in source and month:
        return Software(f"torchtitan-{month[1]}.{month[2]}", zero_stage=3)
    for word, made in _SOFTWARE.items():
        if word in source:
            return made
    return Software(plain(source.partition("(")[0]) or "unknown")


def _nemo(version: str) -> Software:
    return Software(f"nemo-{version}", overlap_tp=True, graphs=("blackwell", "blackwell-ultra"))


_SOFTWARE = {
    "vTrain": Software("megatron-deepspeed-2023", zero_stage=0),
    "Narayanan": Software("megatron-2021", zero_stage=0),
    "Korthikanti": Software("megatron-2022", zero_stage=0),
    "MegaScale": Software("megascale-2024", zero_stage=2),
    "SimuMax": Software("megatron-2025", cp_kind="all-to-all"),
    "Llama 3 Herd": Software("llama3-2024", zero_stage=2),
    "Primus": Software("primus-2025"),
    "meshwright": Software("meshwright-0.1"),
}


def row_name(row: Row) -> str:
    """The name of a row in the list of rows that cannot be expressed."""
    return " ".join(row.text(column) for column in ("source", "section", "model", "n_gpus", "gpu", "precision"))


def published_run(row: Row) -> MeasuredRun:
    """The run that a row describes."""
    source, section, gpu = row.filled("source"), row.filled("section"), row.filled("gpu")
    num_accelerators, seq_len, memory_gib = row.count("n_gpus"), row.count("seq"), row.positive_or("memory_gib", 0.0)
    global_batch, *_ = (row.count_or(column, 0) for column in COUNTS)
    precision_name = row.filled("precision")
    measured_s = _step_s(row, num_accelerators, seq_len, global_batch)
    code = software(source, section)
    model, model_assumptions = _model(row, seq_len)
    per_node = 4 if plain(gpu).startswith("gb") else 8
    built = machine(f"{num_accelerators} x {gpu}", gpu, num_accelerators, per_node)
    chip = built.cluster.accelerator
    layout, layout_assumptions = _layout(row, code, chip)
    check_degrees(layout, num_accelerators, global_batch, 0)
    kind = _kind(section)
    precision = recipe(_AMP.sub("", precision_name).partition("(")[0].strip())
    known = expert_recipe(code.release.removeprefix("nemo-"), model.name, chip.name, precision, layout) if _is_nemo(code, model) else None
    layout, ep_assumptions = with_experts(layout, model, built.cluster, row.text("ep"))
    if _is_nemo(code, model):
        practice = known.practice if known else expert_practice(code.release, chip, precision)
        layout = replace(layout, cuda_graphs=practice.graphs == WHOLE_GRAPHS)
    if known and known.recomputed and not row.text("recompute"):
        layout = replace(layout, recompute=known.recomputed)
    layout, split_assumptions = with_stages(layout, model)
    chip.peak_flops_per_s(precision)  # raises an error for a format that the chip cannot multiply
    workload = Workload(
        name=f"{kind} of {model.name}",
        model=model.name,
        seq_len=seq_len,
        global_batch=global_batch,
        precision=precision,
        adapters=LORA if kind == "lora" else None,
        attention_precision="fp8" if known and known.has_fp8_attention else "bf16",
    )
    if _is_nemo(code, model) and precision == "bf16" and not fits(model, built.cluster, workload, layout):
        workload = replace(workload, precision="bf16-lean")
        layout_assumptions = (*layout_assumptions, "gradients added up in bf16, as in the vendor's recipes: in fp32 it does not fit")
    layout, room_assumptions = with_room(
        layout, model, built.cluster, workload, row.text("recompute") or (known.recomputed if known else "")
    )
    check_runs(model, built.cluster, workload, layout, is_own=class_of(code.release) == MESHWRIGHT)
    return MeasuredRun(
        round=code.release,
        submitter=source,
        system=f"{section}, {num_accelerators} x {gpu}, {precision_name}",
        benchmark=row.text("model"),
        model=model,
        cluster=built.cluster,
        workload=workload,
        layout=layout,
        release=code.release,
        measured_s=measured_s,
        confidence="published",
        vendor=chip.vendor,
        source_row=row.line,
        notes=row.text("note"),
        kind=kind,
        peak_memory_bytes=memory_gib * GIB,
        practice=known.practice if known else None,
        assumptions=(
            *built.assumptions,
            *model_assumptions,
            *layout_assumptions,
            *split_assumptions,
            *ep_assumptions,
            *room_assumptions,
            *(_LORA_SAID if kind == "lora" else ()),
        ),
    )


def _is_nemo(code: Software, model: Model) -> bool:
    """Whether the row is of a mixture of experts in the vendor's own containers, whose recipes are known."""
    return model.experts is not None and code.release.startswith("nemo-")


def _step_s(row: Row, num_accelerators: int, seq_len: int, global_batch: int) -> float:
    """Seconds of a step, as stated or computed from tokens per second and accelerator."""
    stated_s, tokens_per_s = (
        row.positive_or("step_time_s", 0.0) if "step_time_s" in row.cells else 0.0,
        row.positive_or("tokens_s_gpu", 0.0),
    )
    if not global_batch:
        raise InputError("the global batch is not stated: gbs empty")
    if not stated_s and not tokens_per_s:
        raise InputError("neither a step time nor tokens per second are stated")
    return stated_s or global_batch * seq_len / (num_accelerators * tokens_per_s)


def _kind(section: str) -> str:
    for word, kind in (("SFT", "sft"), ("LoRA", "lora")):
        if word in section:
            return kind
    return "pretrain"


def _layout(row: Row, code: Software, chip: Accelerator) -> tuple[Layout, tuple[str, ...]]:
    """The layout of the row, and what was assumed about its software."""
    tp, pp, micro_batch = row.count_or("tp", 0), row.count_or("pp", 0), row.count_or("mbs", 0)
    cp, vp, ep, dp = row.count_or("cp", 1), row.count_or("vp", 1), row.count_or("ep", 1), row.count_or("dp", 0)
    empty = [column for column in ("tp", "pp", "mbs") if not row.text(column)]
    if empty:
        raise missing_layout(empty)
    note = row.text("note")
    if pp > 1 and "local batch" in note:
        raise InputError("the micro-batch is not stated: mbs is a replica's whole batch")
    fsdp = _FSDP.search(note)
    layout = Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=vp,
        dp=dp or max(row.count("n_gpus") // (tp * cp * pp), 1),
        ep=ep,
        micro_batch=micro_batch,
        zero_stage=_zero_stage(row) if row.text("zero") else 3 if fsdp and fsdp[1] != "0" else code.zero_stage,
        recompute=_recompute(row.text("recompute"), code),
        cp_kind=code.cp_kind,
        order=MEGATRON_ORDER,
        overlap_tp=tp > 1 and (code.overlap_tp or "async" in note.lower()),
        cuda_graphs=chip.architecture in code.graphs,
    )
    return layout, _assumptions(layout, code)


def _zero_stage(row: Row) -> int:
    text = row.text("zero")
    if text not in ("0", "1", "2", "3"):
        raise InputError(f"no ZeRO stage {text!r}")
    return int(text)


def _recompute(text: str, code: Software) -> str:
    """The kind of recompute; `selective+SP` names sequence parallelism too, which is always on here. torchtitan's selective is its own."""
    kind = text.lower().partition("+")[0] or "none"
    if kind not in ("none", "selective", "full"):
        raise InputError(f"no kind of recompute named {text!r}")
    return OPS if kind == "selective" and class_of(code.release) == TORCHTITAN else kind


def _assumptions(layout: Layout, code: Software) -> tuple[str, ...]:
    graphs, overlap = "on" if layout.cuda_graphs else "off", "on" if layout.overlap_tp else "off"
    return (f"software {code.release}: ZeRO stage {layout.zero_stage}, TP overlap {overlap}, CUDA graphs {graphs}, pp outermost",)


def _model(row: Row, seq_len: int) -> tuple[Model, tuple[str, ...]]:
    """The model that a row names: from the catalogue, from the shape in the row's note, or cut to fewer layers."""
    text, note = row.filled("model"), row.text("note")
    shape = _SHAPE.search(note)
    if shape and plain(text).startswith("gpt"):
        hidden, num_layers, num_heads = (int(number) for number in shape.groups())
        return _gpt(hidden, num_layers, num_heads, seq_len), (f"model: vocabulary {GPT_VOCAB:,}",)
    cut = _CUT_NOTE.search(note) or _CUT_NAME.search(text)
    if cut:
        return _cut_model(_DEGREES_IN_NAME.split(text)[0], int(cut[1]))
    name, _, variant = text.partition("(")
    model = catalogue_model(name)
    if 0 < model.num_positions < seq_len:
        model = replace(model, num_positions=seq_len)  # learned positions: as many as the sequences of the run have
    return (replace(model, num_prediction_layers=0) if variant.startswith("w/o MTP") else model), ()


def catalogue_model(name: str) -> Model:
    """The catalogue's model of that name; never a file, whatever the name looks like."""
    wanted = plain(name)
    if wanted in left_out():
        raise InputError(f"{name.strip()} is left out of the catalogue: {left_out()[wanted]}", fix="describe it in a TOML file of your own")
    if wanted not in names("models") and wanted not in aliases("models"):
        raise InputError(f"no model named {name.strip()!r} in the catalogue", fix=nearest(wanted, names("models")))
    return load_model(wanted)


def _gpt(hidden: int, num_layers: int, num_heads: int, num_positions: int) -> Model:
    """A GPT of the given shape, as Megatron builds one."""
    if not num_heads or hidden % num_heads:
        raise InputError(f"hidden size {hidden} does not divide into {num_heads} heads")
    return Model(
        name=f"gpt-h{hidden}-l{num_layers}",
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=4 * hidden,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden // num_heads,
        vocab_size=GPT_VOCAB,
        gated=False,
        biases=True,
        tied_embeddings=True,
        num_positions=num_positions,
        layer_norm=True,
    )


def _cut_model(name: str, num_layers: int) -> tuple[Model, tuple[str, ...]]:
    """A catalogue model with fewer layers.

    A mixture of experts keeps one dense layer and no prediction layer: with DeepSeek-V3's own three dense layers of four,
    the measured memory would be 40 GB less.
    """
    model = catalogue_model(name)
    if not 1 <= num_layers <= model.num_layers:
        raise InputError(f"{model.name} has {model.num_layers} layers and cannot be cut to {num_layers}")
    cut = model.cut_to(num_layers)
    if cut.experts is None or model.experts is None:
        return cut, ()
    experts = replace(cut.experts, num_dense_layers=min(model.experts.num_dense_layers, 1))
    return replace(cut, experts=experts, num_prediction_layers=0), ("model: one dense layer, no prediction layer",)
