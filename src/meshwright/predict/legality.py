"""Which layouts a job allows: what must divide what. For one layout an error says which number would divide; for many there is a mask.

The planner and the trainer use the same rules, so that the trainer can run what the planner proposes, and both give the same errors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument
from meshwright.layout import CP_KINDS, SCHEDULES, Layout, Layouts
from meshwright.predict.stages import check_split, stage_layers


def legal_rows(model: Model, cluster: Cluster, workload: Workload, layouts: Layouts) -> NDArray[np.bool_]:
    """Whether `check_layout` would accept each layout."""
    tp, cp, dp = layouts.tp, layouts.cp, layouts.dp
    legal = tp * cp * layouts.pp * dp == cluster.num_accelerators
    legal &= workload.global_batch % (dp * layouts.micro_batch) == 0
    legal &= (layouts.schedule != SCHEDULES.index("1f1b")) | (layouts.vp == 1)
    legal &= stage_layers(model.num_layers, layouts.pp, layouts.vp, layouts.first_stage_layers, layouts.last_stage_layers).legal
    for count in (model.num_heads, model.ffn_hidden, _shared_width(model)):
        legal &= count % tp == 0
    legal &= (model.num_kv_heads % tp == 0) | (tp % model.num_kv_heads == 0)
    legal &= workload.seq_len % np.where(cp > 1, 2 * cp * tp, tp) == 0
    experts = model.experts
    legal &= (experts.num_experts % layouts.ep == 0) & (experts.hidden % layouts.etp == 0) if experts else layouts.expert_ranks == 1
    legal &= (layouts.etp == 1) | (model.hidden % layouts.etp == 0) | (not model.biases)
    legal &= ~layouts.is_zero_bubble | (layouts.zero_stage < 3) | (dp * cp == 1)
    all_to_all = (layouts.cp_kind == CP_KINDS.index("all-to-all")) & (cp > 1)
    return np.asarray(legal & (~all_to_all | (model.num_kv_heads % (cp * tp) == 0)))


def check_layout(model: Model, cluster: Cluster, workload: Workload, layout: Layout) -> None:
    """Raise an InputError if the layout does not divide the model, the batch or the machine; it names the number and what would divide."""
    if layout.num_ranks != cluster.num_accelerators:
        raise InputError(
            f"tp={layout.tp} x cp={layout.cp} x pp={layout.pp} x dp={layout.dp} = {layout.num_ranks} accelerators, "
            f"but {cluster.name} has {cluster.num_accelerators} in use",
            where="layout",
            fix=_fill_advice(layout, cluster),
        )
    if layout.has_part("offload") and (layout.pp > 1 or not cluster.accelerator.host_bytes_per_s):
        raise InputError(
            f"activations cannot be moved to the host with pp={layout.pp} on {cluster.accelerator.name}",
            where="layout.recompute",
            fix="use offload with pp=1, on an accelerator whose processor is on the same module (GH200, GB200, GB300)",
        )
    check_division(model, workload, layout)


def check_division(model: Model, workload: Workload, layout: Layout) -> None:
    """Raise an InputError if the layout does not divide the model or the batch, or has choices that exclude each other."""
    layout.num_micro_batches(workload.global_batch)
    if layout.schedule == "1f1b" and layout.vp > 1:
        raise InputError(
            f"1F1B runs one chunk per stage, and vp is {layout.vp}", where="layout.schedule", fix="use schedule=interleaved, or vp=1"
        )
    if layout.is_zero_bubble and layout.zero_stage == 3 and layout.dp * layout.cp > 1:
        raise InputError(
            "a zero-bubble schedule delays weight gradients, and ZeRO 3 reduces them inside the backward",
            where="layout.zero",
            fix="use zero=2 or less, or schedule=interleaved",
        )
    check_split(model.num_layers, layout.pp, layout.vp, layout.first_stage_layers, layout.last_stage_layers)
    columns = (("MLP columns", model.ffn_hidden), ("columns of shared experts", _shared_width(model)))
    for what, count in (("attention heads", model.num_heads), *columns):
        if count % layout.tp:
            _refuse("tp", layout.tp, count, what)
    if model.num_kv_heads % layout.tp and layout.tp % model.num_kv_heads:
        raise InputError(
            f"tensor degree {layout.tp} neither divides {model.num_kv_heads} key-value heads nor is a multiple of them",
            where="layout.tp",
            fix=f"choose tp from the divisors or the multiples of {model.num_kv_heads}: heads are shared out, or copied evenly",
        )
    pieces = 2 * layout.cp * layout.tp if layout.cp > 1 else layout.tp  # for causal balance each rank has two pieces of the sequence
    if workload.seq_len % pieces:
        raise InputError(
            f"a sequence of {workload.seq_len} tokens does not divide into {pieces} pieces (cp={layout.cp}, tp={layout.tp})",
            where="layout.cp",
            fix="choose cp and tp whose product, twice over with cp, divides the sequence",
        )
    if model.experts and model.experts.num_experts % layout.ep:
        _refuse("ep", layout.ep, model.experts.num_experts, "experts")
    if model.experts and model.experts.hidden % layout.etp:
        _refuse("etp", layout.etp, model.experts.hidden, "columns of an expert")
    if model.experts and model.biases and model.hidden % layout.etp:
        _refuse("etp", layout.etp, model.hidden, "entries of an expert's second bias")
    for axis, degree in (("ep", layout.ep), ("etp", layout.etp)):
        if degree > 1 and not model.experts:
            raise InputError(f"{axis}={degree}, but {model.name} has no experts", where=f"layout.{axis}", fix=f"leave {axis} out")
    if layout.cp > 1 and layout.cp_kind == "all-to-all" and model.num_kv_heads % (layout.cp * layout.tp):
        _refuse("cp", layout.cp * layout.tp, model.num_kv_heads, "key-value heads (all-to-all gives each rank whole heads)")


def _shared_width(model: Model) -> int:
    """Columns of the experts that every token visits, as one MLP; 0 without them."""
    return model.experts.num_shared * model.experts.hidden if model.experts else 0


def _refuse(axis: str, degree: int, count: int, what: str) -> None:
    divisors = ", ".join(str(d) for d in range(1, min(count, 4096) + 1) if count % d == 0 and d <= 512)
    names = {"tp": "tensor degree", "ep": "expert degree", "etp": "degree of each expert", "cp": "context x tensor degree"}
    raise InputError(f"{names[axis]} {degree} does not divide {count} {what}", where=f"layout.{axis}", fix=f"choose from {divisors}")


def _fill_advice(layout: Layout, cluster: Cluster) -> str:
    inner = layout.tp * layout.cp * layout.pp
    resize = [argument("gpus", layout.num_ranks)] if cluster.can_have(layout.num_ranks) else []
    if cluster.num_accelerators % inner == 0:
        return "use " + ", or ".join([f"dp={cluster.num_accelerators // inner}", *resize])
    return "use " + ", or ".join([*resize, f"degrees whose product is {cluster.num_accelerators}"])
