"""One layer as products, attention and bytes that are moved, and its seconds at measured rates.

Every number of a `Division`, and of a batch, may be an array; they broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.cost.compute import layer_backward_bytes, layer_forward_bytes
from meshwright.cost.measured import Column, Rates, grouped_s, product_s, work_s

COLUMNS, INNER, WHOLE = (
    "columns",
    "inner",
    "whole",
)  # what tensor ranks divide of a weight; a whole one multiplies a rank's part of the tokens
MLP_IN, MLP_OUT, SHARED = "mlp in", "mlp out", ("shared in", "shared out")  # names of weights that have a role of their own
ELEMENT_BYTES = 2.0  # of what moves, as in cost/compute.py
SCORE_BYTES = 16.0  # each way, of one score of a router: logits and scores are written and read in fp32. An assumption


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A matrix of a layer that multiplies every token; matrices with the same input lie side by side in one."""

    name: str
    columns: int
    inner: int
    split: str = COLUMNS
    holds: tuple[str, ...] = ()  # the matrices in it, as adapters name them; a router has none
    copied: int = 0  # of the columns, those of key-value heads, which ranks hold several times where they are more than the heads
    num_kv_heads: int = 1

    def more_columns(self, tp: Any) -> Any:
        """Columns that copies of key-value heads add, on `tp` ranks together."""
        return self.copied * (np.maximum(np.asarray(tp) / self.num_kv_heads, 1.0) - 1.0)

    def seconds(self, rows: Any, tp: Any, rates: Rates) -> tuple[Column, Column, Column]:
        """Seconds of its product, of the gradient of the input and of that of the weight, on one of `tp` ranks."""
        columns, inner, tp = self.columns + self.more_columns(tp), self.inner, np.asarray(tp)
        if self.split == WHOLE:
            return product_s(rows / tp, columns, inner, rates)
        if self.split == INNER:
            return product_s(rows, columns, inner / tp, rates)
        return product_s(rows, columns / tp, inner, rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """What routed experts of a layer do: two grouped products of all visits, tokens copied before them and added up after them."""

    num_experts: int
    num_active: int  # experts that a token visits
    width: int  # of one expert


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """The work of one kind of layer."""

    hidden: int
    weights: tuple[Weight, ...]
    num_heads: int
    head_width: int  # of a head in attention itself
    turned: int  # elements of a token's queries, keys and values
    query: int  # elements that come out of attention
    ffn: int  # width of the MLP that every token passes, or of shared experts; 0: none
    gated: bool
    latent: int = 0  # elements of latent vectors
    visits: Visits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Over how many ranks a layer is divided."""

    tp: Any = 1.0
    ep: Any = 1.0
    etp: Any = 1.0
    imbalance: Any = 1.0  # visits of the busiest expert-parallel rank over the mean


ALONE = Division()


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of a layer, composed of single kernels, forward and backward separately."""

    matmul: tuple[Column, Column]
    attention: tuple[Column, Column]
    memory: tuple[Column, Column]
    weight_s: Column  # of the backward: weight gradients
    into_s: Column  # of the forward: the product into a dense MLP
    last_s: Column  # of the forward: the product whose result no backward reads
    shared_s: tuple[Column, Column, Column]  # of the products: those of shared experts, and their gradients of inputs and of weights

    @property
    def total_s(self) -> Column:
        """Both ways."""
        return np.asarray(sum((*self.matmul, *self.attention, *self.memory)))

    def again_s(self, recompute: str, *, stops_early: bool) -> Column:
        """What the backward pass computes a second time; `stops_early`: without the product whose result nothing reads."""
        if recompute == "selective":
            return self.attention[0]
        if recompute == "mlp":
            return self.into_s
        if recompute == "full":
            return np.asarray(self.matmul[0] + self.attention[0] + self.memory[0] - self.last_s * stops_early)
        return np.zeros_like(self.last_s)

    def frozen(self, forward_s: Any, backward_s: Any) -> LayerTime:
        """The same layer with frozen weights: without weight gradients, and with so many seconds of adapters each way."""
        return replace(
            self,
            matmul=(self.matmul[0], self.matmul[1] - self.weight_s),
            memory=(self.memory[0] + forward_s, self.memory[1] + backward_s),
            weight_s=np.zeros_like(self.weight_s),
            shared_s=(*self.shared_s[:2], np.zeros_like(self.weight_s)),
        )


def mean_layer(kinds: Sequence[tuple[float, LayerTime]]) -> LayerTime:
    """The mean of layers of several kinds, each with its share of the layers."""

    def mean(name: str) -> Any:
        values = [(share, getattr(time, name)) for share, time in kinds]
        if isinstance(values[0][1], tuple):
            return tuple(np.asarray(sum(share * value[i] for share, value in values)) for i in range(len(values[0][1])))
        return np.asarray(sum(share * value for share, value in values))

    return LayerTime(**{f.name: mean(f.name) for f in fields(LayerTime)})


def layer_time(work: LayerWork, sequences: Any, seq_len: Any, rates: Rates, on: Division = ALONE) -> LayerTime:
    """Seconds of one layer for so many sequences of so many tokens on one rank of a division."""
    rows, tp = np.asarray(sequences) * seq_len, np.asarray(on.tp)
    each = {weight.name: weight.seconds(rows, tp, rates) for weight in work.weights}
    routed = _routed_s(work, rows, rates, on)
    forward, given, weight = (np.asarray(sum(times[i] for times in (*each.values(), *routed))) for i in range(3))
    heads = np.asarray(sequences) * work.num_heads / tp
    flops = 2.0 * heads * np.asarray(seq_len, dtype=np.float64) ** 2 * work.head_width  # of two products, half of each masked
    attended = [work_s(flops * factor, (heads, seq_len, work.head_width), *rates.attention[way]) for way, factor in ((0, 1.0), (1, 2.5))]
    per_token_s, moved = rows / tp / rates.elementwise_bytes_per_s, _moved_bytes(work, rates.cast_bytes, on)
    nothing = np.zeros_like(forward)

    def total(i: int) -> Column:
        return np.asarray(sum((each[name][i] for name in SHARED if name in each), nothing))

    return LayerTime(
        matmul=(forward, given + weight),
        attention=(attended[0], attended[1]),
        memory=(moved[0] * per_token_s, moved[1] * per_token_s),
        weight_s=weight,
        into_s=each[MLP_IN][0] if MLP_IN in each else nothing,
        last_s=each[MLP_OUT][0] if MLP_OUT in each else nothing,
        shared_s=(total(0), total(1), total(2)),
    )


def _routed_s(work: LayerWork, rows: Any, rates: Rates, on: Division) -> list[tuple[Column, Column, Column]]:
    """Seconds of the grouped products of the experts on a rank: gate and up, and down."""
    visits = work.visits
    if visits is None:
        return []
    num_here = np.maximum(visits.num_experts / np.asarray(on.ep), 1.0)
    made = rows / np.asarray(on.tp) * visits.num_active * on.etp * on.imbalance
    width = visits.width / np.asarray(on.etp)
    sides = (((1 + work.gated) * width, work.hidden), (work.hidden, width))
    return [grouped_s(num_here, made, columns, inner, rates) for columns, inner in sides]


def _moved_bytes(work: LayerWork, cast_bytes: float, on: Division) -> tuple[Any, Any]:
    """Bytes that a token moves outside products and attention, forward and backward.

    Latent vectors are normalized and put together. A layer with experts copies its residual, scores all experts, copies a token for each
    visit, passes the activation function and adds up what the visits gave; the backward pass does the same the other way round.
    """
    turned = work.turned + sum(weight.more_columns(on.tp) for weight in work.weights)
    forward = layer_forward_bytes(work.hidden, turned, work.ffn, float(work.gated), cast_bytes, work.query)
    backward = layer_backward_bytes(work.hidden, turned, work.ffn, float(work.gated), cast_bytes)
    latent = ELEMENT_BYTES * 4 * work.latent
    forward, backward = forward + latent, backward + latent
    visits = work.visits
    if visits is None:
        return forward, backward
    copies = 2 * (visits.num_active * on.etp + 1) * work.hidden  # spread out and collected again
    routed = ELEMENT_BYTES * (copies + (2 + work.gated) * visits.num_active * visits.width) * on.imbalance
    back = ELEMENT_BYTES * (copies + (3 + 2 * work.gated) * visits.num_active * visits.width) * on.imbalance
    beside = SCORE_BYTES * visits.num_experts + ELEMENT_BYTES * 2 * work.hidden
    return forward + routed + beside, backward + back + beside
