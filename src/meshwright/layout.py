"""A parallel layout: its degrees, the order of its ranks, how the work is divided, and which communication is overlapped.

`Layout` is one layout; `Layouts` holds many of them as columns, so that one call prices them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.arguments import check_type, check_types, typed
from meshwright.errors import InputError, argument, nearest

AXES = ("tp", "cp", "pp", "dp")  # ep and etp are laid over dp, cp and tp: they take no ranks of their own
# Parts of a layer whose activations may be dropped or shrunk on their own, as Megatron-core names them: attention's inner part (its
# core_attn); norms' outputs; the MLP's inputs to its activation function kept in fp8; what the experts' activation function makes; the up
# projections of latent attention; half of the layers' activations moved to the host's memory; the dense MLP.
RECOMPUTE_PARTS = ("selective", "layernorm", "act_fp8", "moe_act", "mla_up_proj", "offload", "mlp")
_SETS = ["+".join(part for i, part in enumerate(RECOMPUTE_PARTS) if mask >> i & 1) for mask in range(1, 2 ** len(RECOMPUTE_PARTS))]
OPS = "ops"  # torchtitan's selective: attention's output and every second product's are kept, all else is computed again
USUAL_RECOMPUTE = ("none", "selective", "full")  # what a search tries where nothing else is asked for
RECOMPUTE = (*USUAL_RECOMPUTE, OPS, *(kind for kind in _SETS if kind not in USUAL_RECOMPUTE))
SCHEDULES = ("1f1b", "interleaved", "zero-bubble")
CP_KINDS = ("ring", "all-gather", "all-to-all")

LARGEST = 10**9  # of any count in a layout: products of two of them stay within an int64 column
_DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch")
_OPTIONAL = ("zero_ranks", "first_stage_layers", "last_stage_layers")  # 0: not stated
_UNSEARCHED = (
    "etp",
    "zero_ranks",
    "overlap_pp",
    "overlap_dp",
    "first_stage_layers",
    "last_stage_layers",
)  # the same whoever fills in the others
_SHORT = {"mbs": "micro_batch", "zero": "zero_stage"}
SHORT_NAMES = {field: short for short, field in _SHORT.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to spread a training step over accelerators.

    Args:
        tp: Ranks of a tensor-parallel group.
        cp: Ranks of a context-parallel group.
        pp: Pipeline stages.
        vp: Chunks of layers on a stage (interleaved pipeline).
        dp: Replicas.
        ep: Ranks of an expert-parallel group. They are ranks of dp, cp and tp, so ep does not add accelerators.
        etp: Ranks that divide the matrices of each expert. They are ranks of dp, cp and tp too, ep x etp of them together.
        micro_batch: Sequences of one micro-batch.
        zero_stage: What replicas divide among them: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights.
        zero_ranks: Ranks (of dp x cp) that share one copy of what is divided; 0: all of them.
        recompute: What the backward pass computes again: `none`, `selective` (attention), `full`, or parts of a layer joined by `+`.
        schedule: Pipeline schedule: `1f1b`, `interleaved` or `zero-bubble`. With `vp=1`, `interleaved` is the same as `1f1b`.
        cp_kind: Kind of context parallelism: `ring`, `all-gather` or `all-to-all`.
        order: The axes, from the one with neighbouring ranks to the one with the most distant ranks.
        overlap_tp: Whether tensor-parallel communication is overlapped with matrix products.
        overlap_pp: Whether messages between pipeline stages are overlapped with compute.
        overlap_dp: Whether communication between replicas is overlapped with compute.
        cuda_graphs: Whether layers are captured in CUDA graphs.
        first_stage_layers: Layers on the first pipeline stage; 0: an even share, or the model's own split.
        last_stage_layers: Layers on the last pipeline stage; 0: the same.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vp: int = 1  # chunks on a stage (interleaving)
    dp: int = 1
    ep: int = 1
    etp: int = 1  # each expert's matrices, whatever tp is
    micro_batch: int = 1  # sequences
    zero_stage: int = 1  # 0: everything replicated; 1: optimizer (the distributed optimizer); 2: + gradients; 3: + weights
    zero_ranks: int = 0  # ranks (of dp x cp) that share one copy of what is sharded; other groups have their own copy; 0: all
    recompute: str = "none"
    schedule: str = "interleaved"  # with vp=1 the same as 1f1b
    cp_kind: str = "ring"
    order: tuple[str, ...] = AXES  # innermost axis first
    overlap_tp: bool = False
    overlap_pp: bool = True
    overlap_dp: bool = True
    cuda_graphs: bool = True
    first_stage_layers: int = 0  # 0: an even share, or the model's own split
    last_stage_layers: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "recompute", _in_order(self.recompute))
        for key, least in (*((key, 1) for key in _DEGREES), *((key, 0) for key in _OPTIONAL)):
            value = getattr(self, key)
            if value < least:
                raise InputError(f"{SHORT_NAMES.get(key, key)} is {value}", where=f"layout.{key}", fix=f"give {least} or more")
            if value > LARGEST:
                raise InputError(f"{SHORT_NAMES.get(key, key)} is {value}", where=f"layout.{key}", fix=f"give at most {LARGEST:,}")
        if self.zero_stage not in (0, 1, 2, 3):
            raise InputError(f"ZeRO stage {self.zero_stage} does not exist", where="layout.zero", fix="choose 0, 1, 2 or 3")
        if self.zero_ranks and (self.dp * self.cp) % self.zero_ranks:
            raise InputError(
                f"{self.zero_ranks} ranks cannot share a state evenly among dp x cp = {self.dp * self.cp} replicas",
                where="layout.zero_ranks",
                fix=f"choose a divisor of {self.dp * self.cp}, or 0 for all of them",
            )
        for key, choices in (("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("cp_kind", CP_KINDS)):
            if getattr(self, key) not in choices:
                value = getattr(self, key)
                raise InputError(f"no {key} named {value!r}", where=f"layout.{key}", fix=_named_choices(key, choices))
        if sorted(self.order) != sorted(AXES):
            raise InputError(
                f"rank order {'-'.join(self.order)} must name each of {', '.join(AXES)} once",
                where="layout.order",
                fix="for example order=tp-cp-pp-dp (innermost first)",
            )
        if self.vp > 1 and self.pp == 1:
            raise InputError(f"vp={self.vp} model chunks need a pipeline, and pp is 1", where="layout.vp", fix="use vp=1, or pp > 1")
        ranks = self.dp * self.cp * self.tp
        if ranks % self.ep:
            raise InputError(
                f"expert degree {self.ep} does not divide dp x cp x tp = {ranks}",
                where="layout.ep",
                fix=f"choose ep from the divisors of {ranks}",
            )
        if ranks % self.expert_ranks:
            raise InputError(
                f"ep={self.ep} x etp={self.etp} = {self.expert_ranks} does not divide dp x cp x tp = {ranks}",
                where="layout.etp",
                fix=f"choose etp from the divisors of {ranks // self.ep}, or another ep",
            )

    @property
    def sharing_ranks(self) -> int:
        """Replicas that share one copy of what ZeRO shards."""
        return self.zero_ranks or self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks that together hold the experts of a layer once."""
        return self.ep * self.etp

    @property
    def is_zero_bubble(self) -> bool:
        """Whether the pipeline postpones weight gradients. Without a pipeline all schedules are the same."""
        return self.schedule == "zero-bubble" and self.pp > 1

    @typed
    def has_part(self, part: str) -> bool:
        """Whether a part of a layer is recomputed, kept in fp8 or moved to the host on its own."""
        return part in self.recompute.split("+")

    @property
    def num_ranks(self) -> int:
        """Number of accelerators that the layout uses."""
        return self.tp * self.cp * self.pp * self.dp

    @typed
    def num_micro_batches(self, global_batch: int) -> int:
        """Number of micro-batches that each replica runs in a step."""
        per_round = self.dp * self.micro_batch
        if global_batch < 1:
            raise InputError(f"a step of {global_batch} sequences is none", where="global_batch", fix="give 1 or more")
        if global_batch % per_round:
            raise InputError(
                f"dp={self.dp} x mbs={self.micro_batch} = {per_round} does not divide the global batch {global_batch}",
                where="layout.dp",
                fix=f"choose dp x mbs from the divisors of {global_batch}: {_divisors_near(global_batch, per_round)}",
            )
        return global_batch // per_round

    def stride(self, axis: str) -> int:
        """Ranks between two neighbours on `axis`."""
        if not isinstance(axis, str) or axis not in AXES:
            raise InputError(f"no axis is named {axis!r}", where="Layout.stride: axis", fix=f"choose from {', '.join(AXES)}")
        inner = self.order[: self.order.index(axis)]
        return math.prod(getattr(self, a) for a in inner)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Position of `rank` on every axis."""
        check_type("rank", rank, int, "Layout.coordinate")
        return {axis: rank // self.stride(axis) % getattr(self, axis) for axis in AXES}

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank at a position: the inverse of `coordinate`."""
        check_type("coordinate", coordinate, Mapping, "Layout.rank")
        for axis in AXES:
            check_type(axis, coordinate.get(axis), int, "Layout.rank: coordinate")
        return sum(coordinate[axis] * self.stride(axis) for axis in AXES)

    def __str__(self) -> str:
        """The whole layout as `--layout` reads it: `parse_layout` gives the same layout back, for any machine and job.

        Only two things are left out: defaults that no search replaces, and the schedule or the kind of context parallelism if the layout
        has no such axis. If the text changes another layout (`train PLAN --layout`), that layout's values are kept for what is left out.
        """
        unstated = {"schedule": self.pp == 1, "cp_kind": self.cp == 1, **dict.fromkeys(_UNSEARCHED, True)}
        stated = [f for f in fields(self) if not (unstated.get(f.name) and getattr(self, f.name) == f.default)]
        return ",".join(f"{SHORT_NAMES.get(f.name, f.name)}={value_text(getattr(self, f.name))}" for f in stated)

    @property
    def degrees(self) -> str:
        """The numbers of the layout only, for places with little room. This text is not the whole layout."""
        parts = [f"tp={self.tp}", f"cp={self.cp}", f"pp={self.pp}", f"vp={self.vp}", f"dp={self.dp}"]
        if self.ep > 1:
            parts.append(f"ep={self.ep}")
        if self.etp > 1:
            parts.append(f"etp={self.etp}")
        parts.append(f"mbs={self.micro_batch}")
        if self.zero_stage != 1:
            parts.append(f"zero={self.zero_stage}")
        if self.zero_ranks:
            parts.append(f"zero_ranks={self.zero_ranks}")
        if self.recompute != "none":
            parts.append(f"recompute={self.recompute}")
        return ",".join(parts)


