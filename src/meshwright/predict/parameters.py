"""What one rank of a stage holds of a model: parameters, chunk by chunk and unit by unit, and the buckets that gradients are sent in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.layout import Layout
from meshwright.predict.stages import chunk_share, stage_layers

TABLES = ("embed.weight", "head.weight", "next_embed.weight")
BUCKET_PARAMETERS = 25_000_000  # of one reduction of gradients in meshwright's trainer
SMALLEST_BUCKETS = 4  # a chunk's gradients are sent in at least so many messages, so that some are sent early


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter on a tensor-parallel rank."""

    name: str
    shape: tuple[int, ...]  # of the rank's part
    is_cut: bool  # over tensor ranks; otherwise each rank has the gradient of its part of the sequence only
    is_product: bool = False  # the weight of a matrix product, whose gradient a zero-bubble schedule postpones
    num_copied: int = 0  # rows at its end that other tensor ranks hold too: those of a shared key-value head
    is_routed: bool = False  # of routed experts, which other ranks hold alike than the rest

    @property
    def size(self) -> int:
        """Elements of the rank's part."""
        return math.prod(self.shape)

    @property
    def row(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of a model in one chunk of a stage, unit by unit: layers, embedding, head."""

    units: tuple[tuple[Parameter, ...], ...]  # in the order of the model
    num_layers: int  # with those of multi-token prediction
    num_dense: int  # of these, the layers with a dense MLP
    is_first: bool
    is_last: bool

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All of them, in the order of the model."""
        return tuple(parameter for unit in self.units for parameter in unit)


def chunks_of(model: Model, layout: Layout, stage: int) -> list[Chunk]:
    """The chunks of one pipeline stage, with the experts of one rank."""
    made, layer = [], 0
    for place in range(layout.vp * layout.pp):
        number, holder = divmod(place, layout.pp)
        count = chunk_share(layers_at(model, layout, holder), layout.vp, number, short_at_the_end=holder == layout.pp - 1)
        if holder == stage:
            made.append(_chunk(model, layout, range(layer, layer + count), place == 0, place == layout.vp * layout.pp - 1))
        layer += count
    return made


def _chunk(model: Model, layout: Layout, layers: range, is_first: bool, is_last: bool) -> Chunk:
    """Some layers in a row, and the ends of the model if they are there."""
    num_dense = min(max(model.num_dense_layers - layers.start, 0), len(layers)) if model.experts else len(layers)
    units = [_layer(model, layout, model.experts if number >= num_dense else None) for number in range(len(layers))]
    shared = is_first and is_last and model.tied_embeddings
    num_ahead = model.num_prediction_layers if is_last else 0
    units += [_prediction(model, layout)] * num_ahead
    if is_first:
        units.insert(0, _embedding(model, layout.tp))
    if is_last:
        head = _head(model, layout.tp, with_table=not shared)
        has_copy = num_ahead > 0 and not is_first and not model.tied_embeddings
        units.append((*head, Parameter("next_embed.weight", (model.vocab_rows(layout.tp), model.hidden), True)) if has_copy else head)
    return Chunk(tuple(units), len(layers) + num_ahead, num_dense + (0 if model.experts else num_ahead), is_first, is_last)


def _prediction(model: Model, layout: Layout) -> tuple[Parameter, ...]:
    """A layer of multi-token prediction. Its projection is whole on every tensor rank, which has a part of the sequence."""
    norms = [_norm(model, name) for name in ("embedding_norm", "hidden_norm", "norm")]
    projection = Parameter("projection.weight", (model.hidden, 2 * model.hidden), False, is_product=True)
    return (*norms[0], *norms[1], projection, *_layer(model, layout, model.experts), *norms[2])


def layers_at(model: Model, layout: Layout, stage: int) -> int:
    """Layers of one pipeline stage."""
    return int(stage_layers(model.num_layers, layout.pp, layout.vp, layout.first_stage_layers, layout.last_stage_layers).at(stage))


def _layer(model: Model, layout: Layout, experts: Experts | None) -> tuple[Parameter, ...]:
    """One layer, with a dense MLP where it has no experts."""
    tp = layout.tp
    copies = model.key_copies(tp)
    hidden, query, key = model.hidden, model.query_dim // tp, model.kv_dim * copies // tp
    out_bias = model.biases or model.attention_biases
    in_bias = out_bias or model.qkv_biases
    found = [*_norm(model, "attention_norm")]
    found += [Parameter("attention.sinks", (model.num_heads // tp,), True)] if model.attention_sinks else []
    if model.latent is None:
        found += _linear("attention.qkv", (query + 2 * key, hidden), in_bias, bias_is_cut=True, num_copied=2 * key if copies > 1 else 0)
        found += [Parameter(f"attention.{name}.weight", (model.head_dim,), False) for name in ("q_norm", "k_norm") if model.qk_norm]
    else:
        found += _latent(model, model.latent, tp)
    found += _linear("attention.o", (hidden, model.value_dim // tp), out_bias, bias_is_cut=False)
    found += _norm(model, "mlp_norm")
    found += _mlp(model, "mlp", model.ffn_hidden // tp) if experts is None else _experts(model, experts, layout)
    return tuple(found)


def _mlp(model: Model, name: str, inner: int) -> Iterator[Parameter]:
    first, width = (f"{name}.gate_up", 2 * inner) if model.gated else (f"{name}.up", inner)
    yield from _linear(first, (width, model.hidden), model.biases, bias_is_cut=True)
    yield from _linear(f"{name}.down", (model.hidden, inner), model.biases, bias_is_cut=False)


def _experts(model: Model, experts: Experts, layout: Layout) -> Iterator[Parameter]:
    """The router, which is whole on every rank, a rank's part of the routed experts, and the shared experts as one MLP."""
    yield Parameter("mlp.router.weight", (experts.num_experts, model.hidden), False)
    if experts.router.has_bias:
        yield Parameter("mlp.router.bias", (experts.num_experts,), False)
    num_held = experts.num_experts // layout.ep
    width = experts.hidden // layout.etp
    shapes = (("gate_up", 2 * width, model.hidden, 2 * width), ("down", model.hidden, width, model.hidden // layout.etp))
    for name, rows, columns, biases in shapes:
        yield Parameter(f"mlp.experts.{name}.weight", (num_held * rows, columns), True, is_product=True, is_routed=True)
        if model.biases:
            yield Parameter(f"mlp.experts.{name}.bias", (num_held * biases,), True, is_routed=True)
    if experts.num_shared:
        yield from _mlp(model, "mlp.shared", experts.num_shared * experts.hidden // layout.tp)


def _latent(model: Model, latent: LatentAttention, tp: int) -> Iterator[Parameter]:
    """The products down to latent vectors, which are whole on every rank, their norms, and the products up to this rank's heads."""
    hidden, rank = model.hidden, latent.query_rank
    if rank:
        yield Parameter("attention.q_down.weight", (rank, hidden), False, is_product=True)
        yield Parameter("attention.q_down_norm.weight", (rank,), False)
    yield Parameter(f"attention.{'q_up' if rank else 'q'}.weight", (model.query_dim // tp, rank or hidden), True, is_product=True)
    yield Parameter("attention.kv_down.weight", (latent.key_value_rank + latent.rope_dim, hidden), False, is_product=True)
    yield Parameter("attention.kv_down_norm.weight", (latent.key_value_rank,), False)
    up = model.num_heads * (latent.nope_dim + latent.value_dim) // tp
    yield Parameter("attention.kv_up.weight", (up, latent.key_value_rank), True, is_product=True)


def _norm(model: Model, name: str) -> list[Parameter]:
    return [Parameter(f"{name}.{kind}", (model.hidden,), False) for kind in (("weight", "bias") if model.layer_norm else ("weight",))]


def _linear(name: str, shape: tuple[int, int], has_bias: bool, *, bias_is_cut: bool, num_copied: int = 0) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", shape, True, is_product=True, num_copied=num_copied)
    return [weight, Parameter(f"{name}.bias", shape[:1], bias_is_cut, num_copied=num_copied)] if has_bias else [weight]


def _embedding(model: Model, tp: int) -> tuple[Parameter, ...]:
    table = Parameter("embed.weight", (model.vocab_rows(tp), model.hidden), True)
    return (table, Parameter("embed.positions", (model.num_positions, model.hidden), False)) if model.num_positions else (table,)


def _head(model: Model, tp: int, *, with_table: bool) -> tuple[Parameter, ...]:
    table = [Parameter("head.weight", (model.vocab_rows(tp), model.hidden), True)] if with_table else []
    return (*table, *_norm(model, "head.norm"))


def gathered_units(chunk: Chunk, model: Model) -> list[tuple[Parameter, ...]]:
    """What is gathered at once: a layer, its routed experts, an end of the model.

    Both ends are gathered together in a chunk that has both and reads a table at two times: a tied one, or for multi-token prediction.
    """
    units = [tuple(p for p in unit if p.is_routed is routed) for unit in chunk.units for routed in (False, True)]
    found = [unit for unit in units if unit]
    return [*found[1:-1], found[0] + found[-1]] if model.ends_share_table and chunk.is_first and chunk.is_last else found


def buckets(parameters: Sequence[Parameter], most: int, *, shared: bool) -> Iterator[list[Parameter]]:
    """Parameters that are sent together, about `most` elements, in the order in which gradients are computed.

    A bucket holds one kind: matrices or vectors (weight decay), split over tensor ranks or not, of routed experts or not, postponed by a
    zero-bubble schedule or not. Tables that the first and the last stage both hold (`shared`) have their own, so that both divide them
    in the same way.
    """
    kinds: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in reversed(parameters):
        alone = parameter.name if shared and parameter.name in TABLES else ""
        kinds.setdefault((alone, len(parameter.shape) > 1, parameter.is_cut, parameter.is_routed, parameter.is_product), []).append(
            parameter
        )
    for of_kind in kinds.values():
        held: list[Parameter] = []
        for parameter in of_kind:
            held.append(parameter)
            if sum(p.size for p in held) >= most:
                yield held
                held = []
        if held:
            yield held
