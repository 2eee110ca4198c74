"""The peak of a step on one device, from what slices of the trainer's step kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.memory import BF16_BYTES, FP32_BYTES, Column
from meshwright.describe.model import Model
from meshwright.describe.profile import Slice
from meshwright.describe.workload import Workload
from meshwright.layout import RECOMPUTE, Layouts
from meshwright.predict.footprint import Footprint, backward_bytes, kept_bytes, recipe_for
from meshwright.predict.layer_work import layers_alike

LOSS_TENSORS = 4  # hidden states in memory at the loss besides logits: the last layer's, the normalized ones, and both gradients
AT_LOSS = 0  # of the four moments at which the peak may be
MOMENT_OF = np.array([1, 0, 0, 2])  # which of `footprint.MOMENTS` each of them is


def with_slices(priced: Footprint, model: Model, workload: Workload, layouts: Layouts, cuts: Sequence[Slice]) -> Footprint:
    """The footprint, with rows of one rank and one micro-batch replaced by what slices of the trainer's step kept in memory.

    For each kind of recomputing a slice that computed the same again is used, if there is one; else one that computed nothing again.
    """
    alone = (layouts.tp * layouts.cp * layouts.pp * layouts.dp == 1) & (workload.global_batch == layouts.micro_batch)
    counted = [cut for cut in cuts if cut.state_bytes_per_parameter and (cut.adapters is None) == (workload.adapters is None)]
    leading = model.experts.num_dense_layers if model.experts else 0  # of a frozen base their states are not known
    if not alone.any() or model.num_prediction_layers or (workload.adapters and leading):
        return priced
    for kind in np.unique(layouts.recompute[alone]):
        same = [cut for cut in counted if cut.recompute == RECOMPUTE[kind]] or [cut for cut in counted if cut.recompute == "none"]
        if same:
            rows = alone & (layouts.recompute == kind)
            kept = _Kept.of(model, workload, same[-1], RECOMPUTE[kind])
            priced = _replaced(priced, kept, np.asarray(layouts.micro_batch, dtype=np.float64) * workload.seq_len, rows)
    return priced


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What a slice says about a model in memory; bytes of tokens are per token."""

    cut: Slice
    model: Model
    state: float  # what stays between steps
    values: float  # of it the weights that are multiplied; 0: not known, beside a frozen base
    layers: float  # what all layers keep for their backward
    first: float  # of it the first layer
    work: float  # in the backward of a layer besides
    hidden: float
    head_gradient: float  # bytes of gradients
    layers_gradient: float
    table_gradient: float

    @staticmethod
    def of(model: Model, workload: Workload, cut: Slice, recompute: str) -> _Kept:
        tensor_bytes = FP32_BYTES if cut.number_format == "fp32" else BF16_BYTES
        recipe = replace(recipe_for(workload.precision), tensor_bytes=tensor_bytes)
        counts = [kept_bytes(one, workload, recipe, is_own=True) for one in (model, layers_alike(model))]
        each, hidden = cut.layer_saved_bytes / cut.rows, tensor_bytes * model.hidden
        # A layer of the slice keeps what was measured; leading dense layers, and other kinds of recomputing, in proportion to their counts.
        of_layer = each * counts[0][RECOMPUTE.index(recompute)] / counts[1][RECOMPUTE.index(cut.recompute)]
        rebuilt = recompute == "full" and cut.recompute != "full"
        work = cut.work_bytes / cut.rows if cut.work_bytes else backward_bytes(model, workload, recipe)
        table = 0 if model.tied_embeddings else model.embedding_parameters
        found: dict[str, Any] = {
            "cut": cut,
            "model": model,
            "layers": model.num_layers * (hidden if rebuilt else of_layer),
            "first": hidden if rebuilt else of_layer,
            "work": work + (each if rebuilt else 0.0),
            "hidden": hidden,
        }
        if cut.adapters:
            few, more = cut.num_layers
            trained = model.num_layers * (cut.num_parameters[1] - cut.num_parameters[0]) / (more - few)
            state = cut.layer_state_bytes * model.num_layers + cut.ends_state_bytes
            return _Kept(**found, state=state, values=0.0, head_gradient=0.0, layers_gradient=tensor_bytes * trained, table_gradient=0.0)
        return _Kept(
            **found,
            state=cut.state_bytes_per_parameter * model.num_parameters,
            values=tensor_bytes * model.num_parameters,
            head_gradient=tensor_bytes * model.head_parameters,
            layers_gradient=tensor_bytes * (model.num_parameters - model.head_parameters - table),
            table_gradient=tensor_bytes * table,
        )


def _replaced(priced: Footprint, kept: _Kept, tokens: Column, rows: NDArray[np.bool_]) -> Footprint:
    """The footprint with these rows as a slice says.

    Gradients are created during the backward pass while saved activations are released. The peak is at the loss, in the backward pass of
    the last layer or of the first, or when all gradients exist.
    """
    cut, ones, zeros = kept.cut, np.ones_like(tokens), np.zeros_like(tokens)
    at_loss = cut.ends_bytes + LOSS_TENSORS * kept.hidden * (tokens - cut.rows)
    last_gradient = kept.layers_gradient / kept.model.num_layers
    work, layers = kept.work * tokens, kept.layers * tokens
    moments = np.stack(  # (activations, gradients, what else) at each
        [
            np.stack([layers, zeros, at_loss]),
            np.stack([layers, (kept.head_gradient + last_gradient) * ones, work]),
            np.stack([kept.first * tokens, (kept.head_gradient + kept.layers_gradient) * ones, work]),
            np.stack([zeros, (kept.head_gradient + kept.layers_gradient + kept.table_gradient) * ones, kept.hidden * tokens]),
        ]
    )
    worst = moments.sum(axis=1).argmax(axis=0)
    activations, gradients, extra = moments[worst, :, np.arange(len(tokens))].T
    weights = kept.values * ones if kept.values else kept.state - priced.optimizer
    parts: dict[str, Column] = {
        "weights": weights,
        "optimizer": kept.state - weights,
        "gradients": gradients,
        "activations": activations,
        "loss": np.where(worst == AT_LOSS, extra, 0.0),
        "buffers": np.where(worst == AT_LOSS, 0.0, extra),
    }
    replaced = {name: np.where(rows, value, getattr(priced, name)) for name, value in parts.items()}
    return replace(priced, **replaced, moment=np.where(rows, MOMENT_OF[worst], priced.moment))
