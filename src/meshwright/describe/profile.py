"""A hardware profile: the times measured on one machine, with date and device; written by `meshwright measure`, used to price a step.

Seconds are those of one process while all processes that share the machine work. Nothing in it is fitted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.describe.bounds import MOST, MOST_REAL, check_numbers
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.describe.products import adapted_matrices
from meshwright.describe.workload import FEW_BITS, Adapters
from meshwright.errors import InputError, argument
from meshwright.files import read_text

KIND = "meshwright hardware profile"
POSITIVE = (  # of a slice
    *("hidden", "ffn_hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "micro_batch", "seq_len", "num_layers"),
    *("steps_s", "layer_s", "ends_s", "updates_s", "num_parameters"),
)
VERSION = 1
FILE_NAME = "profile.json"
SIDES = ("hidden", "ffn_hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size")  # of a model's layers and ends
WAYS = ("forward", "input", "weight")  # a product, the gradient of its input, the gradient of its weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """Seconds of one matrix product of `rows` tokens with a weight of `columns` x `inner`, or of one of its gradients."""

    number_format: str  # fp32, bf16, fp8
    way: str  # of WAYS
    rows: int
    columns: int
    inner: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedTime:
    """Seconds of a grouped product: `rows` visits of tokens in all, each with the matrix `columns` x `inner` of one of the experts."""

    number_format: str
    way: str  # of WAYS
    num_groups: int  # experts
    rows: int
    columns: int
    inner: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeTime:
    """Seconds in which a frozen matrix in few bits is made again for a product."""

    base: str  # fp8, nf4
    number_format: str  # in which it is multiplied
    rows: int
    columns: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Seconds of causal attention as the trainer calls it; latent heads are all as wide as the wider of keys and values."""

    number_format: str
    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    seq_len: int
    forward_s: float
    backward_s: float
    kernel: str = ""  # package and version; nothing: torch's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The trainer's own step on a few layers of a model, timed at two numbers of layers: the cost of a layer, and of the rest."""

    model: str
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    precision: str  # the recipe that was run
    number_format: str
    packed: bool
    recompute: str
    micro_batch: int
    seq_len: int
    num_layers: tuple[int, int]
    steps_s: tuple[float, float]  # forward and backward at each number of layers, median
    layer_s: float  # forward and backward of one layer
    ends_s: float  # of the part that does not depend on the number of layers: embedding, loss, waiting for the host
    num_parameters: tuple[int, int]
    updates_s: tuple[float, float]  # the optimizer's part of a step, at each number of layers
    state_bytes_per_parameter: float  # what stays between steps; 0 where memory is not counted
    layer_saved_bytes: float  # what a layer leaves for its backward; 0 where memory is not counted
    ends_bytes: float  # at the loss, beside what stays and what the layers leave
    gated: bool = True  # whether the MLP multiplies two products
    latent: LatentAttention | None = None
    experts: Experts | None = None  # of every layer: leading dense layers are left out
    adapters: Adapters | None = None  # beside a frozen base; parameters and states are then those that are trained; None: all are
    work_bytes: float = 0.0  # in the backward of a layer, beside gradients and what layers left; 0: not known
    layer_state_bytes: float = 0.0  # what stays of a layer between steps, frozen weights included; 0: not known
    ends_state_bytes: float = 0.0  # and of the rest
    tp: int = 1  # ranks that the layers were cut over; seconds are then those of exchanges too
    pp: int = 1  # ranks that the layers were dealt out to: seconds of a micro-batch, of all stages together

    @property
    def like(self) -> Model:
        """A model with such layers and ends."""
        return _like(self, latent=self.latent, experts=self.experts)

    @property
    def rows(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.seq_len

    def update_s(self, num_parameters: Any) -> Any:
        """Seconds of the optimizer on so many parameters: on the line through both, or in proportion where that does not rise."""
        (few, many), (few_s, many_s) = self.num_parameters, self.updates_s
        in_proportion = many_s * num_parameters / many
        if not (few_s < many_s and few < many):
            return in_proportion
        on_line = few_s + (many_s - few_s) * (num_parameters - few) / (many - few)
        return np.where(on_line < in_proportion / 2, in_proportion, on_line)  # far below what was timed a line may end below nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Seconds of a collective, all processes of the machine taking part in groups of `num_ranks`."""

    kind: str  # all-gather, reduce-scatter, all-reduce, message
    num_ranks: int
    payload_bytes: int  # of the whole
    seconds: float
    members: tuple[int, ...] = ()  # of a group in one domain of each tier, from the inside out; empty: all in one machine
    core_s: float = 0.0  # between hosts: of these seconds, those of a core's work in each process; 0: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTimed:
    """A tier between whose domains collectives were timed, as the cluster described it then."""

    name: str
    num_accelerators: int  # in one domain
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChunk:
    """Layers of one rank of a larger plan, rehearsed: seconds of one micro-batch, forward and backward, without communication."""

    model: str
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated: bool
    precision: str  # the recipe that was run
    number_format: str
    recompute: str
    tp: int
    cp: int
    micro_batch: int
    seq_len: int
    num_layers: int
    chunk_s: float
    has_loss: bool  # whether the seconds are those of head and loss as well

    @property
    def like(self) -> Model:
        """A model with such layers and ends."""
        return _like(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All measurements of one machine."""

    date: str
    device: str
    device_type: str  # cuda or cpu
    torch: str
    num_processes: int  # at work at once
    num_cores: int  # that they share; 0: each has a device of its own
    measured_s: float  # how long it took
    launch_s: float  # of one kernel of no work, back to back
    copy_bytes_per_s: float
    norm_bytes_per_s: float
    activation_bytes_per_s: float
    loss_bytes_per_s: float
    optimizer_bytes_per_s: float
    products: tuple[ProductTime, ...] = ()
    grouped: tuple[GroupedTime, ...] = ()  # products of experts
    made: tuple[MadeTime, ...] = ()  # weights of frozen bases in few bits
    attentions: tuple[AttentionTime, ...] = ()
    slices: tuple[Slice, ...] = ()
    shared_slices: tuple[Slice, ...] = ()  # of several ranks each, cut or dealt out, where processes share cores
    collectives: tuple[CollectiveTime, ...] = ()
    rank_chunks: tuple[RankChunk, ...] = ()  # of ranks of larger plans, by `meshwright rehearse`
    left_out: tuple[str, ...] = ()  # what was asked for and not timed, and why
    tiers: tuple[TierTimed, ...] = ()  # of the cluster between whose hosts collectives were timed, from the inside out; empty: of none

    @property
    def on_one_machine(self) -> tuple[CollectiveTime, ...]:
        """Collectives between processes that all reach each other through memory."""
        return tuple(one for one in self.collectives if not one.members)

    @property
    def between_hosts(self) -> tuple[CollectiveTime, ...]:
        """Collectives of groups that were placed on the hosts of a cluster."""
        return tuple(one for one in self.collectives if one.members)

    @property
    def shares_cores(self) -> bool:
        """Whether the processes share the same cores."""
        return self.num_cores > 0

    @property
    def words(self) -> str:
        """Where and when, in words."""
        together = f", {self.num_processes} processes on {self.num_cores} cores" if self.shares_cores else ""
        return f"profile of {self.device}{together}, {self.date}"

    def slices_of(self, model: Model, number_format: str, precision: str = "", adapters: Adapters | None = None) -> list[Slice]:
        """Slices of a model's shape in a number format; of several recipes, those of `precision` where there are any.

        Beside adapters, slices with such adapters where there are any; else, as without adapters, those in which all weights were trained.
        """
        alike = _slices_of(self.slices, model, number_format)
        whole = [cut for cut in alike if cut.adapters is None]
        tuned = [cut for cut in alike if adapters and cut.adapters and kind_of(model, cut.adapters) == kind_of(model, adapters)]
        return _of_recipe(tuned or whole, precision)

    def rank_chunks_of(self, model: Model, number_format: str) -> list[RankChunk]:
        """Rehearsed chunks of a model's shape in a number format."""
        return [one for one in self.rank_chunks if shape_of(one.like) == shape_of(model) and one.number_format == number_format]

    def shared_slices_of(self, model: Model, number_format: str, precision: str = "") -> list[Slice]:
        """The same of slices that several ranks made together."""
        return _of_recipe(_slices_of(self.shared_slices, model, number_format), precision)


def _slices_of(slices: Sequence[Slice], model: Model, number_format: str) -> list[Slice]:
    return [s for s in slices if shape_of(s.like) == shape_of(model) and s.number_format == number_format]


def _of_recipe(slices: list[Slice], precision: str) -> list[Slice]:
    return [s for s in slices if s.precision == precision] or slices


def shape_of(model: Model) -> tuple[object, ...]:
    """What of a model decides the cost of a layer and of its ends."""
    latent, experts = model.latent, model.experts
    return (
        *(getattr(model, side) for side in SIDES),
        latent and (latent.query_rank, latent.key_value_rank, latent.nope_dim, latent.rope_dim, latent.value_dim),
        experts and (experts.num_experts, experts.num_active, experts.hidden, experts.num_shared),
    )


def kind_of(model: Model, adapters: Adapters) -> tuple[object, ...]:
    """What of adapters decides the cost of a layer of a model."""
    return adapters.rank, adapted_matrices(model, adapters), adapters.dropout > 0, adapters.base


def _like(cut: Slice | RankChunk, latent: LatentAttention | None = None, experts: Experts | None = None) -> Model:
    sides = {side: getattr(cut, side) for side in SIDES}
    return Model(name=cut.model, num_layers=1, **sides, gated=cut.gated, latent=latent, experts=experts)


def profile_text(profile: Profile) -> str:
    """The profile as its file holds it."""
    return json.dumps({"kind": KIND, "version": VERSION, **asdict(profile)}, indent=1) + "\n"


def load_profile(path: Path) -> Profile:
    """The profile in a file."""
    try:
        data = json.loads(read_text(path))
    except OSError as error:
        raise InputError(f"cannot read the hardware profile: {error.strerror or error}", where=str(path), fix=_FIX) from None
    except (ValueError, RecursionError):
        raise InputError("this is not a hardware profile: it is not JSON", where=str(path), fix=_FIX) from None
    return read_profile(data, str(path))


_FIX = "make one with `meshwright measure --out FILE`"


def read_profile(data: Any, where: str) -> Profile:
    """A profile from its JSON form, checked."""
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(data, dict) or data.get("kind") != KIND:
        other = f"; a software profile goes with {argument('software')}" if isinstance(data, dict) and "log_factor" in data else ""
        raise InputError(f"this is not a hardware profile{other}", where=where, fix=_FIX)
    if data.get("version") != VERSION:
        raise InputError(f"a hardware profile of version {data.get('version')!r}; this release reads {VERSION}", where=where, fix=_FIX)
    values = {key: value for key, value in data.items() if key not in ("kind", "version")}
    unknown = sorted(set(values) - {f.name for f in fields(Profile)})
    if unknown:
        raise InputError(f"a hardware profile has no {unknown[0]!r}", where=where, fix=_FIX)
    try:
        profile = TypeAdapter(Profile).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}", where=where, fix=_FIX) from None
    _check(profile, where)
    return profile


def _check(profile: Profile, where: str) -> None:
    """Raise where a time or a rate is not a positive number."""
    if profile.device_type not in ("cuda", "cpu"):
        raise InputError(f"device_type is {profile.device_type!r}", where=where, fix="cuda or cpu")
    wanted: dict[str, float] = {f.name: getattr(profile, f.name) for f in fields(Profile) if f.name.endswith("_per_s")}
    wanted["launch_s"], wanted["num_processes"] = profile.launch_s, profile.num_processes
    for name in ("products", "grouped", "made", "attentions", "collectives"):
        for i, entry in enumerate(getattr(profile, name)):
            wanted.update({f"{name}[{i}].{key}": value for key, value in asdict(entry).items() if isinstance(value, int | float)})
    for i, chunk in enumerate(profile.rank_chunks):
        numbers = {key: value for key, value in asdict(chunk).items() if isinstance(value, int | float) and not isinstance(value, bool)}
        wanted.update({f"rank_chunks[{i}].{key}": value for key, value in numbers.items()})
    for name in ("slices", "shared_slices"):
        for i, cut in enumerate(getattr(profile, name)):
            for key in POSITIVE:
                value = getattr(cut, key)
                several = {f".{key}[{j}]": one for j, one in enumerate(value)} if isinstance(value, tuple) else {f".{key}": value}
                wanted.update({f"{name}[{i}]{place}": one for place, one in several.items()})
            if min(cut.tp, cut.pp) < 1 or (cut.tp > 1) + (cut.pp > 1) != (name == "shared_slices"):
                fix = "both 1 in slices; one of them more in shared_slices"
                raise InputError(f"{name}[{i}] has tp={cut.tp} and pp={cut.pp}", where=where, fix=fix)
            _check_slice(cut, f"{name}[{i}]", where)
    for i, made in enumerate(profile.made):
        if made.base not in FEW_BITS:
            raise InputError(f"made[{i}].base is {made.base!r}", where=where, fix=f"one of {', '.join(FEW_BITS)}")
    wanted.update({f"tiers[{i}].bytes_per_s": tier.bytes_per_s for i, tier in enumerate(profile.tiers)})
    for i, one in enumerate(profile.collectives):
        if one.num_ranks < 2:
            raise InputError(f"collectives[{i}] is of {one.num_ranks} rank", where=where, fix="a collective has two ranks or more")
        is_placed = len(one.members) == len(profile.tiers) and one.members[-1:] == (one.num_ranks,) and min(one.members, default=1) >= 1
        if one.members and not is_placed:
            fix = f"one number for each of the {len(profile.tiers)} tiers, from 1 to num_ranks"
            raise InputError(f"collectives[{i}] has members={list(one.members)}", where=where, fix=fix)
        wanted.pop(f"collectives[{i}].core_s", None)
        if not 0 <= one.core_s <= MOST_REAL:
            raise InputError(f"collectives[{i}].core_s is {one.core_s!r}, which is no number of seconds", where=where, fix=_FIX)
    for name, value in wanted.items():
        if not 0 < value <= MOST_REAL:
            raise InputError(f"{name} is {value!r}, which is not a positive number", where=where, fix=_FIX)
    check_numbers(profile, where)
    _check_models(profile, where)


def _check_slice(cut: Slice, name: str, where: str) -> None:
    """Raise where a slice has no numbers of layers to compare, or more tokens than can be counted."""
    if cut.num_layers[0] >= cut.num_layers[1]:
        raise InputError(f"{name}.num_layers is {list(cut.num_layers)}", where=where, fix="two numbers, the smaller one first")
    if cut.micro_batch * cut.seq_len > MOST:
        what = f"{name} has {cut.micro_batch:,} sequences of {cut.seq_len:,} tokens, more than can be counted"
        raise InputError(what, where=where, fix=_FIX)


def _check_models(profile: Profile, where: str) -> None:
    """Raise where a slice or a rehearsed rank is of layers that no model can have."""
    for name in ("slices", "shared_slices", "rank_chunks"):
        for i, cut in enumerate(getattr(profile, name)):
            try:
                _ = cut.like
            except InputError as error:
                raise InputError(f"{name}[{i}]: {error.what}", where=where, fix=_FIX) from None


def cache_folder() -> Path:
    """The folder of this user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"


def usual_path(cluster: str = "") -> Path:
    """Where `meshwright measure` writes by default; with the tiers of a cluster, under its name."""
    return cache_folder() / (f"profile-{cluster}.json" if cluster else FILE_NAME)