def _in_order(recompute: str) -> str:
    """Parts joined by `+` in the one order that names them."""
    parts = recompute.split("+")
    return "+".join(sorted(parts, key=RECOMPUTE_PARTS.index)) if set(parts) <= set(RECOMPUTE_PARTS) else recompute


def _named_choices(key: str, choices: Sequence[str]) -> str:
    if key != "recompute":
        return f"choose from {', '.join(choices)}"
    return f"choose from {', '.join(USUAL_RECOMPUTE)}, {OPS}, or parts of a layer joined by +: {', '.join(RECOMPUTE_PARTS)}"


def value_text(value: object) -> str:
    """The value of a field, as `--layout` accepts it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(value) if isinstance(value, tuple) else str(value)


def _divisors_near(number: int, wanted: int, count: int = 6) -> str:
    small = [d for d in range(1, min(math.isqrt(number), 10**6) + 1) if number % d == 0]
    divisors = {*small, *(number // d for d in small)}
    close = sorted(divisors, key=lambda d: abs(math.log(d) - math.log(wanted)))[:count]
    return ", ".join(str(d) for d in sorted(close))


def parse_layout(text: str, base: Layout | None = None) -> Layout:
    """The layout `base` with the choices that a text such as `tp=4,cp=2` names."""
    return replace(base or Layout(), **read_choices(text))


def read_choices(text: str) -> dict[str, Any]:
    """The values in a text such as `tp=4,cp=2`, by the names of the fields of a layout."""
    known = {f.name: f for f in fields(Layout)}
    names = {**{k: k for k in known}, **_SHORT}
    changes: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if key not in names:
            raise InputError(f"cannot read {item!r} in the layout", where=argument("layout"), fix=f"write KEY=VALUE; {nearest(key, names)}")
        field_name = names[key]
        if not equals:
            example = value_text(known[field_name].default) if key not in AXES else "2"
            raise InputError(f"{key} has no value in the layout", where=argument("layout", text), fix=f"write {key}={example}, for example")
        if field_name in changes:
            raise InputError(f"{key} is given twice", where=argument("layout", text), fix=f"keep one {key}=")
        changes[field_name] = _read_value(field_name, value.strip(), known[field_name].default)
    return changes


def _read_value(key: str, value: str, default: object) -> object:
    if isinstance(default, bool):
        words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
        if value.lower() not in words:
            raise InputError(f"{key} is {value!r}, not yes or no", where=f"layout.{key}", fix="write yes or no")
        return words[value.lower()]
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise InputError(f"{key} is {value!r}, not a whole number", where=f"layout.{key}", fix=f"write {key}=4, for example") from None
    if isinstance(default, tuple):
        return tuple(value.split("-"))
    return value


IntColumn = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts as columns of equal length; a row is one layout. Choices by name are stored as their index."""

    tp: IntColumn
    cp: IntColumn
    pp: IntColumn
    vp: IntColumn
    dp: IntColumn
    ep: IntColumn
    etp: IntColumn
    micro_batch: IntColumn
    zero_stage: IntColumn
    zero_ranks: IntColumn
    recompute: IntColumn  # index into RECOMPUTE
    schedule: IntColumn  # index into SCHEDULES
    cp_kind: IntColumn  # index into CP_KINDS
    order: IntColumn  # index into ORDERS
    overlap_tp: IntColumn
    overlap_pp: IntColumn
    overlap_dp: IntColumn
    cuda_graphs: IntColumn
    first_stage_layers: IntColumn
    last_stage_layers: IntColumn

    def __len__(self) -> int:
        return len(self.tp)

    @staticmethod
    def of(layouts: Iterable[Layout]) -> Layouts:
        """Columns of the given layouts, in their order."""
        rows = list(layouts)
        columns = {f.name: np.array([_code(f.name, getattr(layout, f.name)) for layout in rows], dtype=np.int64) for f in fields(Layout)}
        return Layouts(**columns)

    def row(self, index: int) -> Layout:
        """One row as a layout."""
        values = {f.name: _decode(f.name, int(getattr(self, f.name)[index])) for f in fields(Layout)}
        return Layout(**values)

    def take(self, rows: NDArray[Any] | Sequence[int]) -> Layouts:
        """The rows that an index or mask picks."""
        return Layouts(**{f.name: getattr(self, f.name)[rows] for f in fields(Layout)})

    @property
    def sharing_ranks(self) -> IntColumn:
        """Replicas that share one copy of what ZeRO shards, for every row."""
        return np.where(self.zero_ranks > 0, self.zero_ranks, self.dp * self.cp)

    @property
    def expert_ranks(self) -> IntColumn:
        """Ranks that together hold the experts of a layer once, for every row."""
        return self.ep * self.etp

    @property
    def is_zero_bubble(self) -> NDArray[np.bool_]:
        """Whether the pipeline postpones weight gradients, for every row."""
        return np.asarray((self.schedule == SCHEDULES.index("zero-bubble")) & (self.pp > 1))

    def recomputes(self, part: str) -> NDArray[np.bool_]:
        """Whether the backward pass computes a part of a layer again (or the forward keeps it in fp8) on its own, for every row."""
        return np.asarray(_HAS_PART[part][self.recompute])

    @property
    def recomputes_all(self) -> NDArray[np.bool_]:
        """Whether the backward pass computes whole layers again, for every row."""
        return np.asarray(self.recompute == RECOMPUTE.index("full"))

    def stride(self, axis: str) -> IntColumn:
        """Ranks between two neighbours on `axis`, for every row."""
        result = np.ones(len(self), dtype=np.int64)
        for other in AXES:
            if other != axis:
                result *= np.where(_IS_INSIDE[other, axis][self.order], getattr(self, other), 1)
        return result


def _permutations(items: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    if len(items) < 2:
        return (items,)
    return tuple((head, *rest) for head in items for rest in _permutations(tuple(i for i in items if i != head)))


ORDERS = _permutations(AXES)
_HAS_PART = {part: np.array([part in kind.split("+") for kind in RECOMPUTE]) for part in (*RECOMPUTE_PARTS, OPS)}
_IS_INSIDE = {  # by order: whether the first axis varies faster than the second
    (one, other): np.array([order.index(one) < order.index(other) for order in ORDERS]) for one in AXES for other in AXES
}
_CHOICES: Mapping[str, Sequence[Any]] = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "cp_kind": CP_KINDS, "order": ORDERS}
_FLAGS = ("overlap_tp", "overlap_pp", "overlap_dp", "cuda_graphs")


def _code(key: str, value: Any) -> int:
    return _CHOICES[key].index(value) if key in _CHOICES else int(value)


def _decode(key: str, code: int) -> Any:
    if key in _CHOICES:
        return _CHOICES[key][code]
    return bool(code) if key in _FLAGS else code
