"""The options of `meshwright tune`. The run's header keeps them, so that `tune --resume` needs only the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.describe.model import Model
from meshwright.describe.products import adaptable
from meshwright.describe.workload import BASES, Adapters
from meshwright.errors import InputError, nearest
from meshwright.record.header import read_header

if TYPE_CHECKING:
    from meshwright.cli.train_arguments import Wishes

KEPT = "tune_"  # what their names begin with in the arguments of a run's header
USUAL_LORA = "r=16,alpha=32,targets=all-linear"
KEYS = ("r", "alpha", "targets", "dropout", "rslora")
PATHS = ("adapter", "valid")
MOST_EPOCHS = 1_000_000
YES = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the command line asks for besides what every run has; paths are texts, as the header keeps them."""

    lora: str = ""
    full: bool = False
    base: str = "bf16"
    adapter: str = ""
    pack: bool = False
    loss: str = "assistant"
    seq_len: int | None = None
    too_long: str = "cut"
    valid: str = ""
    valid_share: float = 0.05
    batch: int | None = None
    epochs: float = 3.0
    learning_rate: float | None = None
    precision: str = ""
    answers: int | None = None  # None: as is usual for the data

    def __post_init__(self) -> None:
        if self.full and (self.lora or self.adapter or self.base != "bf16"):
            raise InputError(
                "--full trains all weights, and --lora, --adapter and --base are for adapters", where="--full", fix="give one of them"
            )
        if self.base not in BASES:
            raise InputError(f"a base is not kept in {self.base!r}", where="--base", fix=f"choose from {', '.join(BASES)}")
        if not 0 < self.epochs <= MOST_EPOCHS:
            raise InputError(f"{self.epochs:g} epochs", where="--epochs", fix=f"give a number above 0, and at most {MOST_EPOCHS:,}")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise InputError(f"a learning rate of {self.learning_rate:g}", where="--learning-rate", fix="give a number above 0")

    def kept(self) -> dict[str, Any]:
        """The options as a header keeps them."""
        return {KEPT + key: str(Path(value).absolute()) if key in PATHS and value else value for key, value in asdict(self).items()}


def tuning_of(options: Mapping[str, Any]) -> tuple[Tuning, dict[str, Any]]:
    """The options of fine-tuning among those of the command, and the others, which every run has; paths become texts."""
    own = {spec.name for spec in fields(Tuning)}
    texts = {name: str(options[name] or "") for name in PATHS}
    tuning = Tuning(**{name: value for name, value in (dict(options) | texts).items() if name in own})
    return tuning, {name: value for name, value in options.items() if name not in own}


def with_kept(tuning: Tuning, wishes: Wishes) -> Tuning:
    """The options of a command that continues a run: options that are not given are as at the run's start."""
    if not wishes.resume:
        return tuning
    arguments = read_header(wishes.runs / wishes.name).arguments
    kept = {key.removeprefix(KEPT): value for key, value in arguments.items() if key.startswith(KEPT)}
    if not kept:
        where = str(wishes.runs / wishes.name)
        raise InputError("this run was not made by meshwright tune", where=where, fix="continue it with meshwright train --resume")
    known = {spec.name for spec in fields(Tuning)} - wishes.given
    missing: dict[str, Any] = {key: value for key, value in kept.items() if key in known}
    return replace(tuning, **missing)


def adapters_of(tuning: Tuning, model: Model) -> Adapters | None:
    """The adapters that are asked for; None where all weights are trained."""
    from meshwright.train.tuning.targets import matrix_named

    if tuning.full:
        return None
    values, targets = _items(tuning.lora or USUAL_LORA)
    matrices = {part for name in targets or ["all-linear"] for part in matrix_named(name, model)}
    rank = _number(values, "r", 16)
    if not rank.is_integer():
        raise InputError(f"a rank of {values['r']}", where="--lora", fix="write a whole number: r=16")
    rank = int(rank)
    if not 1 <= rank <= min(model.hidden, model.ffn_hidden):
        raise InputError(f"a rank of {rank}", where="--lora", fix=f"choose r from 1 to the model's width, {model.hidden}")
    stabilised = values.get("rslora", "no")
    if stabilised not in YES:
        raise InputError(f"rslora is {stabilised!r}", where="--lora", fix="write rslora=yes or rslora=no")
    return Adapters(
        rank=rank,
        targets=tuple(part for part in adaptable(model) if part in matrices),
        alpha=_number(values, "alpha", 2.0 * rank),
        dropout=_number(values, "dropout", 0.0),
        rank_stabilised=YES[stabilised],
        base=tuning.base,
    )


def _items(text: str) -> tuple[dict[str, str], list[str]]:
    """The keys with one value, and the targets: `targets=q_proj,v_proj` goes on until the next key."""
    values: dict[str, str] = {}
    targets: list[str] = []
    is_target = False
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals and is_target:
            targets.append(item)
            continue
        if key not in KEYS or not value:
            fix = f"write --lora {USUAL_LORA}; {nearest(key, KEYS)}"
            raise InputError(
                f"no choice of adapters is named {key!r}" if key not in KEYS else f"{key} has no value", where="--lora", fix=fix
            )
        if key in values or (key == "targets" and targets):
            raise InputError(f"{key} is given twice", where="--lora", fix="give it once; several targets are targets=q_proj,v_proj")
        is_target = key == "targets"
        if is_target:
            targets += [name for name in value.split("+") if name]
        else:
            values[key] = value
    return values, targets


def _number(values: Mapping[str, str], key: str, usual: float) -> float:
    try:
        return float(values.get(key, usual))
    except ValueError:
        raise InputError(f"{key} is {values[key]!r}, not a number", where="--lora", fix=f"write --lora {USUAL_LORA}") from None
