"""The matrices that adapters may be beside, by the names that people give them."""

from __future__ import annotations

from meshwright.describe.model import Model
from meshwright.describe.workload import ADAPTED
from meshwright.errors import InputError, nearest

ALL_LINEAR = "all-linear"
# Our names of matrices by Hugging Face's.
MODULES = {f"{name}_proj": name for names in ADAPTED.values() for name in names}


def matrix_named(name: str, model: Model) -> tuple[str, ...]:
    """The matrices that a target on the command line or in a configuration means: `q_proj`, `q`, `qkv`, `all-linear`."""
    if model.experts is not None or model.latent is not None:
        what = f"{model.name} has experts or latent attention, which have no adapters here"
        raise InputError(what, where="targets", fix="tune all weights: --full")
    every = [part for parts in ADAPTED.values() for part in parts if part != "gate" or model.gated]
    if name == ALL_LINEAR:
        return tuple(every)
    last = name.rpartition(".")[2]
    found = ADAPTED.get(last) or ((MODULES[last],) if last in MODULES else (last,) if last in every else ())
    kept = tuple(part for part in found if part in every)
    if not kept:
        known = (ALL_LINEAR, *(theirs for theirs, part in MODULES.items() if part in every), *ADAPTED)
        raise InputError(f"no linear layer of {model.name} is named {name!r}", where="targets", fix=nearest(name, known))
    return kept
